//! `tracium bench`: figures in the contract's shape, and nothing left behind. How fast is `make bench`'s business.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, Consumer};
use serde_json::Value;
use tracium_testkit::{TestDatabase, eventually, kafka};

use super::support::{PATIENCE, has_fields, open_folder, processes_of, tracium};

/// The figures are there and possible.
fn plausible(run: &Value, bench: &str, events: u64) {
    has_fields(run, &["events", "seconds", "events_per_s", "cpu_us_per_event", "peak_rss_mb"]);
    assert_eq!((run["bench"].as_str(), run["events"].as_u64()), (Some(bench), Some(events)), "{run:#}");
    for figure in ["seconds", "events_per_s", "peak_rss_mb"] {
        assert!(run[figure].as_f64().unwrap() > 0.0, "{figure} in {run:#}");
    }
}

#[tokio::test]
async fn benches_need_no_service_and_leave_nothing() {
    let folder = open_folder();
    for bench in ["append", "relay", "consume"] {
        let run = tracium(&["bench", bench, "--events", "1000", "--json"]).env("TMPDIR", folder.path()).run().await;
        plausible(&run.exits(0).json(), bench, 1000);
    }
    let gone = || async {
        let empty = std::fs::read_dir(folder.path()).unwrap().next().is_none();
        (empty && processes_of(folder.path()).is_empty()).then_some(())
    };
    eventually("nothing is left of the benches", Duration::from_secs(20), gone).await;
}

#[tokio::test]
async fn a_bench_on_real_services_removes_its_database_and_topic() {
    let server = TestDatabase::empty().await;
    for bench in ["relay", "consume"] {
        let run = tracium(&["bench", bench, "--events", "1000", "--json"])
            .env("DATABASE_URL", &server.url)
            .env("TRACIUM_KAFKA", kafka::bootstrap())
            .run()
            .await;
        let run = run.exits(0).json();
        plausible(&run, bench, 1000);
        let database = run["database"].as_str().unwrap().split_whitespace().find(|w| w.starts_with("tracium_bench_")).unwrap();
        assert_eq!(server.count(&format!("SELECT count(*) FROM pg_database WHERE datname = '{database}'")).await, 0);
        let topic = run["topic"].as_str().unwrap().to_owned();
        eventually("the topic is gone", PATIENCE, || async { (!topics().contains(&topic)).then_some(()) }).await;
    }
}

fn topics() -> Vec<String> {
    let client: BaseConsumer = ClientConfig::new().set("bootstrap.servers", kafka::bootstrap()).create().unwrap();
    let metadata = client.fetch_metadata(None, Duration::from_secs(20)).unwrap();
    metadata.topics().iter().map(|topic| topic.name().to_owned()).collect()
}

#[tokio::test]
async fn a_bench_passes_settings_on_to_what_it_measures() {
    let wrong = tracium(&["bench", "relay", "--events", "1000", "--set", "relay.batch_size=0"]).run().await;
    wrong.exits(2).says("batch_size");
}
