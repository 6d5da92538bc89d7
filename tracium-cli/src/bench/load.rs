//! What the benches send: events of about 290 bytes as outbox rows, ten of each aggregate.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use anyhow::{Context, bail};
use chrono::Utc;
use rdkafka::error::KafkaError;
use rdkafka::message::{DeliveryResult, Header, OwnedHeaders};
use rdkafka::producer::{BaseProducer, BaseRecord, Producer, ProducerContext};
use rdkafka::types::RDKafkaErrorCode;
use rdkafka::util::Timeout;
use sqlx::PgPool;
use tracium_core::wire::Envelope;
use tracium_core::{Aggregate, Event, EventType, Headers, Payload, Version};
use tracium_kafka::KafkaOptions;
use uuid::Uuid;

pub(super) const AGGREGATE_TYPE: &str = "order";
pub(super) const EVENT_TYPE: &str = "order.item_added";
/// Events of an aggregate.
const VERSIONS: u64 = 10;
/// Bytes an event takes in a broker, with headers and framing, and room for uneven partitions.
pub(super) const EVENT_BYTES: u64 = 700;
/// Connections that load the outbox.
const LOADERS: u64 = 4;
/// Aggregates in a loading transaction.
const CHUNK: u64 = 50;

/// How many aggregates share that many events.
pub(super) fn aggregates(events: u64) -> u64 {
    events.div_ceil(VERSIONS)
}

/// The aggregate that comes after that many events of a writer.
pub(super) fn aggregate_of(events: u64) -> u64 {
    events / VERSIONS
}

/// Events of the n-th aggregate, from 0.
fn versions_of(n: u64, events: u64) -> u64 {
    VERSIONS.min(events.saturating_sub(n * VERSIONS))
}

/// The n-th event's payload.
pub(super) fn payload(n: u64) -> String {
    let (sku, quantity, cents) = (n % 2000, 1 + n % 3, 10_000 + n % 20_000);
    format!(
        r#"{{"sku":"sku-{sku:04}","quantity":{quantity},"cents":{cents},"note":"leave it with the neighbour on the second floor, please, the bell is broken"}}"#
    )
}

const LOAD: &str = "
    SELECT count(*)
    FROM generate_series($1::bigint, $2::bigint - 1) a
    CROSS JOIN LATERAL tracium.append($3, $8 || a, 0, (
        SELECT jsonb_agg(jsonb_build_object('event_id', gen_random_uuid(), 'event_type', $4::text, 'payload', p.payload::jsonb))
        FROM (SELECT $5::text AS payload FROM generate_series(1, least($7::bigint, $6::bigint - a * $7::bigint))) p
    )) appended";

/// Appends the events through `tracium.append`; what is to be relayed afterwards. The `round` gives them aggregates of
/// their own.
pub(super) async fn fill_outbox(pool: &PgPool, events: u64, round: u64) -> anyhow::Result<()> {
    let next = Arc::new(AtomicU64::new(0));
    let all = aggregates(events);
    let mut loaders = tokio::task::JoinSet::new();
    for _ in 0..LOADERS {
        let (pool, next) = (pool.clone(), Arc::clone(&next));
        loaders.spawn(async move {
            loop {
                let from = next.fetch_add(CHUNK, Relaxed);
                if from >= all {
                    return Ok::<_, anyhow::Error>(());
                }
                sqlx::query(LOAD)
                    .bind(i64::try_from(from)?)
                    .bind(i64::try_from((from + CHUNK).min(all))?)
                    .bind(AGGREGATE_TYPE)
                    .bind(EVENT_TYPE)
                    .bind(payload(from))
                    .bind(i64::try_from(events)?)
                    .bind(i64::try_from(VERSIONS)?)
                    .bind(format!("order-{round}-"))
                    .execute(&pool)
                    .await
                    .context("the outbox could not be filled")?;
            }
        });
    }
    while let Some(ended) = loaders.join_next().await {
        ended.context("a loader panicked")??;
    }
    // As on a server that has had a minute for it: statistics, and no checkpoint of the load during the measurement.
    sqlx::query("VACUUM (ANALYZE) tracium.outbox").execute(pool).await.context("VACUUM of the outbox")?;
    if let Err(error) = sqlx::query("CHECKPOINT").execute(pool).await {
        tracing::info!(%error, "no checkpoint before the measurement: it wants pg_checkpoint");
    }
    Ok(())
}

