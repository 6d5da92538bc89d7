//! Documents in a table of the epoch, read through a view of a stable name.

use async_trait::async_trait;
use sqlx::{AssertSqlSafe, PgConnection};
use tracium_core::{Aggregate, Version};

use super::PostgresViewConfig;
use crate::ProjectionError;
use crate::sink::{Changed, Stored, ViewSink};
use crate::sql::{self, columns};

/// See [`ViewSink`].
#[derive(Debug, Clone)]
pub(crate) struct PostgresViewSink {
    config: PostgresViewConfig,
}

impl PostgresViewSink {
    pub(crate) fn new(config: PostgresViewConfig) -> Self {
        Self { config }
    }
}

#[async_trait]
impl ViewSink for PostgresViewSink {
    async fn prepare(&self, connection: &mut PgConnection, epoch: i32) -> Result<(), ProjectionError> {
        let (table, view) = (self.config.table(epoch), self.config.stable_name());
        // Only what is missing is made: a role without CREATE can run on tables that a migration made for it.
        if kind(connection, &table).await?.is_none() {
            sqlx::query(AssertSqlSafe(sql::create_view_table(&table))).execute(&mut *connection).await?;
        }
        match kind(connection, &view).await?.as_deref() {
            Some("v") => {}
            None => {
                sqlx::query(AssertSqlSafe(sql::create_stable_view(&view, &table))).execute(&mut *connection).await?;
            }
            Some(_) => {
                return Err(ProjectionError::fatal(format!(
                    "{view}, the name that readers of this view use, is a table or another object already; \
                     choose another name or schema for the view"
                )));
            }
        }
        Ok(())
    }

    async fn load(
        &self,
        tx: &mut PgConnection,
        epoch: i32,
        aggregates: &[&Aggregate],
    ) -> Result<Vec<Option<Stored>>, ProjectionError> {
        let (types, ids) = columns(aggregates.iter().copied());
        let rows: Vec<(i64, i64, Option<String>)> = sqlx::query_as(AssertSqlSafe(sql::load_documents(&self.config.table(epoch))))
            .bind(types)
            .bind(ids)
            .fetch_all(tx)
            .await?;
        let mut stored = vec![None; aggregates.len()];
        for (ordinal, version, doc) in rows {
            let slot = usize::try_from(ordinal - 1).ok().and_then(|at| stored.get_mut(at));
            if let Some(slot) = slot {
                *slot = Some(Stored { version: Version::new(version).unwrap_or_default(), doc });
            }
        }
        Ok(stored)
    }

    async fn store(&self, tx: &mut PgConnection, epoch: i32, docs: &[Changed<'_>]) -> Result<(), ProjectionError> {
        let (types, ids) = columns(docs.iter().map(|d| d.aggregate));
        let versions: Vec<i64> = docs.iter().map(|d| d.version.get()).collect();
        let texts: Vec<Option<&str>> = docs.iter().map(|d| d.doc.as_deref()).collect();
        sqlx::query(AssertSqlSafe(sql::store_documents(&self.config.table(epoch))))
            .bind(types)
            .bind(ids)
            .bind(versions)
            .bind(texts)
            .execute(tx)
            .await?;
        Ok(())
    }
}

/// `pg_class.relkind` of a name, if it exists.
async fn kind(connection: &mut PgConnection, name: &str) -> Result<Option<String>, ProjectionError> {
    Ok(sqlx::query_scalar(sql::RELATION_KIND).bind(name).fetch_one(connection).await?)
}
