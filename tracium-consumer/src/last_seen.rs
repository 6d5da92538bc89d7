//! What a projection has seen: per aggregate its last version, per event without a version its id.

use std::collections::HashSet;

use sqlx::PgConnection;
use tracium_core::{Aggregate, Version};
use uuid::Uuid;

use crate::batch::Entry;
use crate::sql::{self, columns};

/// Locks the rows of these aggregates, which are in key order, and makes the missing ones. `None`: never seen.
pub(crate) async fn lock(
    tx: &mut PgConnection,
    projection: &str,
    epoch: i32,
    aggregates: &[&Aggregate],
) -> Result<Vec<Option<(Version, Uuid)>>, sqlx::Error> {
    let mut rows: Vec<Option<(i64, Option<Uuid>)>> = vec![None; aggregates.len()];
    let all: Vec<usize> = (0..aggregates.len()).collect();
    read(tx, projection, epoch, aggregates, &all, &mut rows).await?;
    let missing: Vec<usize> = all.into_iter().filter(|index| rows[*index].is_none()).collect();
    if !missing.is_empty() {
        let (types, ids) = columns(missing.iter().map(|index| aggregates[*index]));
        let made = sqlx::query(sql::INSERT_LAST_SEEN).bind(projection).bind(epoch).bind(types).bind(ids).execute(&mut *tx);
        if made.await?.rows_affected() < missing.len() as u64 {
            // Another transaction made some of them in between and has committed: lock and read those too.
            read(tx, projection, epoch, aggregates, &missing, &mut rows).await?;
        }
    }
    Ok(rows.into_iter().map(|row| row.and_then(|(version, id)| Some((Version::new(version)?, id?)))).collect())
}

async fn read(
    tx: &mut PgConnection,
    projection: &str,
    epoch: i32,
    aggregates: &[&Aggregate],
    wanted: &[usize],
    rows: &mut [Option<(i64, Option<Uuid>)>],
) -> Result<(), sqlx::Error> {
    if wanted.is_empty() {
        return Ok(());
    }
    let (types, ids) = columns(wanted.iter().map(|index| aggregates[*index]));
    let found: Vec<(i64, i64, Option<Uuid>)> =
        sqlx::query_as(sql::LOCK_LAST_SEEN).bind(projection).bind(epoch).bind(types).bind(ids).fetch_all(tx).await?;
    for (ordinal, version, event_id) in found {
        let index = usize::try_from(ordinal - 1).ok().and_then(|at| wanted.get(at));
        if let Some(row) = index.and_then(|index| rows.get_mut(*index)) {
            *row = Some((version, event_id));
        }
    }
    Ok(())
}

/// Raises last_seen to what the effect reached.
pub(crate) async fn raise(tx: &mut PgConnection, projection: &str, epoch: i32, aggregates: &[Entry]) -> Result<(), sqlx::Error> {
    let reached: Vec<(&Aggregate, (Version, Uuid))> =
        aggregates.iter().filter_map(|entry| entry.reached.map(|reached| (&entry.aggregate, reached))).collect();
    if reached.is_empty() {
        return Ok(());
    }
    let (types, ids) = columns(reached.iter().map(|(aggregate, _)| *aggregate));
    let (versions, events): (Vec<i64>, Vec<Uuid>) = reached.iter().map(|(_, (version, id))| (version.get(), *id)).unzip();
    sqlx::query(sql::RAISE_LAST_SEEN)
        .bind(projection)
        .bind(epoch)
        .bind(types)
        .bind(ids)
        .bind(versions)
        .bind(events)
        .execute(tx)
        .await?;
    Ok(())
}

/// Records the ids of events without a version; returns those that were not there.
pub(crate) async fn record_ids(
    tx: &mut PgConnection,
    projection: &str,
    epoch: i32,
    ids: Vec<Uuid>,
) -> Result<HashSet<Uuid>, sqlx::Error> {
    if ids.is_empty() {
        return Ok(HashSet::new());
    }
    let new: Vec<Uuid> = sqlx::query_scalar(sql::INSERT_PROCESSED).bind(projection).bind(epoch).bind(ids).fetch_all(tx).await?;
    Ok(new.into_iter().collect())
}
