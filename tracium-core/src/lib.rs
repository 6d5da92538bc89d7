//! The write side of Tracium: one PostgreSQL transaction carries the change, the event store and the outbox.
//!
//! A service opens a transaction, changes its own tables, calls [`EventStore::append`] (or [`Outbox::publish`] without
//! event sourcing) and commits. Either all of it is there or none. The relay carries the outbox to Kafka; consumers turn
//! it into read models through the same [`View`]s and the same wire format ([`wire`]).
//!
//! This crate knows no Kafka client, no HTTP and no sink.
//!
//! ```no_run
//! use tracium_core::{Aggregate, EventStore, Expected, NewEvent};
//!
//! # async fn doc(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! let order = Aggregate::new("order", "o-1")?;
//! let mut tx = pool.begin().await?;
//! // … the service's own statements on `tx` …
//! let created = NewEvent::json("order.created", &serde_json::json!({"customer": "ada"}))?;
//! EventStore::append(&mut tx, &order, Expected::New, &[created]).await?;
//! tx.commit().await?;
//! # Ok(()) }
//! ```

mod error;
mod event;
mod headers;
mod name;
mod outbox;
mod retry;
pub mod schema;
mod sql;
mod store;
mod tls;
mod view;
pub mod wire;

pub use error::{Class, Classify, class_of_database_error};
pub use event::{Event, EventError, NewEvent, Payload};
pub use headers::{HeaderError, Headers};
pub use name::{Aggregate, AggregateId, AggregateType, EventType, NameError, SqlIdentifier, Topic, Version};
pub use outbox::{Message, Ordering, Outbox, PublishError};
pub use retry::Backoff;
pub use store::{AppendError, Appended, AppendedEvent, EventStore, Expected, LoadError};
pub use tls::TlsProblem;
pub use view::{EvolveError, InlineView, InlineViewError, View};
