//! The polling thread: Kafka → [`Intake`], and confirmed offsets → Kafka.
//!
//! It never waits for a sink: a full buffer pauses the partitions and polling goes on, so the group keeps its members
//! and their partitions however long a sink hangs. Only a revoke waits, up to the drain deadline.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _, ConsumerContext, Rebalance};
use rdkafka::error::{KafkaError, KafkaResult, RDKafkaErrorCode};
use rdkafka::message::Message;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use serde::Deserialize;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracium_core::Topic;

use super::intake::Intake;
use super::record::Record;
use crate::error::is_fatal;
use crate::{ConsumerError, ConsumerOptions};

/// How long a poll waits for a message; also how late a stop is noticed.
const POLL: Duration = Duration::from_millis(50);
/// Messages taken from librdkafka before they are handed over.
const CHUNK: usize = 256;

/// A projection's place in Kafka.
pub(crate) struct Source {
    pub(crate) projection: String,
    pub(crate) group: String,
    pub(crate) topics: Vec<Topic>,
    pub(crate) intake: Arc<Intake>,
    pub(crate) stop: CancellationToken,
}

impl Source {
    /// Joins the group and polls on a thread of its own. The receiver gets word when the thread has committed what is
    /// confirmed and left the group.
    pub(crate) fn spawn(self, options: &ConsumerOptions) -> Result<oneshot::Receiver<()>, ConsumerError> {
        let context = Context { intake: self.intake.clone(), drain: options.drain_deadline, group: self.group.clone() };
        let consumer: BaseConsumer<Context> = client_config(options)
            .set("group.id", &self.group)
            .create_with_context(context)
            .map_err(|error| self.refused(error))?;
        let topics: Vec<&str> = self.topics.iter().map(Topic::as_str).collect();
        consumer.subscribe(&topics).map_err(|error| self.refused(error))?;
        let (done, receiver) = oneshot::channel();
        let commit_interval = options.commit_interval;
        let name = format!("kafka {}", self.projection);
        std::thread::Builder::new()
            .name(name)
            .spawn(move || {
                self.poll(&consumer, commit_interval);
                // Closing revokes every partition through Context::pre_rebalance, and leaves the group.
                drop(consumer);
                // nobody waits any more: fine
                let _ = done.send(());
            })
            .map_err(ConsumerError::Thread)?;
        Ok(receiver)
    }

    fn poll(&self, consumer: &BaseConsumer<Context>, commit_interval: Duration) {
        let mut last_commit = Instant::now();
        while !self.stop.is_cancelled() && !self.intake.is_closed() {
            self.relieve(consumer);
            let mut chunk = Vec::new();
            let mut wait = POLL;
            while chunk.len() < CHUNK {
                let Some(polled) = consumer.poll(wait) else { break };
                wait = Duration::ZERO;
                match polled {
                    Ok(message) => {
                        // none: it was given back in this very poll, and comes again elsewhere
                        let partition = self.intake.partition(message.topic(), message.partition());
                        chunk.extend(partition.map(|partition| Record::copy(&message, partition)));
                    }
                    Err(error) if is_fatal(&error) => return self.intake.fail(self.refused(error)),
                    Err(error) => {
                        tracing::warn!(projection = self.projection, %error, "Kafka reports an error; polling goes on");
                        break;
                    }
                }
            }
            if !chunk.is_empty() {
                self.intake.push(chunk);
            }
            if last_commit.elapsed() >= commit_interval {
                last_commit = Instant::now();
                commit(consumer, &self.group, &self.intake.to_commit(), CommitMode::Async);
            }
        }
    }

    /// Pauses what a full buffer cannot take and resumes it later.
    fn relieve(&self, consumer: &BaseConsumer<Context>) {
        let pressure = self.intake.pressure();
        let list = |partitions: &[(Arc<str>, i32)]| {
            let mut list = TopicPartitionList::with_capacity(partitions.len());
            for (topic, number) in partitions {
                list.add_partition(topic, *number);
            }
            list
        };
        let mut done = Ok(());
        if !pressure.pause.is_empty() {
            tracing::debug!(projection = self.projection, partitions = pressure.pause.len(), "paused: the buffer is full");
            done = consumer.pause(&list(&pressure.pause));
        }
        if !pressure.resume.is_empty() {
            done = consumer.resume(&list(&pressure.resume));
        }
        if let Err(error) = done {
            tracing::warn!(projection = self.projection, %error, "partitions could not be paused or resumed");
        }
    }

    fn refused(&self, error: KafkaError) -> ConsumerError {
        refused(&self.projection, &self.group, error)
    }
}

/// A refusal of the client library: of a property by name, or of the group.
pub(crate) fn refused(projection: &str, group: &str, error: KafkaError) -> ConsumerError {
    match error {
        KafkaError::ClientConfig(_, reason, property, value) => ConsumerError::Property { property, value, reason },
        source => ConsumerError::Kafka { projection: projection.to_owned(), group: group.to_owned(), source: Box::new(source) },
    }
}

