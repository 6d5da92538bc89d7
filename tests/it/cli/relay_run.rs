//! `tracium relay run` as an orchestrator sees it.

use std::time::Duration;

use rustix::process::Signal;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tracium_core::{Aggregate, EventStore, Expected, NewEvent};
use tracium_testkit::{TestDatabase, eventually, kafka};

use super::support::{PATIENCE, Running, tracium};

/// What the design promises of SIGTERM.
const STOPS_WITHIN: Duration = Duration::from_secs(10);

struct Shop {
    database: TestDatabase,
    topic: String,
}

impl Shop {
    async fn open() -> Self {
        let (database, topic) = (TestDatabase::new().await, kafka::create_topic("orders", 3).await);
        database.execute(&format!("SELECT tracium.set_route('order', '{topic}')")).await;
        Self { database, topic }
    }

    async fn append(&self, order: &str, events: usize) {
        let order = Aggregate::new("order", order).unwrap();
        let events: Vec<_> = (0..events).map(|_| NewEvent::json("order.touched", &1).unwrap()).collect();
        let mut tx = self.database.pool.begin().await.unwrap();
        EventStore::append(&mut tx, &order, Expected::New, &events).await.unwrap();
        tx.commit().await.unwrap();
    }

    async fn all_published(&self) {
        let pending = "SELECT count(*) FROM tracium.outbox WHERE published_at IS NULL";
        eventually("all is published", PATIENCE, || async { (self.database.count(pending).await == 0).then_some(()) }).await;
    }

    /// A relay that listens, and its address.
    async fn relay(&self) -> (Running, String) {
        let mut relay = tracium(&["relay", "run", "--http", "127.0.0.1:0"])
            .env("DATABASE_URL", &self.database.url)
            .env("TRACIUM_KAFKA", kafka::bootstrap())
            .start();
        let line = relay.says("serving /metrics").await;
        let address = line.trim().rsplit_once("address=").unwrap().1.to_owned();
        (relay, address)
    }
}

async fn get(address: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: relay\r\nConnection: close\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn a_relay_serves_metrics_and_health_and_drains_on_sigterm() {
    let shop = Shop::open().await;
    let (relay, address) = shop.relay().await;
    for path in ["/livez", "/readyz"] {
        let answer = get(&address, path).await;
        assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("ok\n"), "{path}: {answer}");
    }
    assert!(get(&address, "/nothing").await.starts_with("HTTP/1.1 404"));
    shop.append("o-1", 20).await;
    shop.all_published().await;
    let metrics = get(&address, "/metrics").await;
    assert!(metrics.contains("text/plain; version=0.0.4") && metrics.contains("# TYPE tracium_"), "{metrics}");
    assert!(metrics.lines().any(|line| line.starts_with("tracium_") && line.ends_with(" 20")), "{metrics}");

    shop.append("o-2", 200).await;
    relay.signal(Signal::TERM);
    relay.ended(STOPS_WITHIN).await.exits(0).says("stopping").says("relay stopped");
    assert_eq!(shop.database.count("SELECT count(*) FROM tracium.relay_lease WHERE owner IS NOT NULL").await, 0);

    // What was under way at the signal was marked: the next relay sends the rest and nothing twice.
    let (relay, _) = shop.relay().await;
    shop.all_published().await;
    relay.signal(Signal::INT);
    relay.ended(STOPS_WITHIN).await.exits(0);
    let mut ids: Vec<_> =
        kafka::read_all(&shop.topic).await.iter().map(|record| record.header("event_id").unwrap().to_owned()).collect();
    assert_eq!(ids.len(), 220);
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), 220, "a drained relay leaves no duplicates");
}

#[tokio::test]
async fn an_address_in_use_stops_the_start_and_takes_no_lease() {
    let shop = Shop::open().await;
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let relay = tracium(&["relay", "run", "--http", &address])
        .env("DATABASE_URL", &shop.database.url)
        .env("TRACIUM_KAFKA", kafka::bootstrap())
        .run()
        .await;
    relay.exits(2).says(&format!("cannot listen on {address} (--http)"));
    assert_eq!(shop.database.count("SELECT coalesce(sum(term), 0)::bigint FROM tracium.relay_lease").await, 0);
}
