//! What a relay can be told.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use tracium_core::Backoff;
use tracium_kafka::KafkaOptions;

use crate::OptionsError;

/// Options of a relay, the `[relay]` table of `tracium.toml`. Durations are written `"30s"`, `"200ms"`, `"5m"`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RelayOptions {
    /// How long a lease lasts without a refresh, and so how long a dead relay's shards stand still at most. Default 30 s.
    #[serde(with = "humantime_serde")]
    pub lease_ttl: Duration,
    /// How often a lease is refreshed; at most half of the TTL. Default 10 s.
    #[serde(with = "humantime_serde")]
    pub lease_refresh: Duration,
    /// Rows in a batch at most. Default 500.
    pub batch_size: u32,
    /// Bytes of payload in a batch at most; a single larger row still goes. Default 8 MiB.
    pub batch_bytes: u32,
    /// How long a batch may wait for the broker before its unsent rows are given back; below the TTL. Default 10 s.
    #[serde(with = "humantime_serde")]
    pub batch_deadline: Duration,
    /// How long a statement may take before its connection is dropped; below the TTL. Default 5 s.
    #[serde(with = "humantime_serde")]
    pub database_deadline: Duration,
    /// The shortest pause between two looks at an idle shard. Default 5 ms.
    #[serde(with = "humantime_serde")]
    pub poll_min: Duration,
    /// The longest such pause. Default 200 ms.
    #[serde(with = "humantime_serde")]
    pub poll_max: Duration,
    /// Pause before a held (topic, key) is tried again, doubling with every failure. Default 1 s.
    #[serde(with = "humantime_serde")]
    pub backoff_initial: Duration,
    /// The longest such pause. Default 5 min.
    #[serde(with = "humantime_serde")]
    pub backoff_max: Duration,
    /// How long a stopping relay waits for its batches before it gives up on them. Default 8 s.
    #[serde(with = "humantime_serde")]
    pub drain_deadline: Duration,
    /// Kafka. Of librdkafka's properties, what order and durability stand on cannot be set: `acks`, `enable.idempotence`,
    /// `message.timeout.ms`, `partitioner`, `transactional.id`.
    pub kafka: KafkaOptions,
}

impl Default for RelayOptions {
    fn default() -> Self {
        Self {
            lease_ttl: Duration::from_secs(30),
            lease_refresh: Duration::from_secs(10),
            batch_size: 500,
            batch_bytes: 8 * 1024 * 1024,
            batch_deadline: Duration::from_secs(10),
            database_deadline: Duration::from_secs(5),
            poll_min: Duration::from_millis(5),
            poll_max: Duration::from_millis(200),
            backoff_initial: Duration::from_secs(1),
            backoff_max: Duration::from_secs(300),
            drain_deadline: Duration::from_secs(8),
            kafka: KafkaOptions::default(),
        }
    }
}

/// Properties that order and durability stand on.
pub(crate) const FIXED_PROPERTIES: [&str; 7] = [
    "acks",
    "request.required.acks",
    "enable.idempotence",
    "message.timeout.ms",
    "delivery.timeout.ms",
    "partitioner",
    "transactional.id",
];

impl RelayOptions {
    /// Backoff of a held (topic, key).
    pub(crate) fn backoff(&self) -> Backoff {
        Backoff { initial: self.backoff_initial, max: self.backoff_max }
    }

    /// Checks what the types do not.
    ///
    /// # Errors
    /// [`OptionsError`] naming the setting and the value it may have.
    pub fn validate(&self) -> Result<(), OptionsError> {
        let wrong =
            |setting: &'static str, rule: &'static str| Err(OptionsError { setting: setting.into(), rule: rule.to_owned() });
        if self.lease_ttl < Duration::from_millis(500) {
            return wrong("relay.lease_ttl", "must be at least 500ms");
        }
        if self.lease_refresh.is_zero() || self.lease_refresh * 2 > self.lease_ttl {
            return wrong("relay.lease_refresh", "must be more than 0 and at most half of relay.lease_ttl");
        }
        if self.batch_deadline.is_zero() || self.batch_deadline >= self.lease_ttl {
            return wrong("relay.batch_deadline", "must be more than 0 and below relay.lease_ttl");
        }
        if self.database_deadline.is_zero() || self.database_deadline >= self.lease_ttl {
            return wrong("relay.database_deadline", "must be more than 0 and below relay.lease_ttl");
        }
        if !(1..=10_000).contains(&self.batch_size) {
            return wrong("relay.batch_size", "must be between 1 and 10000");
        }
        if self.batch_bytes == 0 {
            return wrong("relay.batch_bytes", "must be more than 0");
        }
        if self.poll_min.is_zero() || self.poll_min > self.poll_max {
            return wrong("relay.poll_min", "must be more than 0 and at most relay.poll_max");
        }
        if self.backoff_initial.is_zero() || self.backoff_initial > self.backoff_max {
            return wrong("relay.backoff_initial", "must be more than 0 and at most relay.backoff_max");
        }
        self.kafka
            .validate()
            .map_err(|error| OptionsError { setting: format!("relay.kafka.{}", error.option).into(), rule: error.rule })?;
        if let Some(fixed) = FIXED_PROPERTIES.iter().find(|p| self.kafka.properties.contains_key(**p)) {
            let rule = format!("may not set {fixed}: order and durability stand on it");
            return Err(OptionsError { setting: "relay.kafka.properties".into(), rule });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_valid() {
        assert_eq!(RelayOptions::default().validate(), Ok(()));
    }

    #[test]
    fn a_setting_that_would_break_the_fence_or_the_order_is_refused_by_name() {
        let slow = RelayOptions { batch_deadline: Duration::from_secs(31), ..RelayOptions::default() };
        assert_eq!(slow.validate().unwrap_err().setting, "relay.batch_deadline");
        let mut loose = RelayOptions::default();
        loose.kafka.properties.insert("acks".to_owned(), "1".to_owned());
        assert!(loose.validate().unwrap_err().to_string().contains("acks"));
    }
}
