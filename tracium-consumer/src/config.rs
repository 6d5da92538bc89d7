//! What a consumer can be told.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracium_core::Backoff;
use tracium_kafka::KafkaOptions;

use crate::ConsumerError;

/// Options of a consumer, the `[consumer]` table of `tracium.toml`; they hold for every projection of the binary.
/// Durations are written `"30s"`, `"200ms"`, `"5m"`. Unknown keys are errors.
///
/// ```
/// use tracium_consumer::{ConsumerOptions, KafkaOptions};
///
/// let kafka = KafkaOptions { bootstrap_servers: "kafka-1:9092,kafka-2:9092".to_owned(), ..KafkaOptions::default() };
/// let options = ConsumerOptions { kafka, ..ConsumerOptions::default() };
/// assert!(options.validate().is_ok());
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ConsumerOptions {
    /// Kafka. Of librdkafka's properties, those that belong to an option here, or that the guarantees stand on, cannot be
    /// set; [`ConsumerOptions::validate`] names them.
    pub kafka: KafkaOptions,
    /// Put before every consumer group's name, `<prefix>.<projection>.e<epoch>`: for environments that share a broker.
    /// Default: none, the group is `<projection>.e<epoch>`.
    pub group_prefix: Option<String>,
    /// How long broker and database may take to answer at the start. Default 10 s.
    #[serde(with = "humantime_serde")]
    pub start_deadline: Duration,
    /// How long the broker waits for a silent consumer before its partitions go to another. Brokers accept 6 s to 30 min
    /// unless told otherwise. Default 45 s.
    #[serde(with = "humantime_serde")]
    pub session_timeout: Duration,
    /// Events in a batch, and so in a transaction, at most. Default 500.
    pub batch_size: u32,
    /// Bytes in a batch at most; a single larger message still goes. Default 8 MiB.
    pub batch_bytes: u32,
    /// How long a batch that is not full waits for more. Default 2 ms.
    #[serde(with = "humantime_serde")]
    pub linger: Duration,
    /// Bytes of messages a projection keeps in memory at most, those in flight included; fetching pauses above it and
    /// goes on below half. librdkafka keeps up to 4 MiB of payloads of its own, which with headers and book-keeping is several
    /// times that in memory. Default 16 MiB.
    pub max_buffer_bytes: u32,
    /// The longest that a confirmed effect waits for its offset to be committed. A crash delivers again what was not
    /// committed, without effect. Default 250 ms.
    #[serde(with = "humantime_serde")]
    pub commit_interval: Duration,
    /// How long a revoke or a shutdown waits for the batch in flight. What is not confirmed by then is delivered again.
    /// Default 5 s.
    #[serde(with = "humantime_serde")]
    pub drain_deadline: Duration,
    /// How long a batch's transaction may take before its connection is dropped and the batch tried again. Default 30 s.
    #[serde(with = "humantime_serde")]
    pub batch_deadline: Duration,
    /// How long a statement may wait for a lock before the batch is tried again. Default 5 s.
    #[serde(with = "humantime_serde")]
    pub lock_timeout: Duration,
    /// Pause before a batch is tried again after a transient error, doubling with every failure. Default 100 ms.
    #[serde(with = "humantime_serde")]
    pub backoff_initial: Duration,
    /// The longest such pause. Default 10 s.
    #[serde(with = "humantime_serde")]
    pub backoff_max: Duration,
}

impl Default for ConsumerOptions {
    fn default() -> Self {
        Self {
            kafka: KafkaOptions::default(),
            group_prefix: None,
            start_deadline: Duration::from_secs(10),
            session_timeout: Duration::from_secs(45),
            batch_size: 500,
            batch_bytes: 8 * 1024 * 1024,
            linger: Duration::from_millis(2),
            max_buffer_bytes: 16 * 1024 * 1024,
            commit_interval: Duration::from_millis(250),
            drain_deadline: Duration::from_secs(5),
            batch_deadline: Duration::from_secs(30),
            lock_timeout: Duration::from_secs(5),
            backoff_initial: Duration::from_millis(100),
            backoff_max: Duration::from_secs(10),
        }
    }
}

