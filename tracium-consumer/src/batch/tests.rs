use std::collections::HashSet;
use std::sync::Arc;

use tracium_core::wire::Envelope;
use tracium_core::{Aggregate, Event, EventType, Headers, Payload, Version};
use uuid::Uuid;

use super::{Fate, Plan};
use crate::Start;
use crate::consumer::{Partition, Record};
use crate::effect::Effected;

fn event(id: &str, version: i64) -> Event {
    Event {
        event_id: Uuid::now_v7(),
        event_type: EventType::new("thing.happened").unwrap(),
        aggregate: Some(Aggregate::new("thing", id).unwrap()),
        version: Version::new(version).filter(|_| version > 0),
        previous_version: Version::new(version - 1).filter(|_| version > 0),
        schema_version: 1,
        created_at: chrono::Utc::now(),
        payload: Payload::Json(b"{}".to_vec()),
        headers: Headers::new(),
    }
}

/// The events as they lie in a partition, from offset 10.
fn records(events: &[&Event]) -> Vec<Record> {
    let partition = Arc::new(Partition::new("things".into(), 0));
    let record = |(offset, event): (i64, &&Event)| {
        let key = event.aggregate.as_ref().map_or("k", |a| a.aggregate_id.as_str());
        Record::of(&Envelope::of(event, "things", key), &partition, offset)
    };
    (10..).zip(events).map(record).collect()
}

fn seen(version: i64, id: Uuid) -> Option<(Version, Uuid)> {
    Some((Version::new(version).unwrap(), id))
}

/// One letter an event: applied, duplicate, dead or parked.
fn fates(plan: &Plan<'_>) -> String {
    let letter = |fate: &Fate| match fate {
        Fate::Open => 'o',
        Fate::Applied => 'a',
        Fate::Duplicate => 'd',
        Fate::Dead(_) => 'x',
        Fate::Parked(_) => 'p',
    };
    plan.items.iter().map(|item| letter(&item.fate)).collect()
}

/// Decides with what is known, and answers every candidate with `effects`, or with "applied" when they are over.
fn decided<'a>(records: &'a [Record], last_seen: Vec<Option<(Version, Uuid)>>, effects: Vec<Effected>) -> Plan<'a> {
    let mut plan = Plan::decode(records, false);
    plan.set_last_seen(last_seen);
    let new: HashSet<Uuid> = plan.unversioned().into_iter().collect();
    let candidates = plan.decide(Start::Earliest, new);
    let mut answers = effects;
    answers.resize(candidates.len(), Effected::Applied);
    plan.set_effects(answers);
    plan
}

fn reached(plan: &Plan<'_>) -> Vec<i64> {
    plan.aggregates.iter().map(|a| a.reached.map_or(0, |(version, _)| version.get())).collect()
}

#[test]
fn a_relays_second_sending_in_the_same_batch_counts_once() {
    let (a, b, c) = (event("x", 1), event("x", 2), event("x", 3));
    let records = records(&[&a, &b, &c, &a, &b, &c]);
    let plan = decided(&records, vec![None], vec![]);
    assert_eq!(fates(&plan), "aaaddd");
    assert_eq!(reached(&plan), [3]);
}

#[test]
fn aggregates_are_in_key_order_whatever_order_they_came_in() {
    let events = [event("b", 1), event("a", 1), event("c", 1), event("a", 2)];
    let records = records(&events.iter().collect::<Vec<_>>());
    let plan = Plan::decode(&records, false);
    let ids: Vec<&str> = plan.versioned().iter().map(|a| a.aggregate_id.as_str()).collect();
    assert_eq!(ids, ["a", "b", "c"]);
}

#[test]
fn a_gap_parks_its_aggregate_from_there_and_no_other() {
    let events = [event("x", 1), event("x", 3), event("y", 1), event("x", 4), event("y", 2)];
    let records = records(&events.iter().collect::<Vec<_>>());
    let plan = decided(&records, vec![None, None], vec![]);
    assert_eq!(fates(&plan), "apapa");
    assert_eq!(reached(&plan), [1, 2]);
    let (_, cause) = plan.aggregates[0].quarantine.clone().unwrap();
    assert!(cause.contains("version 2 missing"), "{cause}");
    assert!(plan.aggregates[1].quarantine.is_none());
}

#[test]
fn what_arrives_for_an_aggregate_in_quarantine_parks_and_duplicates_do_not() {
    let (old, new) = (event("x", 2), event("x", 5));
    let records = records(&[&old, &new]);
    let mut plan = Plan::decode(&records, false);
    plan.set_last_seen(vec![seen(3, Uuid::new_v4())]);
    plan.set_quarantined(vec![(0, "version 4 missing".to_owned())]);
    assert!(plan.decide(Start::Earliest, HashSet::new()).is_empty());
    assert_eq!(fates(&plan), "dp");
    assert!(plan.aggregates[0].quarantine.is_none(), "the reason that stands stays");
}

#[test]
fn the_same_version_with_another_id_is_a_fork_and_stops_its_aggregate() {
    let (other, next) = (event("x", 3), event("x", 4));
    let records = records(&[&other, &next]);
    let plan = decided(&records, vec![seen(3, Uuid::new_v4())], vec![]);
    assert_eq!(fates(&plan), "pp");
    assert_eq!(plan.aggregates[0].quarantine.as_ref().unwrap().0.as_str(), "forked");
    assert_eq!(reached(&plan), [0], "last_seen does not move");
}

#[test]
fn a_refused_event_is_dead_and_last_seen_stays_before_it() {
    let events = [event("x", 1), event("x", 2), event("x", 3), event("y", 1)];
    let records = records(&events.iter().collect::<Vec<_>>());
    let answers = vec![Effected::Applied, Effected::Refused("no".to_owned()), Effected::Behind];
    let plan = decided(&records, vec![None, None], answers);
    assert_eq!(fates(&plan), "axpa");
    assert_eq!(reached(&plan), [1, 1]);
    assert_eq!(plan.summary().dead, 1);
    let progress = plan.progress();
    let part = &progress[&("things", 0)];
    assert_eq!((part.next_offset, part.applied), (14, 2), "dead letters are done with, their offsets are passed");
}

#[test]
fn an_id_without_a_version_takes_effect_once_in_a_batch() {
    let (a, b) = (event("x", 0), event("x", 0));
    let records = records(&[&a, &b, &a]);
    let plan = decided(&records, vec![], vec![]);
    assert_eq!(fates(&plan), "aad");
}

#[test]
fn a_view_refuses_what_has_no_version() {
    let (a, b) = (event("x", 0), event("x", 1));
    let records = records(&[&a, &b]);
    let mut plan = Plan::decode(&records, true);
    plan.set_last_seen(vec![None]);
    assert_eq!(plan.decide(Start::Earliest, HashSet::new()).len(), 1);
    assert_eq!(fates(&plan), "xo");
}

#[test]
fn adopt_begins_with_the_first_version_that_comes() {
    let (a, b) = (event("x", 7), event("x", 8));
    let records = records(&[&a, &b]);
    let mut plan = Plan::decode(&records, false);
    plan.set_last_seen(vec![None]);
    assert_eq!(plan.decide(Start::Adopt, HashSet::new()).len(), 2);
}
