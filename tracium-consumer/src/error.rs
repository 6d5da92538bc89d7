//! What can go wrong, by cause, with the way out.

use std::borrow::Cow;
use std::time::Duration;

use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use tracium_core::schema::SchemaError;
use tracium_core::{Class, Classify, EventError, EvolveError, NameError, TlsProblem, class_of_database_error};
use tracium_kafka::ConnectError;

/// An error of a projection's own code or of its sink. Only its class decides what happens: transient → the batch is
/// rolled back and tried again; poison → the event goes to the dead letters and its aggregate stands still; fatal → the
/// consumer stops.
///
/// ```
/// use tracium_consumer::ProjectionError;
/// use tracium_core::{Class, Classify};
///
/// assert_eq!(ProjectionError::poison("an amount below zero").class(), Class::Poison);
/// assert_eq!(ProjectionError::from(sqlx::Error::PoolTimedOut).class(), Class::Transient);
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProjectionError {
    /// The projection's own reason.
    #[error("{message}")]
    Refused {
        /// The class.
        class: Class,
        /// The reason.
        message: String,
        /// What was behind it.
        #[source]
        source: Option<Box<dyn std::error::Error + Send + Sync>>,
    },
    /// PostgreSQL refused, or the connection broke. Class by SQLSTATE, [`class_of_database_error`].
    #[error("PostgreSQL refused a statement")]
    Database(#[source] sqlx::Error),
    /// The event cannot be read as asked. Class poison.
    #[error(transparent)]
    Event(#[from] EventError),
    /// The fold refused the event. Class poison.
    #[error(transparent)]
    Evolve(#[from] EvolveError),
}

impl ProjectionError {
    /// This event fails every time.
    pub fn poison(message: impl Into<String>) -> Self {
        Self::Refused { class: Class::Poison, message: message.into(), source: None }
    }

    /// The same call may succeed later.
    pub fn transient(message: impl Into<String>) -> Self {
        Self::Refused { class: Class::Transient, message: message.into(), source: None }
    }

    /// Nothing will succeed before somebody changes the set-up.
    pub fn fatal(message: impl Into<String>) -> Self {
        Self::Refused { class: Class::Fatal, message: message.into(), source: None }
    }

    /// Adds the error behind a refusal; the others have theirs.
    #[must_use]
    pub fn caused_by(self, error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        match self {
            Self::Refused { class, message, .. } => Self::Refused { class, message, source: Some(error.into()) },
            other => other,
        }
    }
}

/// By SQLSTATE, but for 25P02: a statement that failed because one before it had, unnoticed, since the projection dropped
/// that error. To try again would fail for ever, so it is the event's. Class poison.
impl From<sqlx::Error> for ProjectionError {
    fn from(error: sqlx::Error) -> Self {
        match error.as_database_error().and_then(|e| e.code()).as_deref() {
            Some("25P02") => Self::poison("the projection went on after a statement of its own had failed").caused_by(error),
            _ => Self::Database(error),
        }
    }
}

impl Classify for ProjectionError {
    fn class(&self) -> Class {
        match self {
            Self::Refused { class, .. } => *class,
            Self::Database(error) => class_of_database_error(error),
            Self::Event(_) | Self::Evolve(_) => Class::Poison,
        }
    }
}

/// A consumer that does not start, or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConsumerError {
    /// An option has a value it cannot have.
    #[error("option {setting} {rule}")]
    Option {
        /// The option.
        setting: Cow<'static, str>,
        /// What it must be.
        rule: String,
    },
    /// librdkafka knows no such property, or not this value.
    #[error("option consumer.kafka.properties: librdkafka refuses {property:?} = {value:?}: {reason}")]
    Property {
        /// The property.
        property: String,
        /// Its value.
        value: String,
        /// librdkafka's reason.
        reason: String,
    },
    /// A consumer without projections.
    #[error("the consumer has no projection; add one with Consumer::with")]
    NoProjection,
    /// A projection's name is not valid: it names tables and a consumer group.
    #[error("projection {name:?} has no valid name")]
    Name {
        /// The name.
        name: String,
        /// What is wrong with it.
        #[source]
        source: NameError,
    },
    /// Two projections of one name would share their tables and their consumer group.
    #[error("projection {projection} was added twice; give the other one a name of its own")]
    ProjectionTwice {
        /// The projection.
        projection: String,
    },
    /// A subscription to nothing.
    #[error("projection {projection} subscribes to no topic")]
    NoTopics {
        /// The projection.
        projection: String,
    },
    /// A topic and its copy carry the same aggregates, whose order holds only within one topic.
    #[error("projection {projection} subscribes to {first} and to {second}, which carry the same events; drop one of them")]
    TopicTwice {
        /// The projection.
        projection: String,
        /// The one.
        first: String,
        /// The other.
        second: String,
    },
    /// Kafka does not let the consumer in. Class by its cause.
    #[error("{error}; {}", .error.problem.way_out(|option| format!("consumer.kafka.{option}")))]
    Connect {
        /// What is wrong, and which options to look at.
        error: ConnectError,
    },
    /// The broker answers, but not about the topic.
    #[error(
        "no Kafka broker at {bootstrap_servers} told of topic {topic}, which projection {projection} subscribes to, within {within:?}"
    )]
    TopicUnknown {
        /// The topic.
        topic: String,
        /// The projection.
        projection: String,
        /// Where it was asked for.
        bootstrap_servers: String,
        /// How long.
        within: Duration,
        /// librdkafka's reason.
        #[source]
        source: Box<KafkaError>,
    },
    /// The topic does not exist. Consumers never create topics.
    #[error("topic {topic}, which projection {projection} subscribes to, does not exist at {bootstrap_servers}; create it")]
    TopicMissing {
        /// The topic.
        topic: String,
        /// The projection.
        projection: String,
        /// The broker.
        bootstrap_servers: String,
    },
    /// The database could not be reached.
    #[error(
        "projection {projection}: PostgreSQL at {database} did not answer as it must; {}",
        TlsProblem::of(.source).map_or_else(|| "check its address and that it runs".to_owned(), |problem| problem.to_string())
    )]
    DatabaseUnreachable {
        /// The projection.
        projection: String,
        /// `host:port/name`.
        database: String,
        /// The reason.
        #[source]
        source: sqlx::Error,
    },
    /// The database has no schema `tracium` that serves this binary.
    #[error("projection {projection}: the database {database} cannot be used")]
    Schema {
        /// The projection.
        projection: String,
        /// `host:port/name`.
        database: String,
        /// The reason and the way out.
        #[source]
        source: SchemaError,
    },
    /// The projection's declaration is not the one that its tables were filled by.
    #[error(
        "projection {projection} was filled as [{stored}] and is now declared as [{declared}]; give the changed one a new name, so that it is filled from the start"
    )]
    FingerprintChanged {
        /// The projection.
        projection: String,
        /// What the database has.
        stored: String,
        /// What this binary has.
        declared: String,
    },
    /// The projection's tables could not be made.
    #[error("projection {projection} could not be prepared")]
    Prepare {
        /// The projection.
        projection: String,
        /// The reason.
        #[source]
        source: ProjectionError,
    },
    /// The projection or its sink failed, and will fail again.
    #[error("projection {projection} stopped; its offsets stay where its effects are")]
    Projection {
        /// The projection.
        projection: String,
        /// The reason.
        #[source]
        source: ProjectionError,
    },
    /// Kafka refused for good.
    #[error("projection {projection}: Kafka refused group {group}")]
    Kafka {
        /// The projection.
        projection: String,
        /// The consumer group.
        group: String,
        /// librdkafka's reason.
        #[source]
        source: Box<KafkaError>,
    },
    /// The system gave no thread for polling.
    #[error("no thread could be started for polling Kafka")]
    Thread(#[source] std::io::Error),
    /// A task or thread of the consumer ended by a panic.
    #[error("projection {projection}: BUG: its {what} ended by itself")]
    Died {
        /// The projection.
        projection: String,
        /// Which part.
        what: &'static str,
    },
    /// [`crate::status`] could not read.
    #[error("the projections' status could not be read")]
    Status(#[source] sqlx::Error),
}

impl Classify for ConsumerError {
    fn class(&self) -> Class {
        match self {
            Self::Connect { error } => error.class(),
            Self::TopicUnknown { .. } => Class::Transient,
            Self::DatabaseUnreachable { source, .. } | Self::Status(source) => class_of_database_error(source),
            Self::Schema { source, .. } => source.class(),
            Self::Prepare { source, .. } | Self::Projection { source, .. } => source.class(),
            _ => Class::Fatal,
        }
    }
}

/// Whether Kafka's refusal lasts until somebody changes rights, passwords or settings.
pub(crate) fn is_fatal(error: &KafkaError) -> bool {
    use RDKafkaErrorCode as Code;
    matches!(error, KafkaError::MessageConsumptionFatal(_))
        || matches!(
            error.rdkafka_error_code(),
            Some(
                Code::TopicAuthorizationFailed
                    | Code::GroupAuthorizationFailed
                    | Code::ClusterAuthorizationFailed
                    | Code::SaslAuthenticationFailed
                    | Code::Authentication
                    | Code::InvalidSessionTimeout
                    | Code::InconsistentGroupProtocol
                    | Code::InvalidGroupId
                    | Code::FencedInstanceId
                    | Code::AutoOffsetReset
            )
        )
}

/// An error and what is behind it, as one line without NULs, which PostgreSQL's text does not take.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(source) = next {
        let more = source.to_string();
        if !text.ends_with(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        next = source.source();
    }
    text.replace('\0', "\u{FFFD}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_projection_errors_class_is_its_causes() {
        assert_eq!(ProjectionError::fatal("x").class(), Class::Fatal);
        assert_eq!(ProjectionError::from(EvolveError::refused("x")).class(), Class::Poison);
    }

    #[test]
    fn the_chain_names_every_cause_once_and_carries_no_nul() {
        let error = ProjectionError::poison("outer").caused_by("in\0ner");
        assert_eq!(chain(&error), "outer: in\u{FFFD}ner");
    }

    #[test]
    fn missing_rights_are_fatal_and_a_broker_that_is_away_is_not() {
        assert!(is_fatal(&KafkaError::MessageConsumption(RDKafkaErrorCode::GroupAuthorizationFailed)));
        assert!(!is_fatal(&KafkaError::MessageConsumption(RDKafkaErrorCode::AllBrokersDown)));
    }
}
