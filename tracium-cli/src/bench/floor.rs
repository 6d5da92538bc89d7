//! What claiming and marking cost without a broker: no relay on this server can be faster than its SQL.

use std::time::Instant;

use anyhow::Context;
use serde::Serialize;
use sqlx::{AssertSqlSafe, PgPool, Row};
use tokio::task::JoinSet;

use super::{load, measure};
use crate::out;

/// Rows a second through the plainest loop: `SELECT … FOR UPDATE SKIP LOCKED`, `UPDATE … = ANY`, `COMMIT`, which waits for
/// the WAL (`synchronous_commit` as the server has it).
#[derive(Debug, Clone, Serialize)]
pub(super) struct Floor {
    /// Over one connection, which goes round the shards.
    pub(super) sql_eps: f64,
    /// Over one connection a shard, all at once.
    pub(super) sql_parallel_eps: f64,
    /// Rows in a batch.
    pub(super) batch: u32,
}

pub(super) async fn run(pool: &PgPool, events: u64, batch: u32) -> anyhow::Result<Floor> {
    let shards: Vec<i16> = sqlx::query_scalar("SELECT shard FROM tracium.relay_lease ORDER BY shard").fetch_all(pool).await?;
    let mut rates = Vec::new();
    for (round, ways) in [(1, vec![shards.clone()]), (2, shards.iter().map(|shard| vec![*shard]).collect())] {
        out::note(format!("the SQL floor over {} connections", ways.len()));
        load::fill_outbox(pool, events, round).await?;
        let began = Instant::now();
        let mut loops = JoinSet::new();
        for shards in ways {
            loops.spawn(claim_and_mark(pool.clone(), shards, batch));
        }
        let mut rows = 0;
        while let Some(ended) = loops.join_next().await {
            rows += ended.context("a loop panicked")??;
        }
        anyhow::ensure!(rows == events, "{rows} rows were marked, not {events}");
        rates.push((measure::float(rows) / began.elapsed().as_secs_f64() * 10.0).round() / 10.0);
    }
    let &[sql_eps, sql_parallel_eps] = rates.as_slice() else { anyhow::bail!("BUG: two rounds, {} rates", rates.len()) };
    Ok(Floor { sql_eps, sql_parallel_eps, batch })
}

async fn claim_and_mark(pool: PgPool, mut shards: Vec<i16>, batch: u32) -> anyhow::Result<u64> {
    let mut connection = pool.acquire().await?.detach();
    let mut rows = 0;
    while !shards.is_empty() {
        let mut left = Vec::new();
        for shard in shards {
            let mut tx = sqlx::Connection::begin(&mut connection).await?;
            let claim = format!(
                "SELECT id, event_id, event_type, aggregate_type, aggregate_id, aggregate_version, previous_version, topic,
                        partition_key, payload, payload_bytes, headers, created_at
                 FROM tracium.outbox_{shard} WHERE published_at IS NULL AND NOT held ORDER BY id LIMIT $1 FOR UPDATE SKIP LOCKED"
            );
            let claimed = sqlx::query(AssertSqlSafe(claim)).bind(i64::from(batch)).fetch_all(&mut *tx).await?;
            let ids: Vec<i64> = claimed.iter().map(|row| row.get(0)).collect();
            let mark = format!("UPDATE tracium.outbox_{shard} SET published_at = clock_timestamp() WHERE id = ANY ($1)");
            rows += sqlx::query(AssertSqlSafe(mark)).bind(&ids).execute(&mut *tx).await?.rows_affected();
            tx.commit().await?;
            if !ids.is_empty() {
                left.push(shard);
            }
        }
        shards = left;
    }
    Ok(rows)
}
