//! What arrives, and in which bytes.

use tracium_core::{EventStore, Expected, Message, NewEvent, Outbox, Topic};
use tracium_relay::stats;
use tracium_testkit::kafka;

use super::fixture::{Shop, assert_ordered, order};

#[tokio::test]
async fn a_committed_event_arrives_with_key_timestamp_and_headers_and_a_rolled_back_one_never() {
    let shop = Shop::open(3).await;
    let relay = shop.start();
    let mut tx = shop.pool().begin().await.unwrap();
    let event = NewEvent::json("order.created", &serde_json::json!({"total": 5})).unwrap();
    let event = event.with_header("traceparent", Some(b"00-abc-def-01".to_vec())).unwrap();
    let appended = EventStore::append(&mut tx, &order("o-1"), Expected::New, &[event]).await.unwrap();
    tx.commit().await.unwrap();
    let mut tx = shop.pool().begin().await.unwrap();
    shop.append_in(&mut tx, "o-2").await;
    tx.rollback().await.unwrap();
    shop.append("o-3", 1).await;
    shop.drained().await;

    let records = shop.records().await;
    let mut keys: Vec<_> = records.iter().map(|r| r.key_text()).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["o-1", "o-3"]);
    let record = records.iter().find(|r| r.key_text() == "o-1").unwrap();
    let recorded = &appended.events[0];
    assert_eq!(record.timestamp_ms, Some(recorded.recorded_at.timestamp_millis()));
    assert_eq!(record.payload.as_deref(), Some(&b"{\"total\": 5}"[..]));
    let headers: Vec<_> = record.headers.iter().map(|(n, v)| (n.as_str(), v.as_deref().map(String::from_utf8_lossy))).collect();
    let expected = [
        ("event_id", recorded.event_id.to_string()),
        ("event_type", "order.created".into()),
        ("aggregate_type", "order".into()),
        ("aggregate_id", "o-1".into()),
        ("aggregate_version", "1".into()),
        ("previous_version", "0".into()),
        ("schema_version", "1".into()),
        ("created_at", recorded.recorded_at.to_rfc3339_opts(chrono::SecondsFormat::Micros, true)),
        ("content-type", "application/json".into()),
        ("traceparent", "00-abc-def-01".into()),
    ];
    let expected: Vec<_> = expected.iter().map(|(n, v)| (*n, Some(std::borrow::Cow::from(v.as_str())))).collect();
    assert_eq!(headers, expected);
    relay.stop().await;
}

#[tokio::test]
async fn case_w08_bytes_come_out_as_they_went_in() {
    let shop = Shop::open(1).await;
    let id = "bytes-🧾'\"";
    let all: Vec<u8> = (0..=255).collect();
    let events = [
        NewEvent::tombstone("order.gone").unwrap(),
        NewEvent::bytes("order.empty", Vec::new()).unwrap(),
        NewEvent::bytes("order.binary", all.clone()).unwrap(),
        NewEvent::json("order.null", &serde_json::Value::Null).unwrap(),
        NewEvent::bytes("order.headers", b"x".to_vec())
            .unwrap()
            .with_header("null", None)
            .and_then(|e| e.with_header("empty", Some(Vec::new())))
            .and_then(|e| e.with_header("twice", Some(b"1".to_vec())))
            .and_then(|e| e.with_header("twice", Some(b"2".to_vec())))
            .and_then(|e| e.with_header("binary", Some(vec![0x00, 0xff, 0xfe])))
            .unwrap(),
    ];
    let mut tx = shop.pool().begin().await.unwrap();
    EventStore::append(&mut tx, &order(id), Expected::New, &events).await.unwrap();
    tx.commit().await.unwrap();
    let relay = shop.start();
    shop.drained().await;
    relay.stop().await;

    let records = shop.records().await;
    assert_eq!(assert_ordered(&records), 0);
    let payloads: Vec<_> = records.iter().map(|r| r.payload.clone()).collect();
    assert_eq!(payloads, [None, Some(Vec::new()), Some(all), Some(b"null".to_vec()), Some(b"x".to_vec())]);
    assert_eq!(records[0].key.as_deref(), Some(id.as_bytes()));
    assert_eq!(records[0].header("content-type"), None, "a tombstone has no content");
    assert_eq!(records[2].header("content-type"), Some("application/octet-stream"));
    let user: Vec<_> = records[4].headers.iter().skip(9).map(|(n, v)| (n.as_str(), v.as_deref())).collect();
    assert_eq!(
        user,
        [
            ("null", None),
            ("empty", Some(&b""[..])),
            ("twice", Some(&b"1"[..])),
            ("twice", Some(&b"2"[..])),
            ("binary", Some(&[0x00, 0xff, 0xfe][..])),
        ]
    );
}

