//! `KafkaPublisher`: an idempotent producer, discarded and rebuilt when it can no longer be trusted.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use rdkafka::admin::{AdminClient, AdminOptions, ResourceSpecifier};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::message::{DeliveryResult, Header, OwnedHeaders};
use rdkafka::producer::{BaseRecord, NoCustomPartitioner, Producer, ProducerContext, PurgeConfig, ThreadedProducer};
use rdkafka::{ClientConfig, ClientContext};
use tokio::sync::Notify;
use tokio::time::Instant;
use tracium_core::wire::Envelope;
use tracium_kafka::{KafkaOptions, Reasons};

use super::{FailureScope, PublishFailure, Publisher, PublisherError, TopicInfo};
use crate::Metrics;

/// How long what is known of a topic is trusted.
const TOPIC_INFO_AGE: Duration = Duration::from_secs(60);
/// How many answers the check at the start may wait for: a first connection has TLS and a login before its question.
const CHECK_QUESTIONS: u32 = 4;
/// Room that a message's key, headers and framing may need in a record batch beside its payload.
const RECORD_OVERHEAD: usize = 128;

/// Publishes to Kafka with `acks=all` and idempotence.
///
/// One producer serves all shards, each of which enqueues from one task, so a (topic, key) is enqueued in order. When a
/// batch passes its deadline, or librdkafka reports a fatal error, the producer is purged and discarded: what it would
/// still send late must not come after what its successor sends. librdkafka's own message timeout is off, since a message
/// that times out alone leaves a gap in its partition.
pub struct KafkaPublisher {
    config: ClientConfig,
    options: KafkaOptions,
    reasons: Reasons,
    current: Mutex<Option<Arc<Generation>>>,
    topics: Mutex<HashMap<String, (Instant, TopicInfo)>>,
    admin: OnceLock<Option<AdminClient<DefaultClientContext>>>,
    metrics: OnceLock<Arc<Metrics>>,
}

type Generation = ThreadedProducer<Deliveries>;

/// The outcome of one batch, filled in by the producer's thread.
struct Tracker {
    outcomes: Mutex<Vec<Option<Result<(), KafkaError>>>>,
    remaining: AtomicUsize,
    done: Notify,
}

struct Slot {
    tracker: Arc<Tracker>,
    index: usize,
}

impl Tracker {
    fn set(&self, index: usize, outcome: Result<(), KafkaError>) {
        if let Some(slot) = lock(&self.outcomes).get_mut(index) {
            *slot = Some(outcome);
        }
        if self.remaining.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.done.notify_one();
        }
    }

    /// Waits until every enqueued message has its outcome; false if the deadline came first.
    async fn wait(&self, deadline: Instant) -> bool {
        while self.remaining.load(Ordering::Acquire) > 0 {
            if tokio::time::timeout_at(deadline, self.done.notified()).await.is_err() {
                return self.remaining.load(Ordering::Acquire) == 0;
            }
        }
        true
    }
}

/// The context of every producer.
#[derive(Clone)]
struct Deliveries {
    reasons: Reasons,
}

impl ClientContext for Deliveries {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        self.reasons.log(level, facility, message);
    }

    fn error(&self, error: KafkaError, reason: &str) {
        // Brokers come and go; a batch that misses its deadline tells the last of these.
        tracing::debug!(%error, reason, "kafka client");
        self.reasons.keep(reason);
    }
}

impl ProducerContext for Deliveries {
    type DeliveryOpaque = Box<Slot>;

