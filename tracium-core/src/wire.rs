//! The wire format: what an event looks like in Kafka. Relay and consumer meet only here and in the topic.
//!
//! Key = partition key (the aggregate id), timestamp = `created_at` in milliseconds, value = payload (null for a
//! tombstone), and these headers, all UTF-8 text:
//!
//! | header | value |
//! |---|---|
//! | `event_id` | UUID; also read as `event-id`, `ce_id` (CloudEvents) and `id` (Debezium's outbox router) |
//! | `event_type` | `order.created` |
//! | `aggregate_type`, `aggregate_id` | absent on a message without an aggregate |
//! | `aggregate_version` | the aggregate's version after the event, from 1 |
//! | `previous_version` | its version after the previous *published* event, 0 = none |
//! | `schema_version` | the payload's schema, from 1 |
//! | `created_at` | RFC 3339, microseconds, UTC |
//! | `content-type` | `application/json` or `application/octet-stream`, unless the event brought its own |
//! | `traceparent` and others | as the event brought them, byte for byte, after the ones above |

use chrono::{DateTime, SecondsFormat, TimeZone, Utc};
use uuid::Uuid;

use crate::{Aggregate, Class, Classify, Event, EventType, Headers, NameError, Payload, Version};

/// Header `event_id`.
pub const EVENT_ID: &str = "event_id";
/// Header `event_type`.
pub const EVENT_TYPE: &str = "event_type";
/// Header `aggregate_type`.
pub const AGGREGATE_TYPE: &str = "aggregate_type";
/// Header `aggregate_id`.
pub const AGGREGATE_ID: &str = "aggregate_id";
/// Header `aggregate_version`.
pub const AGGREGATE_VERSION: &str = "aggregate_version";
/// Header `previous_version`.
pub const PREVIOUS_VERSION: &str = "previous_version";
/// Header `schema_version`.
pub const SCHEMA_VERSION: &str = "schema_version";
/// Header `created_at`.
pub const CREATED_AT: &str = "created_at";
/// Header `content-type`.
pub const CONTENT_TYPE: &str = "content-type";

const RESERVED: [&str; 8] =
    [EVENT_ID, EVENT_TYPE, AGGREGATE_TYPE, AGGREGATE_ID, AGGREGATE_VERSION, PREVIOUS_VERSION, SCHEMA_VERSION, CREATED_AT];
const EVENT_ID_ALIASES: [&str; 3] = ["event-id", "ce_id", "id"];

/// Whether the wire format writes this header itself.
#[must_use]
pub fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name) || name.starts_with("tracium-")
}

/// A message as it goes to Kafka.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Envelope {
    /// The topic.
    pub topic: String,
    /// The key: the partition key's bytes.
    pub key: Vec<u8>,
    /// Milliseconds since 1970, UTC.
    pub timestamp_ms: i64,
    /// In order; names may repeat.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// `None` is Kafka's null.
    pub payload: Option<Vec<u8>>,
}

impl Envelope {
    /// The envelope of an event for a topic and partition key.
    #[must_use]
    pub fn of(event: &Event, topic: impl Into<String>, partition_key: &str) -> Self {
        let mut headers = Vec::with_capacity(10);
        let mut push = |name: &str, value: String| headers.push((name.to_owned(), Some(value.into_bytes())));
        push(EVENT_ID, event.event_id.to_string());
        push(EVENT_TYPE, event.event_type.to_string());
        if let Some(aggregate) = &event.aggregate {
            push(AGGREGATE_TYPE, aggregate.aggregate_type.to_string());
            push(AGGREGATE_ID, aggregate.aggregate_id.to_string());
        }
        if let Some(version) = event.version {
            push(AGGREGATE_VERSION, version.to_string());
        }
        if let Some(version) = event.previous_version {
            push(PREVIOUS_VERSION, version.to_string());
        }
        push(SCHEMA_VERSION, event.schema_version.to_string());
        push(CREATED_AT, event.created_at.to_rfc3339_opts(SecondsFormat::Micros, true));
        if !event.headers.iter().any(|(name, _)| name == CONTENT_TYPE) {
            match event.payload {
                Payload::Json(_) => push(CONTENT_TYPE, "application/json".to_owned()),
                Payload::Bytes(_) => push(CONTENT_TYPE, "application/octet-stream".to_owned()),
                Payload::Tombstone => {}
            }
        }
        headers.extend(event.headers.iter().map(|(name, value)| (name.to_owned(), value.map(<[u8]>::to_vec))));
        Self {
            topic: topic.into(),
            key: partition_key.as_bytes().to_vec(),
            timestamp_ms: event.created_at.timestamp_millis(),
            headers,
            payload: event.payload.as_bytes().map(<[u8]>::to_vec),
        }
    }
}

