//! Failures hold back what failed, and nothing else.

use std::sync::Arc;

use tracium_core::wire::Envelope;
use tracium_core::{EventStore, Expected, NewEvent};
use tracium_relay::{FailureScope, FakePublisher, PublishFailure, stats};
use tracium_testkit::{eventually, kafka};

use super::fixture::{SOON, Shop, assert_ordered, options, order};

#[tokio::test]
async fn case_w07_a_missing_topic_waits_in_order_while_others_flow() {
    let missing = kafka::unique("missing");
    let shop = Shop::open(1).await;
    shop.db.execute(&format!("SELECT tracium.set_route('parcel', '{missing}')")).await;
    let parcel = tracium_core::Aggregate::new("parcel", "p-1").unwrap();
    for _ in 0..3 {
        let mut tx = shop.pool().begin().await.unwrap();
        let event = NewEvent::json("parcel.moved", &serde_json::json!({})).unwrap();
        EventStore::append(&mut tx, &parcel, Expected::Any, &[event]).await.unwrap();
        tx.commit().await.unwrap();
        shop.append("o-1", 1).await;
    }
    let relay = shop.start();
    eventually("the topic is held", SOON, || async {
        let held = "SELECT count(*) FROM tracium.held_key WHERE partition_key IS NULL AND attempts >= 2 AND last_error LIKE 'unknown topic%'";
        (shop.db.count(held).await == 1).then_some(())
    })
    .await;
    eventually("the other topic flows", SOON, || async { (relay.metrics.published() == 3).then_some(()) }).await;
    assert_eq!(shop.records().await.len(), 3);
    let mut connection = shop.db.connect().await;
    let stats = stats(&mut connection).await.unwrap();
    assert_eq!((stats.pending, stats.held_keys), (3, 1));
    assert!(stats.oldest_age_s > 0.0);

    kafka::create_topic_named(&missing, 1, &[]).await;
    shop.drained().await;
    eventually("the hold is lifted", SOON, || async {
        (shop.db.count("SELECT count(*) FROM tracium.held_key").await == 0).then_some(())
    })
    .await;
    relay.stop().await;
    let records = kafka::read_all(&missing).await;
    assert_eq!((records.len(), assert_ordered(&records)), (3, 0));
}

#[tokio::test]
async fn a_message_over_the_topics_limit_holds_its_key_alone_and_goes_in_order_once_the_limit_is_raised() {
    let topic = kafka::unique("small");
    kafka::create_topic_named(&topic, 1, &[("max.message.bytes", "20000")]).await;
    let shop = Shop::with_topic(topic).await;
    let mut tx = shop.pool().begin().await.unwrap();
    let large = NewEvent::bytes("order.file", vec![b'x'; 50_000]).unwrap();
    EventStore::append(&mut tx, &order("large"), Expected::New, &[large]).await.unwrap();
    tx.commit().await.unwrap();
    shop.append("large", 2).await;
    shop.append("other", 2).await;
    let relay = shop.start();
    eventually("the key is held with the reason", SOON, || async {
        let held = "SELECT count(*) FROM tracium.held_key WHERE partition_key = 'large' AND attempts >= 2 AND last_error LIKE '%max.message.bytes of 20000%'";
        (shop.db.count(held).await == 1).then_some(())
    })
    .await;
    eventually("the other key goes", SOON, || async { (relay.metrics.published() == 2).then_some(()) }).await;
    assert!(shop.records().await.iter().all(|r| r.key_text() == "other"));
    assert_eq!(shop.db.count("SELECT count(*) FROM tracium.outbox WHERE held").await, 3);
    relay.stop().await;
    // Larger messages are allowed, and another relay takes over with the key's counter.
    let before = shop.db.count("SELECT attempts::bigint FROM tracium.held_key").await;
    kafka::alter_topic(&shop.topic, "max.message.bytes", "200000").await;
    let relay = shop.start();
    shop.drained().await;
    assert!(before >= 2);
    relay.stop().await;
    assert_eq!(assert_ordered(&shop.records().await), 0);
}

