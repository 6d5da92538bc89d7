//! A view folded in the writer's own transaction.

use serde::{Deserialize, Serialize};
use sqlx::{AssertSqlSafe, PgPool};
use tracium_core::{Event, EventStore, EvolveError, Expected, InlineView, SqlIdentifier, View};
use tracium_testkit::TestDatabase;

use super::{event, order};

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
struct Count {
    events: u32,
}

struct Counts;

impl View for Counts {
    const NAME: &'static str = "counts";
    type Doc = Count;
    fn evolve(doc: Option<Count>, event: &Event) -> Result<Option<Count>, EvolveError> {
        if event.event_type.as_str() == "order.deleted" {
            return Ok(None);
        }
        Ok(Some(Count { events: doc.unwrap_or_default().events + 1 }))
    }
}

async fn view(db: &TestDatabase) -> InlineView {
    let view = InlineView::new(SqlIdentifier::new("order_counts").unwrap());
    sqlx::query(AssertSqlSafe(view.ddl())).execute(&db.pool).await.unwrap();
    view
}

async fn stored(pool: &PgPool) -> Option<(i64, Option<serde_json::Value>)> {
    sqlx::query_as("SELECT version, doc FROM order_counts").fetch_optional(pool).await.unwrap()
}

#[tokio::test]
async fn a_writer_reads_what_it_wrote_and_catching_up_twice_changes_nothing() {
    let db = TestDatabase::new().await;
    let view = view(&db).await;
    let mut tx = db.pool.begin().await.unwrap();
    EventStore::append(&mut tx, &order("o-1"), Expected::New, &[event("order.created"), event("order.paid")]).await.unwrap();
    for _ in 0..2 {
        let doc = view.catch_up::<Counts>(&mut tx, &order("o-1")).await.unwrap();
        assert_eq!(doc, Some(Count { events: 2 }));
    }
    assert_eq!(stored(&db.pool).await, None, "not before the commit");
    tx.commit().await.unwrap();
    assert_eq!(stored(&db.pool).await, Some((2, Some(serde_json::json!({"events": 2})))));
}

#[tokio::test]
async fn a_rolled_back_writer_takes_the_document_with_it() {
    let db = TestDatabase::new().await;
    let view = view(&db).await;
    let mut tx = db.pool.begin().await.unwrap();
    EventStore::append(&mut tx, &order("o-1"), Expected::New, &[event("order.created")]).await.unwrap();
    view.catch_up::<Counts>(&mut tx, &order("o-1")).await.unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(stored(&db.pool).await, None);
}

#[tokio::test]
async fn a_removed_document_leaves_its_version_so_that_later_events_start_afresh() {
    let db = TestDatabase::new().await;
    let view = view(&db).await;
    let steps: [(&str, Option<u32>); 3] = [("order.created", Some(1)), ("order.deleted", None), ("order.created", Some(1))];
    for (kind, events) in steps {
        let mut tx = db.pool.begin().await.unwrap();
        EventStore::append(&mut tx, &order("o-1"), Expected::Any, &[event(kind)]).await.unwrap();
        let doc = view.catch_up::<Counts>(&mut tx, &order("o-1")).await.unwrap();
        assert_eq!(doc.map(|d| d.events), events);
        tx.commit().await.unwrap();
    }
    assert_eq!(stored(&db.pool).await.unwrap().0, 3);
}

#[tokio::test]
async fn concurrent_writers_fold_every_event_once() {
    let db = TestDatabase::new().await;
    let view = view(&db).await;
    let tasks = (0..8).map(|_| {
        let (pool, view) = (db.pool.clone(), view.clone());
        tokio::spawn(async move {
            for _ in 0..10 {
                let mut tx = pool.begin().await.unwrap();
                EventStore::append(&mut tx, &order("o-1"), Expected::Any, &[event("order.changed")]).await.unwrap();
                view.catch_up::<Counts>(&mut tx, &order("o-1")).await.unwrap();
                tx.commit().await.unwrap();
            }
        })
    });
    for result in futures::future::join_all(tasks).await {
        result.unwrap();
    }
    assert_eq!(stored(&db.pool).await, Some((80, Some(serde_json::json!({"events": 80})))));
}
