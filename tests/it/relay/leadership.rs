//! Leases: who publishes, and what stops the others.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracium_core::wire::Envelope;
use tracium_relay::{FakePublisher, PublishFailure, Publisher, PublisherError, Relay, RelayError, TopicInfo};
use tracium_testkit::{TestDatabase, eventually};

use super::fixture::{Running, SOON, Shop, assert_ordered, options};

/// Delivers when it is told to.
#[derive(Default)]
struct Gate {
    inner: FakePublisher,
    open: tokio::sync::Notify,
    entered: tokio::sync::Notify,
}

#[async_trait::async_trait]
impl Publisher for Gate {
    async fn check(&self) -> Result<(), PublisherError> {
        Ok(())
    }

    async fn topic(&self, topic: &str) -> Result<TopicInfo, PublishFailure> {
        self.inner.topic(topic).await
    }

    async fn publish(&self, batch: &[Envelope], deadline: tokio::time::Instant) -> Vec<Result<(), PublishFailure>> {
        self.entered.notify_one();
        self.open.notified().await;
        self.inner.publish(batch, deadline).await
    }
}

const TAKE: &str =
    "UPDATE tracium.relay_lease SET owner = 'usurper', term = term + 1, expires_at = clock_timestamp() + interval '1 hour'";

/// A relay whose batch of three rows is open: claimed, and at the publisher.
async fn open_batch() -> (Shop, Arc<Gate>, Running) {
    let shop = Shop::open(1).await;
    let gate = Arc::new(Gate::default());
    let relay = shop.start_publishing(options(), gate.clone());
    shop.held_by(&relay.owner).await;
    shop.append_together("k", 3).await;
    gate.entered.notified().await;
    (shop, gate, relay)
}

#[tokio::test]
async fn a_successor_waits_for_the_open_batch_and_the_refresh_does_not() {
    let (shop, gate, relay) = open_batch().await;

    // The batch is open. Changing the owner has to wait for it …
    let mut usurper = shop.db.connect().await;
    sqlx::query("SET lock_timeout = '300ms'").execute(&mut usurper).await.unwrap();
    let shard = "(SELECT shard FROM tracium.outbox LIMIT 1)";
    let refused =
        sqlx::raw_sql(sqlx::AssertSqlSafe(format!("{TAKE} WHERE shard = {shard}"))).execute(&mut usurper).await.unwrap_err();
    assert_eq!(refused.as_database_error().and_then(|e| e.code()).as_deref(), Some("55P03"));
    // … and the refresh, which touches other columns, does not.
    let expiry = format!("SELECT extract(epoch FROM expires_at)::numeric * 1000 FROM tracium.relay_lease WHERE shard = {shard}");
    let expiry = format!("SELECT ({expiry})::bigint");
    let before = shop.db.count(&expiry).await;
    eventually("the lease is refreshed under the open batch", SOON, || async {
        (shop.db.count(&expiry).await > before).then_some(())
    })
    .await;

    gate.open.notify_one();
    shop.drained().await;
    assert_eq!(gate.inner.sent().len(), 3);
    gate.open.notify_one();
    relay.stop().await;
}