#[tokio::test]
async fn a_poison_key_backs_off_keeps_its_counter_over_a_restart_counts_as_stuck_and_resumes_in_order() {
    let shop = Shop::open(1).await;
    shop.append("poison", 3).await;
    for n in 0..20 {
        shop.append(&format!("good-{n}"), 2).await;
    }
    let publisher = Arc::new(FakePublisher::default());
    publisher.fail_key(&shop.topic, "poison", Some(PublishFailure::new(FailureScope::Key, "the broker says no")));
    let mut quick = options();
    quick.backoff_initial = std::time::Duration::from_millis(20);
    quick.backoff_max = std::time::Duration::from_millis(40);
    let attempts = || shop.db.count("SELECT coalesce(max(attempts), 0)::bigint FROM tracium.held_key");

    let first = shop.start_publishing(quick.clone(), publisher.clone());
    eventually("the good ones are through and the poison one has failed thrice", SOON, || async {
        (publisher.sent().len() == 40 && attempts().await >= 3).then_some(())
    })
    .await;
    first.stop().await;
    let before = attempts().await;
    let second = shop.start_publishing(quick, publisher.clone());
    eventually("the counter goes on", SOON, || async { (attempts().await >= 10.max(before + 1)).then_some(()) }).await;
    eventually("stuck is counted", SOON, || async { (second.metrics.stuck() >= 1).then_some(()) }).await;
    assert_eq!(stats(&mut shop.db.connect().await).await.unwrap().stuck, 1);
    let row = "SELECT count(*) FROM tracium.outbox WHERE aggregate_id = 'poison' AND attempts >= 10 AND last_error = 'the broker says no' AND aggregate_version = 1";
    assert_eq!(shop.db.count(row).await, 1);
    shop.append("poison", 1).await;
    publisher.fail_key(&shop.topic, "poison", None);
    shop.drained().await;
    second.stop().await;
    assert_eq!(versions(&publisher.sent(), "poison"), ["1", "2", "3", "4"]);
    assert_eq!(attempts().await, 0, "the hold is gone");
}

fn versions(sent: &[Envelope], key: &str) -> Vec<String> {
    let version = |e: &Envelope| e.headers.iter().find(|(n, _)| n == "aggregate_version").and_then(|(_, v)| v.clone()).unwrap();
    sent.iter().filter(|e| e.key == key.as_bytes()).map(|e| String::from_utf8(version(e)).unwrap()).collect()
}

#[tokio::test]
async fn a_silent_broker_holds_nothing_moves_attempts_and_recovers_by_itself() {
    let shop = Shop::open(1).await;
    shop.append("k", 5).await;
    let publisher = Arc::new(FakePublisher::default());
    publisher.set_down(true);
    let relay = shop.start_publishing(options(), publisher.clone());
    eventually("attempts and the reason are visible", SOON, || async {
        let tried = "SELECT count(*) FROM tracium.outbox WHERE attempts >= 2 AND last_error = 'the broker is down' AND NOT held";
        (shop.db.count(tried).await == 5).then_some(())
    })
    .await;
    publisher.set_down(false);
    shop.drained().await;
    relay.stop().await;
    assert_eq!(versions(&publisher.sent(), "k"), ["1", "2", "3", "4", "5"]);
}

#[tokio::test]
async fn a_stored_row_that_cannot_be_read_holds_its_key_alone() {
    let shop = Shop::open(1).await;
    shop.append("bad", 2).await;
    shop.append("good", 1).await;
    shop.db
        .execute("UPDATE tracium.outbox SET headers = '[\"no pair\"]' WHERE aggregate_id = 'bad' AND aggregate_version = 1")
        .await;
    let relay = shop.start();
    eventually("the good one goes and the bad one says why", SOON, || async {
        let why =
            "SELECT count(*) FROM tracium.held_key WHERE partition_key = 'bad' AND last_error LIKE '%cannot be read%no pair%'";
        (relay.metrics.published() == 1 && shop.db.count(why).await == 1).then_some(())
    })
    .await;
    shop.db.execute("UPDATE tracium.outbox SET headers = NULL WHERE aggregate_id = 'bad'").await;
    shop.drained().await;
    relay.stop().await;
    assert_eq!(assert_ordered(&shop.records().await), 0);
}
