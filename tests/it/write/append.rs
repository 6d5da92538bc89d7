use serde_json::json;
use tracium_core::{AppendError, Class, Classify, EventStore, EvolveError, Expected, LoadError, NewEvent, Version, View};
use tracium_testkit::TestDatabase;

use super::{append, assert_empty, event, order, outbox};

fn at(version: i64) -> Expected {
    Expected::Version(Version::new(version).unwrap())
}

#[tokio::test]
async fn appended_events_are_loaded_back_in_version_order() {
    let db = TestDatabase::new().await;
    let order = order("o-1");
    let created = event("order.created").with_schema_version(3).with_metadata(json!({"user": "ada"}));
    append(&db.pool, &order, Expected::New, std::slice::from_ref(&created)).await.unwrap();
    let more = [event("order.paid"), event("order.packed"), event("order.shipped")];
    let appended = append(&db.pool, &order, at(1), &more).await.unwrap();

    assert!(!appended.repeated);
    assert_eq!(appended.version().get(), 4);
    assert_eq!(appended.events.iter().map(|e| e.version.get()).collect::<Vec<_>>(), [2, 3, 4]);
    assert_eq!(appended.events.iter().map(|e| e.event_id).collect::<Vec<_>>(), more.each_ref().map(NewEvent::event_id));

    let events = EventStore::load(&db.pool, &order, Version::ZERO).await.unwrap();
    let types: Vec<_> = events.iter().map(|e| e.event_type.as_str()).collect();
    assert_eq!(types, ["order.created", "order.paid", "order.packed", "order.shipped"]);
    assert_eq!(events[0].event_id, created.event_id());
    assert_eq!(events[0].schema_version, 3);
    assert_eq!(events[0].data::<serde_json::Value>().unwrap(), json!({"kind": "order.created"}));
    assert_eq!(events[1].created_at, appended.events[0].recorded_at);
    assert_eq!(events.iter().map(|e| e.version.unwrap().get()).collect::<Vec<_>>(), [1, 2, 3, 4]);

    let later = EventStore::load(&db.pool, &order, Version::new(2).unwrap()).await.unwrap();
    assert_eq!(later, events[2..]);
    let metadata = db.count("SELECT count(*) FROM tracium.event_store WHERE metadata = '{\"user\": \"ada\"}'").await;
    assert_eq!(metadata, 1);
}

#[tokio::test]
async fn the_outbox_row_says_what_the_event_store_says() {
    let db = TestDatabase::new().await;
    let appended = append(&db.pool, &order("o-1"), Expected::Any, &[event("order.created"), event("order.paid")]).await.unwrap();
    let rows = outbox(&db.pool).await;
    for (row, recorded) in rows.iter().zip(&appended.events) {
        assert_eq!(row.event_id, recorded.event_id);
        assert_eq!(row.created_at, recorded.recorded_at);
        assert_eq!((row.aggregate_type.as_deref(), row.aggregate_id.as_deref()), (Some("order"), Some("o-1")));
        assert_eq!((row.topic.as_str(), row.partition_key.as_str()), ("orders", "o-1"));
        assert_eq!(row.size, i32::try_from(row.payload.as_ref().unwrap().len()).unwrap());
    }
    let differing = "SELECT count(*) FROM tracium.outbox o FULL JOIN tracium.event_store e USING (event_id)
        WHERE (o.topic, o.payload, o.created_at, o.event_type) IS DISTINCT FROM (e.topic, e.payload, e.recorded_at, e.event_type)";
    assert_eq!(db.count(differing).await, 0);
}

#[tokio::test]
async fn a_rolled_back_append_leaves_nothing() {
    let db = TestDatabase::new().await;
    let mut tx = db.pool.begin().await.unwrap();
    EventStore::append(&mut tx, &order("o-1"), Expected::New, &[event("order.created")]).await.unwrap();
    tx.rollback().await.unwrap();
    assert_empty(&db).await;
    append(&db.pool, &order("o-1"), Expected::New, &[event("order.created")]).await.unwrap();
}

