use proptest::prelude::*;

use super::*;

fn id(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

fn delivery(n: u128, key: &str, version: i64) -> Delivery<'_> {
    Delivery { event_id: id(n), key, version, partition: 3 }
}

/// Two aggregates of three versions each: `a` has events 1–3, `b` 4–6; event 9 was rolled back.
fn appended() -> History {
    let mut history = History::new();
    for n in 1..=3_i64 {
        history.appended(id(n.unsigned_abs().into()), "a", n, Outcome::Committed);
        history.appended(id((n + 3).unsigned_abs().into()), "b", n, Outcome::Committed);
    }
    history.appended(id(9), "b", 4, Outcome::RolledBack);
    history
}

/// The kinds of violation of a history, with their counts, in words.
fn check(deliveries: &[(u128, &str, i64)], expected: &str) {
    let mut history = appended();
    for (n, key, version) in deliveries {
        history.delivered(delivery(*n, key, *version));
    }
    let report = history.report();
    let found: Vec<_> =
        report.violations().iter().filter(|(_, f)| f.count > 0).map(|(kind, f)| format!("{kind} {}", f.count)).collect();
    assert_eq!(found.join(", "), expected, "{report:#?}");
    assert_eq!(report.is_ok(), expected.is_empty());
}

const ALL: [(u128, &str, i64); 6] = [(1, "a", 1), (4, "b", 1), (2, "a", 2), (3, "a", 3), (5, "b", 2), (6, "b", 3)];

#[test]
fn a_delivery_of_everything_in_order_is_fine() {
    check(&ALL, "");
}

#[test]
fn a_batch_sent_again_is_counted_and_no_violation() {
    let mut deliveries = ALL.to_vec();
    deliveries.splice(3..3, [(1, "a", 1), (2, "a", 2)]);
    check(&deliveries, "");
    let mut history = appended();
    for (n, key, version) in deliveries {
        history.delivered(delivery(n, key, version));
    }
    let report = history.report();
    assert_eq!((report.delivered, report.duplicates_delivered, report.appended, report.rolled_back), (8, 2, 6, 1));
}

#[test]
fn a_missing_event_is_lost() {
    check(&ALL[..5], "lost 1");
}

#[test]
fn a_missing_event_in_the_middle_is_lost_not_reordered() {
    let mut deliveries = ALL.to_vec();
    deliveries.remove(2);
    check(&deliveries, "lost 1");
}

#[test]
fn a_rolled_back_event_delivered_is_a_phantom() {
    let mut deliveries = ALL.to_vec();
    deliveries.push((9, "b", 4));
    check(&deliveries, "phantom 1");
}

#[test]
fn an_event_nobody_appended_is_a_phantom() {
    let mut deliveries = ALL.to_vec();
    deliveries.push((77, "c", 1));
    check(&deliveries, "phantom 1");
}

#[test]
fn a_first_delivery_behind_a_later_version_is_reordered() {
    let mut deliveries = ALL.to_vec();
    deliveries.swap(2, 3);
    check(&deliveries, "reordered 1");
}

#[test]
fn an_old_version_again_after_a_later_one_is_only_a_duplicate() {
    let mut deliveries = ALL.to_vec();
    deliveries.push((1, "a", 1));
    check(&deliveries, "");
}

#[test]
fn an_event_under_another_key_or_version_is_altered() {
    let mut deliveries = ALL.to_vec();
    deliveries[5].1 = "c";
    check(&deliveries, "altered 1");
    deliveries[5] = (6, "b", 30);
    check(&deliveries, "altered 1");
}

#[test]
fn a_key_in_two_partitions_is_split_once() {
    let mut history = appended();
    for (n, key, version) in ALL {
        history.delivered(delivery(n, key, version));
    }
    for _ in 0..2 {
        history.delivered(Delivery { partition: 4, ..delivery(1, "a", 1) });
    }
    let report = history.report();
    assert_eq!(report.split.count, 1);
    assert!(report.split.examples[0].contains("partitions 3 and 4"), "{report:#?}");
}

#[test]
fn an_unknown_outcome_may_be_delivered_or_not() {
    for deliver in [false, true] {
        let mut history = History::new();
        history.appended(id(1), "a", 1, Outcome::Unknown);
        if deliver {
            history.delivered(delivery(1, "a", 1));
        }
        assert!(history.report().is_ok());
    }
}

#[test]
fn ten_offenders_are_named_and_all_are_counted() {
    let mut history = History::new();
    for n in 1..=25_i64 {
        history.appended(id(n.unsigned_abs().into()), "a", n, Outcome::Committed);
    }
    let report = history.report();
    assert_eq!((report.lost.count, report.lost.examples.len()), (25, 10));
    assert!(report.lost.examples[0].contains("version 1)"), "{:?}", report.lost.examples);
    assert_eq!(history.missing(), 25);
}

proptest! {
    /// Any interleaving of aggregates with any re-sends of a prefix is fine; taking out one event's deliveries is not.
    #[test]
    fn any_in_order_interleaving_with_resends_is_fine_and_a_hole_is_seen(
        picks in proptest::collection::vec((0_usize..5, 0_i64..4), 1..200),
        hole in any::<proptest::sample::Index>(),
    ) {
        let keys = ["a", "b", "c", "d", "e"];
        let event = |key: usize, version: i64| id((key as u128) << 64 | u128::from(version.unsigned_abs()));
        let mut sent = [0_i64; 5];
        let mut deliveries = Vec::new();
        let mut history = History::new();
        for (key, back) in picks {
            sent[key] += 1;
            history.appended(event(key, sent[key]), keys[key], sent[key], Outcome::Committed);
            for version in (sent[key] - back).max(1)..=sent[key] {
                deliveries.push((key, version));
            }
            deliveries.extend((1..=back.min(sent[key])).map(|version| (key, version)));
        }
        let tell = |history: &mut History, skip: Option<(usize, i64)>| {
            for (key, version) in deliveries.iter().copied().filter(|d| Some(*d) != skip) {
                history.delivered(Delivery { event_id: event(key, version), key: keys[key], version, partition: 0 });
            }
        };
        let mut holed = History { facts: history.facts.iter().map(|(id, f)| (*id, Fact { key: f.key.clone(), ..*f })).collect(), ..History::new() };
        tell(&mut history, None);
        prop_assert!(history.report().is_ok(), "{:?}", history.report());
        tell(&mut holed, Some(*hole.get(&deliveries)));
        prop_assert_eq!(holed.report().lost.count, 1);
    }
}
