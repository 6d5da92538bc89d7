//! One effect per event, whatever is delivered again.

use tracium_core::Event;
use uuid::Uuid;

use super::support::{Bed, Running, thing, things, unversioned};
use tracium_core::Version;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_p02_a_restarted_consumer_ignores_v5_and_accepts_v10() {
    let bed = Bed::new(1).await;
    let first = things("x", 1, 9);
    bed.produce(&first).await;
    let running = Running::start(bed.consumer(vec![bed.ledger(), bed.effects()]));
    bed.wait_committed("ledger", 9).await;
    bed.wait_committed("effects", 9).await;
    running.stop().await; // its memory is gone

    let running = Running::start(bed.consumer(vec![bed.ledger(), bed.effects()]));
    bed.produce([&first[4], &thing("x", 10)]).await;
    bed.wait_committed("ledger", 11).await;
    bed.wait_committed("effects", 11).await;
    running.stop().await;

    assert_eq!(bed.folded("x").await, (1..=10).collect::<Vec<_>>());
    assert_eq!(bed.count("SELECT count(*) FROM effects WHERE times = 1").await, 10);
    assert_eq!(bed.count("SELECT count(*) FROM effects WHERE times > 1").await, 0);
    assert_eq!(bed.count("SELECT sum(duplicates)::bigint FROM tracium.projection_progress").await, 2);
    assert_eq!(bed.count("SELECT count(*) FROM tracium.quarantine").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_p18_a_topic_replayed_three_times_changes_no_digest() {
    let bed = Bed::new(3).await;
    let mut events: Vec<Event> = (1..=5).flat_map(|v| (0..60).map(move |n| thing(&format!("a{n}"), v))).collect();
    events.push(super::support::of_type(thing("a0", 6), "thing.removed"));
    events.extend(events.iter().step_by(11).take(7).cloned().collect::<Vec<_>>()); // late re-sends of a relay
    let total = i64::try_from(events.len()).unwrap();
    bed.produce(&events).await;

    let running = Running::start(bed.consumer(vec![bed.ledger(), bed.effects()]));
    bed.wait_committed("ledger", total).await;
    bed.wait_committed("effects", total).await;
    running.stop().await;
    let digest = bed.digest().await;
    assert_eq!(bed.count("SELECT count(*) FROM ledger").await, 59, "the removed document is not shown");
    assert_eq!(bed.count("SELECT events FROM total").await, 301);

    for replay in 1..=3 {
        for projection in ["ledger", "effects"] {
            bed.rewind(projection).await;
            assert_eq!(bed.committed(projection).await, 0);
        }
        let running = Running::start(bed.consumer(vec![bed.ledger(), bed.effects()]));
        bed.wait_committed("ledger", total).await;
        bed.wait_committed("effects", total).await;
        running.stop().await;
        assert_eq!(bed.digest().await, digest, "replay {replay}");
        let status = tracium_consumer::status(&bed.database.pool).await.unwrap();
        for projection in &status {
            assert_eq!(projection.duplicates, 7 + replay * total, "{projection:?}");
            assert_eq!((projection.applied, projection.lag_events, projection.quarantined), (301, 0, 0), "{projection:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_p28_a_zombie_and_its_successor_apply_v4_once() {
    let mut bed = Bed::new(1).await;
    bed.options.lock_timeout = std::time::Duration::from_secs(20);
    bed.produce(&things("x", 1, 3)).await;
    // the zombie has a group of its own: it reads everything that its successor reads
    let zombie_group = tracium_core::SqlIdentifier::new("zombie").unwrap().into_string();
    let mut zombie_options = bed.options.clone();
    zombie_options.group_prefix = Some(format!("{zombie_group}-{}", Uuid::new_v4()));
    let start = tracium_consumer::Start::Earliest;
    let zombie = Running::start(bed.consumer_with(&zombie_options, vec![bed.effects(), bed.ledger()], start));
    let successor = Running::start(bed.consumer(vec![bed.effects(), bed.ledger()]));
    bed.wait_count("SELECT coalesce(sum(applied + duplicates), 0)::bigint FROM tracium.projection_progress", 12).await;

    // both meet v4 at the very same moment: where they lock the aggregate
    let mut tx = bed.database.pool.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM tracium.last_seen FOR UPDATE").execute(&mut *tx).await.unwrap();
    bed.produce([&thing("x", 4)]).await;
    bed.wait_count(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
            AND application_name LIKE 'tracium-consumer%'",
        4,
    )
    .await;
    tx.commit().await.unwrap();
    bed.wait_count("SELECT sum(applied + duplicates)::bigint FROM tracium.projection_progress", 16).await;
    zombie.stop().await;
    successor.stop().await;

    assert_eq!(bed.count("SELECT count(*) FROM effects WHERE times = 1").await, 4);
    assert_eq!(bed.count("SELECT events FROM total").await, 4);
    assert_eq!(bed.folded("x").await, [1, 2, 3, 4]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_without_a_version_take_effect_once_by_their_id() {
    let bed = Bed::new(2).await;
    let ids: Vec<Uuid> = (0..40).map(|_| Uuid::new_v4()).collect();
    let events: Vec<Event> = ids.iter().chain(&ids[..10]).map(|id| unversioned(*id)).collect();
    bed.produce(&events).await;
    let running = Running::start(bed.consumer(vec![bed.effects()]));
    bed.wait_committed("effects", 50).await;
    running.stop().await;
    bed.rewind("effects").await;
    let running = Running::start(bed.consumer(vec![bed.effects()]));
    bed.wait_committed("effects", 50).await;
    running.stop().await;

    assert_eq!(bed.count("SELECT count(*) FROM effects WHERE times = 1").await, 40);
    assert_eq!(bed.count("SELECT events FROM total").await, 40);
    assert_eq!(bed.count("SELECT sum(duplicates)::bigint FROM tracium.projection_progress").await, 60);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_p27_a_document_ahead_of_last_seen_does_not_count_twice() {
    let bed = Bed::new(1).await;
    let events = things("x", 1, 6);
    bed.produce(&events[..5]).await;
    let running = Running::start(bed.consumer(vec![bed.ledger()]));
    bed.wait_committed("ledger", 5).await;
    running.stop().await;
    // as after a crash between a confirmed write and last_seen
    bed.database.execute("UPDATE tracium.last_seen SET version = 3, event_id = gen_random_uuid()").await;
    sqlx::query("UPDATE tracium.last_seen SET event_id = $1").bind(events[2].event_id).execute(&bed.database.pool).await.unwrap();

    bed.produce(&events[3..]).await;
    let running = Running::start(bed.consumer(vec![bed.ledger()]));
    bed.wait_committed("ledger", 8).await;
    running.stop().await;
    assert_eq!(bed.folded("x").await, [1, 2, 3, 4, 5, 6]);
    assert_eq!(bed.count("SELECT version FROM tracium.last_seen").await, 6);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn versions_that_were_not_published_are_no_gap() {
    let bed = Bed::new(1).await;
    let mut later = thing("x", 7);
    later.previous_version = Version::new(2);
    let mut bare = thing("x", 8);
    bare.previous_version = None; // another producer: version - 1 is meant
    bed.produce(things("x", 1, 2).iter().chain([&later, &bare])).await;
    let running = Running::start(bed.consumer(vec![bed.ledger()]));
    bed.wait_folded("x", &[1, 2, 7, 8]).await;
    running.stop().await;
}