#[tokio::test]
async fn a_message_without_an_aggregate_arrives_without_version_headers() {
    let topic = kafka::create_topic("mails", 1).await;
    let shop = Shop::open(1).await;
    let mut tx = shop.pool().begin().await.unwrap();
    let event = NewEvent::json("mail.requested", &serde_json::json!({"to": "ada"})).unwrap();
    let message = Message::new(Topic::new(topic.clone()).unwrap(), "ada", event);
    Outbox::publish(&mut tx, &message).await.unwrap();
    tx.commit().await.unwrap();
    let relay = shop.start();
    shop.drained().await;
    relay.stop().await;

    let records = kafka::read_all(&topic).await;
    assert_eq!(records.len(), 1);
    assert_eq!(records[0].header("event_id"), Some(message.event_id().to_string().as_str()));
    assert_eq!(records[0].key_text(), "ada");
    for absent in ["aggregate_type", "aggregate_id", "aggregate_version", "previous_version"] {
        assert_eq!(records[0].header(absent), None, "{absent}");
    }
}

#[tokio::test]
async fn marks_survive_a_restart_and_a_clean_stop_in_full_flow_makes_no_duplicate() {
    let shop = Shop::open(4).await;
    let mut options = super::fixture::options();
    options.batch_size = 20;
    let writer = async {
        for _ in 0..40 {
            for id in 0..10 {
                shop.append(&format!("o-{id}"), 1).await;
            }
        }
    };
    let relays = async {
        // Four relays one after the other, each stopped with batches under way.
        for _ in 0..4 {
            let relay = shop.start_with(options.clone());
            let metrics = relay.metrics.clone();
            tracium_testkit::eventually("the relay is at work", super::fixture::SOON, || async {
                (metrics.published() >= 60).then_some(())
            })
            .await;
            relay.stop().await;
        }
    };
    tokio::join!(writer, relays);
    let relay = shop.start();
    shop.drained().await;
    relay.stop().await;

    let records = shop.records().await;
    assert_eq!(records.len(), 400, "each event once");
    assert_eq!(assert_ordered(&records), 0);
    let marked = "SELECT count(*) FROM tracium.outbox WHERE published_at IS NOT NULL AND attempts = 1 AND published_by = 'relay'";
    assert_eq!(shop.db.count(marked).await, 400);
    let mut connection = shop.db.connect().await;
    let stats = stats(&mut connection).await.unwrap();
    assert_eq!((stats.pending, stats.held_keys, stats.stuck), (0, 0, 0));
    assert!(stats.shards.len() == 8 && stats.shards.iter().all(|s| s.owner.is_none()), "leases are handed back");
}

#[tokio::test]
async fn a_batch_is_bounded_in_bytes_and_a_row_over_the_bound_still_goes() {
    let shop = Shop::open(1).await;
    for n in 0..6 {
        let mut tx = shop.pool().begin().await.unwrap();
        let event = NewEvent::bytes("order.file", vec![n; 300_000]).unwrap();
        EventStore::append(&mut tx, &order("o-1"), Expected::Any, &[event]).await.unwrap();
        tx.commit().await.unwrap();
    }
    let mut options = super::fixture::options();
    options.batch_bytes = 100_000;
    let relay = shop.start_with(options);
    shop.drained().await;
    let metrics = relay.metrics.clone();
    relay.stop().await;
    assert_eq!(metrics.batches(), 6, "one row a batch");
    assert_eq!(assert_ordered(&shop.records().await), 0);
}