/// Counts what the broker did not take.
struct Refusals(Arc<AtomicU64>);

impl rdkafka::ClientContext for Refusals {}

impl ProducerContext for Refusals {
    type DeliveryOpaque = ();

    fn delivery(&self, result: &DeliveryResult<'_>, (): ()) {
        if result.is_err() {
            self.0.fetch_add(1, Relaxed);
        }
    }
}

/// Produces the events as a relay would: every aggregate's in version order, the aggregates mixed. Blocks.
pub(super) fn fill_topic(kafka: &KafkaOptions, topic: &str, events: u64) -> anyhow::Result<()> {
    let refused = Arc::new(AtomicU64::new(0));
    let producer: BaseProducer<Refusals> = kafka
        .client_config()
        .set("acks", "all")
        .set("enable.idempotence", "true")
        .set("partitioner", "murmur2_random")
        .set("linger.ms", "20")
        .create_with_context(Refusals(Arc::clone(&refused)))
        .context("the bench's Kafka client")?;
    for version in 1..=VERSIONS {
        for n in (0..aggregates(events)).filter(|n| version <= versions_of(*n, events)) {
            let envelope = envelope(topic, n, version)?;
            let mut headers = OwnedHeaders::new_with_capacity(envelope.headers.len());
            for (key, value) in &envelope.headers {
                headers = headers.insert(Header { key, value: value.as_deref() });
            }
            let mut record = BaseRecord::to(topic).key(&envelope.key).timestamp(envelope.timestamp_ms).headers(headers);
            record.payload = envelope.payload.as_ref();
            let mut next = Some(record);
            while let Some(record) = next.take() {
                match producer.send(record) {
                    Ok(()) => {}
                    Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), record)) => {
                        producer.poll(Timeout::After(Duration::from_millis(10)));
                        next = Some(record);
                    }
                    Err((error, _)) => return Err(error).context("the topic could not be filled"),
                }
            }
            producer.poll(Timeout::After(Duration::ZERO));
        }
    }
    producer.flush(Duration::from_secs(60)).context("the topic could not be filled")?;
    match refused.load(Relaxed) {
        0 => Ok(()),
        refused => bail!("the broker refused {refused} of {events} events"),
    }
}

fn envelope(topic: &str, aggregate: u64, version: u64) -> anyhow::Result<Envelope> {
    let id = format!("order-{aggregate}");
    let version = i64::try_from(version)?;
    let event = Event {
        event_id: Uuid::new_v4(),
        event_type: EventType::new(EVENT_TYPE)?,
        aggregate: Some(Aggregate::new(AGGREGATE_TYPE, id.as_str())?),
        version: Version::new(version),
        previous_version: Version::new(version - 1),
        schema_version: 1,
        created_at: Utc::now(),
        payload: Payload::Json(payload(aggregate).into_bytes()),
        headers: Headers::new(),
    };
    Ok(Envelope::of(&event, topic, &id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_payload_is_json_of_one_size() {
        for n in [0, 1, 7, 2000, 19_999, 20_000, u64::MAX / 2] {
            serde_json::from_str::<serde_json::Value>(&payload(n)).expect("JSON");
            assert_eq!(payload(n).len(), payload(0).len());
        }
    }

    #[test]
    fn the_events_are_dealt_out_to_the_last_one() {
        for events in [1, 9, 10, 11, 12_345] {
            let dealt: u64 = (0..aggregates(events)).map(|n| versions_of(n, events)).sum();
            assert_eq!(dealt, events);
        }
    }
}
