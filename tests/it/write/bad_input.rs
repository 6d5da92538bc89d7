//! Bad input is refused with the name of what is wrong, and leaves nothing behind.

use serde_json::json;
use tracium_core::{
    Aggregate, AggregateId, AggregateType, AppendError, Class, Classify, EventStore, EventType, Expected, NewEvent, Version,
};
use tracium_testkit::TestDatabase;

use super::{append, assert_empty, event, order};

const ID: &str = "018f0000-0000-7000-8000-000000000001";

#[tokio::test]
async fn ids_with_quotes_emoji_and_512_bytes_are_ids_like_any_other() {
    let db = TestDatabase::new().await;
    let long = "é".repeat(256);
    for id in ["o'; DROP TABLE tracium.stream; --", "🧾-\"42\"", " ", "\\x00", "%_", "a\nb", long.as_str()] {
        append(&db.pool, &order(id), Expected::New, &[event("order.created")]).await.unwrap();
        append(&db.pool, &order(id), Expected::Version(Version::ZERO.next()), &[event("order.paid")]).await.unwrap();
        let loaded = EventStore::load(&db.pool, &order(id), Version::ZERO).await.unwrap();
        assert_eq!(loaded.len(), 2, "{id:?}");
        assert_eq!(loaded[0].aggregate, Some(order(id)));
    }
}

#[test]
fn rust_refuses_bad_names_before_a_database_is_asked() {
    for id in ["", "a\0b", &"x".repeat(1024), &"é".repeat(257)] {
        assert!(AggregateId::new(id).is_err(), "{id:?}");
    }
    for kind in ["", "Order", "1order", "or der", "örder", &"x".repeat(101)] {
        assert!(AggregateType::new(kind).is_err(), "{kind:?}");
    }
    for kind in ["", "1", "order created", "order\0", "órder", &"x".repeat(201)] {
        assert!(EventType::new(kind).is_err(), "{kind:?}");
        assert!(NewEvent::tombstone(kind).is_err(), "{kind:?}");
    }
}

#[tokio::test]
async fn a_nul_in_a_json_text_is_refused_by_name() {
    let db = TestDatabase::new().await;
    let event = NewEvent::json("order.created", &json!({"text": "a\0b"})).unwrap();
    let error = append(&db.pool, &order("o-1"), Expected::New, &[event]).await.unwrap_err();
    assert!(matches!(error, AppendError::Invalid { .. }), "{error}");
    assert_eq!(error.class(), Class::Poison);
    let event = super::event("order.created").with_schema_version(0);
    let error = append(&db.pool, &order("o-1"), Expected::New, &[event]).await.unwrap_err();
    assert_eq!(error.to_string(), "append refused its input: schema version 0 is not 1 or more");
    assert_empty(&db).await;
}

