//! Messages that are no events.

use tracium_core::wire::Envelope;
use tracium_testkit::kafka;
use uuid::Uuid;

use super::support::{Bed, Running, thing, things, unversioned};

fn without(mut envelope: Envelope, header: &str) -> Envelope {
    envelope.headers.retain(|(name, _)| name != header);
    envelope
}

fn with(mut envelope: Envelope, header: &str, value: &[u8]) -> Envelope {
    envelope.headers.retain(|(name, _)| name != header);
    envelope.headers.push((header.to_owned(), Some(value.to_vec())));
    envelope
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_p15_a_message_that_is_no_event_is_kept_with_its_origin_and_the_partition_moves_on() {
    let bed = Bed::new(1).await;
    let x = things("x", 1, 2);
    let bad = thing("bad", 1);
    let raw = Envelope { topic: bed.topic.clone(), key: vec![0, 255], timestamp_ms: 7, headers: vec![], payload: None };
    let messages = vec![
        bed.envelope(&x[0]),
        without(bed.envelope(&bad), "event_id"),
        without(bed.envelope(&bad), "event_type"),
        with(bed.envelope(&bad), "aggregate_version", b"minus one"),
        with(bed.envelope(&bad), "event_id", b"\xff\x00"),
        raw,
        bed.envelope(&x[1]),
    ];
    kafka::produce(messages).await;
    let running = Running::start(bed.consumer(vec![bed.ledger(), bed.effects()]));
    for projection in ["ledger", "effects"] {
        bed.wait_committed(projection, 7).await;
        let letters: Vec<(String, String, i32, i64, bool, Option<String>)> = sqlx::query_as(
            "SELECT cause, topic, \"partition\", \"offset\", parked, aggregate_id FROM tracium.dead_letter WHERE projection = $1 ORDER BY id",
        )
        .bind(projection)
        .fetch_all(&bed.database.pool)
        .await
        .unwrap();
        let expected =
            ["header event_id is missing", "header event_type is missing", "\"minus one\"", "not a UUID", "header event_id"];
        assert_eq!(letters.len(), expected.len(), "{letters:?}");
        for (n, ((cause, topic, partition, offset, parked, aggregate), expected)) in letters.iter().zip(expected).enumerate() {
            assert!(cause.contains(expected), "{cause}");
            assert_eq!((topic, *partition, *offset), (&bed.topic, 0, 1 + i64::try_from(n).unwrap()));
            assert_eq!((*parked, aggregate), (false, &None));
        }
    }
    running.stop().await;
    assert_eq!(bed.folded("x").await, [1, 2]);
    assert_eq!(bed.count("SELECT count(*) FROM tracium.quarantine").await, 0);
    let last = "SELECT count(*) FROM tracium.dead_letter WHERE key = '\\x00ff' AND payload IS NULL AND timestamp_ms = 7";
    assert_eq!(bed.count(last).await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_view_puts_events_without_a_version_aside_and_says_why() {
    let bed = Bed::new(1).await;
    bed.produce([&unversioned(Uuid::new_v4()), &thing("x", 1)]).await;
    let running = Running::start(bed.consumer(vec![bed.ledger()]));
    bed.wait_folded("x", &[1]).await;
    bed.wait_committed("ledger", 2).await;
    running.stop().await;
    let cause = bed.text("SELECT cause FROM tracium.dead_letter").await;
    assert!(cause.contains("a View needs versions; use a Projection"), "{cause}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_with_quotes_and_emoji_are_ids_like_others() {
    let bed = Bed::new(1).await;
    let ids = ["o'; DROP TABLE x; --", "🧾-\"42\"", " ", "{a,\"b\\\\"];
    let events: Vec<_> = ids.iter().flat_map(|id| things(id, 1, 2)).collect();
    bed.produce(&events).await;
    let running = Running::start(bed.consumer(vec![bed.ledger(), bed.effects()]));
    bed.wait_committed("ledger", 8).await;
    bed.wait_committed("effects", 8).await;
    running.stop().await;
    for id in ids {
        assert_eq!(bed.folded(id).await, [1, 2], "{id}");
    }
    assert_eq!(bed.count("SELECT count(*) FROM effects").await, 8);
}
