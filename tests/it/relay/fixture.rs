//! A database, a topic and relays with short times.

use std::sync::Arc;
use std::time::Duration;

use sqlx::PgPool;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracium_core::{Aggregate, EventStore, Expected, NewEvent};
use tracium_relay::{KafkaPublisher, Metrics, Publisher, Relay, RelayError, RelayOptions};
use tracium_testkit::kafka::{self, Record};
use tracium_testkit::{TestDatabase, eventually};

pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A test's own database, whose aggregate type `order` goes to the test's own topic.
pub(crate) struct Shop {
    pub(crate) db: TestDatabase,
    pub(crate) topic: String,
}

/// A relay in a task.
pub(crate) struct Running {
    pub(crate) stop: CancellationToken,
    pub(crate) owner: String,
    pub(crate) metrics: Arc<Metrics>,
    task: JoinHandle<Result<(), RelayError>>,
}

impl Running {
    /// SIGTERM: drains.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        let ended = tokio::time::timeout(Duration::from_secs(10), self.task).await.expect("a relay stops within 10 s");
        ended.expect("no panic").expect("no error");
    }

    /// kill -9: every connection is cut at once, nothing is handed back.
    pub(crate) async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }
}

/// Short times, so that a takeover is a matter of seconds.
pub(crate) fn options() -> RelayOptions {
    let mut options = RelayOptions {
        lease_ttl: Duration::from_secs(2),
        lease_refresh: Duration::from_millis(400),
        batch_deadline: Duration::from_millis(1500),
        database_deadline: Duration::from_millis(1500),
        poll_max: Duration::from_millis(50),
        backoff_initial: Duration::from_millis(100),
        backoff_max: Duration::from_secs(1),
        ..RelayOptions::default()
    };
    options.kafka.bootstrap_servers = kafka::bootstrap();
    options
}

impl Shop {
    pub(crate) async fn open(partitions: i32) -> Self {
        let topic = kafka::create_topic("orders", partitions).await;
        Self::with_topic(topic).await
    }

    pub(crate) async fn with_topic(topic: String) -> Self {
        let db = TestDatabase::new().await;
        db.execute(&format!("SELECT tracium.set_route('order', '{topic}')")).await;
        Self { db, topic }
    }

    pub(crate) fn pool(&self) -> &PgPool {
        &self.db.pool
    }

    /// Appends so many events to the order, one transaction each.
    pub(crate) async fn append(&self, id: &str, events: i64) {
        for _ in 0..events {
            let mut tx = self.pool().begin().await.unwrap();
            self.append_in(&mut tx, id).await;
            tx.commit().await.unwrap();
        }
    }

    /// Appends so many events to the order in one transaction, so that one claim takes them all.
    pub(crate) async fn append_together(&self, id: &str, events: i64) {
        let mut tx = self.pool().begin().await.unwrap();
        for _ in 0..events {
            self.append_in(&mut tx, id).await;
        }
        tx.commit().await.unwrap();
    }

    pub(crate) async fn append_in(&self, tx: &mut sqlx::Transaction<'_, sqlx::Postgres>, id: &str) {
        let event = NewEvent::json("order.changed", &serde_json::json!({"id": id})).unwrap();
        EventStore::append(tx, &order(id), Expected::Any, &[event]).await.unwrap();
    }

    pub(crate) fn start(&self) -> Running {
        self.start_with(options())
    }

    pub(crate) fn start_with(&self, options: RelayOptions) -> Running {
        let publisher = Arc::new(KafkaPublisher::new(&options.kafka).unwrap());
        self.start_publishing(options, publisher)
    }

    pub(crate) fn start_publishing(&self, options: RelayOptions, publisher: Arc<dyn Publisher>) -> Running {
        let relay = Relay::new(options, self.db.url.parse().unwrap(), publisher).unwrap();
        let stop = CancellationToken::new();
        let (owner, metrics) = (relay.owner().to_owned(), relay.metrics());
        Running { owner, metrics, task: tokio::spawn(relay.run(stop.clone())), stop }
    }

    pub(crate) async fn pending(&self) -> i64 {
        self.db.count("SELECT count(*) FROM tracium.outbox WHERE published_at IS NULL").await
    }

    /// Waits until every committed row is marked.
    pub(crate) async fn drained(&self) {
        eventually("the outbox is drained", SOON, || async { (self.pending().await == 0).then_some(()) }).await;
    }

    pub(crate) async fn records(&self) -> Vec<Record> {
        kafka::read_all(&self.topic).await
    }

    /// Waits until some relay holds every shard.
    pub(crate) async fn held_by(&self, owner: &str) {
        let all = format!("SELECT count(*) FROM tracium.relay_lease WHERE owner IS DISTINCT FROM '{owner}'");
        eventually("one relay holds all shards", SOON, || async { (self.db.count(&all).await == 0).then_some(()) }).await;
    }
}

pub(crate) fn order(id: &str) -> Aggregate {
    Aggregate::new("order", id).unwrap()
}

/// First deliveries of every key are versions 1, 2, 3, … Returns how many records are repeats.
pub(crate) fn assert_ordered(records: &[Record]) -> usize {
    let mut next = std::collections::HashMap::new();
    let mut repeats = 0;
    for record in records {
        let version = record.version().expect("a version header");
        let expected = next.entry(record.key_text().to_owned()).or_insert(1);
        if version == *expected {
            *expected += 1;
        } else {
            assert!(version < *expected, "{} v{version} came before v{expected}", record.key_text());
            repeats += 1;
        }
    }
    repeats
}
