//! The seam to the broker.

mod fake;
mod kafka;

use std::sync::Arc;

use tokio::time::Instant;
use tracium_core::wire::Envelope;
use tracium_core::{Class, Classify};
use tracium_kafka::ConnectError;

pub use fake::FakePublisher;
pub use kafka::KafkaPublisher;
pub(crate) use kafka::wire_size;

use crate::Metrics;

/// What a failure is about, and so what waits because of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureScope {
    /// This message: its (topic, key) waits.
    Key,
    /// Its topic: all of the topic waits.
    Topic,
    /// The broker, or an outcome nobody knows: the shard waits, nothing is held.
    Broker,
    /// Nothing: it was not sent because an earlier message of its (topic, key) failed.
    Skipped,
}

/// A message that was not acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{cause}")]
pub struct PublishFailure {
    /// What waits.
    pub scope: FailureScope,
    /// The reason in words, as kept in `last_error`.
    pub cause: String,
}

impl PublishFailure {
    /// A failure.
    pub fn new(scope: FailureScope, cause: impl Into<String>) -> Self {
        Self { scope, cause: cause.into() }
    }
}

/// What is known of a topic before anything is sent to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TopicInfo {
    /// The largest message it takes, in bytes, if the broker said so.
    pub max_message_bytes: Option<usize>,
}

/// A publisher that cannot be made, or that its broker does not let in.
#[derive(Debug, thiserror::Error)]
#[error("{error}; {}", .error.problem.way_out(|option| format!("relay.kafka.{option}")))]
pub struct PublisherError {
    /// What is wrong, and which settings to look at.
    pub error: ConnectError,
}

impl From<ConnectError> for PublisherError {
    fn from(error: ConnectError) -> Self {
        Self { error }
    }
}

impl Classify for PublisherError {
    fn class(&self) -> Class {
        self.error.class()
    }
}

/// Sends envelopes to a broker.
#[async_trait::async_trait]
pub trait Publisher: Send + Sync + 'static {
    /// Whether the broker answers.
    async fn check(&self) -> Result<(), PublisherError>;

    /// What is known of the topic; a [`FailureScope::Topic`] failure if it does not exist or may not be written.
    async fn topic(&self, topic: &str) -> Result<TopicInfo, PublishFailure>;

    /// Sends the envelopes, in order for each (topic, key), and waits for the acknowledgements until the deadline.
    /// One outcome an envelope, in their order. After a failed message no later one of its (topic, key) is enqueued.
    ///
    /// When the future resolves nothing of the batch is in flight any more: what was not acknowledged in time was purged.
    ///
    /// Cancel safety: none. A dropped future leaves messages in flight.
    async fn publish(&self, batch: &[Envelope], deadline: Instant) -> Vec<Result<(), PublishFailure>>;

    /// Where to count.
    fn set_metrics(&self, _metrics: Arc<Metrics>) {}
}
