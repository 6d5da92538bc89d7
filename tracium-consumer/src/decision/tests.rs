use proptest::prelude::*;

use super::*;

fn id(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

fn version(n: i64) -> Version {
    Version::new(n).unwrap()
}

fn at(v: i64, previous: i64) -> Position {
    Position { version: version(v), previous: version(previous), event_id: id(u128::from(v.unsigned_abs())) }
}

fn seen(v: i64) -> Option<(Version, Uuid)> {
    Some((version(v), id(u128::from(v.unsigned_abs()))))
}

#[test]
fn the_next_version_applies_an_older_one_is_a_duplicate_and_a_later_one_a_gap() {
    use Decision::{Apply, Duplicate, Gap};
    for (last, event, decision) in [
        (None, at(1, 0), Apply),
        (None, at(3, 0), Apply), // versions 1 and 2 were not published
        (None, at(2, 1), Gap { last: version(0), previous: version(1) }),
        (seen(3), at(1, 0), Duplicate),
        (seen(3), at(3, 2), Duplicate),
        (seen(3), at(4, 3), Apply),
        (seen(3), at(7, 3), Apply), // 4 to 6 were not published
        (seen(3), at(7, 2), Apply), // a filter dropped 2, or 3 was healed
        (seen(3), at(5, 4), Gap { last: version(3), previous: version(4) }),
    ] {
        assert_eq!(decide(last, event, Start::Earliest), decision, "{last:?} {event:?}");
    }
}

#[test]
fn adopt_takes_the_first_version_as_baseline_and_is_strict_from_there() {
    assert_eq!(decide(None, at(7, 6), Start::Adopt), Decision::Apply);
    assert_eq!(decide(seen(7), at(6, 5), Start::Adopt), Decision::Duplicate);
    assert!(matches!(decide(seen(7), at(9, 8), Start::Adopt), Decision::Gap { .. }));
}

#[test]
fn another_event_of_the_same_version_is_a_fork() {
    let other = Position { event_id: id(99), ..at(3, 2) };
    assert_eq!(decide(seen(3), other, Start::Earliest), Decision::Forked { seen: id(3) });
}

#[test]
fn the_cause_of_a_gap_names_the_missing_versions() {
    assert_eq!(gap_cause(version(2), at(4, 3)), "version 3 missing: version 4 follows 3, the last one seen is 2");
    assert_eq!(gap_cause(version(2), at(9, 8)), "versions 3 to 8 missing: version 9 follows 8, the last one seen is 2");
}

/// Folds deliveries by the rule; what was applied, and whether the aggregate stood still.
fn run(deliveries: impl IntoIterator<Item = Position>) -> (Vec<i64>, bool) {
    let mut last = None;
    let mut applied = Vec::new();
    for event in deliveries {
        match decide(last, event, Start::Earliest) {
            Decision::Duplicate => {}
            Decision::Apply => {
                applied.push(event.version.get());
                last = Some((event.version, event.event_id));
            }
            Decision::Gap { .. } | Decision::Forked { .. } => return (applied, true),
        }
    }
    (applied, false)
}

/// A history with holes (events that were not published), as the relay writes it.
fn history() -> impl Strategy<Value = Vec<Position>> {
    prop::collection::vec(1_i64..4, 1..20).prop_map(|steps| {
        let mut previous = 0;
        let next = |step: &i64| {
            let event = at(previous + step, previous);
            previous += step;
            event
        };
        steps.iter().map(next).collect()
    })
}

proptest! {
    #[test]
    fn whatever_is_delivered_again_every_event_takes_effect_once_in_order(
        events in history(),
        rewinds in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..6),
    ) {
        // a delivery goes up to some event, then from some earlier one again, as after a lost commit
        let mut deliveries: Vec<Position> = Vec::new();
        let mut reached = 0;
        for (to, back) in rewinds {
            let to = to.index(events.len()).max(reached);
            let from = back.index(reached + 1);
            deliveries.extend(&events[from..=to]);
            reached = to;
        }
        deliveries.extend(&events[reached..]);
        let (applied, stopped) = run(deliveries);
        prop_assert!(!stopped);
        prop_assert_eq!(applied, events.iter().map(|e| e.version.get()).collect::<Vec<_>>());
    }

    #[test]
    fn a_lost_event_is_noticed_at_its_successor(events in history(), lost in any::<prop::sample::Index>()) {
        prop_assume!(events.len() > 1);
        let lost = lost.index(events.len() - 1);
        let mut left = events.clone();
        left.remove(lost);
        let (applied, stopped) = run(left);
        prop_assert!(stopped);
        prop_assert_eq!(applied, events[..lost].iter().map(|e| e.version.get()).collect::<Vec<_>>());
    }
}
