//! `Projection`: a read model of any shape, with its own statements.

use std::any::Any;
use std::panic::AssertUnwindSafe;

use async_trait::async_trait;
use futures::FutureExt;
use sqlx::{PgConnection, PgPool};
use tracium_core::Event;

use crate::effect::{Effect, Effected, is_skipped};
use crate::{ProjectionError, Wired};

/// A read model that writes its own tables, in PostgreSQL.
///
/// Every event takes effect exactly once: [`Projection::apply`] runs in the transaction that records the events as seen,
/// so either both are there or none, and an event that Kafka delivers again does not reach it. Events of one aggregate
/// come in version order; across aggregates nothing is promised. Events without a version are recorded by id.
///
/// For one document per aggregate a [`tracium_core::View`] is less work, and can be rebuilt and verified.
///
/// ```no_run
/// use async_trait::async_trait;
/// use sqlx::PgConnection;
/// use tracium_consumer::{Projection, ProjectionError};
/// use tracium_core::Event;
///
/// struct OrdersPerDay;
///
/// #[async_trait]
/// impl Projection for OrdersPerDay {
///     fn name(&self) -> &str {
///         "orders_per_day"
///     }
///
///     async fn prepare(&self, conn: &mut PgConnection, _epoch: i32) -> Result<(), ProjectionError> {
///         sqlx::query("CREATE TABLE IF NOT EXISTS orders_per_day (day date PRIMARY KEY, orders bigint NOT NULL)")
///             .execute(conn)
///             .await?;
///         Ok(())
///     }
///
///     async fn apply(&self, tx: &mut PgConnection, events: &[Event]) -> Result<(), ProjectionError> {
///         for event in events.iter().filter(|e| e.event_type.as_str() == "order.created") {
///             sqlx::query(
///                 "INSERT INTO orders_per_day AS o VALUES ($1, 1)
///                  ON CONFLICT (day) DO UPDATE SET orders = o.orders + 1",
///             )
///             .bind(event.created_at.date_naive())
///             .execute(&mut *tx)
///             .await?;
///         }
///         Ok(())
///     }
/// }
/// # fn doc(pool: sqlx::PgPool) { let _ = OrdersPerDay.on_postgres(pool); }
/// ```
#[async_trait]
pub trait Projection: Send + Sync + 'static {
    /// The name: of the read model, the consumer group and the metrics. A valid [`tracium_core::SqlIdentifier`].
    fn name(&self) -> &str;

    /// Raise it when the effect changes; a new version wants to be filled from the start.
    fn version(&self) -> u32 {
        1
    }

    /// Makes the tables, on every start, in a transaction that one process at a time runs. Does nothing unless written.
    ///
    /// # Errors
    /// [`ProjectionError`]; the consumer does not start.
    async fn prepare(&self, conn: &mut PgConnection, epoch: i32) -> Result<(), ProjectionError> {
        let _ = (conn, epoch);
        Ok(())
    }

    /// The effect of some events, on the transaction that also records them as seen. Do not commit it or roll it back.
    ///
    /// If a batch fails as poison it is rolled back and given again event by event, until the culprit is found. A panic
    /// is poison. The future may be dropped at any await point; the transaction is then rolled back.
    ///
    /// # Errors
    /// [`ProjectionError`], whose class decides: transient → tried again, poison → the event's aggregate stands still,
    /// fatal → the consumer stops.
    async fn apply(&self, tx: &mut PgConnection, events: &[Event]) -> Result<(), ProjectionError>;

    /// Wires it to the database that has its tables and Tracium's schema. The pool gives the address: the consumer opens
    /// one connection of its own.
    fn on_postgres(self, pool: PgPool) -> PostgresProjection<Self>
    where
        Self: Sized,
    {
        PostgresProjection { projection: self, pool }
    }
}

/// A [`Projection`] and its database; give it to [`crate::Consumer::with`].
#[derive(Debug)]
pub struct PostgresProjection<P> {
    projection: P,
    pool: PgPool,
}

impl<P: Projection> From<PostgresProjection<P>> for Wired {
    fn from(projection: PostgresProjection<P>) -> Self {
        Wired::new(projection)
    }
}

#[async_trait]
impl<P: Projection> Effect for PostgresProjection<P> {
    fn name(&self) -> &str {
        self.projection.name()
    }

    fn fingerprint(&self) -> String {
        format!("projection version={}", self.projection.version())
    }

    fn needs_versions(&self) -> bool {
        false
    }

    fn pool(&self) -> &PgPool {
        &self.pool
    }

    async fn prepare(&self, connection: &mut PgConnection, epoch: i32) -> Result<(), ProjectionError> {
        self.projection.prepare(connection, epoch).await
    }

    async fn apply(&self, tx: &mut PgConnection, _epoch: i32, events: &[Event]) -> Result<Vec<Effected>, ProjectionError> {
        let kept: Vec<Event>;
        let events_to_apply = if events.iter().any(is_skipped) {
            kept = events.iter().filter(|e| !is_skipped(e)).cloned().collect();
            &kept
        } else {
            events
        };
        if !events_to_apply.is_empty() {
            AssertUnwindSafe(self.projection.apply(tx, events_to_apply)).catch_unwind().await.unwrap_or_else(|panic| {
                Err(ProjectionError::poison(format!("the projection panicked: {}", panic_text(panic.as_ref()))))
            })?;
        }
        Ok(events.iter().map(|_| Effected::Applied).collect())
    }
}

/// What a panic said.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
