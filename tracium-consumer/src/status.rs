//! What the projections of a database are doing, for `status` commands and dashboards.

use serde::Serialize;
use sqlx::PgPool;

use crate::{ConsumerError, sql};

/// One projection and epoch. Serialises to the object that the command contract promises under `projections`.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ProjectionStatus {
    /// Its name.
    pub name: String,
    /// Its epoch, from 1.
    pub epoch: i32,
    /// Where the read model lives: `postgres`.
    pub sink: String,
    /// `live`, `building` or `retired`.
    pub state: String,
    /// Messages that wait in the topics, as of each partition's last batch. A projection that stands still or does not
    /// run does not learn of later ones.
    pub lag_events: i64,
    /// Age in seconds of the last event applied, where messages wait; else 0.
    pub lag_s: f64,
    /// Events that took effect.
    pub applied: i64,
    /// Events that were delivered again and had no effect.
    pub duplicates: i64,
    /// Gaps filled from the event store. 0: nothing heals yet.
    pub healed: i64,
    /// Aggregates that stand still.
    pub quarantined: i64,
    /// Events kept aside, those parked behind another included.
    pub dead_letters: i64,
}

type Row = (String, i32, String, String, i64, i64, i64, f64, i64, i64);

/// The status of every projection in a database, from the database alone.
///
/// ```no_run
/// # async fn doc(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
/// let projections = tracium_consumer::status(&pool).await?;
/// println!("{}", serde_json::json!({ "projections": projections }));
/// # Ok(()) }
/// ```
///
/// Cancel safety: it only reads.
///
/// # Errors
/// [`ConsumerError::Status`]; class by SQLSTATE.
pub async fn status(pool: &PgPool) -> Result<Vec<ProjectionStatus>, ConsumerError> {
    let rows: Vec<Row> = sqlx::query_as(sql::STATUS).fetch_all(pool).await.map_err(ConsumerError::Status)?;
    let status =
        |(name, epoch, sink, state, lag_events, applied, duplicates, lag_s, quarantined, dead_letters): Row| ProjectionStatus {
            name,
            epoch,
            sink,
            state,
            lag_events,
            lag_s,
            applied,
            duplicates,
            healed: 0,
            quarantined,
            dead_letters,
        };
    Ok(rows.into_iter().map(status).collect())
}
