//! `tracium bench relay`: a backlog through one relay.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use rdkafka::consumer::{BaseConsumer, Consumer};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tracium_kafka::KafkaOptions;

use super::{Bench, PARTITIONS, Report, failed, floor, load, measure};
use crate::stage::Process;
use crate::{connect, failure::Outcome, out};

/// How long the broker may take over a partition's end.
const DEADLINE: Duration = Duration::from_secs(10);
/// How long the relay may take to end.
const STOP_DEADLINE: Duration = Duration::from_secs(15);

pub(super) async fn run(bench: &mut Bench, with_floor: bool) -> Outcome<Report> {
    let broker = bench.make_topic().await?;
    let (kafka, mock) = (broker.options.clone(), broker.is_mock());
    let pool = PgPoolOptions::new().max_connections(20).connect_lazy_with(connect::options(&bench.database.url)?);
    sqlx::query("SELECT tracium.set_route($1, $2)")
        .bind(load::AGGREGATE_TYPE)
        .bind(&bench.topic)
        .execute(&pool)
        .await
        .map_err(|e| failed(anyhow!(e)))?;
    out::note(format!("appending {} events to the outbox", bench.events));
    load::fill_outbox(&pool, bench.events, 0).await.map_err(failed)?;

    let mut args = vec!["relay", "run", "--until-stdin-closes"];
    if mock {
        // It answers no question about a topic's limits; do not wait for it.
        args.extend(["--set", "relay.kafka.request_timeout=1s"]);
    }
    out::note("relaying them");
    let mut relay = Process::spawn(bench.child("relay", &args, &kafka))?;
    let ends = Arc::new(Ends::new(&kafka, &bench.topic).map_err(failed)?);
    let events = bench.events;
    let figures = measure::time(&mut relay, events, || relayed(Arc::clone(&ends), pool.clone(), events)).await.map_err(failed)?;
    relay.stop(STOP_DEADLINE).await.map_err(|trouble| failed(anyhow!(trouble)))?;
    let mut report = bench.report("relay", &figures);
    if with_floor {
        let floor = floor::run(&pool, bench.events, bench.batch_size).await.map_err(failed)?;
        report.of_floor = Some((report.events_per_s / floor.sql_eps * 1000.0).round() / 1000.0);
        report.floor = Some(floor);
    }
    pool.close().await;
    Ok(report)
}

/// Events in the topic; all of them only when the outbox has no unmarked row either.
async fn relayed(ends: Arc<Ends>, pool: PgPool, events: u64) -> anyhow::Result<u64> {
    let sent = tokio::task::spawn_blocking(move || ends.sum()).await.context("the look at the topic")??;
    if sent < events {
        return Ok(sent);
    }
    let waits: bool = sqlx::query_scalar("SELECT EXISTS (SELECT FROM tracium.outbox WHERE published_at IS NULL)")
        .fetch_one(&pool)
        .await
        .context("the look at the outbox")?;
    Ok(if waits { events - 1 } else { events })
}

/// The topic's ends: a count that costs the database nothing.
struct Ends {
    client: BaseConsumer,
    topic: String,
}

impl Ends {
    fn new(kafka: &KafkaOptions, topic: &str) -> anyhow::Result<Self> {
        let client = kafka.client_config().create().context("the bench's Kafka client")?;
        Ok(Self { client, topic: topic.to_owned() })
    }

    fn sum(&self) -> anyhow::Result<u64> {
        let mut sum = 0;
        for partition in 0..PARTITIONS {
            let (_, high) = self.client.fetch_watermarks(&self.topic, partition, DEADLINE).context("the topic's end")?;
            sum += u64::try_from(high).unwrap_or(0);
        }
        Ok(sum)
    }
}
