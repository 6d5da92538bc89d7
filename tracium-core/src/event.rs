//! Events: to be appended, and recorded.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use uuid::Uuid;

use crate::{Aggregate, EventType, HeaderError, Headers, NameError, Version};

/// What an event carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Payload {
    /// JSON text. Stored as JSONB, so key order and white space are PostgreSQL's.
    Json(Vec<u8>),
    /// Bytes as they are; empty stays empty.
    Bytes(Vec<u8>),
    /// No payload: a null value in Kafka.
    Tombstone,
}

impl Payload {
    /// The bytes, `None` for a tombstone.
    #[must_use]
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Payload::Json(bytes) | Payload::Bytes(bytes) => Some(bytes),
            Payload::Tombstone => None,
        }
    }
}

/// An event or message that cannot be built or read. Class: poison.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventError {
    /// A name is not valid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A header is not valid.
    #[error(transparent)]
    Header(#[from] HeaderError),
    /// The payload could not be written as JSON, or is not the JSON that was asked for.
    #[error("payload of event type {event_type:?} does not fit")]
    Payload {
        /// The event's type.
        event_type: String,
        /// serde's reason.
        #[source]
        source: serde_json::Error,
    },
    /// JSON was asked for and the event is a tombstone.
    #[error("event type {event_type:?} has no payload (a tombstone)")]
    NoPayload {
        /// The event's type.
        event_type: String,
    },
}

/// An event to be appended. The id is a UUIDv7 unless given: keep it over a retry after an unknown COMMIT, and the repeat
/// returns the first result.
#[derive(Debug, Clone)]
pub struct NewEvent {
    pub(crate) event_id: Uuid,
    pub(crate) event_type: EventType,
    pub(crate) schema_version: i32,
    pub(crate) payload: Payload,
    pub(crate) headers: Headers,
    pub(crate) metadata: Option<Value>,
    pub(crate) publish: bool,
}

impl NewEvent {
    /// An event with a JSON payload.
    ///
    /// # Errors
    /// [`EventError`] if the type's name is not valid or the payload is not JSON (a map with keys that are no texts).
    pub fn json(event_type: impl Into<String>, payload: &impl Serialize) -> Result<Self, EventError> {
        let event_type = EventType::new(event_type)?;
        let json =
            serde_json::to_vec(payload).map_err(|source| EventError::Payload { event_type: event_type.to_string(), source })?;
        Ok(Self::with_payload(event_type, Payload::Json(json)))
    }

    /// An event with opaque bytes (Avro, Protobuf, a picture).
    ///
    /// # Errors
    /// [`EventError`] if the type's name is not valid.
    pub fn bytes(event_type: impl Into<String>, payload: Vec<u8>) -> Result<Self, EventError> {
        Ok(Self::with_payload(EventType::new(event_type)?, Payload::Bytes(payload)))
    }

    /// An event without a payload: a null value in Kafka.
    ///
    /// # Errors
    /// [`EventError`] if the type's name is not valid.
    pub fn tombstone(event_type: impl Into<String>) -> Result<Self, EventError> {
        Ok(Self::with_payload(EventType::new(event_type)?, Payload::Tombstone))
    }

    fn with_payload(event_type: EventType, payload: Payload) -> Self {
        Self {
            event_id: Uuid::now_v7(),
            event_type,
            schema_version: 1,
            payload,
            headers: Headers::new(),
            metadata: None,
            publish: true,
        }
    }

    /// Sets the id.
    #[must_use]
    pub fn with_id(mut self, event_id: Uuid) -> Self {
        self.event_id = event_id;
        self
    }

    /// Sets the version of the payload's schema (1).
    #[must_use]
    pub fn with_schema_version(mut self, schema_version: i32) -> Self {
        self.schema_version = schema_version;
        self
    }

    /// Adds a header, carried to Kafka byte for byte.
    ///
    /// # Errors
    /// [`EventError::Header`] for a name that is empty or belongs to the wire format.
    pub fn with_header(mut self, name: impl Into<String>, value: Option<Vec<u8>>) -> Result<Self, EventError> {
        self.headers.push(name, value)?;
        Ok(self)
    }

    /// Sets metadata, kept in the event store and not sent to Kafka.
    #[must_use]
    pub fn with_metadata(mut self, metadata: Value) -> Self {
        self.metadata = Some(metadata);
        self
    }

    /// Keeps the event in the store only.
    #[must_use]
    pub fn unpublished(mut self) -> Self {
        self.publish = false;
        self
    }

    /// The id.
    #[must_use]
    pub fn event_id(&self) -> Uuid {
        self.event_id
    }
}

/// A recorded event, from the event store or from Kafka.
#[derive(Debug, Clone, PartialEq)]
pub struct Event {
    /// The id, the same in every delivery.
    pub event_id: Uuid,
    /// The type, `order.created`.
    pub event_type: EventType,
    /// The aggregate; `None` for a message of [`crate::Outbox::publish`].
    pub aggregate: Option<Aggregate>,
    /// The aggregate's version after this event; `None` for a message without one.
    pub version: Option<Version>,
    /// The aggregate's version after its previous *published* event (0 = none): a consumer sees a gap exactly when there
    /// is one. `None` when read from the event store, or without a version.
    pub previous_version: Option<Version>,
    /// The version of the payload's schema.
    pub schema_version: i32,
    /// When it was recorded, by the database's clock.
    pub created_at: DateTime<Utc>,
    /// The payload.
    pub payload: Payload,
    /// The user's headers.
    pub headers: Headers,
}

impl Event {
    /// The payload as a type of yours.
    ///
    /// # Errors
    /// [`EventError`] if there is none or it does not fit; class poison.
    pub fn data<T: DeserializeOwned>(&self) -> Result<T, EventError> {
        let event_type = || self.event_type.to_string();
        let bytes = self.payload.as_bytes().ok_or_else(|| EventError::NoPayload { event_type: event_type() })?;
        serde_json::from_slice(bytes).map_err(|source| EventError::Payload { event_type: event_type(), source })
    }

    /// A header's text, if it is there and UTF-8.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.text(name)
    }
}