/// A message that is no event. Class: poison.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WireError {
    /// A header that every event has is not there.
    #[error("header {name} is missing; Tracium's relay writes it, and so must every other producer of this topic")]
    Missing {
        /// The header.
        name: &'static str,
    },
    /// A header's value cannot be read.
    #[error("header {name} is {value:?}, which is not {expected}")]
    Malformed {
        /// The header.
        name: &'static str,
        /// Its value, cut to 100 characters.
        value: String,
        /// What it should be.
        expected: &'static str,
    },
    /// A name in a header is not valid.
    #[error("header {name}: {source}")]
    Name {
        /// The header.
        name: &'static str,
        /// What is wrong with it.
        #[source]
        source: NameError,
    },
}

impl Classify for WireError {
    fn class(&self) -> Class {
        Class::Poison
    }
}

/// Reads an event back from a message's parts. `timestamp_ms` stands in where `created_at` is missing.
///
/// # Errors
/// [`WireError`] naming the header.
pub fn decode<'a>(
    key: Option<&[u8]>,
    timestamp_ms: Option<i64>,
    headers: impl IntoIterator<Item = (&'a str, Option<&'a [u8]>)>,
    payload: Option<&[u8]>,
) -> Result<Event, WireError> {
    let mut known: [Option<&[u8]>; RESERVED.len()] = [None; RESERVED.len()];
    let mut alias = None;
    let mut rest = Headers::new();
    for (name, value) in headers {
        if let Some(at) = RESERVED.iter().position(|r| *r == name) {
            if known[at].is_none() {
                known[at] = value;
            }
            continue;
        }
        if alias.is_none() && EVENT_ID_ALIASES.contains(&name) {
            alias = value;
        }
        rest.push_unchecked(name.to_owned(), value.map(<[u8]>::to_vec));
    }
    let text = |at: usize| -> Result<Option<&str>, WireError> {
        known[at].map(|bytes| std::str::from_utf8(bytes).map_err(|_| malformed(RESERVED[at], bytes, "UTF-8 text"))).transpose()
    };
    let number = |at: usize| -> Result<Option<i64>, WireError> {
        text(at)?.map(|v| v.parse().map_err(|_| malformed(RESERVED[at], v.as_bytes(), "a whole number"))).transpose()
    };
    let version = |at: usize| -> Result<Option<Version>, WireError> {
        number(at)?
            .map(|n| Version::new(n).ok_or_else(|| malformed(RESERVED[at], n.to_string().as_bytes(), "zero or more")))
            .transpose()
    };

    let id = known[0].or(alias).ok_or(WireError::Missing { name: EVENT_ID })?;
    let event_id =
        std::str::from_utf8(id).ok().and_then(|v| Uuid::parse_str(v).ok()).ok_or_else(|| malformed(EVENT_ID, id, "a UUID"))?;
    let event_type = text(1)?.ok_or(WireError::Missing { name: EVENT_TYPE })?;
    let event_type = EventType::new(event_type).map_err(|source| WireError::Name { name: EVENT_TYPE, source })?;
    let aggregate = match text(2)? {
        None => None,
        Some(kind) => {
            let id = match text(3)? {
                Some(id) => id,
                None => key.and_then(|k| std::str::from_utf8(k).ok()).ok_or(WireError::Missing { name: AGGREGATE_ID })?,
            };
            Some(Aggregate::new(kind, id).map_err(|source| WireError::Name { name: AGGREGATE_ID, source })?)
        }
    };
    let aggregate_version = version(4)?;
    if let Some(Version::ZERO) = aggregate_version {
        return Err(malformed(AGGREGATE_VERSION, b"0", "1 or more"));
    }
    let schema_version = match number(6)? {
        None => 1,
        Some(n) => i32::try_from(n).map_err(|_| malformed(SCHEMA_VERSION, n.to_string().as_bytes(), "a 32-bit number"))?,
    };
    let created_at = match text(7)? {
        Some(v) => DateTime::parse_from_rfc3339(v).map_err(|_| malformed(CREATED_AT, v.as_bytes(), "an RFC 3339 time"))?.to_utc(),
        None => {
            timestamp_ms.and_then(|ms| Utc.timestamp_millis_opt(ms).single()).ok_or(WireError::Missing { name: CREATED_AT })?
        }
    };
    let json = rest.text(CONTENT_TYPE).is_some_and(|v| v.contains("json"));
    Ok(Event {
        event_id,
        event_type,
        version: aggregate_version.filter(|_| aggregate.is_some()),
        previous_version: version(5)?.filter(|_| aggregate.is_some()),
        aggregate,
        schema_version,
        created_at,
        payload: match payload {
            None => Payload::Tombstone,
            Some(bytes) if json => Payload::Json(bytes.to_vec()),
            Some(bytes) => Payload::Bytes(bytes.to_vec()),
        },
        headers: rest,
    })
}

