//! The state of the outbox, as `tracium status` and `tracium outbox stats` show it.

use serde::Serialize;
use sqlx::{PgConnection, Row};

use crate::decision::STUCK_ATTEMPTS;
use crate::{SourceError, sql};

/// Depth, age and leases. Shape: `contract` of `tracium status --json`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OutboxStats {
    /// Rows not published yet, held ones included.
    pub pending: i64,
    /// Age of the oldest of them in seconds, 0 if there is none.
    pub oldest_age_s: f64,
    /// (topic, key)s held back.
    pub held_keys: i64,
    /// Of those, with ten failed attempts or more: an operator should look.
    pub stuck: i64,
    /// By shard.
    pub shards: Vec<ShardStats>,
}

/// One shard.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ShardStats {
    /// Its number.
    pub shard: i16,
    /// The relay that holds its lease, if any.
    pub owner: Option<String>,
    /// How often the lease has changed hands.
    pub term: i64,
    /// Seconds until the lease expires, 0 if it has.
    pub expires_in_s: f64,
    /// Rows not published yet.
    pub pending: i64,
}

/// Reads the state of the outbox. One snapshot a statement.
///
/// # Errors
/// [`SourceError`].
pub async fn stats(connection: &mut PgConnection) -> Result<OutboxStats, SourceError> {
    let rows = sqlx::query(sql::STATS).fetch_all(&mut *connection).await?;
    let stuck = i32::try_from(STUCK_ATTEMPTS).unwrap_or(i32::MAX);
    let (held_keys, stuck): (i64, i64) = sqlx::query_as(sql::HELD_STATS).bind(stuck).fetch_one(connection).await?;
    let mut shards = Vec::with_capacity(rows.len());
    let mut oldest_age_s = 0.0_f64;
    for row in rows {
        oldest_age_s = oldest_age_s.max(row.try_get::<Option<f64>, _>("oldest")?.unwrap_or(0.0));
        shards.push(ShardStats {
            shard: row.try_get("shard")?,
            owner: row.try_get("owner")?,
            term: row.try_get("term")?,
            expires_in_s: row.try_get("expires_in_s")?,
            pending: row.try_get("pending")?,
        });
    }
    Ok(OutboxStats { pending: shards.iter().map(|s| s.pending).sum(), oldest_age_s, held_keys, stuck, shards })
}
