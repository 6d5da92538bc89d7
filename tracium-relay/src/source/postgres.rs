//! `PgOutbox`: the shard's own table, on connection 1.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use tracium_core::wire::Envelope;
use tracium_core::{Aggregate, Event, EventType, Headers, Payload, Version};
use uuid::Uuid;

use super::{Claim, Claimed, ClaimedRow, Fence, Marks, ShardOutbox};
use crate::decision::{HeldKey, HeldKeys, leave_unlocked_keys};
use crate::{SourceError, sql};

/// The shard's table over a connection of its own. `deadline` bounds every statement.
pub(crate) struct PgOutbox {
    options: PgConnectOptions,
    connection: Option<PgConnection>,
    statements: Statements,
    shard: i16,
    batch_size: i64,
    batch_bytes: i64,
    deadline: Duration,
}

/// Texts that differ by shard only; made once.
struct Statements {
    peek: String,
    claim: String,
    claim_held_key: String,
    claim_held_topic: String,
    mark_published: String,
    mark_held: String,
    mark_failed: String,
    sweep_held: String,
}

/// Ends a call at its deadline. The caller drops the connection: a call without an answer may still be under way.
pub(crate) async fn within<T>(deadline: Duration, call: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, SourceError> {
    match tokio::time::timeout(deadline, call).await {
        Ok(result) => Ok(result?),
        Err(_) => Err(SourceError::Deadline(deadline)),
    }
}

impl PgOutbox {
    pub(crate) fn new(options: PgConnectOptions, shard: i16, batch_size: u32, batch_bytes: u32, deadline: Duration) -> Self {
        Self {
            options,
            connection: None,
            statements: Statements {
                peek: sql::peek(shard),
                claim: sql::claim(shard),
                claim_held_key: sql::claim_held_key(shard),
                claim_held_topic: sql::claim_held_topic(shard),
                mark_published: sql::mark_published(shard),
                mark_held: sql::mark_held(shard),
                mark_failed: sql::mark_failed(shard),
                sweep_held: sql::sweep_held(shard),
            },
            shard,
            batch_size: i64::from(batch_size),
            batch_bytes: i64::from(batch_bytes),
            deadline,
        }
    }

    /// The connection, taken out: whoever fails does not put it back.
    async fn take(&mut self) -> Result<PgConnection, SourceError> {
        match self.connection.take() {
            Some(connection) => Ok(connection),
            None => within(self.deadline, PgConnection::connect_with(&self.options)).await,
        }
    }

    async fn begin(&self, connection: &mut PgConnection, fence: &Fence) -> Result<(), SourceError> {
        within(self.deadline, sqlx::raw_sql("BEGIN").execute(&mut *connection)).await?;
        let held = sqlx::query(sql::FENCE).bind(fence.shard).bind(&fence.owner).bind(fence.term).fetch_optional(connection);
        match within(self.deadline, held).await? {
            Some(_) => Ok(()),
            None => Err(SourceError::LeaseLost { shard: fence.shard }),
        }
    }

    async fn commit(&self, connection: &mut PgConnection) -> Result<(), SourceError> {
        within(self.deadline, sqlx::raw_sql("COMMIT").execute(connection)).await.map(|_| ())
    }

    async fn write(&self, connection: &mut PgConnection, marks: &Marks) -> Result<(), sqlx::Error> {
        let text = |sql: &str| AssertSqlSafe(sql.to_owned());
        if !marks.published.is_empty() {
            sqlx::query(text(&self.statements.mark_published)).bind(&marks.published).execute(&mut *connection).await?;
        }
        if !marks.hold.is_empty() {
            sqlx::query(text(&self.statements.mark_held)).bind(&marks.hold).execute(&mut *connection).await?;
        }
        if !marks.failed.is_empty() {
            let (ids, causes): (Vec<i64>, Vec<&str>) = marks.failed.iter().map(|(id, cause)| (*id, cause.as_str())).unzip();
            sqlx::query(text(&self.statements.mark_failed)).bind(ids).bind(causes).execute(&mut *connection).await?;
        }
        for (held, delay) in &marks.held_keys {
            sqlx::query(sql::UPSERT_HELD_KEY)
                .bind(self.shard)
                .bind(&held.topic)
                .bind(held.key.as_deref())
                .bind(i32::try_from(held.attempts).unwrap_or(i32::MAX))
                .bind(delay.as_secs_f64())
                .bind(&held.cause)
                .execute(&mut *connection)
                .await?;
        }
        if let Some((topic, key)) = &marks.release {
            sqlx::query(sql::DELETE_HELD_KEY).bind(self.shard).bind(topic).bind(key.as_deref()).execute(&mut *connection).await?;
        }
        Ok(())
    }

    async fn select(&self, connection: &mut PgConnection, claim: &Claim) -> Result<Vec<PgRow>, sqlx::Error> {
        let text = |sql: &str| AssertSqlSafe(sql.to_owned());
        match claim {
            Claim::Pending => {
                let query = sqlx::query(text(&self.statements.claim));
                query.bind(self.batch_size).bind(self.batch_bytes).fetch_all(connection).await
            }
            Claim::HeldKey { topic, key, limit } => {
                let query = sqlx::query(text(&self.statements.claim_held_key));
                query.bind(limit.min(&self.batch_size)).bind(self.batch_bytes).bind(topic).bind(key).fetch_all(connection).await
            }
            Claim::HeldTopic { topic, except } => {
                let query = sqlx::query(text(&self.statements.claim_held_topic));
                query.bind(self.batch_size).bind(self.batch_bytes).bind(topic).bind(except).fetch_all(connection).await
            }
        }
    }
}

#[async_trait::async_trait]
impl ShardOutbox for PgOutbox {
    async fn peek(&mut self) -> Result<bool, SourceError> {
        let mut connection = self.take().await?;
        let found = sqlx::query(AssertSqlSafe(self.statements.peek.clone())).fetch_optional(&mut connection);
        let found = within(self.deadline, found).await?.is_some();
        self.connection = Some(connection);
        Ok(found)
    }

    async fn take_over(&mut self, fence: &Fence) -> Result<HeldKeys, SourceError> {
        let mut connection = self.take().await?;
        self.begin(&mut connection, fence).await?;
        let sweep = sqlx::query(AssertSqlSafe(self.statements.sweep_held.clone())).execute(&mut connection);
        within(self.deadline, sweep).await?;
        let rows = sqlx::query_as::<_, (String, Option<String>, i32, f64, String)>(sql::LOAD_HELD_KEYS);
        let rows = within(self.deadline, rows.bind(self.shard).fetch_all(&mut connection)).await?;
        self.commit(&mut connection).await?;
        self.connection = Some(connection);
        Ok(HeldKeys::from_rows(
            rows.into_iter()
                .map(|(topic, key, attempts, delay, cause)| HeldKey {
                    topic,
                    key,
                    attempts: u32::try_from(attempts).unwrap_or(0),
                    due: Duration::try_from_secs_f64(delay).unwrap_or_default(),
                    cause,
                    flowing: false,
                })
                .collect(),
        ))
    }

    async fn claim(&mut self, fence: &Fence, claim: Claim) -> Result<Claimed, SourceError> {
        let mut connection = self.take().await?;
        self.begin(&mut connection, fence).await?;
        let rows = within(self.deadline, self.select(&mut connection, &claim)).await?;
        self.connection = Some(connection);
        let mut rows = rows.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        rows.sort_by_key(|row| row.n);
        let any = !rows.is_empty();
        let rows = rows.into_iter().map(|row| {
            let locked = row.claimed.is_some();
            (row, locked)
        });
        let kept = leave_unlocked_keys(rows.collect(), |row| (row.topic.clone(), row.key.clone()));
        Ok(Claimed { rows: kept.into_iter().filter_map(|row| row.claimed).collect(), any })
    }

    async fn finish(&mut self, marks: Marks) -> Result<(), SourceError> {
        // No connection: the batch's transaction is gone, and with it the right to mark.
        let mut connection = self.connection.take().ok_or(SourceError::LeaseLost { shard: self.shard })?;
        within(self.deadline, self.write(&mut connection, &marks)).await?;
        self.commit(&mut connection).await?;
        self.connection = Some(connection);
        Ok(())
    }

    async fn abandon(&mut self) {
        self.connection = None;
    }
}

/// One of the oldest rows, and its content if it was locked.
struct Read {
    n: i64,
    topic: String,
    key: String,
    claimed: Option<ClaimedRow>,
}

fn read(row: &PgRow) -> Result<Read, sqlx::Error> {
    let topic: String = row.try_get("topic")?;
    let key: String = row.try_get("partition_key")?;
    let locked: Option<i64> = row.try_get("id")?;
    let claimed = locked.map(|id| ClaimedRow {
        id,
        topic: topic.clone(),
        partition_key: key.clone(),
        envelope: read_event(row).map(|event| Envelope::of(&event, topic.as_str(), &key)),
    });
    Ok(Read { n: row.try_get("n")?, topic, key, claimed })
}

fn read_event(row: &PgRow) -> Result<Event, String> {
    let text = |e: sqlx::Error| e.to_string();
    let aggregate_type: Option<String> = row.try_get("aggregate_type").map_err(text)?;
    let aggregate_id: Option<String> = row.try_get("aggregate_id").map_err(text)?;
    let version: Option<i64> = row.try_get("aggregate_version").map_err(text)?;
    let previous: Option<i64> = row.try_get("previous_version").map_err(text)?;
    let event_type: String = row.try_get("event_type").map_err(text)?;
    let event_id: Uuid = row.try_get("event_id").map_err(text)?;
    let created_at: DateTime<Utc> = row.try_get("created_at").map_err(text)?;
    let headers: Option<Value> = row.try_get("headers").map_err(text)?;
    let is_json: bool = row.try_get("is_json").map_err(text)?;
    let body: Option<Vec<u8>> = row.try_get("body").map_err(text)?;
    Ok(Event {
        event_id,
        event_type: EventType::new(event_type).map_err(|e| e.to_string())?,
        aggregate: match (aggregate_type, aggregate_id) {
            (Some(kind), Some(id)) => Some(Aggregate::new(kind, id).map_err(|e| e.to_string())?),
            _ => None,
        },
        version: version.and_then(Version::new),
        previous_version: previous.and_then(Version::new),
        schema_version: row.try_get("schema_version").map_err(text)?,
        created_at,
        payload: match body {
            None => Payload::Tombstone,
            Some(bytes) if is_json => Payload::Json(bytes),
            Some(bytes) => Payload::Bytes(bytes),
        },
        headers: headers.as_ref().map_or_else(|| Ok(Headers::new()), Headers::from_json).map_err(|e| e.to_string())?,
    })
}
