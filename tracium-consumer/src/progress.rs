//! How far a projection is, for `status`.

use std::collections::BTreeMap;

use sqlx::PgConnection;

use crate::batch::Progress;
use crate::sql;

/// Saves every partition's part of a batch.
pub(crate) async fn save(
    tx: &mut PgConnection,
    projection: &str,
    epoch: i32,
    parts: &BTreeMap<(&str, i32), Progress>,
) -> Result<(), sqlx::Error> {
    let (topics, numbers): (Vec<&str>, Vec<i32>) = parts.keys().copied().unzip();
    sqlx::query(sql::SAVE_PROGRESS)
        .bind(projection)
        .bind(epoch)
        .bind(topics)
        .bind(numbers)
        .bind(parts.values().map(|p| p.next_offset).collect::<Vec<_>>())
        .bind(parts.values().map(|p| p.end_offset).collect::<Vec<_>>())
        .bind(parts.values().map(|p| p.applied).collect::<Vec<_>>())
        .bind(parts.values().map(|p| p.duplicates).collect::<Vec<_>>())
        .bind(parts.values().map(|p| p.event_time).collect::<Vec<_>>())
        .execute(tx)
        .await?;
    Ok(())
}
