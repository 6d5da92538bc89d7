//! Kafka → projection → sink: read models in which every event takes effect exactly once.
//!
//! Implement a [`tracium_core::View`] (one document per aggregate, a pure fold) or a [`Projection`] (your own tables and
//! statements), wire it to PostgreSQL and give it to a [`Consumer`]:
//!
//! ```no_run
//! use serde::{Deserialize, Serialize};
//! use tokio_util::sync::CancellationToken;
//! use tracium_consumer::{Consumer, ConsumerOptions, IntoPostgres, Start, Subscription};
//! use tracium_core::{Event, EvolveError, View};
//!
//! #[derive(Default, Serialize, Deserialize)]
//! struct Order { items: u32, paid: bool }
//!
//! struct Orders;
//!
//! impl View for Orders {
//!     const NAME: &'static str = "orders";
//!     type Doc = Order;
//!
//!     fn evolve(doc: Option<Order>, event: &Event) -> Result<Option<Order>, EvolveError> {
//!         let mut order = doc.unwrap_or_default();
//!         match event.event_type.as_str() {
//!             "order.item_added" => order.items += 1,
//!             "order.paid" => order.paid = true,
//!             _ => {}
//!         }
//!         Ok(Some(order))
//!     }
//! }
//!
//! # async fn doc(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! Consumer::new(ConsumerOptions::default())
//!     .with(Orders.into_postgres(pool), Subscription::to(["orders"], Start::Earliest)?)?
//!     .run(CancellationToken::new())
//!     .await?;
//! # Ok(()) }
//! ```
//!
//! # Guarantees
//!
//! - **One effect per event and projection**, whatever Kafka delivers again: the effect and the record of it
//!   (`tracium.last_seen`, `tracium.processed_events`) are one PostgreSQL transaction, and offsets are committed after it.
//! - **Per-aggregate order.** A missing version stops its aggregate, never the partition.
//! - **Bad input is kept, visible and never dropped**: what cannot be applied goes to `tracium.dead_letter` in its original
//!   bytes, its aggregate is quarantined, and later events of it park behind, in order. [`status`] counts them.
//!
//! Nothing is promised across aggregates, and effects outside PostgreSQL's transaction (a call from
//! [`Projection::apply`]) may happen more than once.

mod batch;
mod config;
mod consumer;
mod dead_letter;
mod decision;
mod effect;
mod error;
mod last_seen;
mod progress;
mod projection;
mod sink;
mod sql;
mod status;
mod view;

pub use config::ConsumerOptions;
pub use consumer::{Consumer, Subscription};
pub use decision::Start;
pub use effect::Wired;
pub use error::{ConsumerError, ProjectionError};
pub use projection::{PostgresProjection, Projection};
pub use status::{ProjectionStatus, status};
pub use tracium_kafka::KafkaOptions;
pub use view::{IntoPostgres, PostgresView};
