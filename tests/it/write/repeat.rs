//! An append repeated after a COMMIT whose outcome is unknown.

use serde_json::json;
use tracium_core::{AppendError, EventStore, Expected, NewEvent, Version};
use tracium_testkit::TestDatabase;

use super::{append, blocked, event, order, outbox};

#[tokio::test]
async fn case_w29_a_repeat_returns_the_first_result_and_adds_nothing() {
    let db = TestDatabase::new().await;
    let order = order("o-1");
    let events = [
        event("order.created").with_header("tenant", Some(b"a".to_vec())).unwrap(),
        NewEvent::bytes("order.scanned", vec![0, 255]).unwrap(),
        NewEvent::tombstone("order.deleted").unwrap(),
        event("order.noted").unpublished(),
    ];
    let first = append(&db.pool, &order, Expected::New, &events).await.unwrap();
    // The aggregate has moved on meanwhile: still no conflict.
    append(&db.pool, &order, Expected::Any, &[event("order.revived")]).await.unwrap();

    for _ in 0..2 {
        let again = append(&db.pool, &order, Expected::New, &events).await.unwrap();
        assert!(again.repeated);
        assert_eq!(again.events, first.events);
    }
    assert_eq!(db.count("SELECT count(*) FROM tracium.event_store").await, 5);
    assert_eq!(outbox(&db.pool).await.len(), 4);
    assert_eq!(db.count("SELECT version FROM tracium.stream").await, 5);
}

#[tokio::test]
async fn case_w29_a_repeat_waits_for_a_first_call_still_under_way() {
    let db = TestDatabase::new().await;
    let order = order("o-1");
    let events = [event("order.created"), event("order.paid")];
    let mut first = db.pool.begin().await.unwrap();
    let recorded = EventStore::append(&mut first, &order, Expected::New, &events).await.unwrap();
    let repeat = tokio::spawn({
        let (pool, order, events) = (db.pool.clone(), order.clone(), events.clone());
        async move { append(&pool, &order, Expected::New, &events).await }
    });
    blocked(&db, 1).await;
    first.commit().await.unwrap();
    let repeated = repeat.await.unwrap().unwrap();
    assert!(repeated.repeated);
    assert_eq!(repeated.events, recorded.events);
    assert_eq!(outbox(&db.pool).await.len(), 2);
}

#[tokio::test]
async fn case_w29_a_repeat_of_a_rolled_back_call_is_a_first_call() {
    let db = TestDatabase::new().await;
    let order = order("o-1");
    let events = [event("order.created")];
    let mut first = db.pool.begin().await.unwrap();
    EventStore::append(&mut first, &order, Expected::New, &events).await.unwrap();
    let repeat = tokio::spawn({
        let (pool, order, events) = (db.pool.clone(), order.clone(), events.clone());
        async move { append(&pool, &order, Expected::New, &events).await }
    });
    blocked(&db, 1).await;
    first.rollback().await.unwrap();
    assert!(!repeat.await.unwrap().unwrap().repeated);
    assert_eq!(db.count("SELECT count(*) FROM tracium.event_store").await, 1);
}

#[tokio::test]
async fn an_id_used_for_other_content_or_another_aggregate_is_refused() {
    let db = TestDatabase::new().await;
    let order_1 = order("o-1");
    let created = event("order.created");
    append(&db.pool, &order_1, Expected::New, &[created.clone(), event("order.paid")]).await.unwrap();

    let same_id = |event: NewEvent| event.with_id(created.event_id());
    let others = [
        (order_1.clone(), vec![same_id(event("order.cancelled"))]),
        (order_1.clone(), vec![same_id(NewEvent::json("order.created", &json!({"other": 1})).unwrap())]),
        (order_1.clone(), vec![same_id(NewEvent::tombstone("order.created").unwrap())]),
        (order_1.clone(), vec![created.clone().with_schema_version(2)]),
        (order_1.clone(), vec![created.clone().with_header("h", None).unwrap()]),
        (order_1.clone(), vec![created.clone(), event("order.new")]),
        (order("o-2"), vec![created.clone()]),
        (order("o-2"), vec![event("order.created"), created.clone()]),
    ];
    for (aggregate, events) in others {
        let error = append(&db.pool, &aggregate, Expected::Any, &events).await.unwrap_err();
        let AppendError::EventIdReused { event_id } = &error else { panic!("{events:?}: {error}") };
        assert_eq!(*event_id, created.event_id().to_string());
    }
    assert_eq!(db.count("SELECT count(*) FROM tracium.event_store").await, 2);
    assert_eq!(db.count("SELECT count(*) FROM tracium.stream").await, 1);
}

#[tokio::test]
async fn an_id_given_twice_in_one_call_is_refused() {
    let db = TestDatabase::new().await;
    let created = event("order.created");
    let events = [created.clone(), event("order.paid").with_id(created.event_id())];
    let error = append(&db.pool, &order("o-1"), Expected::New, &events).await.unwrap_err();
    assert!(matches!(&error, AppendError::EventIdReused { event_id } if *event_id == created.event_id().to_string()), "{error}");
    super::assert_empty(&db).await;
}

#[tokio::test]
async fn an_id_used_for_two_aggregates_at_once_goes_to_the_one_that_commits() {
    let db = TestDatabase::new().await;
    let created = event("order.created");
    let mut first = db.pool.begin().await.unwrap();
    EventStore::append(&mut first, &order("o-1"), Expected::New, std::slice::from_ref(&created)).await.unwrap();
    let second = tokio::spawn({
        let (pool, created) = (db.pool.clone(), created.clone());
        async move { append(&pool, &order("o-2"), Expected::New, &[created]).await }
    });
    blocked(&db, 1).await;
    first.commit().await.unwrap();
    let error = second.await.unwrap().unwrap_err();
    assert!(matches!(&error, AppendError::EventIdReused { event_id } if *event_id == created.event_id().to_string()), "{error}");
    assert_eq!(EventStore::load(&db.pool, &order("o-2"), Version::ZERO).await.unwrap(), []);
}
