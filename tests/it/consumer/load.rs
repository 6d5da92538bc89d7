//! More than fits, and sinks that hang.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer as _};
use tracium_core::{Event, Payload};
use tracium_testkit::kafka;

use super::support::{Bed, Running, thing};

/// The members of a group.
async fn members(group: String) -> Vec<String> {
    tokio::task::spawn_blocking(move || {
        let client: BaseConsumer = ClientConfig::new().set("bootstrap.servers", kafka::bootstrap()).create().unwrap();
        let groups = client.fetch_group_list(Some(&group), Duration::from_secs(20)).unwrap();
        groups.groups().iter().flat_map(|g| g.members().iter().map(|m| m.id().to_owned())).collect()
    })
    .await
    .unwrap()
}

fn large(count: i64, payload: usize) -> Vec<Event> {
    let body = format!("{{\"text\":\"{}\"}}", "x".repeat(payload)).into_bytes();
    (0..count).map(|n| Event { payload: Payload::Json(body.clone()), ..thing(&format!("a{}", n % 50), n / 50 + 1) }).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_buffer_much_smaller_than_the_topic_loses_nothing() {
    let mut bed = Bed::new(3).await;
    bed.options.max_buffer_bytes = 64 * 1024;
    bed.options.batch_bytes = 16 * 1024;
    bed.produce(&large(3000, 1000)).await;
    let running = Running::start(bed.consumer(vec![bed.ledger(), bed.effects()]));
    bed.wait_committed("ledger", 3000).await;
    bed.wait_committed("effects", 3000).await;
    running.stop().await;
    assert_eq!(bed.count("SELECT count(*) FROM ledger WHERE jsonb_array_length(doc -> 'versions') = 60").await, 50);
    assert_eq!(bed.count("SELECT count(*) FROM effects WHERE times = 1").await, 3000);
    assert_eq!(bed.count("SELECT count(*) FROM tracium.dead_letter").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_p07_a_sink_that_hangs_longer_than_any_poll_may_take_costs_no_membership() {
    let mut bed = Bed::new(2).await;
    bed.options.max_buffer_bytes = 64 * 1024;
    bed.options.batch_bytes = 16 * 1024;
    bed.options.lock_timeout = Duration::from_secs(30);
    bed.options.kafka.properties.insert("max.poll.interval.ms".to_owned(), "6000".to_owned());
    let events = large(1000, 1000);
    bed.produce(&events[..50]).await;
    let running = Running::start(bed.consumer(vec![bed.ledger()]));
    bed.wait_committed("ledger", 50).await;
    let before = members(bed.group("ledger")).await;
    assert_eq!(before.len(), 1);

    let mut blocker = bed.database.pool.begin().await.unwrap();
    sqlx::query("LOCK TABLE ledger_e1 IN ACCESS EXCLUSIVE MODE").execute(&mut *blocker).await.unwrap();
    bed.produce(&events[50..]).await;
    // a consumer that did not poll would be out after 6 s; the database's own clock says when they are over
    sqlx::query("SELECT pg_sleep(8)").execute(&mut *blocker).await.unwrap();
    assert_eq!(members(bed.group("ledger")).await, before);
    blocker.rollback().await.unwrap();

    bed.wait_committed("ledger", 1000).await;
    assert_eq!(members(bed.group("ledger")).await, before);
    running.stop().await;
    assert_eq!(bed.count("SELECT sum(duplicates)::bigint FROM tracium.projection_progress").await, 0);
    assert_eq!(bed.count("SELECT count(*) FROM ledger WHERE jsonb_array_length(doc -> 'versions') = 20").await, 50);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_ends_every_connection_is_waited_for() {
    let bed = Bed::new(1).await;
    bed.produce(&large(500, 10)).await;
    let running = Running::start(bed.consumer(vec![bed.effects()]));
    let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                WHERE datname = current_database() AND application_name LIKE 'tracium-consumer%'";
    for n in 0..20 {
        bed.count(kill).await;
        bed.produce(&large(500 + 50 * (n + 1), 10)[usize::try_from(500 + 50 * n).unwrap()..]).await;
    }
    bed.wait_committed("effects", 1500).await;
    running.stop().await;
    assert_eq!(bed.count("SELECT count(*) FROM effects WHERE times = 1").await, 1500);
    assert_eq!(bed.count("SELECT events FROM total").await, 1500);
}
