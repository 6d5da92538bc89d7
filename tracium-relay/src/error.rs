//! What can go wrong with a relay as a whole. What goes wrong with a message is a [`crate::PublishFailure`].

use std::borrow::Cow;
use std::time::Duration;

use tracium_core::schema::SchemaError;
use tracium_core::{Class, Classify, TlsProblem, class_of_database_error};

use crate::publisher::PublisherError;

/// A setting that is not valid. Class: fatal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("setting {setting} {rule}")]
pub struct OptionsError {
    /// The setting's name in `tracium.toml`.
    pub setting: Cow<'static, str>,
    /// The rule it breaks.
    pub rule: String,
}

/// Why a relay stopped, or did not start. Everything else it retries by itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayError {
    /// A setting is not valid.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The schema is missing, too old or too new.
    #[error(transparent)]
    Schema(#[from] SchemaError),
    /// PostgreSQL cannot be reached.
    #[error("cannot reach PostgreSQL at {address}; {}", way_in(.source))]
    DatabaseUnreachable {
        /// host:port, without user or password.
        address: String,
        /// The reason.
        #[source]
        source: SourceError,
    },
    /// Kafka does not let the relay in, or librdkafka refuses a property.
    #[error(transparent)]
    Publisher(#[from] PublisherError),
    /// The database refuses what the relay needs.
    #[error("the database refuses the relay; log in as a role with `GRANT tracium_relay TO` it")]
    Denied(#[source] SourceError),
}

impl Classify for RelayError {
    fn class(&self) -> Class {
        match self {
            Self::Options(_) | Self::Denied(_) => Class::Fatal,
            Self::Schema(error) => error.class(),
            Self::DatabaseUnreachable { .. } => Class::Transient,
            Self::Publisher(error) => error.class(),
        }
    }
}

fn way_in(error: &SourceError) -> String {
    let tls = if let SourceError::Database(error) = error { TlsProblem::of(error) } else { None };
    tls.map_or_else(|| "check the database URL and that the server runs".to_owned(), |problem| problem.to_string())
}

/// A database call of the relay that failed. Its connection is dropped, never used again.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// No answer in time: the network or the server hangs.
    #[error("no answer from the database within {0:?}")]
    Deadline(Duration),
    /// The lease is gone: another relay has the shard, or it expired.
    #[error("the lease on shard {shard} is lost")]
    LeaseLost {
        /// The shard.
        shard: i16,
    },
    /// PostgreSQL refused, or the connection broke.
    #[error(transparent)]
    Database(#[from] sqlx::Error),
}

impl Classify for SourceError {
    fn class(&self) -> Class {
        match self {
            Self::Deadline(_) | Self::LeaseLost { .. } => Class::Transient,
            Self::Database(error) => class_of_database_error(error),
        }
    }
}