    fn delivery(&self, result: &DeliveryResult<'_>, slot: Self::DeliveryOpaque) {
        slot.tracker.set(slot.index, result.as_ref().map(|_| ()).map_err(|(error, _)| error.clone()));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl KafkaPublisher {
    /// Makes a publisher. It connects in the background; [`Publisher::check`] tells whether a broker answers.
    ///
    /// # Errors
    /// [`PublisherError`] naming the property that librdkafka refuses.
    pub fn new(options: &KafkaOptions) -> Result<Self, PublisherError> {
        let mut config = ClientConfig::new();
        config
            .set("client.id", "tracium-relay")
            .set("linger.ms", "2")
            .set("reconnect.backoff.ms", "50")
            .set("reconnect.backoff.max.ms", "1000")
            .set("topic.metadata.propagation.max.ms", "2000")
            // Bounds memory: what does not fit waits in the outbox.
            .set("queue.buffering.max.kbytes", "65536")
            .set_log_level(RDKafkaLogLevel::Info);
        options.apply(&mut config);
        // Last, so that nothing above can change them.
        config
            .set("acks", "all")
            .set("enable.idempotence", "true")
            .set("message.timeout.ms", "0")
            // Kafka's own Java client's partition for a key.
            .set("partitioner", "murmur2_random");
        let publisher = Self {
            config,
            options: options.clone(),
            reasons: Reasons::default(),
            current: Mutex::new(None),
            topics: Mutex::new(HashMap::new()),
            admin: OnceLock::new(),
            metrics: OnceLock::new(),
        };
        publisher.producer().map_err(|error| Reasons::default().explain(options, &error))?;
        Ok(publisher)
    }

    fn producer(&self) -> Result<Arc<Generation>, KafkaError> {
        let mut current = lock(&self.current);
        if let Some(producer) = &*current {
            return Ok(Arc::clone(producer));
        }
        let producer: Generation = self
            .config
            .create_with_context::<_, ThreadedProducer<_, NoCustomPartitioner>>(Deliveries { reasons: self.reasons.clone() })?;
        let producer = Arc::new(producer);
        *current = Some(Arc::clone(&producer));
        Ok(producer)
    }

    /// Takes the producer out of use. Its messages are purged; what was in flight may or may not be in the topic.
    fn discard(&self, producer: &Arc<Generation>) {
        let mut current = lock(&self.current);
        if current.as_ref().is_some_and(|c| Arc::ptr_eq(c, producer)) {
            *current = None;
            if let Some(metrics) = self.metrics.get() {
                Metrics::add(&metrics.producer_rebuilds, 1);
            }
            tracing::warn!("the Kafka producer is discarded; unmarked rows are sent again by a new one");
        }
        drop(current);
        producer.purge(PurgeConfig::default().queue().inflight());
    }

    /// Enqueues in order; returns the outcomes known at once. A full queue is backpressure: wait and try the same again.
    async fn enqueue(&self, producer: &Arc<Generation>, batch: &[Envelope], tracker: &Arc<Tracker>, deadline: Instant) {
        let mut failed: HashSet<(&str, &[u8])> = HashSet::new();
        for (index, envelope) in batch.iter().enumerate() {
            if failed.contains(&(envelope.topic.as_str(), envelope.key.as_slice())) {
                tracker.set(index, Err(KafkaError::Canceled));
                continue;
            }
            let mut headers = OwnedHeaders::new_with_capacity(envelope.headers.len());
            for (key, value) in &envelope.headers {
                headers = headers.insert(Header { key, value: value.as_deref() });
            }
            let mut record = BaseRecord::<[u8], [u8], _>::with_opaque_to(
                &envelope.topic,
                Box::new(Slot { tracker: Arc::clone(tracker), index }),
            )
            .key(&envelope.key)
            .timestamp(envelope.timestamp_ms)
            .headers(headers);
            if let Some(payload) = &envelope.payload {
                record = record.payload(payload);
            }
            let mut next = Some(record);
            while let Some(record) = next.take() {
                match producer.send(record) {
                    Ok(()) => {}
                    Err((KafkaError::MessageProduction(RDKafkaErrorCode::QueueFull), record)) if Instant::now() < deadline => {
                        next = Some(record);
                        tokio::time::sleep(Duration::from_millis(2)).await;
                    }
                    Err((error, record)) => {
                        drop(record);
                        failed.insert((&envelope.topic, &envelope.key));
                        tracker.set(index, Err(error));
                    }
                }
            }
        }
    }

    async fn fetch_topic(&self, topic: &str) -> Result<TopicInfo, PublishFailure> {
        let producer = self.producer().map_err(|e| PublishFailure::new(FailureScope::Broker, e.to_string()))?;
        let (name, timeout) = (topic.to_owned(), self.options.request_timeout);
        let metadata = tokio::task::spawn_blocking(move || {
            let metadata = producer.client().fetch_metadata(Some(&name), timeout)?;
            Ok::<_, KafkaError>(
                metadata.topics().iter().find(|t| t.name() == name).and_then(|t| t.error()).map(RDKafkaErrorCode::from),
            )
        })
        .await
        .map_err(|e| PublishFailure::new(FailureScope::Broker, e.to_string()))?;
        match metadata {
            Ok(None) => Ok(TopicInfo { max_message_bytes: self.max_message_bytes(topic).await }),
            Ok(Some(code)) => Err(failure_of_code(code, topic, &code.to_string())),
            Err(error) => Err(self.broker_failure(format!("no answer about topic {topic}: {error}"))),
        }
    }

    /// A failure of the broker, with what librdkafka said last.
    fn broker_failure(&self, what: String) -> PublishFailure {
        let cause = match self.reasons.last() {
            Some(reason) => format!("{what}; the Kafka client says: {reason}"),
            None => what,
        };
        PublishFailure::new(FailureScope::Broker, cause)
    }

    /// The topic's limit, if the broker tells it; without the right to ask, or on a broker that cannot answer, sending shows.
    async fn max_message_bytes(&self, topic: &str) -> Option<usize> {
        // An admin client is a producer to librdkafka, so it takes the same properties.
        let admin = self.admin.get_or_init(|| self.config.create().ok());
        let options = AdminOptions::new().request_timeout(Some(self.options.request_timeout));
        let described = admin.as_ref()?.describe_configs([&ResourceSpecifier::Topic(topic)], &options).await.ok()?;
        let resource = described.into_iter().next()?.ok()?;
        resource.get("max.message.bytes")?.value.as_ref()?.parse().ok()
    }

    fn failure_of(&self, error: &KafkaError, envelope: &Envelope) -> PublishFailure {
        match error {
            KafkaError::Canceled => PublishFailure::new(FailureScope::Skipped, "an earlier message of the key failed"),
            KafkaError::MessageProduction(code) => {
                let failure = failure_of_code(*code, &envelope.topic, &error.to_string());
                if failure.scope == FailureScope::Topic {
                    lock(&self.topics).remove(&envelope.topic);
                }
                failure
            }
            other => PublishFailure::new(FailureScope::Key, other.to_string()),
        }
    }
}

/// What a code of librdkafka or the broker is about.
fn failure_of_code(code: RDKafkaErrorCode, topic: &str, text: &str) -> PublishFailure {
    use RDKafkaErrorCode as E;
    match code {
        E::UnknownTopic | E::UnknownTopicOrPartition | E::UnknownPartition => {
            PublishFailure::new(FailureScope::Topic, format!("unknown topic {topic}: create it on the broker"))
        }
        E::TopicAuthorizationFailed => PublishFailure::new(
            FailureScope::Topic,
            format!("not allowed to write topic {topic}: grant the relay's user WRITE and DESCRIBE on it"),
        ),
        E::InvalidTopic => PublishFailure::new(FailureScope::Topic, format!("the broker refuses the name of topic {topic}")),
        E::MessageSizeTooLarge
        | E::InvalidMessageSize
        | E::InvalidMessage
        | E::InvalidRecord
        | E::InvalidTimestamp
        | E::PolicyViolation => PublishFailure::new(FailureScope::Key, text),
        _ => PublishFailure::new(FailureScope::Broker, text),
    }
}

#[async_trait::async_trait]
impl Publisher for KafkaPublisher {
    async fn check(&self) -> Result<(), PublisherError> {
        let options = self.options.clone();
        let answer =
            tokio::task::spawn_blocking(move || tracium_kafka::check(&options, options.request_timeout * CHECK_QUESTIONS)).await;
        Ok(answer.unwrap_or_else(|_| Err(self.reasons.explain(&self.options, &KafkaError::Canceled)))?)
    }

    async fn topic(&self, topic: &str) -> Result<TopicInfo, PublishFailure> {
        if let Some((at, info)) = lock(&self.topics).get(topic)
            && at.elapsed() < TOPIC_INFO_AGE
        {
            return Ok(*info);
        }
        let info = self.fetch_topic(topic).await?;
        lock(&self.topics).insert(topic.to_owned(), (Instant::now(), info));
        Ok(info)
    }

    async fn publish(&self, batch: &[Envelope], deadline: Instant) -> Vec<Result<(), PublishFailure>> {
        let producer = match self.producer() {
            Ok(producer) => producer,
            Err(error) => {
                let failure = PublishFailure::new(FailureScope::Broker, format!("no producer: {error}"));
                return batch.iter().map(|_| Err(failure.clone())).collect();
            }
        };
        let tracker = Arc::new(Tracker {
            outcomes: Mutex::new(vec![None; batch.len()]),
            remaining: AtomicUsize::new(batch.len()),
            done: Notify::new(),
        });
        self.enqueue(&producer, batch, &tracker, deadline).await;
        let answered = tracker.wait(deadline).await;
        if !answered {
            self.discard(&producer);
            // The purge reports every message; a second is plenty, and an outcome that never comes is "unknown" below.
            tracker.wait(Instant::now() + Duration::from_secs(1)).await;
        } else if producer.client().fatal_error().is_some() {
            self.discard(&producer);
        }
        // The last one out closes it; that takes up to a second, which is not for this thread.
        tokio::task::spawn_blocking(move || drop(producer));
        let outcomes = std::mem::take(&mut *lock(&tracker.outcomes));
        if answered {
            self.reasons.forget();
        }
        let unanswered = self.broker_failure("the broker did not acknowledge in time".to_owned());
        outcomes
            .into_iter()
            .zip(batch)
            .map(|(outcome, envelope)| match outcome {
                Some(Ok(())) => Ok(()),
                Some(Err(KafkaError::MessageProduction(RDKafkaErrorCode::PurgeQueue | RDKafkaErrorCode::PurgeInflight)))
                | None => Err(unanswered.clone()),
                Some(Err(error)) => Err(self.failure_of(&error, envelope)),
            })
            .collect()
    }

    fn set_metrics(&self, metrics: Arc<Metrics>) {
        // A publisher counts for the first relay it is given to.
        let _ = self.metrics.set(metrics);
    }
}

/// Bytes the message takes on the wire, near enough to compare with a topic's limit.
pub(crate) fn wire_size(envelope: &Envelope) -> usize {
    let headers: usize = envelope.headers.iter().map(|(k, v)| k.len() + v.as_ref().map_or(0, Vec::len) + 8).sum();
    envelope.key.len() + envelope.payload.as_ref().map_or(0, Vec::len) + headers + RECORD_OVERHEAD
}