fn malformed(name: &'static str, value: &[u8], expected: &'static str) -> WireError {
    WireError::Malformed { name, value: String::from_utf8_lossy(value).chars().take(100).collect(), expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> Event {
        let mut headers = Headers::new();
        headers.push("traceparent", Some(b"00-1-2-01".to_vec())).unwrap();
        headers.push("x", None).unwrap();
        headers.push("x", Some(vec![0, 255])).unwrap();
        Event {
            event_id: Uuid::now_v7(),
            event_type: EventType::new("order.created").unwrap(),
            aggregate: Some(Aggregate::new("order", "o-🧾").unwrap()),
            version: Version::new(4),
            previous_version: Version::new(2),
            schema_version: 3,
            created_at: Utc.timestamp_micros(1_700_000_000_123_456).unwrap(),
            payload: Payload::Json(b"{}".to_vec()),
            headers,
        }
    }

    fn read(envelope: &Envelope) -> Result<Event, WireError> {
        let headers = envelope.headers.iter().map(|(n, v)| (n.as_str(), v.as_deref()));
        decode(Some(&envelope.key), Some(envelope.timestamp_ms), headers, envelope.payload.as_deref())
    }

    #[test]
    fn what_is_sent_is_read_back() {
        let sent = event();
        let mut got = read(&Envelope::of(&sent, "orders", "o-🧾")).unwrap();
        assert_eq!(got.header(CONTENT_TYPE), Some("application/json"));
        got.headers = sent.headers.clone();
        assert_eq!(got, sent);
    }

    #[test]
    fn an_id_under_another_name_is_read_and_a_missing_one_is_named() {
        let mut envelope = Envelope::of(&event(), "orders", "k");
        envelope.headers.retain(|(name, _)| name != EVENT_ID);
        assert_eq!(read(&envelope), Err(WireError::Missing { name: "event_id" }));
        for alias in EVENT_ID_ALIASES {
            let mut other = envelope.clone();
            other.headers.push((alias.to_owned(), Some(b"018f0000-0000-7000-8000-000000000001".to_vec())));
            assert_eq!(read(&other).unwrap().event_id.to_string(), "018f0000-0000-7000-8000-000000000001");
        }
    }

    #[test]
    fn a_malformed_header_is_named_with_its_value() {
        let mut envelope = Envelope::of(&event(), "orders", "k");
        for (name, value) in &mut envelope.headers {
            if name == AGGREGATE_VERSION {
                *value = Some(b"minus one".to_vec());
            }
        }
        assert_eq!(
            read(&envelope).unwrap_err().to_string(),
            "header aggregate_version is \"minus one\", which is not a whole number"
        );
    }

    #[test]
    fn an_empty_payload_stays_empty_and_a_null_one_null() {
        let mut sent = event();
        for payload in [Payload::Bytes(Vec::new()), Payload::Tombstone] {
            sent.payload = payload.clone();
            assert_eq!(read(&Envelope::of(&sent, "orders", "k")).unwrap().payload, payload);
        }
    }
}
