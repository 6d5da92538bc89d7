//! Which topic an aggregate type's events go to.

use tracium_core::{Aggregate, EventStore, Expected};
use tracium_testkit::TestDatabase;

use super::{append, blocked, event, order, outbox};

async fn refused(db: &TestDatabase, sql: &'static str) -> String {
    let error = sqlx::query(sql).execute(&db.pool).await.unwrap_err();
    let database = error.as_database_error().unwrap_or_else(|| panic!("{error}"));
    assert_eq!(database.code().as_deref(), Some("TR003"), "{error}");
    database.message().to_owned()
}

#[tokio::test]
async fn the_topic_follows_the_type() {
    let db = TestDatabase::new().await;
    for (kind, topic) in [("order", "orders"), ("news", "news"), ("order-line", "order-lines")] {
        let aggregate = Aggregate::new(kind, kind).unwrap();
        append(&db.pool, &aggregate, Expected::New, &[event("x.created")]).await.unwrap();
        assert!(outbox(&db.pool).await.iter().any(|r| r.topic == topic && r.partition_key == kind), "{kind}");
    }
}

#[tokio::test]
async fn a_set_route_wins_over_the_rule_and_stays() {
    let db = TestDatabase::new().await;
    db.execute("SELECT tracium.set_route('order', 'shop.orders.v2')").await;
    append(&db.pool, &order("o-1"), Expected::New, &[event("order.created")]).await.unwrap();
    assert_eq!(outbox(&db.pool).await[0].topic, "shop.orders.v2");

    db.execute("SELECT tracium.set_route('order', 'shop.orders.v2')").await; // the same again is nothing
    let error = refused(&db, "SELECT tracium.set_route('order', 'elsewhere')").await;
    assert_eq!(error, "aggregate type 'order' already has events; its topic can only be set before the first");
    refused(&db, "SELECT tracium.set_route('order', NULL)").await;
    append(&db.pool, &order("o-1"), Expected::Any, &[event("order.paid")]).await.unwrap();
    assert_eq!(outbox(&db.pool).await[1].topic, "shop.orders.v2");
}

#[tokio::test]
async fn a_type_without_a_topic_stays_in_the_store() {
    let db = TestDatabase::new().await;
    db.execute("SELECT tracium.set_route('order', NULL)").await;
    append(&db.pool, &order("o-1"), Expected::New, &[event("order.created"), event("order.paid")]).await.unwrap();
    assert_eq!(outbox(&db.pool).await.len(), 0);
    assert_eq!(db.count("SELECT count(*) FROM tracium.event_store WHERE topic IS NULL").await, 2);
    assert_eq!(db.count("SELECT published_version FROM tracium.stream").await, 0);
}

#[tokio::test]
async fn a_topic_that_kafka_would_refuse_is_refused() {
    let db = TestDatabase::new().await;
    for topic in ["'or ders'", "'.'", "'..'", "''", "'a/b'", "repeat('x', 250)"] {
        for call in ["set_route('order', ", "allow_messages("] {
            let sql = format!("SELECT tracium.{call}{topic})");
            let error = sqlx::query(sqlx::AssertSqlSafe(sql.clone())).execute(&db.pool).await.unwrap_err();
            assert_eq!(error.as_database_error().and_then(|e| e.code()).as_deref(), Some("TR003"), "{sql}: {error}");
        }
    }
    refused(&db, "SELECT tracium.set_route('Order', 'x')").await;
    assert_eq!(db.count("SELECT count(*) FROM tracium.route").await, 0);
}

/// A type whose route is known, and whose first event is in a transaction still open.
#[tokio::test]
async fn a_route_waits_for_a_first_append_under_way_and_is_refused_then() {
    let db = TestDatabase::new().await;
    db.execute("SELECT tracium.set_route('order', 'orders-a')").await;
    let mut open = db.pool.begin().await.unwrap();
    EventStore::append(&mut open, &order("o-1"), Expected::New, &[event("order.created")]).await.unwrap();
    let setting = tokio::spawn({
        let pool = db.pool.clone();
        async move { sqlx::query("SELECT tracium.set_route('order', 'orders-b')").execute(&pool).await }
    });
    blocked(&db, 1).await;
    open.commit().await.unwrap();
    let error = setting.await.unwrap().unwrap_err();
    assert!(error.to_string().contains("already has events"), "{error}");
    append(&db.pool, &order("o-2"), Expected::New, &[event("order.created")]).await.unwrap();
    assert!(outbox(&db.pool).await.iter().all(|r| r.topic == "orders-a"));
}

#[tokio::test]
async fn first_appends_of_a_type_at_once_agree_on_its_topic() {
    let db = TestDatabase::new().await;
    let tasks = (0..8).map(|n| {
        let pool = db.pool.clone();
        tokio::spawn(async move { append(&pool, &order(&format!("o-{n}")), Expected::New, &[event("order.created")]).await })
    });
    for result in futures::future::join_all(tasks).await {
        result.unwrap().unwrap();
    }
    let rows = outbox(&db.pool).await;
    assert!(rows.len() == 8 && rows.iter().all(|r| r.topic == "orders"), "{rows:?}");
    assert_eq!(db.count("SELECT count(*) FROM tracium.topic WHERE versioned AND NOT unversioned").await, 1);
}