#[tokio::test]
async fn case_w25_a_batch_longer_than_the_refresh_interval_keeps_its_lease() {
    let shop = Shop::open(1).await;
    let gate = Arc::new(Gate::default());
    let mut options = options();
    options.lease_ttl = Duration::from_millis(1200);
    options.lease_refresh = Duration::from_millis(150);
    options.batch_deadline = Duration::from_millis(1000);
    options.database_deadline = Duration::from_millis(1000);
    let relay = shop.start_publishing(options.clone(), gate.clone());
    shop.held_by(&relay.owner).await;
    // A second relay that would take any expired lease.
    let rival = shop.start_publishing(options, Arc::new(FakePublisher::default()));
    let shares =
        "SELECT count(DISTINCT owner) FROM tracium.relay_lease WHERE owner IS NOT NULL AND expires_at > clock_timestamp()";
    eventually("both hold shards", SOON, || async { (shop.db.count(shares).await == 2).then_some(()) }).await;
    let mine = format!("SELECT count(*) FROM tracium.relay_lease WHERE owner = '{}'", relay.owner);
    eventually("the shares are even", SOON, || async { (shop.db.count(&mine).await == 4).then_some(()) }).await;
    let shard =
        shop.db.count(&format!("SELECT min(shard)::bigint FROM tracium.relay_lease WHERE owner = '{}'", relay.owner)).await;
    let key = (0..1000).map(|n| format!("k{n}"));
    let mut found = None;
    for key in key {
        if shop.db.count(&format!("SELECT tracium.shard_of('{key}', 8)::bigint")).await == shard {
            found = Some(key);
            break;
        }
    }
    let key = found.expect("a key of the relay's shard");
    let term = format!("SELECT term FROM tracium.relay_lease WHERE shard = {shard}");
    let before = shop.db.count(&term).await;
    shop.append_together(&key, 2).await;
    gate.entered.notified().await;
    // Three TTLs pass on the server's clock while the batch is open.
    let opened = Instant::now();
    eventually("three TTLs", SOON, || async { (opened.elapsed() > Duration::from_millis(3600)).then_some(()) }).await;
    assert_eq!(shop.db.count(&term).await, before, "no takeover");
    gate.open.notify_one();
    shop.drained().await;
    assert_eq!(gate.inner.sent().len(), 2);
    rival.stop().await;
    gate.open.notify_one();
    relay.stop().await;
}

#[tokio::test]
async fn a_relay_whose_lease_was_taken_publishes_nothing_more() {
    let shop = Shop::open(1).await;
    let mut slow = options();
    // No refresh will notice it: the fence of the next batch has to.
    slow.lease_ttl = Duration::from_secs(600);
    slow.lease_refresh = Duration::from_secs(300);
    let publisher = Arc::new(FakePublisher::default());
    let relay = shop.start_publishing(slow, publisher.clone());
    shop.held_by(&relay.owner).await;
    shop.db.execute(TAKE).await;
    shop.append("k", 3).await;
    eventually("the relay notices", SOON, || async { (relay.metrics.leases_lost() >= 1).then_some(()) }).await;
    assert_eq!(publisher.sent().len(), 0);
    assert_eq!(shop.pending().await, 3);
    relay.stop().await;
    assert_eq!(
        shop.db.count("SELECT count(*) FROM tracium.relay_lease WHERE owner = 'usurper'").await,
        8,
        "and takes nothing back"
    );
}

#[tokio::test]
async fn marks_of_a_lost_session_do_not_count_and_its_rows_go_again() {
    let (shop, gate, relay) = open_batch().await;
    let terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'tracium-relay'";
    shop.db.execute(terminate).await;
    gate.open.notify_one();
    eventually("the stale mark is counted", SOON, || async { (relay.metrics.stale_marks() == 1).then_some(()) }).await;
    assert_eq!(shop.db.count("SELECT count(*) FROM tracium.outbox WHERE published_at IS NOT NULL").await, 0);
    gate.entered.notified().await;
    gate.open.notify_one();
    shop.drained().await;
    assert_eq!(gate.inner.sent().len(), 6, "sent twice, marked once");
    gate.open.notify_one();
    relay.stop().await;
}

#[tokio::test]
async fn two_relays_share_the_shards_and_one_takes_over_from_a_killed_one_within_the_ttl() {
    let shop = Shop::open(4).await;
    let first = shop.start();
    shop.held_by(&first.owner).await;
    let second = shop.start();
    let shares = || async {
        let rows: Vec<(Option<String>, i64)> = sqlx::query_as("SELECT owner, count(*) FROM tracium.relay_lease GROUP BY owner")
            .fetch_all(shop.pool())
            .await
            .unwrap();
        rows.into_iter().filter_map(|(o, n)| o.map(|o| (o, n))).collect::<HashMap<_, _>>()
    };
    eventually("four shards each", SOON, || async { (shares().await.values().eq([&4, &4])).then_some(()) }).await;
    let load = async {
        for n in 0..200 {
            shop.append(&format!("o-{}", n % 20), 1).await;
        }
    };
    let kill = async {
        eventually("both are at work", SOON, || async {
            (first.metrics.published() > 5 && second.metrics.published() > 5).then_some(())
        })
        .await;
        let owner = second.owner.clone();
        first.kill().await;
        let killed = Instant::now();
        shop.held_by(&owner).await;
        killed.elapsed()
    };
    let ((), took) = tokio::join!(load, kill);
    // TTL 2 s, looked at five times a second; the rest is this machine's.
    assert!(took < Duration::from_secs(4), "takeover took {took:?}");
    shop.drained().await;
    second.stop().await;
    let records = shop.records().await;
    let repeats = assert_ordered(&records);
    assert_eq!(records.len() - repeats, 200);
}