#[tokio::test]
async fn a_wrong_expected_version_is_a_conflict_that_carries_both_versions() {
    let db = TestDatabase::new().await;
    let order = order("o-1");
    append(&db.pool, &order, Expected::New, &[event("order.created"), event("order.paid")]).await.unwrap();
    for (expected, number) in [(Expected::New, 0), (at(1), 1), (at(3), 3)] {
        let error = append(&db.pool, &order, expected, &[event("order.shipped")]).await.unwrap_err();
        assert_eq!(error.class(), Class::Poison);
        assert_eq!(
            error.to_string(),
            format!("version conflict: order \"o-1\" is at version 2, expected {number}; load it again and decide anew")
        );
        let AppendError::VersionConflict { aggregate, expected, actual } = error else { panic!("{error}") };
        assert_eq!((aggregate, expected.get(), actual.get()), (order.clone(), number, 2));
    }
    let missing = append(&db.pool, &super::order("other"), at(1), &[event("order.paid")]).await.unwrap_err();
    assert!(matches!(missing, AppendError::VersionConflict { actual: Version::ZERO, .. }), "{missing}");
    assert_eq!(db.count("SELECT count(*) FROM tracium.event_store").await, 2);
    append(&db.pool, &order, Expected::Any, &[event("order.shipped")]).await.unwrap();
}

#[tokio::test]
async fn no_events_is_an_error_of_its_own() {
    let db = TestDatabase::new().await;
    let error = append(&db.pool, &order("o-1"), Expected::Any, &[]).await.unwrap_err();
    assert!(matches!(error, AppendError::NoEvents));
    assert_empty(&db).await;
}

#[tokio::test]
async fn previous_version_is_the_last_published_one() {
    let db = TestDatabase::new().await;
    let order = order("o-1");
    let secret = || event("order.noted").unpublished();
    // Versions 2, 3, 6 and 7 stay in the store: at the end of a call, at its start and in its middle.
    append(&db.pool, &order, Expected::New, &[event("order.created"), secret()]).await.unwrap();
    append(&db.pool, &order, at(2), &[secret(), event("order.paid")]).await.unwrap();
    append(&db.pool, &order, at(4), &[event("order.packed"), secret(), secret(), event("order.shipped")]).await.unwrap();
    append(&db.pool, &order, at(8), &[secret()]).await.unwrap();
    append(&db.pool, &order, at(9), &[event("order.delivered")]).await.unwrap();

    let published: Vec<_> = outbox(&db.pool).await.iter().map(|r| (r.previous_version, r.aggregate_version)).collect();
    let expected = [(0, 1), (1, 4), (4, 5), (5, 8), (8, 10)];
    assert_eq!(published, expected.map(|(previous, version)| (Some(previous), Some(version))));
    assert_eq!(EventStore::load(&db.pool, &order, Version::ZERO).await.unwrap().len(), 10);
    assert_eq!(db.count("SELECT count(*) FROM tracium.event_store WHERE topic IS NULL").await, 5);
}

#[tokio::test]
async fn an_append_in_a_rolled_back_savepoint_is_gone_and_the_transaction_goes_on() {
    use sqlx::Acquire;
    let db = TestDatabase::new().await;
    let order = order("o-1");
    let mut tx = db.pool.begin().await.unwrap();
    EventStore::append(&mut tx, &order, Expected::New, &[event("order.created")]).await.unwrap();

    let mut savepoint = tx.begin().await.unwrap();
    EventStore::append(&mut savepoint, &order, at(1), &[event("order.paid")]).await.unwrap();
    savepoint.rollback().await.unwrap();

    let mut savepoint = tx.begin().await.unwrap();
    let conflict = EventStore::append(&mut savepoint, &order, at(7), &[event("order.paid")]).await.unwrap_err();
    assert!(matches!(conflict, AppendError::VersionConflict { .. }));
    savepoint.rollback().await.unwrap();

    let mut savepoint = tx.begin().await.unwrap();
    EventStore::append(&mut savepoint, &order, at(1), &[event("order.cancelled")]).await.unwrap();
    savepoint.commit().await.unwrap();
    tx.commit().await.unwrap();

    let sent: Vec<_> = outbox(&db.pool).await.into_iter().map(|r| (r.aggregate_version, r.event_type)).collect();
    assert_eq!(sent, [(Some(1), "order.created".to_owned()), (Some(2), "order.cancelled".to_owned())]);
}

