//! `EventStore`: append, load and fold.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sqlx::postgres::PgRow;
use sqlx::{PgExecutor, Postgres, Row, Transaction};
use uuid::Uuid;

use crate::{
    Aggregate, Class, Classify, Event, EventType, EvolveError, HeaderError, Headers, NameError, NewEvent, Payload, Version, View,
    class_of_database_error, sql,
};

/// The version that an aggregate must be at for an append to succeed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// Any: the events go on top of what is there.
    Any,
    /// No event yet.
    New,
    /// Exactly this version.
    Version(Version),
}

/// What an append recorded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Appended {
    /// In version order.
    pub events: Vec<AppendedEvent>,
    /// True if these events were there already, from an earlier call with the same ids and content.
    pub repeated: bool,
}

impl Appended {
    /// The aggregate's version after the last of these events.
    #[must_use]
    pub fn version(&self) -> Version {
        self.events.last().map_or(Version::ZERO, |event| event.version)
    }
}

/// One recorded event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AppendedEvent {
    /// Its id.
    pub event_id: Uuid,
    /// Its version.
    pub version: Version,
    /// When, by the database's clock; also the Kafka message's timestamp.
    pub recorded_at: DateTime<Utc>,
}

/// An append that did not happen. The transaction is aborted: roll it back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AppendError {
    /// The aggregate is at another version: load it again, decide again, append again.
    #[error("version conflict: {aggregate} is at version {actual}, expected {expected}; load it again and decide anew")]
    VersionConflict {
        /// Which aggregate.
        aggregate: Aggregate,
        /// The version that was asked for.
        expected: Version,
        /// The committed version.
        actual: Version,
    },
    /// An event id stands for another event already.
    #[error("event id {event_id} was already used for another event or aggregate; give every new event a new id")]
    EventIdReused {
        /// The id.
        event_id: String,
    },
    /// PostgreSQL chose this transaction as the loser (40001, 40P01, 55P03): run the whole of it again.
    #[error("the transaction lost against a concurrent one; run it again")]
    RetryTransaction(#[source] sqlx::Error),
    /// An argument is not valid.
    #[error("append refused its input: {message}")]
    Invalid {
        /// What is wrong, by name.
        message: String,
    },
    /// No events were given.
    #[error("append was given no events")]
    NoEvents,
    /// Schema `tracium` is missing or has no shards.
    #[error("the database has no tracium schema or no shards; run `tracium migrate` on it")]
    SchemaMissing(#[source] sqlx::Error),
    /// The role may not append.
    #[error("this role may not append; `GRANT app_writer TO` it")]
    Denied(#[source] sqlx::Error),
    /// Another error of the database or the connection. After a lost connection the outcome of a COMMIT is unknown:
    /// append again with the same event ids.
    #[error("the database refused the append")]
    Database(#[source] sqlx::Error),
}

impl Classify for AppendError {
    fn class(&self) -> Class {
        match self {
            Self::VersionConflict { .. } | Self::EventIdReused { .. } | Self::Invalid { .. } | Self::NoEvents => Class::Poison,
            Self::RetryTransaction(_) => Class::Transient,
            Self::SchemaMissing(_) | Self::Denied(_) => Class::Fatal,
            Self::Database(error) => class_of_database_error(error),
        }
    }
}

fn detail_text(error: &sqlx::Error) -> Option<&str> {
    error.as_database_error()?.try_downcast_ref::<sqlx::postgres::PgDatabaseError>()?.detail()
}

/// The data that SQL errors of class TR carry as DETAIL.
fn detail(error: &sqlx::Error) -> Value {
    detail_text(error).and_then(|d| serde_json::from_str(d).ok()).unwrap_or(Value::Null)
}

/// The id that PostgreSQL names in the DETAIL of a unique violation, in whatever language: `(event_id)=(…)`.
fn duplicate_id(error: &sqlx::Error) -> String {
    let id = detail_text(error).and_then(|d| d.split(['(', ')']).find(|part| Uuid::parse_str(part).is_ok()));
    id.unwrap_or("(unknown)").to_owned()
}

/// What an SQLSTATE means on the write side, for append and publish alike.
pub(crate) enum WriteFailure {
    Conflict { expected: Version, actual: Version },
    EventIdReused(String),
    Invalid(String),
    TopicCarriesAggregates(String),
    Retry(sqlx::Error),
    SchemaMissing(sqlx::Error),
    Denied(sqlx::Error),
    Other(sqlx::Error),
}

impl WriteFailure {
    pub(crate) fn of(error: sqlx::Error) -> Self {
        let Some(database) = error.as_database_error() else { return Self::Other(error) };
        let message = database.message().to_owned();
        match (database.code().as_deref(), database.constraint()) {
            (Some("TR001"), _) => {
                let detail = detail(&error);
                let version = |name: &str| detail[name].as_i64().and_then(Version::new).unwrap_or_default();
                Self::Conflict { expected: version("expected"), actual: version("actual") }
            }
            (Some("TR002"), _) => Self::EventIdReused(detail(&error)["event_id"].as_str().unwrap_or("?").to_owned()),
            (Some("23505"), Some("event_store_event_id_key")) => Self::EventIdReused(duplicate_id(&error)),
            // What PostgreSQL itself cannot read: a UUID, a NUL, a number, base64; or an event beyond its limits.
            (Some("TR003" | "22P02" | "22P05" | "22003" | "22021" | "22023" | "54000" | "54001"), _) => Self::Invalid(message),
            (Some("TR004"), _) => Self::TopicCarriesAggregates(message),
            (Some("TR005" | "3F000" | "42P01" | "42883"), _) => Self::SchemaMissing(error),
            (Some("42501"), _) => Self::Denied(error),
            (Some("40001" | "40P01" | "55P03"), _) => Self::Retry(error),
            _ => Self::Other(error),
        }
    }
}

/// Events that cannot be read back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The database refused, or the connection broke.
    #[error("the event store could not be read")]
    Database(#[source] sqlx::Error),
    /// A stored name is not valid; the row was not written by `tracium.append`.
    #[error("stored event has a bad name")]
    Name(#[from] NameError),
    /// Stored headers are not valid.
    #[error("stored event has bad headers")]
    Header(#[from] HeaderError),
    /// The fold refused an event.
    #[error("the fold refused version {version} of {aggregate}")]
    Evolve {
        /// Whose event.
        aggregate: Aggregate,
        /// Which.
        version: Version,
        /// Why.
        #[source]
        source: EvolveError,
    },
}

impl Classify for LoadError {
    fn class(&self) -> Class {
        match self {
            Self::Database(error) => class_of_database_error(error),
            Self::Name(_) | Self::Header(_) | Self::Evolve { .. } => Class::Poison,
        }
    }
}

/// The event store. Its functions take the caller's transaction; there is nothing to construct.
#[derive(Debug, Clone, Copy)]
pub struct EventStore;

#[derive(Serialize)]
struct EventArg<'a> {
    event_id: Uuid,
    event_type: &'a str,
    schema_version: i32,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_base64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    headers: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<&'a Value>,
    publish: bool,
}

impl EventStore {
    /// Appends events to one aggregate: event store, outbox and head, in one round trip of the caller's transaction.
    ///
    /// It locks the aggregate's head until the transaction ends; concurrent appends to the same aggregate wait. The
    /// events of one aggregate therefore reach Kafka in version order. Append to several aggregates with
    /// [`EventStore::append_all`], which locks them in sorted order.
    ///
    /// Repeating the call with the same event ids and content (after a COMMIT whose outcome is unknown) returns the first
    /// result with `repeated` set.
    ///
    /// Cancel safety: dropping the future leaves the transaction to be rolled back.
    ///
    /// # Errors
    /// [`AppendError`]; the transaction is aborted and must be rolled back.
    pub async fn append(
        tx: &mut Transaction<'_, Postgres>,
        aggregate: &Aggregate,
        expected: Expected,
        events: &[NewEvent],
    ) -> Result<Appended, AppendError> {
        if events.is_empty() {
            return Err(AppendError::NoEvents);
        }
        let args = events.iter().map(EventArg::of).collect::<Result<Vec<_>, _>>()?;
        let args = serde_json::to_string(&args).map_err(|e| AppendError::Invalid { message: e.to_string() })?;
        let wanted = match expected {
            Expected::Any => None,
            Expected::New => Some(0),
            Expected::Version(version) => Some(version.get()),
        };
        let rows: Vec<(Uuid, i64, DateTime<Utc>, bool)> = sqlx::query_as(sql::APPEND)
            .bind(aggregate.aggregate_type.as_str())
            .bind(aggregate.aggregate_id.as_str())
            .bind(wanted)
            .bind(args)
            .fetch_all(&mut **tx)
            .await
            .map_err(|error| Self::append_error(aggregate, error))?;
        let repeated = rows.first().is_some_and(|row| row.3);
        let events = rows
            .into_iter()
            .map(|(event_id, version, recorded_at, _)| AppendedEvent {
                event_id,
                version: Version::new(version).unwrap_or_default(),
                recorded_at,
            })
            .collect();
        Ok(Appended { events, repeated })
    }

    /// Appends to several aggregates in one transaction, in the order of their names, so that two such transactions wait
    /// for each other instead of deadlocking. The results are in that order too.
    ///
    /// # Errors
    /// As [`EventStore::append`], at the first that fails.
    pub async fn append_all(
        tx: &mut Transaction<'_, Postgres>,
        mut appends: Vec<(Aggregate, Expected, Vec<NewEvent>)>,
    ) -> Result<Vec<(Aggregate, Appended)>, AppendError> {
        appends.sort_by(|a, b| a.0.cmp(&b.0));
        let mut done = Vec::with_capacity(appends.len());
        for (aggregate, expected, events) in appends {
            let appended = Self::append(tx, &aggregate, expected, &events).await?;
            done.push((aggregate, appended));
        }
        Ok(done)
    }

    fn append_error(aggregate: &Aggregate, error: sqlx::Error) -> AppendError {
        match WriteFailure::of(error) {
            WriteFailure::Conflict { expected, actual } => {
                AppendError::VersionConflict { aggregate: aggregate.clone(), expected, actual }
            }
            WriteFailure::EventIdReused(event_id) => AppendError::EventIdReused { event_id },
            WriteFailure::Invalid(message) | WriteFailure::TopicCarriesAggregates(message) => AppendError::Invalid { message },
            WriteFailure::Retry(error) => AppendError::RetryTransaction(error),
            WriteFailure::SchemaMissing(error) => AppendError::SchemaMissing(error),
            WriteFailure::Denied(error) => AppendError::Denied(error),
            WriteFailure::Other(error) => AppendError::Database(error),
        }
    }

    /// The aggregate's events after a version ([`Version::ZERO`] for all), in version order.
    ///
    /// # Errors
    /// [`LoadError`].
    pub async fn load(executor: impl PgExecutor<'_>, aggregate: &Aggregate, after: Version) -> Result<Vec<Event>, LoadError> {
        let rows = sqlx::query(sql::LOAD)
            .bind(aggregate.aggregate_type.as_str())
            .bind(aggregate.aggregate_id.as_str())
            .bind(after.get())
            .fetch_all(executor)
            .await
            .map_err(LoadError::Database)?;
        rows.iter().map(|row| read_event(aggregate, row)).collect()
    }

    /// Rebuilds an aggregate: its events folded with a [`View`]. Returns the document and the version to expect of the
    /// next append.
    ///
    /// # Errors
    /// [`LoadError`], with the version that the fold refused.
    pub async fn fold<V: View>(
        executor: impl PgExecutor<'_>,
        aggregate: &Aggregate,
    ) -> Result<(Option<V::Doc>, Version), LoadError> {
        let mut doc = None;
        let mut version = Version::ZERO;
        for event in Self::load(executor, aggregate, version).await? {
            version = event.version.unwrap_or(version);
            doc = V::evolve(doc, &event).map_err(|source| LoadError::Evolve { aggregate: aggregate.clone(), version, source })?;
        }
        Ok((doc, version))
    }
}

impl<'a> EventArg<'a> {
    fn of(event: &'a NewEvent) -> Result<Self, AppendError> {
        use base64::Engine;
        let (payload, payload_base64) = match &event.payload {
            Payload::Json(json) => {
                let raw = serde_json::from_slice(json).map_err(|e| AppendError::Invalid { message: format!("payload: {e}") })?;
                (Some(raw), None)
            }
            Payload::Bytes(bytes) => (None, Some(base64::engine::general_purpose::STANDARD.encode(bytes))),
            Payload::Tombstone => (None, None),
        };
        Ok(Self {
            event_id: event.event_id,
            event_type: event.event_type.as_str(),
            schema_version: event.schema_version,
            payload,
            payload_base64,
            headers: event.headers.to_json(),
            metadata: event.metadata.as_ref(),
            publish: event.publish,
        })
    }
}

fn read_event(aggregate: &Aggregate, row: &PgRow) -> Result<Event, LoadError> {
    let get = LoadError::Database;
    let json: Option<String> = row.try_get("payload").map_err(get)?;
    let bytes: Option<Vec<u8>> = row.try_get("payload_bytes").map_err(get)?;
    let headers: Option<Value> = row.try_get("headers").map_err(get)?;
    let event_type: String = row.try_get("event_type").map_err(get)?;
    Ok(Event {
        event_id: row.try_get("event_id").map_err(get)?,
        event_type: EventType::new(event_type)?,
        aggregate: Some(aggregate.clone()),
        version: Version::new(row.try_get("version").map_err(get)?),
        previous_version: None,
        schema_version: row.try_get("schema_version").map_err(get)?,
        created_at: row.try_get("recorded_at").map_err(get)?,
        payload: match (json, bytes) {
            (Some(json), _) => Payload::Json(json.into_bytes()),
            (None, Some(bytes)) => Payload::Bytes(bytes),
            (None, None) => Payload::Tombstone,
        },
        headers: Headers::from_json(headers.as_ref().unwrap_or(&json!(null)))?,
    })
}
