//! A [`View`] on PostgreSQL.

mod fold;

use std::collections::HashMap;
use std::marker::PhantomData;

use async_trait::async_trait;
use sqlx::{PgConnection, PgPool};
use tracium_core::{Aggregate, Event, NameError, SqlIdentifier, View};

use crate::effect::{Effect, Effected};
use crate::sink::ViewSink;
use crate::sink::postgres::{PostgresViewConfig, PostgresViewSink};
use crate::{ProjectionError, Wired};

/// Wires a [`View`] to PostgreSQL.
///
/// ```no_run
/// use tracium_consumer::IntoPostgres;
/// use tracium_core::{Event, EvolveError, View};
///
/// struct Totals;
///
/// impl View for Totals {
///     const NAME: &'static str = "totals";
///     type Doc = u64;
///     fn evolve(doc: Option<u64>, _event: &Event) -> Result<Option<u64>, EvolveError> {
///         Ok(Some(doc.unwrap_or(0) + 1))
///     }
/// }
///
/// # fn doc(pool: sqlx::PgPool) {
/// let totals = Totals.into_postgres(pool); // read it with SELECT doc FROM totals WHERE aggregate_id = …
/// # }
/// ```
pub trait IntoPostgres: View + Sized {
    /// Documents go to the table `<name>_e<epoch>` (aggregate_type, aggregate_id, version, doc, updated_at), which the
    /// consumer makes; readers use the database view `<name>`, which stays when an epoch is swapped and hides removed
    /// documents. The pool gives the address: the consumer opens one connection of its own.
    fn into_postgres(self, pool: PgPool) -> PostgresView<Self> {
        PostgresView { pool, schema: None, name: Self::NAME.to_owned(), view: PhantomData }
    }
}

impl<V: View> IntoPostgres for V {}

/// A [`View`] and its place in PostgreSQL; give it to [`crate::Consumer::with`].
///
/// Every event takes effect exactly once: documents are written in the transaction that records the events as seen, and
/// a fold starts from a document and its own version, read together.
pub struct PostgresView<V> {
    pool: PgPool,
    schema: Option<SqlIdentifier>,
    name: String,
    view: PhantomData<fn() -> V>,
}

impl<V: View> PostgresView<V> {
    /// Puts table and database view into that schema, which must exist. Default `public`.
    #[must_use]
    pub fn in_schema(mut self, schema: SqlIdentifier) -> Self {
        self.schema = Some(schema);
        self
    }

    /// Another name than [`View::NAME`]: for a second copy of a view, filled from the start.
    #[must_use]
    pub fn named(mut self, name: SqlIdentifier) -> Self {
        self.name = name.into_string();
        self
    }
}

impl<V> std::fmt::Debug for PostgresView<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PostgresView").field("schema", &self.schema).field("name", &self.name).finish_non_exhaustive()
    }
}

impl<V: View> From<PostgresView<V>> for Wired {
    fn from(view: PostgresView<V>) -> Self {
        let PostgresView { pool, schema, name, .. } = view;
        let sink = SqlIdentifier::new(name.as_str())
            .map(|name| PostgresViewSink::new(PostgresViewConfig { schema: schema.clone(), name }));
        Wired::new(ViewEffect::<V, PostgresViewSink> { pool, schema, name, sink, view: PhantomData })
    }
}

/// A view on a sink.
struct ViewEffect<V, S> {
    pool: PgPool,
    schema: Option<SqlIdentifier>,
    name: String,
    /// Without a valid name there is none; [`crate::Consumer::with`] refuses it.
    sink: Result<S, NameError>,
    view: PhantomData<fn() -> V>,
}

impl<V, S> ViewEffect<V, S> {
    fn sink(&self) -> Result<&S, ProjectionError> {
        self.sink.as_ref().map_err(|e| ProjectionError::fatal(e.to_string()))
    }
}

#[async_trait]
impl<V: View, S: ViewSink> Effect for ViewEffect<V, S> {
    fn name(&self) -> &str {
        &self.name
    }

    fn fingerprint(&self) -> String {
        let schema = self.schema.as_ref().map_or("public", SqlIdentifier::as_str);
        format!("view version={} schema={schema}", V::VERSION)
    }

    fn needs_versions(&self) -> bool {
        true
    }

    fn pool(&self) -> &PgPool {
        &self.pool
    }

    async fn prepare(&self, connection: &mut PgConnection, epoch: i32) -> Result<(), ProjectionError> {
        self.sink()?.prepare(connection, epoch).await
    }

    async fn apply(&self, tx: &mut PgConnection, epoch: i32, events: &[Event]) -> Result<Vec<Effected>, ProjectionError> {
        let mut aggregates: Vec<&Aggregate> = Vec::new();
        let mut slots: HashMap<&Aggregate, usize> = HashMap::new();
        for aggregate in events.iter().filter_map(|e| e.aggregate.as_ref()) {
            slots.entry(aggregate).or_insert_with(|| {
                aggregates.push(aggregate);
                aggregates.len() - 1
            });
        }
        let stored = self.sink()?.load(tx, epoch, &aggregates).await?;
        let (effects, changed) = fold::fold::<V>(&aggregates, &slots, &stored, events)?;
        if !changed.is_empty() {
            self.sink()?.store(tx, epoch, &changed).await?;
        }
        Ok(effects)
    }
}
