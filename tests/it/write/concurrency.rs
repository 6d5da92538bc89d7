//! Several writers: the head lock makes id order version order, and one of two writers wins.

use std::collections::HashMap;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use sqlx::{Postgres, Transaction};
use tokio::task::JoinHandle;
use tracium_core::{AppendError, Appended, Class, Classify, EventStore, Expected, Version};
use tracium_testkit::TestDatabase;

use super::{append, blocked, event, order, outbox, versions};

#[tokio::test]
async fn case_w13_of_writers_with_the_same_expected_version_one_wins_and_the_others_get_a_conflict() {
    let db = TestDatabase::new().await;
    for writers in 2..=8_i64 {
        let id = format!("o-{writers}");
        for round in 0..4 {
            let expected = if round == 0 { Expected::New } else { Expected::Version(Version::new(round).unwrap()) };
            let start = std::sync::Arc::new(tokio::sync::Barrier::new(usize::try_from(writers).unwrap()));
            let tasks = (0..writers).map(|_| {
                let (pool, order, start) = (db.pool.clone(), order(&id), start.clone());
                tokio::spawn(async move {
                    start.wait().await;
                    append(&pool, &order, expected, &[event("order.changed")]).await
                })
            });
            let mut won = 0;
            for result in futures::future::join_all(tasks).await {
                match result.unwrap() {
                    Ok(appended) => {
                        assert_eq!(appended.version().get(), round + 1);
                        won += 1;
                    }
                    Err(AppendError::VersionConflict { expected, actual, .. }) => {
                        assert_eq!((expected.get(), actual.get()), (round, round + 1));
                    }
                    Err(other) => panic!("{writers} writers, round {round}: {other}"),
                }
            }
            assert_eq!(won, 1, "{writers} writers, round {round}");
        }
        assert_eq!(versions(&db.pool, &id).await, [1, 2, 3, 4]);
    }
}

/// An open transaction with version 1, and an append of version 2 that waits for it.
async fn version_2_behind_an_open_version_1()
-> (TestDatabase, Transaction<'static, Postgres>, JoinHandle<Result<Appended, AppendError>>) {
    let db = TestDatabase::new().await;
    let mut first = db.pool.begin().await.unwrap();
    EventStore::append(&mut first, &order("o-1"), Expected::New, &[event("order.created")]).await.unwrap();
    let second = tokio::spawn({
        let pool = db.pool.clone();
        async move { append(&pool, &order("o-1"), Expected::Version(Version::ZERO.next()), &[event("order.paid")]).await }
    });
    blocked(&db, 1).await;
    (db, first, second)
}

#[tokio::test]
async fn case_w24_version_2_waits_for_version_1_and_is_refused_when_that_rolls_back() {
    let (db, first, second) = version_2_behind_an_open_version_1().await;
    first.rollback().await.unwrap();
    let error = second.await.unwrap().unwrap_err();
    assert!(matches!(error, AppendError::VersionConflict { actual: Version::ZERO, .. }), "{error}");
    super::assert_empty(&db).await;
}

#[tokio::test]
async fn version_2_follows_when_version_1_commits() {
    let (db, first, second) = version_2_behind_an_open_version_1().await;
    first.commit().await.unwrap();
    second.await.unwrap().unwrap();
    assert_eq!(versions(&db.pool, "o-1").await, [1, 2]);
}

#[tokio::test]
async fn case_w02_ids_follow_versions_where_transaction_ids_do_not() {
    let db = TestDatabase::new().await;
    let mut early = db.pool.begin().await.unwrap();
    sqlx::query("SELECT pg_current_xact_id()").execute(&mut *early).await.unwrap();
    append(&db.pool, &order("k"), Expected::New, &[event("order.created")]).await.unwrap();
    EventStore::append(&mut early, &order("k"), Expected::Any, &[event("order.paid")]).await.unwrap();
    early.commit().await.unwrap();

    assert_eq!(versions(&db.pool, "k").await, [1, 2]);
    let inverted = "SELECT count(*) FROM tracium.event_store a JOIN tracium.event_store b ON b.version = a.version + 1
        WHERE a.xid8 > b.xid8";
    assert_eq!(db.count(inverted).await, 1, "the transaction ids were to be in the other order");
}

