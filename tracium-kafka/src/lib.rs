//! Reaching Kafka: the connection settings that relay and consumer share, and why a connection fails, said in their
//! names.
//!
//! librdkafka tells the caller only that it timed out; the reason is in its log, in the words of OpenSSL and the broker.
//! [`check`] asks the broker, listens to that log, looks at the certificate itself when that is what was refused, and
//! answers with a [`ConnectError`] that names the setting to change.
//!
//! ```no_run
//! use std::time::Duration;
//! use tracium_kafka::{KafkaOptions, SecurityProtocol};
//!
//! # fn doc() -> Result<(), Box<dyn std::error::Error>> {
//! let kafka = KafkaOptions {
//!     bootstrap_servers: "kafka-1:9093,kafka-2:9093".to_owned(),
//!     security_protocol: SecurityProtocol::SaslSsl,
//!     ssl_ca: Some("/etc/kafka/ca.pem".into()),
//!     sasl_username: Some("shop".to_owned()),
//!     sasl_password: Some(std::fs::read_to_string("/run/secrets/kafka")?.trim_end().into()),
//!     ..KafkaOptions::default()
//! };
//! kafka.validate()?;
//! tracium_kafka::check(&kafka, Duration::from_secs(10))?;
//! # Ok(()) }
//! ```

mod certificate;
mod connect;
mod options;
mod secret;

pub use connect::{ConnectError, Problem, Reasons, check};
pub use options::{KafkaOptions, OptionsError, SaslMechanism, SecurityProtocol};
pub use secret::Secret;
