//! Messages without an aggregate.

use sqlx::PgPool;
use tracium_core::{Aggregate, EventStore, Expected, Message, NewEvent, Ordering, Outbox, PublishError, Topic};
use tracium_testkit::TestDatabase;

use super::{append, blocked, event, order, outbox};

fn mail(key: &str) -> Message {
    Message::json("mails", key, "mail.sent", &serde_json::json!({"to": key})).unwrap()
}

async fn publish(pool: &PgPool, message: &Message) -> Result<i64, PublishError> {
    let mut tx = pool.begin().await.unwrap();
    let id = Outbox::publish(&mut tx, message).await?;
    tx.commit().await.unwrap();
    Ok(id)
}

#[tokio::test]
async fn a_message_has_a_topic_and_a_key_and_no_version() {
    let db = TestDatabase::new().await;
    let message = mail("ada");
    let id = publish(&db.pool, &message).await.unwrap();
    let rows = outbox(&db.pool).await;
    let [row] = rows.as_slice() else { panic!("{rows:?}") };
    assert_eq!((row.id, row.event_id), (id, message.event_id()));
    assert_eq!((row.topic.as_str(), row.partition_key.as_str(), row.event_type.as_str()), ("mails", "ada", "mail.sent"));
    assert_eq!((row.aggregate_type.as_ref(), row.aggregate_id.as_ref()), (None, None));
    assert_eq!((row.aggregate_version, row.previous_version), (None, None));
    assert_eq!(row.payload.as_deref(), Some(r#"{"to": "ada"}"#));
}

#[tokio::test]
async fn a_repeated_publish_is_a_second_row_with_the_same_event_id() {
    let db = TestDatabase::new().await;
    let message = mail("ada");
    let ids = [publish(&db.pool, &message).await.unwrap(), publish(&db.pool, &message).await.unwrap()];
    let rows = outbox(&db.pool).await;
    assert_eq!(rows.iter().map(|r| r.id).collect::<Vec<_>>(), ids);
    assert!(rows.iter().all(|r| r.event_id == message.event_id()));
}

/// Both orders of the first statement, with a key that is new and one that was used before.
#[tokio::test]
async fn case_w22_two_open_transactions_on_one_key_wait_and_id_order_is_commit_order() {
    let db = TestDatabase::new().await;
    publish(&db.pool, &mail("other")).await.unwrap(); // the topic's first message registers it
    for round in 0..3 {
        let mut first = db.pool.begin().await.unwrap();
        let first_id = Outbox::publish(&mut first, &mail("ada")).await.unwrap();
        let second = tokio::spawn({
            let pool = db.pool.clone();
            async move {
                let mut tx = pool.begin().await.unwrap();
                // A transaction that started earlier, by its id, than the first commits.
                sqlx::query("SELECT pg_current_xact_id()").execute(&mut *tx).await.unwrap();
                let id = Outbox::publish(&mut tx, &mail("ada")).await.unwrap();
                tx.commit().await.unwrap();
                id
            }
        });
        blocked(&db, 1).await;
        // The other keys go on meanwhile.
        let other = publish(&db.pool, &mail("bob")).await.unwrap();
        first.commit().await.unwrap();
        let second_id = second.await.unwrap();
        assert!(first_id < other && other < second_id, "round {round}: {first_id} {other} {second_id}");
    }
}

#[tokio::test]
async fn case_w22_after_a_rollback_the_waiting_one_goes_on() {
    let db = TestDatabase::new().await;
    let mut first = db.pool.begin().await.unwrap();
    Outbox::publish(&mut first, &mail("ada")).await.unwrap();
    let second = tokio::spawn({
        let pool = db.pool.clone();
        async move { publish(&pool, &mail("ada")).await }
    });
    blocked(&db, 1).await;
    first.rollback().await.unwrap();
    second.await.unwrap().unwrap();
    assert_eq!(outbox(&db.pool).await.len(), 1);
}

#[tokio::test]
async fn without_ordering_nobody_waits() {
    let db = TestDatabase::new().await;
    publish(&db.pool, &mail("other")).await.unwrap(); // the topic's first message registers it
    let mut first = db.pool.begin().await.unwrap();
    Outbox::publish(&mut first, &mail("ada").with_ordering(Ordering::None)).await.unwrap();
    publish(&db.pool, &mail("ada").with_ordering(Ordering::None)).await.unwrap();
    publish(&db.pool, &mail("ada")).await.unwrap();
    first.commit().await.unwrap();
    assert_eq!(outbox(&db.pool).await.len(), 4);
}

#[tokio::test]
async fn a_topic_of_aggregates_refuses_messages_until_it_is_allowed() {
    let db = TestDatabase::new().await;
    append(&db.pool, &order("o-1"), Expected::New, &[event("order.created")]).await.unwrap();
    let note = Message::json("orders", "o-1", "note.added", &1).unwrap();
    let error = publish(&db.pool, &note).await.unwrap_err();
    assert!(matches!(error, PublishError::TopicCarriesAggregates { .. }), "{error}");
    assert!(error.to_string().contains("SELECT tracium.allow_messages('orders')"), "{error}");
    assert_eq!(outbox(&db.pool).await.len(), 1);

    db.execute("SELECT tracium.allow_messages('orders')").await;
    publish(&db.pool, &note).await.unwrap();

    // An append now takes the key's lock too: a message of an open transaction comes first.
    let mut open = db.pool.begin().await.unwrap();
    let message = Outbox::publish(&mut open, &note).await.unwrap();
    let appending = tokio::spawn({
        let pool = db.pool.clone();
        async move { append(&pool, &order("o-1"), Expected::Any, &[event("order.paid")]).await }
    });
    blocked(&db, 1).await;
    open.commit().await.unwrap();
    appending.await.unwrap().unwrap();
    let rows = outbox(&db.pool).await;
    let last = rows.last().unwrap();
    assert!(last.aggregate_version == Some(2) && last.id > message, "{rows:?}");
    // … and the other way round.
    let mut open = db.pool.begin().await.unwrap();
    EventStore::append(&mut open, &order("o-1"), Expected::Any, &[event("order.packed")]).await.unwrap();
    let publishing = tokio::spawn({
        let pool = db.pool.clone();
        async move { publish(&pool, &note).await }
    });
    blocked(&db, 1).await;
    open.commit().await.unwrap();
    publishing.await.unwrap().unwrap();
}

#[tokio::test]
async fn allowing_messages_waits_for_the_appends_that_took_no_key_lock() {
    let db = TestDatabase::new().await;
    let mut open = db.pool.begin().await.unwrap();
    EventStore::append(&mut open, &order("o-1"), Expected::New, &[event("order.created")]).await.unwrap();
    let allowing = tokio::spawn({
        let db = db.clone();
        async move { db.execute("SELECT tracium.allow_messages('orders')").await }
    });
    blocked(&db, 1).await;
    open.commit().await.unwrap();
    allowing.await.unwrap();
    publish(&db.pool, &Message::json("orders", "o-1", "note.added", &1).unwrap()).await.unwrap();
}

#[tokio::test]
async fn a_topic_of_messages_may_become_an_aggregates_and_keeps_its_order() {
    let db = TestDatabase::new().await;
    let note = Message::json("orders", "o-1", "note.added", &1).unwrap();
    let mut open = db.pool.begin().await.unwrap();
    Outbox::publish(&mut open, &note).await.unwrap();
    let appending = tokio::spawn({
        let pool = db.pool.clone();
        async move { append(&pool, &order("o-1"), Expected::New, &[event("order.created")]).await }
    });
    blocked(&db, 1).await;
    open.commit().await.unwrap();
    appending.await.unwrap().unwrap();
    assert_eq!(outbox(&db.pool).await.last().unwrap().aggregate_version, Some(1));
}

#[tokio::test]
async fn bad_names_of_a_message_are_refused_and_leave_nothing() {
    let db = TestDatabase::new().await;
    for bad in [".", "..", "or ders", "ördrs", ""] {
        assert!(Topic::new(bad).is_err(), "{bad}");
    }
    let long = "x".repeat(1024);
    for key in ["", long.as_str(), "a\0b"] {
        let message = Message::new(Topic::new("mails").unwrap(), key, NewEvent::tombstone("mail.sent").unwrap());
        let error = publish(&db.pool, &message).await.unwrap_err();
        assert!(matches!(error, PublishError::Invalid { .. }), "{key:?}: {error}");
    }
    for key in ["'; DROP TABLE tracium.outbox; --", "🧾 \"42\"", " "] {
        publish(&db.pool, &mail(key)).await.unwrap();
    }
    let keys: Vec<_> = outbox(&db.pool).await.into_iter().map(|r| r.partition_key).collect();
    assert_eq!(keys, ["'; DROP TABLE tracium.outbox; --", "🧾 \"42\"", " "]);
}

#[tokio::test]
async fn publish_and_append_share_a_transaction() {
    let db = TestDatabase::new().await;
    let mut tx = db.pool.begin().await.unwrap();
    EventStore::append(&mut tx, &Aggregate::new("order", "o-1").unwrap(), Expected::New, &[event("order.created")])
        .await
        .unwrap();
    Outbox::publish(&mut tx, &mail("ada")).await.unwrap();
    tx.rollback().await.unwrap();
    super::assert_empty(&db).await;
}