#[tokio::test]
async fn append_all_in_opposite_orders_does_not_deadlock() {
    let db = TestDatabase::new().await;
    let names = ["a", "b", "c", "d", "e"];
    let tasks = (0..4).map(|worker| {
        let pool = db.pool.clone();
        tokio::spawn(async move {
            for _ in 0..20 {
                let mut batch: Vec<_> =
                    names.map(|id| (order(id), Expected::Any, vec![event("order.changed")])).into_iter().collect();
                if worker % 2 == 0 {
                    batch.reverse();
                }
                let mut tx = pool.begin().await.unwrap();
                let done = EventStore::append_all(&mut tx, batch).await?;
                assert!(done.iter().map(|(aggregate, _)| aggregate.aggregate_id.as_str()).eq(names));
                tx.commit().await.unwrap();
            }
            Ok::<_, AppendError>(())
        })
    });
    for result in futures::future::join_all(tasks).await {
        result.unwrap().unwrap();
    }
    for name in names {
        assert_eq!(versions(&db.pool, name).await, (1..=80).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_deadlock_of_two_transactions_is_typed_as_run_it_again() {
    let db = TestDatabase::new().await;
    let mut first = db.pool.begin().await.unwrap();
    let mut second = db.pool.begin().await.unwrap();
    append(&db.pool, &order("other"), Expected::New, &[event("order.created")]).await.unwrap(); // the type's route
    EventStore::append(&mut first, &order("a"), Expected::New, &[event("order.created")]).await.unwrap();
    EventStore::append(&mut second, &order("b"), Expected::New, &[event("order.created")]).await.unwrap();
    let waiting = tokio::spawn(async move {
        let result = EventStore::append(&mut first, &order("b"), Expected::Any, &[event("order.paid")]).await;
        (result, first)
    });
    blocked(&db, 1).await;
    let crossing = EventStore::append(&mut second, &order("a"), Expected::Any, &[event("order.paid")]).await;
    drop(second);
    let (waited, first) = waiting.await.unwrap();
    drop(first);
    let lost: Vec<_> = [crossing, waited].into_iter().filter_map(Result::err).collect();
    assert_eq!(lost.len(), 1);
    assert!(matches!(lost[0], AppendError::RetryTransaction(_)), "{}", lost[0]);
    assert_eq!(lost[0].class(), Class::Transient);
}

/// Nobody holds a head while waiting for the topic of a type that has none yet.
#[tokio::test]
async fn the_first_transaction_of_a_type_goes_on_to_an_aggregate_that_another_waits_to_make() {
    let db = TestDatabase::new().await;
    let mut first = db.pool.begin().await.unwrap();
    EventStore::append(&mut first, &order("a"), Expected::New, &[event("order.created")]).await.unwrap();
    let second = tokio::spawn({
        let pool = db.pool.clone();
        async move { append(&pool, &order("b"), Expected::Any, &[event("order.paid")]).await }
    });
    blocked(&db, 1).await;
    EventStore::append(&mut first, &order("b"), Expected::New, &[event("order.created")]).await.unwrap();
    first.commit().await.unwrap();
    second.await.unwrap().unwrap();
    assert_eq!(versions(&db.pool, "b").await, [1, 2]);
}

/// 8 writers, 5 aggregates, transactions that append to one or more of them, commit late or roll back.
#[tokio::test]
async fn id_order_is_version_order_under_eight_writers_whatever_they_do() {
    let db = TestDatabase::new().await;
    let seed = uuid::Uuid::new_v4().as_u64_pair().0;
    let tasks = (0..8).map(|writer| {
        let pool = db.pool.clone();
        tokio::spawn(async move {
            let mut random = StdRng::seed_from_u64(seed.wrapping_add(writer));
            for _ in 0..30 {
                let mut batch = Vec::new();
                for id in ["a", "b", "c", "d", "e"] {
                    if random.random_bool(0.3) {
                        let events = (0..random.random_range(1..4)).map(|_| {
                            let event = event("order.changed");
                            if random.random_bool(0.2) { event.unpublished() } else { event }
                        });
                        let events = events.collect();
                        batch.push((order(id), Expected::Any, events));
                    }
                }
                let mut tx = pool.begin().await.unwrap();
                EventStore::append_all(&mut tx, batch).await.unwrap();
                if random.random_bool(0.2) {
                    tokio::task::yield_now().await;
                }
                match ["commit", "commit", "commit", "rollback"].choose(&mut random) {
                    Some(&"rollback") => tx.rollback().await.unwrap(),
                    _ => tx.commit().await.unwrap(),
                }
            }
        })
    });
    for result in futures::future::join_all(tasks).await {
        result.unwrap();
    }

    let rows = outbox(&db.pool).await;
    let mut last: HashMap<String, i64> = HashMap::new();
    for row in &rows {
        let previous = last.insert(row.partition_key.clone(), row.aggregate_version.unwrap()).unwrap_or(0);
        assert_eq!(row.previous_version, Some(previous), "seed {seed}: {row:?}");
        assert!(row.aggregate_version > Some(previous), "seed {seed}: {row:?}");
    }
    assert!(rows.len() > 100, "seed {seed}");
    let gaps = "SELECT count(*) FROM (SELECT aggregate_id, max(version) AS last, count(*) AS events FROM tracium.event_store
        GROUP BY 1) e JOIN tracium.stream s USING (aggregate_id) WHERE e.last <> e.events OR s.version <> e.last";
    assert_eq!(db.count(gaps).await, 0, "seed {seed}");
}
