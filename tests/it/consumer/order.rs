//! What stops an aggregate stops only that one.

use sqlx::Row;
use tracium_core::{Event, Headers};

use super::support::{Bed, Running, of_type, thing, things};

/// Dead letters of a projection in order: aggregate, version, parked.
async fn letters(bed: &Bed, projection: &str) -> Vec<(String, i64, bool)> {
    sqlx::query_as(
        "SELECT coalesce(aggregate_id, ''), coalesce(version, 0), parked FROM tracium.dead_letter WHERE projection = $1 ORDER BY id",
    )
    .bind(projection)
    .fetch_all(&bed.database.pool)
    .await
    .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_p01_a_gap_stops_that_aggregate_alone_and_names_the_missing_version() {
    let bed = Bed::new(1).await;
    let x = things("x", 1, 6);
    bed.produce([&x[0], &x[1], &x[3], &thing("y", 1), &x[2], &x[4]]).await; // v3 comes late, and nothing heals yet
    let running = Running::start(bed.consumer(vec![bed.ledger(), bed.effects()]));
    for projection in ["ledger", "effects"] {
        bed.wait_committed(projection, 6).await;
        let parked = [4, 3, 5].map(|v| ("x".to_owned(), v, true));
        assert_eq!(letters(&bed, projection).await, parked, "{projection}");
    }
    running.stop().await;
    assert_eq!(bed.folded("x").await, [1, 2]);
    assert_eq!(bed.folded("y").await, [1]);
    assert_eq!(bed.count("SELECT count(*) FROM effects").await, 3);
    let cause = bed.text("SELECT reason || ' | ' || cause FROM tracium.quarantine WHERE projection = 'ledger'").await;
    assert_eq!(cause, "gap | version 3 missing: version 4 follows 3, the last one seen is 2");
    for projection in tracium_consumer::status(&bed.database.pool).await.unwrap() {
        assert_eq!((projection.quarantined, projection.dead_letters, projection.lag_events), (1, 3, 0), "{projection:?}");
    }

    // it is remembered over a restart
    let running = Running::start(bed.consumer(vec![bed.ledger(), bed.effects()]));
    bed.produce([&x[5], &thing("y", 2)]).await;
    bed.wait_folded("y", &[1, 2]).await;
    bed.wait_committed("effects", 8).await;
    running.stop().await;
    assert_eq!(bed.folded("x").await, [1, 2]);
    assert_eq!(letters(&bed, "effects").await.len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_p25_the_same_version_with_another_event_id_is_a_fork() {
    let bed = Bed::new(1).await;
    let x = things("x", 1, 3);
    let other = thing("x", 3);
    bed.produce(x.iter().chain([&other, &thing("x", 4), &thing("y", 1)])).await;
    let running = Running::start(bed.consumer(vec![bed.ledger(), bed.effects()]));
    bed.wait_committed("ledger", 6).await;
    bed.wait_committed("effects", 6).await;
    running.stop().await;
    assert_eq!(bed.folded("x").await, [1, 2, 3]);
    assert_eq!(bed.folded("y").await, [1]);
    for projection in ["ledger", "effects"] {
        let row = sqlx::query("SELECT reason, cause FROM tracium.quarantine WHERE projection = $1 AND aggregate_id = 'x'")
            .bind(projection)
            .fetch_one(&bed.database.pool)
            .await
            .unwrap();
        let cause: String = row.get("cause");
        assert_eq!(row.get::<String, _>("reason"), "forked");
        assert!(cause.contains(&other.event_id.to_string()) && cause.contains(&x[2].event_id.to_string()), "{cause}");
        assert_eq!(letters(&bed, projection).await, [("x".to_owned(), 3, true), ("x".to_owned(), 4, true)]);
    }
}

/// X1, X2, a bad X3, X4, X5 and Y1 in one batch, and the batch after it.
async fn poison(event_type: &str, projection: &str, expected_cause: &str) {
    let bed = Bed::new(1).await;
    let mut x = things("x", 1, 6);
    x[2] = of_type(x[2].clone(), event_type);
    x[2].headers = headers();
    let sent: Vec<Event> = x[..5].iter().cloned().chain([thing("y", 1)]).collect();
    bed.produce(&sent).await;
    let wired = || if projection == "ledger" { bed.ledger() } else { bed.effects() };
    let running = Running::start(bed.consumer(vec![wired()]));
    bed.wait_committed(projection, 6).await;
    bed.produce([&x[5], &thing("y", 2)]).await;
    bed.wait_committed(projection, 8).await;
    running.stop().await;
    // all of it again, as after a crash before the commit
    bed.rewind(projection).await;
    let running = Running::start(bed.consumer(vec![wired()]));
    bed.wait_committed(projection, 8).await;
    running.stop().await;

    let letter = |v, parked| ("x".to_owned(), v, parked);
    assert_eq!(letters(&bed, projection).await, [letter(3, false), letter(4, true), letter(5, true), letter(6, true)]);
    assert_eq!(bed.count("SELECT version FROM tracium.last_seen WHERE aggregate_id = 'x'").await, 2);
    assert_eq!(bed.count("SELECT version FROM tracium.last_seen WHERE aggregate_id = 'y'").await, 2);
    if projection == "ledger" {
        assert_eq!((bed.folded("x").await, bed.folded("y").await), (vec![1, 2], vec![1, 2]));
    } else {
        assert_eq!(bed.count("SELECT count(*) FROM effects WHERE times = 1").await, 4);
        assert_eq!(bed.count("SELECT events FROM total").await, 4);
    }
    let cause = bed.text("SELECT cause FROM tracium.dead_letter WHERE NOT parked").await;
    assert!(cause.contains(expected_cause), "{cause}");
    let cause = bed.text("SELECT reason || ' ' || cause FROM tracium.quarantine").await;
    assert!(cause.starts_with("poison version 3: ") && cause.contains(expected_cause), "{cause}");

    // original bytes
    let row = sqlx::query(
        "SELECT key, payload, headers, topic, \"partition\", \"offset\", timestamp_ms FROM tracium.dead_letter WHERE NOT parked",
    )
    .fetch_one(&bed.database.pool)
    .await
    .unwrap();
    let sent = bed.envelope(&x[2]);
    assert_eq!(row.get::<Vec<u8>, _>("key"), sent.key);
    assert_eq!(row.get::<Option<Vec<u8>>, _>("payload"), sent.payload);
    assert_eq!(row.get::<String, _>("topic"), bed.topic);
    assert_eq!((row.get::<i32, _>("partition"), row.get::<i64, _>("offset")), (0, 2));
    assert_eq!(row.get::<i64, _>("timestamp_ms"), sent.timestamp_ms);
    let kept = Headers::from_json(&row.get::<serde_json::Value, _>("headers")).unwrap();
    let kept: Vec<_> = kept.iter().map(|(n, v)| (n.to_owned(), v.map(<[u8]>::to_vec))).collect();
    assert_eq!(kept, sent.headers);
}

/// Headers that are hard to keep.
fn headers() -> Headers {
    let mut headers = Headers::new();
    for value in [None, Some(vec![]), Some(vec![0, 255]), Some(b"a\0b".to_vec()), Some("🧾".as_bytes().to_vec())] {
        headers.push("twice", value).unwrap();
    }
    headers
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_p10_an_event_that_a_fold_refuses_parks_its_aggregate_in_order() {
    poison("thing.poison", "ledger", "this event is poison").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_p15_a_panic_in_a_fold_is_poison() {
    poison("thing.panic", "ledger", "the fold panics").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_that_postgresql_refuses_is_poison() {
    poison("thing.nul", "ledger", "unsupported Unicode escape sequence").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_p10_an_event_that_breaks_a_projections_statement_parks_its_aggregate_in_order() {
    poison("thing.poison", "effects", "division by zero").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_p15_a_panic_in_a_projection_is_poison() {
    poison("thing.panic", "effects", "the projection panics").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_that_a_projection_drops_is_poison_and_not_retried_for_ever() {
    poison("thing.swallowed", "effects", "aborted").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_aggregate_whose_quarantine_was_lifted_goes_on() {
    let bed = Bed::new(1).await;
    let x = things("x", 1, 4);
    bed.produce([&x[0], &x[2]]).await;
    let running = Running::start(bed.consumer(vec![bed.ledger()]));
    bed.wait_committed("ledger", 2).await;
    // what a heal will do: v2 and v3 applied, the parked letter drained, the quarantine lifted
    bed.database.execute("DELETE FROM tracium.dead_letter; DELETE FROM tracium.quarantine").await;
    bed.produce([&x[1], &x[2], &x[3]]).await;
    bed.wait_folded("x", &[1, 2, 3, 4]).await;
    running.stop().await;
}