/// Through SQL, as a service in another language would. Each call in a transaction that first appended something good.
#[tokio::test]
async fn sql_refuses_what_rust_refuses() {
    let db = TestDatabase::new().await;
    let good = |change: serde_json::Value| {
        let mut event = json!({"event_id": ID, "event_type": "order.created", "payload": {}});
        for (key, value) in change.as_object().unwrap() {
            event[key] = value.clone();
        }
        event
    };
    let with = |change| json!([good(change)]);
    let long = "x".repeat(1024);
    let fine = with(json!({}));
    let headers = |headers: serde_json::Value| with(json!({ "headers": headers }));
    let cases: Vec<(&str, &str, serde_json::Value, &str, &str)> = vec![
        ("", "o", fine.clone(), "TR003", "aggregate type is empty"),
        ("Order", "o", fine.clone(), "TR003", "aggregate type 'Order' does not match"),
        ("order\n", "o", fine.clone(), "TR003", "does not match"),
        ("order", "", fine.clone(), "TR003", "aggregate id is empty"),
        ("order", &long, fine.clone(), "TR003", "aggregate id is 1024 bytes long, the limit is 512"),
        ("order", "o", json!([]), "TR003", "at least one event"),
        ("order", "o", json!({}), "TR003", "a JSON array"),
        ("order", "o", json!(null), "TR003", "a JSON array"),
        ("order", "o", json!([5]), "TR003", "event_id is missing"),
        ("order", "o", json!([{"event_type": "order.created"}]), "TR003", "event_id is missing"),
        ("order", "o", json!([good(json!({})), {"event_type": "x"}]), "TR003", "event_id is missing"),
        ("order", "o", with(json!({"event_id": null})), "TR003", "event_id is missing"),
        ("order", "o", with(json!({"event_id": "42"})), "22P02", "uuid"),
        ("order", "o", with(json!({"event_type": null})), "TR003", "event type is empty"),
        ("order", "o", with(json!({"event_type": ""})), "TR003", "event type is empty"),
        ("order", "o", with(json!({"event_type": "a b"})), "TR003", "event type 'a b' does not match"),
        ("order", "o", with(json!({"event_type": long})), "TR003", "does not match"),
        ("order", "o", with(json!({"schema_version": 0})), "TR003", "schema version 0"),
        ("order", "o", with(json!({"schema_version": "one"})), "22P02", "integer"),
        ("order", "o", with(json!({"schema_version": 5_000_000_000_u64})), "22003", "out of range"),
        ("order", "o", with(json!({"payload_base64": "AA=="})), "TR003", "not both"),
        ("order", "o", json!([{"event_id": ID, "event_type": "x", "payload_base64": "!"}]), "22023", "base64"),
        ("order", "o", headers(json!(5)), "TR003", "headers are neither"),
        ("order", "o", headers(json!([["a"]])), "TR003", "not a pair"),
        ("order", "o", headers(json!([["a", "b", "c"]])), "TR003", "not a pair"),
        ("order", "o", headers(json!([[1, "b"]])), "TR003", "not a pair"),
        ("order", "o", headers(json!(["ab"])), "TR003", "not a pair"),
        ("order", "o", headers(json!([["", "b"]])), "TR003", "not a pair"),
        ("order", "o", headers(json!({"a": 1})), "TR003", "header 'a' is neither"),
        ("order", "o", headers(json!({"a": {"b": "c"}})), "TR003", "header 'a' is neither"),
        ("order", "o", headers(json!({"a": {"base64": "!"}})), "22023", "base64"),
        ("order", "o", headers(json!({"event_id": "x"})), "TR003", "written by Tracium"),
        ("order", "o", headers(json!([["tracium-skipped", null]])), "TR003", "written by Tracium"),
    ];
    for (kind, id, events, code, message) in cases {
        let mut tx = db.pool.begin().await.unwrap();
        EventStore::append(&mut tx, &order("before"), Expected::New, &[event("order.created")]).await.unwrap();
        let error = sqlx::query("SELECT tracium.append($1, $2, NULL, $3)")
            .bind(kind)
            .bind(id)
            .bind(&events)
            .execute(&mut *tx)
            .await
            .expect_err(&events.to_string());
        let error = error.as_database_error().unwrap();
        assert_eq!(error.code().as_deref(), Some(code), "{events}: {error}");
        assert!(error.message().contains(message), "{events}: {error}");
        drop(tx);
    }
    let null = sqlx::query("SELECT tracium.append(NULL, 'o', NULL, '[]')").execute(&db.pool).await.unwrap_err();
    assert_eq!(null.as_database_error().and_then(|e| e.code()).as_deref(), Some("TR003"));
    assert_empty(&db).await;
}

#[tokio::test]
async fn publish_through_sql_refuses_what_it_cannot_send() {
    let db = TestDatabase::new().await;
    let cases = [
        (format!("'a b', 'k', '{ID}', 'x'"), "topic 'a b' does not match"),
        (format!("'..', 'k', '{ID}', 'x'"), "not a name Kafka takes"),
        (format!("NULL, 'k', '{ID}', 'x'"), "topic is empty"),
        (format!("'t', NULL, '{ID}', 'x'"), "partition key is empty"),
        (format!("'t', repeat('k', 1024), '{ID}', 'x'"), "partition key is 1024 bytes long"),
        ("'t', 'k', NULL, 'x'".to_owned(), "event_id is missing"),
        (format!("'t', 'k', '{ID}', ''"), "event type is empty"),
        (format!("'t', 'k', '{ID}', 'x', 0"), "schema version 0"),
        (format!("'t', 'k', '{ID}', 'x', 1, '1', '\\x00'"), "not both"),
        (format!("'t', 'k', '{ID}', 'x', 1, NULL, NULL, '5'"), "headers are neither"),
    ];
    for (arguments, message) in cases {
        let sql = format!("SELECT tracium.publish({arguments})");
        let error = sqlx::query(sqlx::AssertSqlSafe(sql.clone())).execute(&db.pool).await.expect_err(&sql);
        let error = error.as_database_error().unwrap();
        assert_eq!(error.code().as_deref(), Some("TR003"), "{sql}: {error}");
        assert!(error.message().contains(message), "{sql}: {error}");
    }
    assert_empty(&db).await;
    // The short form: a tombstone, schema version 1, ordered.
    db.execute(&format!("SELECT tracium.publish('t', 'k', '{ID}', 'x')")).await;
    assert_eq!(db.count("SELECT count(*) FROM tracium.key_head").await, 1);
}

#[tokio::test]
async fn a_database_without_the_schema_says_what_to_run() {
    let db = TestDatabase::empty().await;
    let aggregate = Aggregate::new("order", "o-1").unwrap();
    let error = append(&db.pool, &aggregate, Expected::New, &[event("order.created")]).await.unwrap_err();
    assert!(matches!(error, AppendError::SchemaMissing(_)), "{error}");
    assert_eq!(error.class(), Class::Fatal);
    assert!(error.to_string().contains("run `tracium migrate`"));
}
