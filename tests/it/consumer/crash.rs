//! kill -9, in processes of their own.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use tokio_util::sync::CancellationToken;
use tracium_consumer::{Consumer, ConsumerOptions, IntoPostgres, Projection, Start, Subscription};
use tracium_core::Event;

use super::support::{Bed, Effects, Ledger, Running, thing, things};

const CHILD: &str = "TRACIUM_TEST_CONSUMER_CHILD";

#[derive(Serialize, Deserialize)]
struct Orders {
    database: String,
    topic: String,
    options: ConsumerOptions,
}

/// Not a test by itself: what a child process runs, which is this binary again. Without orders it has nothing to do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn child_process_that_consumes_until_it_is_killed() {
    let Ok(orders) = std::env::var(CHILD) else { return };
    let orders: Orders = serde_json::from_str(&orders).unwrap();
    let pool = PgPool::connect_lazy(&orders.database).unwrap();
    let subscription = Subscription::to([orders.topic], Start::Earliest).unwrap();
    Consumer::new(orders.options)
        .with(Ledger.into_postgres(pool.clone()), subscription.clone())
        .unwrap()
        .with(Effects.on_postgres(pool), subscription)
        .unwrap()
        .run(CancellationToken::new())
        .await
        .unwrap();
}

/// A consumer process. It dies with its handle.
struct Process(Child);

impl Process {
    fn start(bed: &Bed, options: &ConsumerOptions) -> Self {
        let orders = Orders { database: bed.database.url.clone(), topic: bed.topic.clone(), options: options.clone() };
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "consumer::crash::child_process_that_consumes_until_it_is_killed"])
            .env(CHILD, serde_json::to_string(&orders).unwrap())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }
}

impl Drop for Process {
    /// SIGKILL.
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_p03_a_crash_between_effect_and_commit_has_no_second_effect() {
    let bed = Bed::new(1).await;
    let mut never_commits = bed.options.clone();
    never_commits.commit_interval = Duration::from_secs(3600);
    let events: Vec<Event> = things("x", 1, 3).into_iter().chain([thing("y", 1)]).collect();
    bed.produce(&events).await;
    let process = Process::start(&bed, &never_commits);
    bed.wait_folded("x", &[1, 2, 3]).await;
    bed.wait_folded("y", &[1]).await;
    bed.wait_count("SELECT count(*) FROM effects", 4).await;
    drop(process);
    assert_eq!((bed.committed("ledger").await, bed.committed("effects").await), (0, 0));

    let running = Running::start(bed.consumer(vec![bed.ledger(), bed.effects()]));
    bed.wait_committed("ledger", 4).await;
    bed.wait_committed("effects", 4).await;
    running.stop().await;
    assert_eq!((bed.folded("x").await, bed.folded("y").await), (vec![1, 2, 3], vec![1]));
    assert_eq!(bed.count("SELECT version FROM ledger WHERE aggregate_id = 'x'").await, 3);
    assert_eq!(bed.count("SELECT count(*) FROM effects WHERE times = 1").await, 4);
    assert_eq!(bed.count("SELECT events FROM total").await, 4);
    assert_eq!(bed.count("SELECT sum(duplicates)::bigint FROM tracium.projection_progress").await, 8, "all was delivered again");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_two_consumers_one_is_killed_and_the_other_takes_over_in_order() {
    let bed = Bed::new(4).await;
    let names: Vec<String> = (0..40).map(|n| format!("a{n}")).collect();
    let round =
        |from: i64, to: i64| -> Vec<Event> { (from..=to).flat_map(|v| names.iter().map(move |name| thing(name, v))).collect() };
    let process = Process::start(&bed, &bed.options);
    bed.produce(&round(1, 5)).await;
    bed.wait_count("SELECT count(*) FROM effects", 200).await;
    let running = Running::start(bed.consumer(vec![bed.ledger(), bed.effects()]));
    // the survivor's join moves partitions while events flow
    for v in 6..=10 {
        bed.produce(&round(v, v)).await;
    }
    bed.wait_count("SELECT count(*) FROM effects", 400).await;
    drop(process);
    bed.produce(&round(11, 15)).await;
    bed.wait_committed("ledger", 600).await;
    bed.wait_committed("effects", 600).await;
    running.stop().await;

    let all: Vec<i64> = (1..=15).collect();
    for name in &names {
        assert_eq!(bed.folded(name).await, all, "{name}");
    }
    assert_eq!(bed.count("SELECT count(*) FROM effects WHERE times = 1").await, 600);
    assert_eq!(bed.count("SELECT events FROM total").await, 600);
    assert_eq!(bed.count("SELECT count(*) FROM tracium.quarantine").await, 0);
    let disordered = "SELECT count(*) FROM (SELECT version - lag(version) OVER (PARTITION BY aggregate_id ORDER BY n) AS step
                      FROM effects) s WHERE step <> 1";
    assert_eq!(bed.count(disordered).await, 0, "effects of an aggregate are in version order");
}