#[tokio::test]
async fn the_role_tracium_relay_is_all_a_relay_needs() {
    let shop = Shop::open(1).await;
    let role = format!("relay_{}", uuid::Uuid::new_v4().simple());
    shop.db.execute(&format!("CREATE ROLE {role} LOGIN; GRANT tracium_relay TO {role}")).await;
    let database: sqlx::postgres::PgConnectOptions = shop.db.url.parse().unwrap();
    shop.append("k", 2).await;
    let options = options();
    let publisher = Arc::new(tracium_relay::KafkaPublisher::new(&options.kafka).unwrap());
    let relay = Relay::new(options, database.clone().username(&role), publisher).unwrap();
    let stop = tokio_util::sync::CancellationToken::new();
    let task = tokio::spawn(relay.run(stop.clone()));
    shop.drained().await;
    stop.cancel();
    task.await.unwrap().unwrap();

    let stranger = format!("stranger_{}", uuid::Uuid::new_v4().simple());
    shop.db.execute(&format!("CREATE ROLE {stranger} LOGIN; GRANT tracium_viewer TO {stranger}")).await;
    let relay = Relay::new(super::fixture::options(), database.username(&stranger), Arc::new(FakePublisher::default())).unwrap();
    let error = relay.run(tokio_util::sync::CancellationToken::new()).await.unwrap_err();
    assert!(matches!(error, RelayError::Denied(_)), "{error:?}");
    assert!(error.to_string().contains("GRANT tracium_relay"));
}

#[tokio::test]
async fn a_relay_that_cannot_start_says_what_and_where() {
    let publisher = || Arc::new(FakePublisher::default());
    let stop = tokio_util::sync::CancellationToken::new;
    let unreachable = Relay::new(options(), "postgres://u:secret@127.0.0.1:1/x".parse().unwrap(), publisher()).unwrap();
    let error = unreachable.run(stop()).await.unwrap_err();
    assert!(error.to_string().contains("127.0.0.1:1") && !format!("{error:?} {error}").contains("secret"), "{error}");

    let empty = TestDatabase::empty().await;
    let error = Relay::new(options(), empty.url.parse().unwrap(), publisher()).unwrap().run(stop()).await.unwrap_err();
    assert!(error.to_string().contains("tracium migrate"), "{error}");

    let db = TestDatabase::new().await;
    db.execute("UPDATE tracium.setting SET value = '9999' WHERE name = 'oldest_binary'").await;
    let error = Relay::new(options(), db.url.parse().unwrap(), publisher()).unwrap().run(stop()).await.unwrap_err();
    assert!(error.to_string().contains("newer tracium"), "{error}");

    let db = TestDatabase::new().await;
    let mut nowhere = options();
    nowhere.kafka.bootstrap_servers = "127.0.0.1:1".to_owned();
    nowhere.kafka.request_timeout = Duration::from_secs(1);
    let publisher = Arc::new(tracium_relay::KafkaPublisher::new(&nowhere.kafka).unwrap());
    let error = Relay::new(nowhere, db.url.parse().unwrap(), publisher).unwrap().run(stop()).await.unwrap_err();
    assert!(error.to_string().contains("127.0.0.1:1") && error.to_string().contains("relay.kafka.bootstrap_servers"), "{error}");
}