struct Steps;

impl View for Steps {
    const NAME: &'static str = "steps";
    type Doc = Vec<String>;
    fn evolve(doc: Option<Self::Doc>, event: &tracium_core::Event) -> Result<Option<Self::Doc>, EvolveError> {
        if event.event_type.as_str() == "order.broken" {
            return Err(EvolveError::refused("broken"));
        }
        let mut steps = doc.unwrap_or_default();
        steps.push(event.event_type.to_string());
        Ok(Some(steps))
    }
}

#[tokio::test]
async fn a_fold_gives_the_document_and_the_version_to_expect() {
    let db = TestDatabase::new().await;
    let order = order("o-1");
    assert_eq!(EventStore::fold::<Steps>(&db.pool, &order).await.unwrap(), (None, Version::ZERO));
    append(&db.pool, &order, Expected::New, &[event("order.created"), event("order.paid")]).await.unwrap();

    let (steps, version) = EventStore::fold::<Steps>(&db.pool, &order).await.unwrap();
    assert_eq!(steps.unwrap(), ["order.created", "order.paid"]);
    append(&db.pool, &order, Expected::Version(version), &[event("order.broken")]).await.unwrap();

    let error = EventStore::fold::<Steps>(&db.pool, &order).await.unwrap_err();
    assert_eq!(error.to_string(), "the fold refused version 3 of order \"o-1\"");
    assert!(matches!(error, LoadError::Evolve { .. }) && error.class() == Class::Poison);
}

/// With statistics, and on a connection whose plans were made when the store was empty: autovacuum takes a minute to look.
#[tokio::test]
async fn an_append_to_a_large_store_scans_no_table() {
    for analysed in [true, false] {
        let db = TestDatabase::new().await;
        let mut connection = db.connect().await;
        // More than five times, so that generic plans are made.
        for n in 1..=8 {
            append_twice(&mut connection, &format!("first-{n}")).await;
        }
        db.execute(
            "SELECT tracium.append('order', 'o-' || n, 0, jsonb_build_array(
                jsonb_build_object('event_id', gen_random_uuid(), 'event_type', 'order.created', 'payload', '{}'::jsonb)))
             FROM generate_series(1, 3000) n",
        )
        .await;
        if analysed {
            db.execute("ANALYZE").await;
        }
        let scans = "SELECT coalesce(sum(seq_scan), 0)::bigint FROM pg_stat_user_tables
            WHERE relname ~ '^(event_store|stream|outbox_[0-9]+|key_head)$'";
        flush_statistics(&mut connection).await;
        let before = db.count(scans).await;
        for n in 1..=8 {
            append_twice(&mut connection, &format!("o-{n}")).await;
        }
        flush_statistics(&mut connection).await;
        assert_eq!(db.count(scans).await, before, "analysed: {analysed}");
    }
}

/// A first time and a repeat, of several events: for one alone PostgreSQL finds the index by itself.
async fn append_twice(connection: &mut sqlx::PgConnection, id: &str) {
    let paid = ["order.paid", "order.packed", "order.shipped"].map(event);
    for repeated in [false, true] {
        let mut tx = sqlx::Connection::begin(connection).await.unwrap();
        let appended = EventStore::append(&mut tx, &order(id), Expected::Any, &paid).await.unwrap();
        assert_eq!(appended.repeated, repeated);
        tx.commit().await.unwrap();
    }
}

/// What this connection has counted becomes visible at the end of the transaction.
async fn flush_statistics(connection: &mut sqlx::PgConnection) {
    sqlx::query("SELECT pg_stat_force_next_flush()").execute(connection).await.unwrap();
}
