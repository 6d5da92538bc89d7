//! Connection 3: membership, takeover and release. Apart from connection 2, so that waiting for a predecessor's batch does
//! not keep this relay's own leases from being refreshed.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};
use tokio::time::Instant;

use super::{Lease, trust_of};
use crate::decision::LeaseView;
use crate::source::{Fence, within};
use crate::{SourceError, sql};

/// What everybody holds.
#[derive(Debug, Default)]
pub(crate) struct Overview {
    pub(crate) members: Vec<String>,
    pub(crate) leases: Vec<LeaseView>,
}

pub(crate) struct Coordinator {
    options: PgConnectOptions,
    connection: Option<PgConnection>,
    owner: String,
    ttl: Duration,
    deadline: Duration,
}

impl Coordinator {
    pub(crate) fn new(options: PgConnectOptions, owner: String, ttl: Duration, deadline: Duration) -> Self {
        Self { options, connection: None, owner, ttl, deadline }
    }

    async fn take_connection(&mut self) -> Result<PgConnection, SourceError> {
        match self.connection.take() {
            Some(connection) => Ok(connection),
            None => within(self.deadline, PgConnection::connect_with(&self.options)).await,
        }
    }

    /// Says that this relay is here, and looks who else is and who holds what.
    pub(crate) async fn overview(&mut self) -> Result<Overview, SourceError> {
        let mut connection = self.take_connection().await?;
        let member = sqlx::query(sql::UPSERT_MEMBER)
            .bind(&self.owner)
            .bind(self.ttl.as_secs_f64())
            .bind(env!("CARGO_PKG_VERSION"))
            .execute(&mut connection);
        within(self.deadline, member).await?;
        let members = within(self.deadline, sqlx::query_scalar(sql::LIVE_MEMBERS).fetch_all(&mut connection)).await?;
        let leases = sqlx::query_as::<_, (i16, Option<String>, bool)>(sql::LEASES).fetch_all(&mut connection);
        let leases = within(self.deadline, leases).await?;
        self.connection = Some(connection);
        let leases = leases.into_iter().map(|(shard, owner, expired)| LeaseView { shard, owner, expired }).collect();
        Ok(Overview { members, leases })
    }

    /// Takes a free or expired lease under a new term; `None` if somebody else has it, or its holder's batch is still open
    /// after `lock_timeout`.
    pub(crate) async fn take(&mut self, shard: i16, lock_timeout: Duration) -> Result<Option<Arc<Lease>>, SourceError> {
        let mut connection = self.take_connection().await?;
        let taken = within(self.deadline, self.try_take(&mut connection, shard, lock_timeout)).await;
        match taken {
            Ok(taken) => {
                self.connection = Some(connection);
                Ok(taken.map(|(term, sent)| {
                    let fence = Fence { shard, owner: self.owner.clone(), term };
                    Arc::new(Lease::new(fence, trust_of(sent, self.ttl)))
                }))
            }
            Err(SourceError::Database(error)) if error.as_database_error().and_then(|e| e.code()).as_deref() == Some("55P03") => {
                tracing::info!(shard, "the expired lease's holder still has a batch open; trying again");
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    async fn try_take(
        &self,
        connection: &mut PgConnection,
        shard: i16,
        lock_timeout: Duration,
    ) -> Result<Option<(i64, Instant)>, sqlx::Error> {
        let mut tx = connection.begin().await?;
        sqlx::query("SELECT set_config('lock_timeout', $1, true)")
            .bind(format!("{}ms", lock_timeout.as_millis()))
            .execute(&mut *tx)
            .await?;
        if sqlx::query(sql::LOCK_LEASE).bind(shard).fetch_optional(&mut *tx).await?.is_none() {
            tx.rollback().await?;
            return Ok(None);
        }
        let sent = Instant::now();
        let term = sqlx::query_scalar(sql::TAKE_LEASE)
            .bind(shard)
            .bind(&self.owner)
            .bind(self.ttl.as_secs_f64())
            .fetch_optional(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(term.map(|term: i64| (term, sent)))
    }

    /// Hands a lease back: its shard task has ended.
    pub(crate) async fn release(&mut self, fence: &Fence) -> Result<(), SourceError> {
        let mut connection = self.take_connection().await?;
        let release =
            sqlx::query(sql::RELEASE_LEASE).bind(fence.shard).bind(&fence.owner).bind(fence.term).execute(&mut connection);
        within(self.deadline, release).await?;
        self.connection = Some(connection);
        Ok(())
    }

    /// Takes this relay out of the members.
    pub(crate) async fn leave(&mut self) -> Result<(), SourceError> {
        let mut connection = self.take_connection().await?;
        within(self.deadline, sqlx::query(sql::DELETE_MEMBER).bind(&self.owner).execute(&mut connection)).await?;
        Ok(())
    }
}
