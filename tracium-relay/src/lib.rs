//! The relay: carries the outbox to Kafka, at least once and in order per aggregate.
//!
//! Each shard of the outbox is served by one relay at a time, the holder of its lease. The holder claims the oldest
//! unmarked rows, publishes them in id order with an idempotent producer and marks what the broker acknowledged, all
//! under a lock on the lease row that a successor has to wait for. Several relays share the shards; a dead one's are
//! taken over when its lease has expired.
//!
//! A failure holds back one (topic, key) and nothing else. Nothing is ever dropped.
//!
//! ```no_run
//! use std::sync::Arc;
//! use tokio_util::sync::CancellationToken;
//! use tracium_relay::{KafkaPublisher, Relay, RelayOptions};
//!
//! # async fn doc() -> Result<(), Box<dyn std::error::Error>> {
//! let mut options = RelayOptions::default();
//! options.kafka.bootstrap_servers = "localhost:9092".to_owned();
//! let publisher = Arc::new(KafkaPublisher::new(&options.kafka)?);
//! let relay = Relay::new(options, "postgres://localhost/shop".parse()?, publisher)?;
//! relay.run(CancellationToken::new()).await?;
//! # Ok(()) }
//! ```

mod config;
mod decision;
mod error;
mod lease;
mod metrics;
mod publisher;
mod relay;
mod source;
mod sql;
mod stats;

pub use config::RelayOptions;
pub use error::{OptionsError, RelayError, SourceError};
pub use metrics::Metrics;
pub use publisher::{FailureScope, FakePublisher, KafkaPublisher, PublishFailure, Publisher, PublisherError, TopicInfo};
pub use relay::Relay;
pub use stats::{OutboxStats, ShardStats, stats};
pub use tracium_kafka::KafkaOptions;
