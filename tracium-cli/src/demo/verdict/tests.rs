use std::collections::BTreeMap;

use tracium_testkit::history::{Delivery, History, Outcome};
use uuid::Uuid;

use super::*;
use crate::demo::shop::{Order, Status};

fn id(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

/// Three events of one order, all delivered and applied; one more rolled back; four kills.
struct World {
    run: Run,
    history: History,
    evidence: Evidence,
}

fn order() -> Order {
    Order { status: Status::Paid, customer: 1, items: 2, total_cents: 100, paid_cents: 100, events: 3 }
}

fn world() -> World {
    let mut history = History::new();
    let mut evidence = Evidence { published: 3, ..Evidence::default() };
    for n in 1..=3_i64 {
        let event_id = id(n.unsigned_abs().into());
        history.appended(event_id, "o", n, Outcome::Committed);
        history.delivered(Delivery { event_id, key: "o", version: n, partition: 0 });
        evidence.stored.insert(event_id, format!("event {n}"));
        evidence.effects.insert(event_id, 1);
    }
    history.appended(id(9), "o", 4, Outcome::RolledBack);
    evidence.expected = BTreeMap::from([("o".to_owned(), order())]);
    evidence.documents = BTreeMap::from([("o".to_owned(), serde_json::to_value(order()).expect("JSON"))]);
    evidence.expected_counts = BTreeMap::from([("order.created".to_owned(), (3, 60))]);
    evidence.counts = evidence.expected_counts.clone();
    let run = Run { events: 3, relay_kills: 2, consumer_kills: 2, planned_kills: 4, ..Run::default() };
    World { run, history, evidence }
}

/// The summary after a fault was planted; it must not be fine, and the words must name the offender.
fn with(plant: impl FnOnce(&mut World), named: &str) -> Summary {
    let mut world = world();
    plant(&mut world);
    let verdict = judge(&world.run, &world.history.report(), &world.evidence);
    assert!(!verdict.summary.ok, "{verdict:#?}");
    assert!(verdict.problems.iter().any(|p| p.contains(named)), "{named} is not in {:#?}", verdict.problems);
    verdict.summary
}

#[test]
fn a_clean_run_is_fine_and_has_the_contracts_fields() {
    let World { run, history, evidence } = world();
    let verdict = judge(&run, &history.report(), &evidence);
    assert!(verdict.summary.ok, "{:#?}", verdict.problems);
    let json = serde_json::to_value(&verdict.summary).expect("JSON");
    for field in [
        "appended",
        "rolled_back",
        "published",
        "delivered",
        "duplicates_delivered",
        "applied",
        "lost",
        "phantom",
        "reordered",
        "double_effects",
        "kills",
        "seed",
        "seconds",
        "ok",
    ] {
        assert!(!json[field].is_null(), "{field}");
    }
    assert_eq!((verdict.summary.appended, verdict.summary.applied, verdict.summary.rolled_back), (3, 3, 1));
}

#[test]
fn a_duplicate_delivery_is_fine() {
    let World { run, mut history, evidence } = world();
    history.delivered(Delivery { event_id: id(2), key: "o", version: 2, partition: 0 });
    let verdict = judge(&run, &history.report(), &evidence);
    assert!(verdict.summary.ok && verdict.summary.duplicates_delivered == 1, "{verdict:#?}");
}

#[test]
fn a_second_effect_is_found_by_event_and_by_counter() {
    let summary = with(|w| *w.evidence.effects.get_mut(&id(2)).expect("there") = 2, "double effect: event 2 took effect 2 times");
    assert_eq!(summary.double_effects, 1);
    let summary = with(|w| w.evidence.counts.get_mut("order.created").expect("there").0 = 4, "counted 4 events");
    assert_eq!(summary.double_effects, 1);
}

#[test]
fn an_effect_of_an_event_nobody_stored_is_found() {
    let summary = with(
        |w| {
            w.evidence.effects.insert(id(9), 1);
        },
        "which the event store does not have",
    );
    assert_eq!(summary.double_effects, 1);
}

#[test]
fn a_missing_effect_is_found() {
    let summary = with(
        |w| {
            w.evidence.effects.remove(&id(3));
        },
        "missing effect: event 3",
    );
    assert_eq!((summary.missing_effects, summary.applied), (1, 2));
}

#[test]
fn a_wrong_a_missing_and_a_surplus_document_are_found() {
    let stale = serde_json::to_value(Order { events: 2, ..order() }).expect("JSON");
    assert_eq!(with(|w| drop(w.evidence.documents.insert("o".to_owned(), stale)), "its events make").wrong_documents, 1);
    assert_eq!(with(|w| w.evidence.documents.clear(), "is missing").wrong_documents, 1);
    let surplus = |w: &mut World| drop(w.evidence.documents.insert("x".to_owned(), serde_json::Value::Null));
    assert_eq!(with(surplus, "no events").wrong_documents, 1);
}

#[test]
fn lost_phantom_and_reordered_events_are_found() {
    assert_eq!(with(|w| w.history.appended(id(4), "o", 4, Outcome::Committed), "lost: event").lost, 1);
    let rolled_back = Delivery { event_id: id(9), key: "o", version: 4, partition: 0 };
    assert_eq!(
        with(
            |w| {
                w.history.delivered(rolled_back);
            },
            "was rolled back"
        )
        .phantom,
        1
    );
    let late = |w: &mut World| {
        w.history.appended(id(5), "o", 3, Outcome::Committed);
        w.history.delivered(Delivery { event_id: id(5), key: "o", version: 3, partition: 0 });
    };
    assert_eq!(with(late, "came after version 3").reordered, 1);
}

#[test]
fn what_waits_or_stands_still_is_found() {
    with(|w| w.evidence.pending = 1, "still waiting");
    with(|w| w.evidence.published = 2, "outbox rows published: 2, not 3");
    with(|w| w.evidence.quarantined.push("orders: o (gap)".to_owned()), "quarantined: orders: o");
    with(|w| w.run.troubles.push("relay-1 did not end".to_owned()), "relay-1 did not end");
}

#[test]
fn fewer_kills_or_events_than_planned_are_found() {
    with(|w| w.run.relay_kills = 1, "kills: 3, not 4");
    with(|w| w.run.events = 5, "events committed: 3, not 5");
}
