//! Sinks: where read models live. A sink knows neither Kafka nor last_seen; all sinks have files of the same names.

pub(crate) mod postgres;

use async_trait::async_trait;
use sqlx::PgConnection;
use tracium_core::{Aggregate, Version};

use crate::ProjectionError;

/// A document and its version, read together: a fold starts from nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Stored {
    pub(crate) version: Version,
    /// JSON; `None` for a document that the fold removed.
    pub(crate) doc: Option<String>,
}

/// A document to be stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Changed<'a> {
    pub(crate) aggregate: &'a Aggregate,
    pub(crate) version: Version,
    /// JSON; `None` removes the document and keeps its version.
    pub(crate) doc: Option<String>,
}

/// A sink of one document per aggregate.
#[async_trait]
pub(crate) trait ViewSink: Send + Sync + 'static {
    /// Makes what readers and writers need.
    async fn prepare(&self, connection: &mut PgConnection, epoch: i32) -> Result<(), ProjectionError>;

    /// The documents of these aggregates, in their order.
    async fn load(
        &self,
        tx: &mut PgConnection,
        epoch: i32,
        aggregates: &[&Aggregate],
    ) -> Result<Vec<Option<Stored>>, ProjectionError>;

    /// Stores documents; a version never falls.
    async fn store(&self, tx: &mut PgConnection, epoch: i32, docs: &[Changed<'_>]) -> Result<(), ProjectionError>;
}
