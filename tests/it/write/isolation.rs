//! Transactions stricter than READ COMMITTED.

use sqlx::{AssertSqlSafe, PgPool, Postgres, Transaction};
use tracium_core::{AppendError, Class, Classify, EventStore, Expected, Message, Outbox, PublishError};
use tracium_testkit::TestDatabase;

use super::{append, event, order, outbox};

async fn begin(pool: &PgPool, level: &str) -> Transaction<'static, Postgres> {
    let mut tx = pool.begin().await.unwrap();
    sqlx::query(AssertSqlSafe(format!("SET TRANSACTION ISOLATION LEVEL {level}"))).execute(&mut *tx).await.unwrap();
    sqlx::query("SELECT 1").execute(&mut *tx).await.unwrap(); // takes the snapshot
    tx
}

#[tokio::test]
async fn an_old_snapshot_is_told_to_run_the_transaction_again() {
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let db = TestDatabase::new().await;
        // A head that came, and one that moved, after the snapshot.
        append(&db.pool, &order("moved"), Expected::New, &[event("order.created")]).await.unwrap();
        for id in ["moved", "came"] {
            let mut tx = begin(&db.pool, level).await;
            append(&db.pool, &order(id), Expected::Any, &[event("order.created")]).await.unwrap();
            let error = EventStore::append(&mut tx, &order(id), Expected::Any, &[event("order.paid")]).await.unwrap_err();
            assert!(matches!(error, AppendError::RetryTransaction(_)), "{level}, {id}: {error}");
            assert_eq!(error.class(), Class::Transient);
        }
    }
}

#[tokio::test]
async fn without_a_concurrent_writer_they_append_and_publish_as_any_other() {
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let db = TestDatabase::new().await;
        for _ in 0..2 {
            let mut tx = begin(&db.pool, level).await;
            EventStore::append(&mut tx, &order("o-1"), Expected::Any, &[event("order.paid"), event("order.packed")])
                .await
                .unwrap();
            let message = Message::json("mails", "ada", "mail.sent", &1).unwrap();
            Outbox::publish(&mut tx, &message).await.unwrap();
            tx.commit().await.unwrap();
        }
        assert_eq!(outbox(&db.pool).await.len(), 6);
    }
}

#[tokio::test]
async fn an_old_snapshot_does_not_append_to_a_topic_that_was_changed_since() {
    let db = TestDatabase::new().await;
    db.execute("SELECT tracium.set_route('order', 'orders-a')").await;
    let mut moved = begin(&db.pool, "REPEATABLE READ").await;
    db.execute("SELECT tracium.set_route('order', 'orders-b')").await;
    let error = EventStore::append(&mut moved, &order("o-1"), Expected::New, &[event("order.created")]).await.unwrap_err();
    assert!(matches!(error, AppendError::RetryTransaction(_)), "{error}");
    drop(moved);

    append(&db.pool, &order("o-1"), Expected::New, &[event("order.created")]).await.unwrap();
    let mut mixed = begin(&db.pool, "REPEATABLE READ").await;
    db.execute("SELECT tracium.allow_messages('orders-b')").await;
    let error = EventStore::append(&mut mixed, &order("o-2"), Expected::New, &[event("order.created")]).await.unwrap_err();
    assert!(matches!(error, AppendError::RetryTransaction(_)), "without the key lock: {error}");
}

#[tokio::test]
async fn publishing_on_a_key_or_topic_that_came_after_the_snapshot_is_told_to_run_again() {
    let db = TestDatabase::new().await;
    let mut old = begin(&db.pool, "REPEATABLE READ").await;
    let message = Message::json("mails", "ada", "mail.sent", &1).unwrap();
    let mut tx = db.pool.begin().await.unwrap();
    Outbox::publish(&mut tx, &message).await.unwrap();
    tx.commit().await.unwrap();
    let error = Outbox::publish(&mut old, &message).await.unwrap_err();
    assert!(matches!(error, PublishError::RetryTransaction(_)), "{error}");
}

#[tokio::test]
async fn a_route_is_only_set_where_the_writers_under_way_are_seen() {
    let db = TestDatabase::new().await;
    let mut tx = begin(&db.pool, "REPEATABLE READ").await;
    for statement in ["SELECT tracium.set_route('order', 'x')", "SELECT tracium.set_route('order', NULL)"] {
        let error = sqlx::query(statement).execute(&mut *tx).await.unwrap_err();
        assert!(error.to_string().contains("needs a READ COMMITTED transaction"), "{error}");
        tx.rollback().await.unwrap();
        tx = begin(&db.pool, "REPEATABLE READ").await;
    }
}
