//! `tracium demo`: whole runs with kills, small ones; `make verify` plays large ones.

use std::path::Path;
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::Semaphore;
use tracium_testkit::{TestDatabase, eventually, kafka};

use super::support::{Ended, PATIENCE, Running, has_fields, open_folder, processes_of, tracium};

/// A demo is six processes and a PostgreSQL: no more than two at once.
static STAGE: Semaphore = Semaphore::const_new(2);

/// Every field of the contract.
const FIELDS: [&str; 14] = [
    "appended",
    "rolled_back",
    "published",
    "delivered",
    "duplicates_delivered",
    "applied",
    "lost",
    "phantom",
    "reordered",
    "double_effects",
    "kills",
    "seed",
    "seconds",
    "ok",
];

async fn demo(folder: &Path, args: &[&str]) -> Ended {
    let _turn = STAGE.acquire().await.unwrap();
    let args: Vec<&str> = ["demo", "--json"].iter().chain(args).copied().collect();
    tracium(&args).env("TMPDIR", folder).run().await
}

/// Nothing of a run is left: no process, and nothing in the folder but the logs that were promised to stay.
async fn is_gone(folder: &Path) {
    let gone = || async {
        let files: Vec<_> = std::fs::read_dir(folder).unwrap().flatten().map(|e| e.file_name()).collect();
        (processes_of(folder).is_empty() && files.is_empty()).then_some(())
    };
    eventually("nothing is left of the demo", Duration::from_secs(20), gone).await;
}

#[tokio::test]
async fn a_small_demo_is_ok_kills_and_rolls_back_and_leaves_nothing() {
    let folder = open_folder();
    let ended = demo(folder.path(), &["--events", "500", "--seed", "7"]).await;
    let run = ended.exits(0).json();
    has_fields(&run, &FIELDS);
    assert_eq!(ended.stdout.lines().count(), 1, "progress belongs to stderr: {ended:#?}");
    for (field, value) in [("appended", 500), ("published", 500), ("applied", 500), ("seed", 7)] {
        assert_eq!(run[field], value, "{field} in {run:#}");
    }
    for field in ["lost", "phantom", "reordered", "double_effects", "wrong_documents"] {
        assert_eq!(run[field], 0, "{field} in {run:#}");
    }
    assert_eq!(run["ok"], true);
    let number = |field: &str| run[field].as_u64().unwrap();
    assert!(number("kills") >= 4 && number("relay_kills") >= 2 && number("consumer_kills") >= 2, "{run:#}");
    assert!(number("rolled_back") > 0, "{run:#}");
    assert_eq!(number("delivered") - number("duplicates_delivered"), 500, "{run:#}");
    is_gone(folder.path()).await;
}

#[tokio::test]
async fn a_demo_on_real_services_is_ok_and_removes_its_database() {
    let folder = open_folder();
    let server = TestDatabase::empty().await;
    let args = ["--events", "500", "--seed", "11", "--kafka", &kafka::bootstrap(), "--database-url", &server.url];
    let ended = demo(folder.path(), &args).await;
    assert_eq!(ended.exits(0).json()["ok"], true);
    let line = ended.stderr.lines().find(|line| line.contains("database tracium_demo_")).unwrap_or_else(|| panic!("{ended:#?}"));
    let name = line.split_whitespace().find(|word| word.starts_with("tracium_demo_")).unwrap();
    assert_eq!(server.count(&format!("SELECT count(*) FROM pg_database WHERE datname = '{name}'")).await, 0);
}

#[tokio::test]
async fn more_events_than_the_mock_holds_exit_2_and_point_to_kafka() {
    let folder = open_folder();
    let ended = demo(folder.path(), &["--events", "10000000"]).await;
    ended.exits(2).says("10000000 events are more than the mock broker holds").says("--kafka");
    is_gone(folder.path()).await;
}

/// The verdict can fail: a run that was spoilt exits 1, names the offender and keeps the logs.
async fn spoilt(plant: &str, field: &str, named: &str) {
    let folder = open_folder();
    let ended = demo(folder.path(), &["--events", "200", "--seed", "42", "--plant", plant]).await;
    let run = ended.exits(1).says(named).says("logs of relays and consumer are kept in").json();
    assert_eq!(run["ok"], false, "{ended:#?}");
    assert_eq!(run[field], 1, "{ended:#?}");
}

#[tokio::test]
async fn a_lost_event_fails_the_demo() {
    spoilt("lost", "lost", "lost: event").await;
}

#[tokio::test]
async fn a_second_effect_fails_the_demo() {
    spoilt("double", "double_effects", "took effect 2 times").await;
}

#[tokio::test]
async fn a_wrong_document_fails_the_demo() {
    spoilt("document", "wrong_documents", "read model differs from the fold of the event store").await;
}

/// Waits until events take effect: relays and consumer are past their start, which would end them anyway.
async fn flows(demo: &mut Running) {
    while demo.says(" delivered, ").await.contains(" delivered, 0 applied") {}
}

#[tokio::test]
async fn ctrl_c_ends_a_demo_soon_and_leaves_no_process_or_directory() {
    let folder = open_folder();
    let turn = STAGE.acquire().await.unwrap();
    let mut demo = tracium(&["demo", "--events", "50000"]).env("TMPDIR", folder.path()).start();
    flows(&mut demo).await;
    assert!(processes_of(folder.path()).len() >= 5, "relays, consumer and server run: {:?}", processes_of(folder.path()));
    demo.signal(Signal::INT);
    demo.ended(Duration::from_secs(30)).await.exits(1).says("interrupted");
    drop(turn);
    is_gone(folder.path()).await;
}

#[tokio::test]
async fn a_killed_demo_leaves_no_process_and_no_cluster() {
    let folder = open_folder();
    let turn = STAGE.acquire().await.unwrap();
    let mut demo = tracium(&["demo", "--events", "50000"]).env("TMPDIR", folder.path()).start();
    flows(&mut demo).await;
    demo.signal(Signal::KILL);
    assert_eq!(demo.ended(PATIENCE).await.code, None);
    drop(turn);
    let gone = || async {
        let mut files = std::fs::read_dir(folder.path()).unwrap().flatten();
        let cluster = files.any(|file| file.file_name().to_string_lossy().starts_with("tracium-pg-"));
        (processes_of(folder.path()).is_empty() && !cluster).then_some(())
    };
    eventually("children, server and its files are gone", Duration::from_secs(30), gone).await;
}
