//! The write path on real PostgreSQL: append, publish, routes, roles and the schema itself.

use std::time::Duration;

use serde_json::json;
use sqlx::{FromRow, PgPool};
use tracium_core::{Aggregate, AppendError, Appended, EventStore, Expected, NewEvent};
use tracium_testkit::{TestDatabase, eventually};

mod append;
mod bad_input;
mod concurrency;
mod inline_view;
mod isolation;
mod payload;
mod publish;
mod repeat;
mod roles;
mod route;
mod schema;
mod shard;

fn order(id: &str) -> Aggregate {
    Aggregate::new("order", id).unwrap()
}

fn event(kind: &str) -> NewEvent {
    NewEvent::json(kind, &json!({"kind": kind})).unwrap()
}

/// One append in a transaction of its own.
async fn append(pool: &PgPool, aggregate: &Aggregate, expected: Expected, events: &[NewEvent]) -> Result<Appended, AppendError> {
    let mut tx = pool.begin().await.unwrap();
    let appended = EventStore::append(&mut tx, aggregate, expected, events).await?;
    tx.commit().await.unwrap();
    Ok(appended)
}

/// What the relay will send, in id order.
#[derive(Debug, FromRow)]
struct OutboxRow {
    id: i64,
    event_id: uuid::Uuid,
    aggregate_type: Option<String>,
    aggregate_id: Option<String>,
    aggregate_version: Option<i64>,
    previous_version: Option<i64>,
    event_type: String,
    topic: String,
    partition_key: String,
    payload: Option<String>,
    payload_bytes: Option<Vec<u8>>,
    size: i32,
    headers: Option<serde_json::Value>,
    shard: i16,
    created_at: chrono::DateTime<chrono::Utc>,
}

async fn outbox(pool: &PgPool) -> Vec<OutboxRow> {
    sqlx::query_as(
        "SELECT id, event_id, aggregate_type, aggregate_id, aggregate_version, previous_version, event_type, topic, \
         partition_key, payload::text AS payload, payload_bytes, size, headers, shard, created_at \
         FROM tracium.outbox ORDER BY id",
    )
    .fetch_all(pool)
    .await
    .unwrap()
}

/// Versions in id order, of one aggregate.
async fn versions(pool: &PgPool, id: &str) -> Vec<i64> {
    outbox(pool).await.iter().filter(|row| row.partition_key == id).filter_map(|row| row.aggregate_version).collect()
}

/// Nothing in the event store, the outbox and the heads.
async fn assert_empty(database: &TestDatabase) {
    for table in ["event_store", "outbox", "stream", "key_head"] {
        assert_eq!(database.count(&format!("SELECT count(*) FROM tracium.{table}")).await, 0, "{table}");
    }
}

/// Waits until that many of the database's sessions wait for a lock.
async fn blocked(database: &TestDatabase, sessions: i64) {
    eventually("sessions wait for a lock", Duration::from_secs(10), || async {
        let waiting = database
            .count("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
            .await;
        (waiting == sessions).then_some(())
    })
    .await;
}
