//! How far the chain is, from the database alone.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use sqlx::PgPool;
use tracium_consumer::status;

use crate::consumer::PROJECTIONS;
use crate::events::AIRCRAFT;

/// For how long nothing may move before that is an error.
const STANDSTILL: Duration = Duration::from_secs(90);

/// Aircraft that a projection has not brought to their last published version.
const BEHIND: &str = "
    SELECT count(*) FROM unnest($1::text[]) AS p (name) CROSS JOIN tracium.stream s
    WHERE s.aggregate_type = $2 AND s.published_version > coalesce((
        SELECT l.version FROM tracium.last_seen l WHERE l.projection = p.name AND l.epoch = 1
            AND l.aggregate_type = s.aggregate_type AND l.aggregate_id = s.aggregate_id), 0)";

/// Where the first aircraft stands still, and why.
const QUARANTINE: &str = "SELECT projection, aggregate_id, cause FROM tracium.quarantine ORDER BY since LIMIT 1";

const OUTBOX: &str = "
    SELECT (SELECT count(*) FROM tracium.outbox WHERE published_at IS NULL),
           (SELECT min(last_error) FROM tracium.held_key)";

/// Sees to it that the chain moves.
pub(crate) struct Watch<'a> {
    pool: &'a PgPool,
    last: (u64, u64),
    moved: Instant,
}

impl<'a> Watch<'a> {
    pub(crate) fn new(pool: &'a PgPool) -> Self {
        Self { pool, last: (0, 0), moved: Instant::now() }
    }

    /// Events that both projections have taken, the ones delivered again included: it only rises.
    ///
    /// # Errors
    /// If an event was refused, or nothing has moved for a while: neither the consumer nor what the caller counts.
    pub(crate) async fn look(&mut self, written: u64) -> Result<u64> {
        let mut taken = 0;
        for projection in status(self.pool).await?.iter().filter(|p| PROJECTIONS.contains(&p.name.as_str())) {
            if projection.quarantined > 0 {
                let why: Option<(String, String, String)> = sqlx::query_as(QUARANTINE).fetch_optional(self.pool).await?;
                let (name, aircraft, cause) = why.unwrap_or_default();
                bail!("projection {name}: aircraft {aircraft} stands still: {cause}");
            }
            if projection.dead_letters > 0 {
                bail!("projection {} has {} dead letters, see tracium.dead_letter", projection.name, projection.dead_letters);
            }
            taken += u64::try_from(projection.applied + projection.duplicates)?;
        }
        if (written, taken) != self.last {
            self.last = (written, taken);
            self.moved = Instant::now();
        } else if self.moved.elapsed() > STANDSTILL {
            let (pending, error): (i64, Option<String>) = sqlx::query_as(OUTBOX).fetch_one(self.pool).await?;
            let error = error.map(|e| format!(", the relay says: {e}")).unwrap_or_default();
            bail!("nothing has moved for {STANDSTILL:?}; {pending} events wait in the outbox{error}");
        }
        Ok(taken)
    }

    /// Whether both projections are at the last published version of every aircraft.
    pub(crate) async fn caught_up(&self) -> Result<bool> {
        let behind: i64 = sqlx::query_scalar(BEHIND).bind(PROJECTIONS.to_vec()).bind(AIRCRAFT).fetch_one(self.pool).await?;
        Ok(behind == 0)
    }
}