/// librdkafka's properties: the user's over defaults, what the guarantees stand on over the user's.
pub(crate) fn client_config(options: &ConsumerOptions) -> ClientConfig {
    let session = options.session_timeout.as_millis();
    let mut config = ClientConfig::new();
    config
        .set("client.id", "tracium-consumer")
        .set("isolation.level", "read_committed")
        .set("partition.assignment.strategy", "cooperative-sticky")
        .set("heartbeat.interval.ms", (session / 3).clamp(1, 3000).to_string())
        .set("max.poll.interval.ms", session.saturating_mul(2).max(300_000).to_string())
        .set("socket.keepalive.enable", "true")
        .set("socket.timeout.ms", "15000")
        .set("reconnect.backoff.max.ms", "2000")
        .set("topic.metadata.refresh.interval.ms", "60000")
        // librdkafka's own queue comes on top of the buffer, and counts payloads alone: 16 MiB of small events with ten headers
        // were 70 MB of memory, and no faster (docs/performance.md). When it is full, the default pause is a whole second.
        .set("queued.max.messages.kbytes", "4096")
        .set("fetch.queue.backoff.ms", "10");
    options.kafka.apply(&mut config);
    config
        .set("session.timeout.ms", session.to_string())
        .set("enable.auto.commit", "false")
        .set("enable.auto.offset.store", "false")
        .set("auto.offset.reset", "earliest")
        .set("statistics.interval.ms", "1000")
        .set_log_level(RDKafkaLogLevel::Warning);
    config
}

fn commit<C: ConsumerContext>(consumer: &BaseConsumer<C>, group: &str, offsets: &[(Arc<str>, i32, i64)], mode: CommitMode) {
    if offsets.is_empty() {
        return;
    }
    let mut list = TopicPartitionList::with_capacity(offsets.len());
    for (topic, number, offset) in offsets {
        // refuses offsets below zero only, and there are none
        let _ = list.add_partition_offset(topic, *number, Offset::Offset(*offset));
    }
    note(group, consumer.commit(&list, mode));
}

/// A commit that fails costs a delivery without effect. After a rebalance it has to fail.
fn note(group: &str, result: KafkaResult<()>) {
    use RDKafkaErrorCode as Code;
    match result.as_ref().err().map(|e| (e, e.rdkafka_error_code())) {
        None | Some((_, Some(Code::NoOffset))) => {}
        Some((error, Some(Code::IllegalGeneration | Code::RebalanceInProgress | Code::UnknownMemberId))) => {
            tracing::info!(group, %error, "offsets not committed: the group has moved on; events come again, without effect");
        }
        Some((error, _)) => tracing::warn!(group, %error, "offsets not committed; events may come again, without effect"),
    }
}

/// librdkafka's callbacks, all on the polling thread.
struct Context {
    intake: Arc<Intake>,
    drain: Duration,
    group: String,
}

impl ConsumerContext for Context {
    /// Revoke and shutdown share this path: stop intake, drain to a deadline, commit what is done, release.
    fn pre_rebalance(&self, consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Revoke(partitions) = rebalance {
            let partitions = names(partitions);
            tracing::debug!(group = self.group, partitions = partitions.len(), "partitions go");
            let lost = consumer.assignment_lost();
            let drain = if lost { Duration::ZERO } else { self.drain };
            let offsets = self.intake.release(&partitions, drain);
            if !lost {
                commit(consumer, &self.group, &offsets, CommitMode::Sync);
            }
        }
    }

    fn post_rebalance(&self, _consumer: &BaseConsumer<Self>, rebalance: &Rebalance<'_>) {
        if let Rebalance::Assign(partitions) = rebalance {
            let partitions = names(partitions);
            tracing::debug!(group = self.group, partitions = partitions.len(), "partitions come");
            self.intake.assign(partitions);
        }
    }

    fn commit_callback(&self, result: KafkaResult<()>, _offsets: &TopicPartitionList) {
        note(&self.group, result);
    }
}

fn names(partitions: &TopicPartitionList) -> Vec<(String, i32)> {
    partitions.elements().iter().map(|e| (e.topic().to_owned(), e.partition())).collect()
}

impl ClientContext for Context {
    fn log(&self, _level: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(group = self.group, facility, message, "librdkafka");
    }

    fn error(&self, error: KafkaError, reason: &str) {
        tracing::warn!(group = self.group, %error, reason, "librdkafka");
    }

    /// The ends of the partitions, for the lag: librdkafka knows them from its fetches, asking would block.
    fn stats_raw(&self, statistics: &[u8]) {
        #[derive(Deserialize)]
        struct Statistics {
            topics: std::collections::HashMap<String, TopicStatistics>,
        }
        #[derive(Deserialize)]
        struct TopicStatistics {
            partitions: std::collections::HashMap<i32, PartitionStatistics>,
        }
        #[derive(Deserialize)]
        struct PartitionStatistics {
            hi_offset: i64,
            ls_offset: i64,
        }
        match serde_json::from_slice::<Statistics>(statistics) {
            Ok(statistics) => {
                for (topic, partitions) in &statistics.topics {
                    for (number, ends) in &partitions.partitions {
                        let end = if ends.ls_offset >= 0 { ends.ls_offset } else { ends.hi_offset };
                        if end >= 0 {
                            self.intake.set_end_offset(topic, *number, end);
                        }
                    }
                }
            }
            Err(error) => tracing::debug!(group = self.group, %error, "librdkafka's statistics could not be read"),
        }
    }
}
