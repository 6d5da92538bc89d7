//! `View`: one document per aggregate, a pure fold of its events.

use serde::Serialize;
use serde::de::DeserializeOwned;
use sqlx::{AssertSqlSafe, Postgres, Transaction};

use crate::{Aggregate, Class, Classify, Event, EventError, EventStore, LoadError, SqlIdentifier, Version};

/// A read model with one document per aggregate.
///
/// The fold is pure: the same events give the same document, whoever folds them and however often. That is what makes
/// dedup, rebuild and healing come free, on every sink and in the writer's own transaction ([`InlineView`]).
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use tracium_core::{Event, EvolveError, View};
///
/// #[derive(Debug, Default, Serialize, Deserialize)]
/// struct Basket { items: u32 }
///
/// struct Baskets;
///
/// impl View for Baskets {
///     const NAME: &'static str = "baskets";
///     type Doc = Basket;
///
///     fn evolve(doc: Option<Basket>, event: &Event) -> Result<Option<Basket>, EvolveError> {
///         let mut basket = doc.unwrap_or_default();
///         match event.event_type.as_str() {
///             "basket.item_added" => basket.items += 1,
///             "basket.emptied" => return Ok(None), // the document goes
///             _ => {}                              // not ours
///         }
///         Ok(Some(basket))
///     }
/// }
/// ```
pub trait View: Send + Sync + 'static {
    /// The name: of the read model, the consumer group and the metrics. A valid [`SqlIdentifier`].
    const NAME: &'static str;
    /// Raise it when the fold or the document changes; a new version wants a rebuild.
    const VERSION: u32 = 1;
    /// The document.
    type Doc: Serialize + DeserializeOwned + Send + Sync + 'static;

    /// The document after the event; `Ok(None)` removes it.
    ///
    /// # Errors
    /// [`EvolveError`] for an event that cannot be folded. It is poison: the event is kept and the aggregate stands
    /// still, all others go on.
    fn evolve(doc: Option<Self::Doc>, event: &Event) -> Result<Option<Self::Doc>, EvolveError>;
}

/// An event that a fold refuses. Class: poison.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EvolveError {
    /// The payload does not fit.
    #[error(transparent)]
    Event(#[from] EventError),
    /// The fold's own reason.
    #[error("{0}")]
    Refused(String),
}

impl EvolveError {
    /// A refusal in the fold's own words.
    pub fn refused(reason: impl Into<String>) -> Self {
        Self::Refused(reason.into())
    }
}

impl Classify for EvolveError {
    fn class(&self) -> Class {
        Class::Poison
    }
}

/// A [`View`] kept in the writer's own transaction, for reading what was just written.
///
/// The table belongs to the service ([`InlineView::ddl`]); the fold starts from the document and version read together,
/// so calling [`InlineView::catch_up`] again changes nothing.
#[derive(Debug, Clone)]
pub struct InlineView {
    table: SqlIdentifier,
}

/// An inline view that could not be brought up to date. The transaction has to be rolled back.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InlineViewError {
    /// The fold refused an event.
    #[error("the inline view refused version {version} of {aggregate}")]
    Evolve {
        /// Whose event.
        aggregate: Aggregate,
        /// Which.
        version: Version,
        /// Why.
        #[source]
        source: EvolveError,
    },
    /// The events could not be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The stored document does not fit the view's type, or the new one is not JSON.
    #[error("the document of {aggregate} does not fit the view's type")]
    Document {
        /// Whose document.
        aggregate: Aggregate,
        /// serde's reason.
        #[source]
        source: serde_json::Error,
    },
    /// PostgreSQL refused.
    #[error("the inline view's table could not be read or written")]
    Database(#[source] sqlx::Error),
}

impl Classify for InlineViewError {
    fn class(&self) -> Class {
        match self {
            Self::Evolve { .. } | Self::Document { .. } => Class::Poison,
            Self::Load(error) => error.class(),
            Self::Database(error) => crate::class_of_database_error(error),
        }
    }
}

impl InlineView {
    /// An inline view in that table.
    #[must_use]
    pub fn new(table: SqlIdentifier) -> Self {
        Self { table }
    }

    /// The statement that makes the table, for the service's own migrations.
    #[must_use]
    pub fn ddl(&self) -> String {
        format!(
            "CREATE TABLE {} (aggregate_type text NOT NULL, aggregate_id text NOT NULL, version bigint NOT NULL, \
             doc jsonb, PRIMARY KEY (aggregate_type, aggregate_id))",
            self.table
        )
    }

    /// Folds what the aggregate's events have on top of the stored document, in the caller's transaction. Call it after
    /// [`EventStore::append`], whose lock on the head keeps others out. Returns the document, `None` if it is removed.
    ///
    /// # Errors
    /// [`InlineViewError`]; roll the transaction back.
    pub async fn catch_up<V: View>(
        &self,
        tx: &mut Transaction<'_, Postgres>,
        aggregate: &Aggregate,
    ) -> Result<Option<V::Doc>, InlineViewError> {
        let document = |source| InlineViewError::Document { aggregate: aggregate.clone(), source };
        let select = format!("SELECT version, doc FROM {} WHERE aggregate_type = $1 AND aggregate_id = $2", self.table);
        let row: Option<(i64, Option<serde_json::Value>)> = sqlx::query_as(AssertSqlSafe(select))
            .bind(aggregate.aggregate_type.as_str())
            .bind(aggregate.aggregate_id.as_str())
            .fetch_optional(&mut **tx)
            .await
            .map_err(InlineViewError::Database)?;
        let (stored, doc) = row.unwrap_or((0, None));
        let mut doc: Option<V::Doc> = doc.map(serde_json::from_value).transpose().map_err(document)?;
        let mut version = Version::new(stored).unwrap_or_default();
        for event in EventStore::load(&mut **tx, aggregate, version).await? {
            version = event.version.unwrap_or(version);
            doc = V::evolve(doc, &event).map_err(|source| InlineViewError::Evolve {
                aggregate: aggregate.clone(),
                version,
                source,
            })?;
        }
        let upsert = format!(
            "INSERT INTO {0} (aggregate_type, aggregate_id, version, doc) VALUES ($1, $2, $3, $4)
             ON CONFLICT (aggregate_type, aggregate_id) DO UPDATE SET version = excluded.version, doc = excluded.doc
             WHERE {0}.version < excluded.version",
            self.table
        );
        let json = doc.as_ref().map(serde_json::to_value).transpose().map_err(document)?;
        sqlx::query(AssertSqlSafe(upsert))
            .bind(aggregate.aggregate_type.as_str())
            .bind(aggregate.aggregate_id.as_str())
            .bind(version.get())
            .bind(json)
            .execute(&mut **tx)
            .await
            .map_err(InlineViewError::Database)?;
        Ok(doc)
    }
}