/// Properties that belong to an option, or that the guarantees stand on.
const FIXED_PROPERTIES: [(&str, &str); 7] = [
    ("group.id", "it is the projection's name and epoch; see the option group_prefix"),
    ("session.timeout.ms", "it is the option session_timeout"),
    ("enable.auto.commit", "offsets are committed only after the effect"),
    ("enable.auto.offset.store", "offsets are committed only after the effect"),
    ("auto.offset.reset", "a new group starts at the earliest event; anything else would skip events silently"),
    ("statistics.interval.ms", "the lag is read from the statistics"),
    ("enable.partition.eof", "the end of a partition is no error here"),
];

impl ConsumerOptions {
    pub(crate) fn backoff(&self) -> Backoff {
        Backoff { initial: self.backoff_initial, max: self.backoff_max }
    }

    /// Checks what the types do not. [`crate::Consumer::run`] does it first of all.
    ///
    /// # Errors
    /// [`ConsumerError::Option`] naming the setting and the values it may have; class fatal.
    pub fn validate(&self) -> Result<(), ConsumerError> {
        let wrong =
            |setting: &'static str, rule: &str| Err(ConsumerError::Option { setting: setting.into(), rule: rule.to_owned() });
        self.kafka.validate().map_err(|error| ConsumerError::Option {
            setting: format!("consumer.kafka.{}", error.option).into(),
            rule: error.rule,
        })?;
        if self.group_prefix.as_deref().is_some_and(|p| p.is_empty() || p.len() > 100 || p.contains(char::is_whitespace)) {
            return wrong("consumer.group_prefix", "must be 1 to 100 bytes without white space");
        }
        if !(1..=10_000).contains(&self.batch_size) {
            return wrong("consumer.batch_size", "must be between 1 and 10000");
        }
        if self.batch_bytes == 0 || self.batch_bytes > self.max_buffer_bytes {
            return wrong("consumer.batch_bytes", "must be more than 0 and at most consumer.max_buffer_bytes");
        }
        if self.start_deadline.is_zero() {
            return wrong("consumer.start_deadline", "must be more than 0");
        }
        if self.session_timeout < Duration::from_secs(1) || self.session_timeout > Duration::from_secs(3600) {
            return wrong("consumer.session_timeout", "must be between 1s and 1h");
        }
        if self.linger > Duration::from_secs(10) {
            return wrong("consumer.linger", "must be at most 10s");
        }
        if self.drain_deadline.is_zero() || self.drain_deadline > Duration::from_secs(120) {
            return wrong("consumer.drain_deadline", "must be more than 0 and at most 2m");
        }
        if self.batch_deadline.is_zero() {
            return wrong("consumer.batch_deadline", "must be more than 0");
        }
        if self.lock_timeout.is_zero() || self.lock_timeout > self.batch_deadline {
            return wrong("consumer.lock_timeout", "must be more than 0 and at most consumer.batch_deadline");
        }
        if self.backoff_initial.is_zero() || self.backoff_initial > self.backoff_max {
            return wrong("consumer.backoff_initial", "must be more than 0 and at most consumer.backoff_max");
        }
        for (property, why) in FIXED_PROPERTIES {
            if self.kafka.properties.contains_key(property) {
                return wrong("consumer.kafka.properties", &format!("may not set {property}: {why}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid() {
        ConsumerOptions::default().validate().unwrap();
    }

    #[test]
    fn what_the_guarantees_stand_on_cannot_be_set() {
        let mut options = ConsumerOptions::default();
        options.kafka.properties.insert("auto.offset.reset".to_owned(), "latest".to_owned());
        let error = options.validate().unwrap_err().to_string();
        assert!(error.contains("auto.offset.reset") && error.contains("skip events silently"), "{error}");
    }

    #[test]
    fn a_misspelt_option_is_named() {
        let error = serde_json::from_str::<ConsumerOptions>(r#"{"batchsize": 5}"#).unwrap_err().to_string();
        assert!(error.contains("batchsize") && error.contains("batch_size"), "{error}");
    }

    #[test]
    fn a_value_out_of_range_is_named_with_its_range() {
        let options = ConsumerOptions { batch_size: 0, ..ConsumerOptions::default() };
        assert_eq!(options.validate().unwrap_err().to_string(), "option consumer.batch_size must be between 1 and 10000");
    }
}
