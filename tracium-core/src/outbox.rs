//! `Outbox::publish`: for services without event sourcing.

use serde::Serialize;
use sqlx::{Postgres, Transaction};
use uuid::Uuid;

use crate::store::WriteFailure;
use crate::{Class, Classify, EventError, NewEvent, Payload, Topic, class_of_database_error, sql};

/// Whether messages of one key keep their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ordering {
    /// Messages of one (topic, key) are sent in the order of their commits. Two open transactions on one key wait for
    /// each other.
    #[default]
    Key,
    /// No order and no waiting.
    None,
}

/// A message that belongs to no event-sourced aggregate.
#[derive(Debug, Clone)]
pub struct Message {
    topic: Topic,
    partition_key: String,
    ordering: Ordering,
    event: NewEvent,
}

impl Message {
    /// A message for a topic, with a partition key, carrying what a [`NewEvent`] carries. Its metadata is not kept.
    #[must_use]
    pub fn new(topic: Topic, partition_key: impl Into<String>, event: NewEvent) -> Self {
        Self { topic, partition_key: partition_key.into(), ordering: Ordering::Key, event }
    }

    /// A JSON message.
    ///
    /// # Errors
    /// [`EventError`] for a bad name or a payload that is not JSON.
    pub fn json(topic: &str, partition_key: &str, event_type: &str, payload: &impl Serialize) -> Result<Self, EventError> {
        Ok(Self::new(Topic::new(topic)?, partition_key, NewEvent::json(event_type, payload)?))
    }

    /// Sets the ordering.
    #[must_use]
    pub fn with_ordering(mut self, ordering: Ordering) -> Self {
        self.ordering = ordering;
        self
    }

    /// The event id, which consumers dedup on.
    #[must_use]
    pub fn event_id(&self) -> Uuid {
        self.event.event_id
    }
}

/// A publish that did not happen. The transaction is aborted: roll it back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The topic carries aggregates' events, whose order a message without a version would break.
    #[error("{message}")]
    TopicCarriesAggregates {
        /// The topic and the way out.
        message: String,
    },
    /// An argument is not valid.
    #[error("publish refused its input: {message}")]
    Invalid {
        /// What is wrong, by name.
        message: String,
    },
    /// PostgreSQL chose this transaction as the loser: run the whole of it again.
    #[error("the transaction lost against a concurrent one; run it again")]
    RetryTransaction(#[source] sqlx::Error),
    /// Schema `tracium` is missing or has no shards.
    #[error("the database has no tracium schema or no shards; run `tracium migrate` on it")]
    SchemaMissing(#[source] sqlx::Error),
    /// The role may not publish.
    #[error("this role may not publish; `GRANT app_writer TO` it")]
    Denied(#[source] sqlx::Error),
    /// Another error of the database or the connection.
    #[error("the database refused the message")]
    Database(#[source] sqlx::Error),
}

impl Classify for PublishError {
    fn class(&self) -> Class {
        match self {
            Self::TopicCarriesAggregates { .. } | Self::Invalid { .. } => Class::Poison,
            Self::RetryTransaction(_) => Class::Transient,
            Self::SchemaMissing(_) | Self::Denied(_) => Class::Fatal,
            Self::Database(error) => class_of_database_error(error),
        }
    }
}

/// The outbox of services without event sourcing. Its function takes the caller's transaction.
#[derive(Debug, Clone, Copy)]
pub struct Outbox;

impl Outbox {
    /// Puts a message into the outbox, in the caller's transaction. Returns the outbox id.
    ///
    /// Not idempotent: a repeat is a second message with the same event id, which consumers drop as a duplicate.
    ///
    /// Cancel safety: dropping the future leaves the transaction to be rolled back.
    ///
    /// # Errors
    /// [`PublishError`]; the transaction is aborted and must be rolled back.
    pub async fn publish(tx: &mut Transaction<'_, Postgres>, message: &Message) -> Result<i64, PublishError> {
        let event = &message.event;
        let (json, bytes) = match &event.payload {
            Payload::Json(json) => (Some(String::from_utf8_lossy(json)), None),
            Payload::Bytes(bytes) => (None, Some(bytes)),
            Payload::Tombstone => (None, None),
        };
        let id: Result<i64, sqlx::Error> = sqlx::query_scalar(sql::PUBLISH)
            .bind(message.topic.as_str())
            .bind(&message.partition_key)
            .bind(event.event_id)
            .bind(event.event_type.as_str())
            .bind(event.schema_version)
            .bind(json)
            .bind(bytes)
            .bind(event.headers.to_json())
            .bind(message.ordering == Ordering::Key)
            .fetch_one(&mut **tx)
            .await;
        id.map_err(|error| match WriteFailure::of(error) {
            WriteFailure::TopicCarriesAggregates(message) => PublishError::TopicCarriesAggregates { message },
            WriteFailure::Invalid(message) => PublishError::Invalid { message },
            WriteFailure::Retry(error) => PublishError::RetryTransaction(error),
            WriteFailure::SchemaMissing(error) => PublishError::SchemaMissing(error),
            WriteFailure::Denied(error) => PublishError::Denied(error),
            WriteFailure::Other(error) => PublishError::Database(error),
            WriteFailure::Conflict { .. } | WriteFailure::EventIdReused(_) => {
                PublishError::Invalid { message: "the event store refused a message; use EventStore::append".to_owned() }
            }
        })
    }
}
