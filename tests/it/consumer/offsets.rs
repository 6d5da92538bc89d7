//! When offsets are committed: after the effect, and all of what is done on the way out.

use std::time::Duration;

use super::support::{Bed, Running, thing, things};

const WAITING: &str = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
    AND application_name LIKE 'tracium-consumer%' AND pid <> ALL (ARRAY[{seen}]::int[])";

/// The consumer's connections that wait for a lock and were not seen before; a failed attempt drops its connection.
async fn next_attempt(bed: &Bed, seen: &mut Vec<i32>) {
    let list = |seen: &[i32]| seen.iter().map(i32::to_string).collect::<Vec<_>>().join(",");
    let count = WAITING.replace("{seen}", &list(seen));
    bed.wait_count(&count, 1).await;
    let pid = count.replace("count(*)", "coalesce(max(pid), 0)::bigint");
    seen.push(i32::try_from(bed.count(&pid).await).unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_offset_is_never_committed_before_the_effect() {
    let bed = Bed::new(1).await;
    bed.produce(&things("x", 1, 3)).await;
    let running = Running::start(bed.consumer(vec![bed.ledger()]));
    bed.wait_committed("ledger", 3).await;

    let mut blocker = bed.database.pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE ledger_e1 IN ACCESS EXCLUSIVE MODE").execute(&mut *blocker).await.unwrap();
    bed.produce([&thing("x", 4), &thing("y", 1)]).await;
    // three attempts, each on a connection of its own, are time for many commit intervals
    let mut seen = Vec::new();
    for _ in 0..3 {
        next_attempt(&bed, &mut seen).await;
    }
    assert_eq!(bed.committed("ledger").await, 3, "nothing of the batch has taken effect");
    blocker.rollback().await.unwrap();

    bed.wait_committed("ledger", 5).await;
    assert_eq!((bed.folded("x").await, bed.folded("y").await), (vec![1, 2, 3, 4], vec![1]));
    running.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clean_shutdown_commits_exactly_what_took_effect() {
    let mut bed = Bed::new(3).await;
    bed.options.commit_interval = Duration::from_secs(3600); // nothing but the shutdown commits
    let events: Vec<_> = (0..100).flat_map(|n| things(&format!("a{n}"), 1, 3)).collect();
    bed.produce(&events).await;
    let running = Running::start(bed.consumer(vec![bed.ledger(), bed.effects()]));
    bed.wait_count("SELECT coalesce(sum(jsonb_array_length(doc -> 'versions')), 0) FROM ledger", 300).await;
    bed.wait_count("SELECT count(*) FROM effects", 300).await;
    assert_eq!((bed.committed("ledger").await, bed.committed("effects").await), (0, 0));
    running.stop().await;
    assert_eq!((bed.committed("ledger").await, bed.committed("effects").await), (300, 300));

    // and so the next one meets no duplicate
    let running = Running::start(bed.consumer(vec![bed.ledger(), bed.effects()]));
    bed.produce([&thing("a0", 4)]).await;
    bed.wait_folded("a0", &[1, 2, 3, 4]).await;
    bed.wait_count("SELECT count(*) FROM effects", 301).await;
    running.stop().await;
    assert_eq!(bed.count("SELECT sum(duplicates)::bigint FROM tracium.projection_progress").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_while_the_sink_hangs_ends_by_its_deadline_and_commits_nothing_of_the_batch() {
    let mut bed = Bed::new(1).await;
    bed.options.drain_deadline = Duration::from_millis(500);
    bed.options.lock_timeout = Duration::from_secs(30);
    bed.produce(&things("x", 1, 3)).await;
    let running = Running::start(bed.consumer(vec![bed.ledger()]));
    bed.wait_committed("ledger", 3).await;
    let mut blocker = bed.database.pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE ledger_e1 IN ACCESS EXCLUSIVE MODE").execute(&mut *blocker).await.unwrap();
    bed.produce([&thing("x", 4)]).await;
    next_attempt(&bed, &mut Vec::new()).await;

    let began = std::time::Instant::now();
    running.stop().await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    blocker.rollback().await.unwrap();
    assert_eq!(bed.committed("ledger").await, 3);

    let running = Running::start(bed.consumer(vec![bed.ledger()]));
    bed.wait_folded("x", &[1, 2, 3, 4]).await;
    running.stop().await;
    assert_eq!(bed.committed("ledger").await, 4);
}
