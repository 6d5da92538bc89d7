//! What goes in comes out: payloads and headers byte for byte (case W08, the half before Kafka).

use serde_json::json;
use tracium_core::{EventStore, Expected, Headers, Message, NewEvent, Outbox, Payload, Topic, Version};
use tracium_testkit::TestDatabase;

use super::{append, event, order, outbox};

fn payloads() -> Vec<(NewEvent, Payload)> {
    let kind = "order.changed";
    let bytes = |b: &[u8]| (NewEvent::bytes(kind, b.to_vec()).unwrap(), Payload::Bytes(b.to_vec()));
    let json = |v: serde_json::Value, text: &str| (NewEvent::json(kind, &v).unwrap(), Payload::Json(text.into()));
    vec![
        bytes(&[0x00, 0xFF, 0x00]),
        bytes(b""),
        bytes(b"null"),
        bytes(&(0..=255).collect::<Vec<u8>>()),
        (NewEvent::tombstone(kind).unwrap(), Payload::Tombstone),
        json(json!(null), "null"),
        json(json!(""), "\"\""),
        json(json!({"b": 1, "a": "🧾 'x' \\"}), r#"{"a": "🧾 'x' \\", "b": 1}"#),
        json(json!([1.5, 12_345_678_901_234_567_u64, true, null]), "[1.5, 12345678901234567, true, null]"),
    ]
}

#[tokio::test]
async fn case_w08_payloads_survive_the_event_store_and_the_outbox() {
    let db = TestDatabase::new().await;
    let (events, expected): (Vec<_>, Vec<_>) = payloads().into_iter().unzip();
    append(&db.pool, &order("o-1"), Expected::New, &events).await.unwrap();
    let loaded = EventStore::load(&db.pool, &order("o-1"), Version::ZERO).await.unwrap();
    assert_eq!(loaded.into_iter().map(|e| e.payload).collect::<Vec<_>>(), expected);
    check_outbox(&db, &expected).await;
}

#[tokio::test]
async fn case_w08_payloads_survive_publish() {
    let db = TestDatabase::new().await;
    let (events, expected): (Vec<_>, Vec<_>) = payloads().into_iter().unzip();
    let mut tx = db.pool.begin().await.unwrap();
    for event in events {
        Outbox::publish(&mut tx, &Message::new(Topic::new("mails").unwrap(), "k", event)).await.unwrap();
    }
    tx.commit().await.unwrap();
    check_outbox(&db, &expected).await;
}

async fn check_outbox(db: &TestDatabase, expected: &[Payload]) {
    for (row, expected) in outbox(&db.pool).await.into_iter().zip(expected) {
        assert_eq!(row.size, i32::try_from(expected.as_bytes().map_or(0, <[u8]>::len)).unwrap());
        let got = match (row.payload, row.payload_bytes) {
            (Some(json), None) => Payload::Json(json.into_bytes()),
            (None, Some(bytes)) => Payload::Bytes(bytes),
            (None, None) => Payload::Tombstone,
            both => panic!("{both:?}"),
        };
        assert_eq!(got, *expected);
    }
    assert_eq!(db.count("SELECT count(*) FROM tracium.outbox").await, i64::try_from(expected.len()).unwrap());
}

#[tokio::test]
async fn case_w08_headers_survive_null_empty_twice_and_not_utf8() {
    let db = TestDatabase::new().await;
    let list: [(&str, Option<&[u8]>); 8] = [
        ("traceparent", Some(b"00-1-2-01")),
        ("null", None),
        ("empty", Some(b"")),
        ("twice", Some(b"1")),
        ("twice", Some(b"2")),
        ("binary", Some(&[0xFF, 0x00, 0xC3])),
        ("nul", Some(b"a\0b")),
        ("ümlaut 'n' \"quotes\"", Some("🧾".as_bytes())),
    ];
    let with_headers =
        |event: NewEvent| list.iter().fold(event, |e, (name, value)| e.with_header(*name, value.map(<[u8]>::to_vec)).unwrap());
    append(&db.pool, &order("o-1"), Expected::New, &[with_headers(event("order.created")), event("order.paid")]).await.unwrap();
    let mut tx = db.pool.begin().await.unwrap();
    let mail = Message::new(Topic::new("mails").unwrap(), "k", with_headers(event("mail.sent")));
    Outbox::publish(&mut tx, &mail).await.unwrap();
    tx.commit().await.unwrap();

    let loaded = EventStore::load(&db.pool, &order("o-1"), Version::ZERO).await.unwrap();
    assert!(loaded[0].headers.iter().eq(list));
    assert!(loaded[1].headers.is_empty());
    let rows = outbox(&db.pool).await;
    for row in [0, 2] {
        let headers = Headers::from_json(rows[row].headers.as_ref().unwrap()).unwrap();
        assert!(headers.iter().eq(list), "{row}");
    }
    assert_eq!(rows[1].headers, None, "absent headers are NULL, not an empty list");
}

/// PostgreSQL's `encode` breaks base64 into lines; a caller in SQL must not have to know.
#[tokio::test]
async fn headers_and_payloads_encoded_by_postgresql_are_read() {
    let db = TestDatabase::new().await;
    db.execute(
        "SELECT tracium.append('order', 'o-1', 0, jsonb_build_array(jsonb_build_object(
            'event_id', gen_random_uuid(), 'event_type', 'order.created',
            'payload_base64', encode(decode(repeat('ff00', 100), 'hex'), 'base64'),
            'headers', jsonb_build_object('tenant', 'acme', 'none', null,
                'raw', jsonb_build_object('base64', encode(decode(repeat('ff00', 100), 'hex'), 'base64'))))))",
    )
    .await;
    let bytes = [0xFF, 0x00].repeat(100);
    let loaded = EventStore::load(&db.pool, &order("o-1"), Version::ZERO).await.unwrap();
    assert_eq!(loaded[0].payload, Payload::Bytes(bytes.clone()));
    assert_eq!(loaded[0].header("tenant"), Some("acme"));
    let raw = loaded[0].headers.iter().find(|(name, _)| *name == "raw");
    assert_eq!(raw, Some(("raw", Some(bytes.as_slice()))));
}
