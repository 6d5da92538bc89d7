use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use proptest::prelude::*;
use tracium_core::Backoff;

use super::*;
use crate::publisher::{FailureScope, PublishFailure};

const BACKOFF: Backoff = Backoff { initial: Duration::from_secs(1), max: Duration::from_secs(300) };

#[test]
fn a_key_leaves_the_batch_from_its_first_unlocked_row_on() {
    let rows = vec![((1, "a"), true), ((2, "b"), false), ((3, "a"), true), ((4, "b"), true), ((5, "c"), true)];
    let kept = leave_unlocked_keys(rows, |row| ("t".to_owned(), row.1.to_owned()));
    assert_eq!(kept.iter().map(|row| row.0).collect::<Vec<_>>(), [1, 3, 5]);
}

#[test]
fn a_failed_row_holds_the_rest_of_its_key_and_a_silent_broker_holds_nothing() {
    let fail = |scope| Err(PublishFailure::new(scope, "why"));
    let row = |id, key, result| Outcome { id, topic: "t", key, result };
    let settled = settle(vec![
        row(1, "a", fail(FailureScope::Key)),
        row(2, "b", Ok(())),
        row(3, "a", fail(FailureScope::Skipped)),
        row(4, "c", fail(FailureScope::Broker)),
    ]);
    assert_eq!(settled.published, [2]);
    assert_eq!(settled.hold, [1, 3]);
    assert_eq!(settled.newly_held, [("t".to_owned(), Some("a".to_owned()), "why".to_owned())]);
    assert_eq!(settled.broker.as_deref(), Some("why"));
}

#[test]
fn backoff_doubles_and_the_tenth_attempt_counts_as_stuck_once() {
    let mut held = HeldKeys::default();
    let mut stuck = 0;
    let mut now = Duration::ZERO;
    for _ in 0..12 {
        let settled = settle(vec![Outcome {
            id: 1,
            topic: "t",
            key: "k",
            result: Err(PublishFailure::new(FailureScope::Key, "too large")),
        }]);
        stuck += settled.hold(&mut held, &BACKOFF, now).1;
        assert_eq!(held.due(now), None, "nothing is due before its backoff");
        now = held.next_due().unwrap();
        assert!(matches!(held.due(now), Some(Due::Key { single: true, .. })));
    }
    assert_eq!(stuck, 1);
    assert_eq!(held.len(), 1);
}

#[test]
fn a_held_topic_keeps_its_keys_back_and_is_tried_as_a_whole() {
    let mut held = HeldKeys::default();
    held.fail("t", Some("k"), "too large", &BACKOFF, Duration::ZERO);
    held.fail("t", None, "unknown topic", &BACKOFF, Duration::ZERO);
    assert!(held.contains("t", "other") && !held.contains("u", "k"));
    let due = held.due(Duration::from_secs(1)).unwrap();
    assert_eq!(due, Due::Topic { topic: "t".to_owned(), except: vec!["k".to_owned()] });
    held.release("t", None);
    assert!(!held.contains("t", "other") && held.contains("t", "k"));
    held.release("t", Some("k"));
    assert_eq!(held.len(), 0);
}

proptest! {
    #[test]
    fn shares_add_up_and_differ_by_one(shards in 1_usize..64, count in 1_usize..12) {
        let members: Vec<String> = (0..count).map(|n| format!("relay-{n:02}")).collect();
        let quotas: Vec<usize> = members.iter().map(|me| quota(&members, me, shards)).collect();
        prop_assert_eq!(quotas.iter().sum::<usize>(), shards);
        prop_assert!(quotas.iter().max().unwrap() - quotas.iter().min().unwrap() <= 1);
    }

    /// Relays that come and go and only follow `quota`, `shards_to_release` and `shards_to_take` end with every shard held
    /// once and a fair share each; a relay keeps what it may keep.
    #[test]
    fn relays_that_follow_the_rules_share_fairly(shards in 1_i16..20, changes in prop::collection::vec(0_usize..5, 1..8)) {
        let mut owners: BTreeMap<i16, Option<String>> = (0..shards).map(|s| (s, None)).collect();
        let mut members: Vec<String> = Vec::new();
        for change in changes {
            let name = format!("relay-{change}");
            match members.iter().position(|m| *m == name) {
                Some(at) if members.len() > 1 => { members.remove(at); }
                Some(_) => {}
                None => members.push(name),
            }
            members.sort();
            for owner in owners.values_mut() {
                owner.take_if(|o| !members.contains(o));
            }
            for _round in 0..3 {
                for me in &members {
                    let mine: Vec<i16> = owners.iter().filter(|(_, o)| o.as_ref() == Some(me)).map(|(s, _)| *s).collect();
                    let quota = quota(&members, me, owners.len());
                    let released = shards_to_release(mine.clone(), quota);
                    prop_assert_eq!(released.len(), mine.len().saturating_sub(quota));
                    for shard in released { owners.insert(shard, None); }
                    let leases: Vec<LeaseView> = owners.iter().map(|(s, o)| LeaseView { shard: *s, owner: o.clone(), expired: false }).collect();
                    for shard in shards_to_take(&leases, mine.len().min(quota), quota) {
                        prop_assert_eq!(owners.insert(shard, Some(me.clone())), Some(None), "a held shard is never taken");
                    }
                }
            }
            for me in &members {
                let held = owners.values().filter(|o| o.as_ref() == Some(me)).count();
                prop_assert_eq!(held, quota(&members, me, owners.len()));
            }
        }
    }

    /// Any interleaving of failures: first deliveries of a key are in id order, nothing is lost, and keys that do not fail
    /// are never held.
    #[test]
    fn order_holds_whatever_fails(
        rows in prop::collection::vec((0_u8..4, 0_u8..2), 1..40),
        script in prop::collection::vec((any::<u8>(), any::<u8>(), 1_usize..6), 1..120),
    ) {
        let mut outbox: Vec<ModelRow> = (0..).zip(&rows).map(|(id, (key, topic))| ModelRow {
            id, topic: format!("t{topic}"), key: format!("k{key}"), held: false, published: false,
        }).collect();
        let mut model = Model { held: HeldKeys::default(), log: Vec::new(), now: Duration::ZERO, prefer_held: false };
        for (kind, which, size) in script {
            let trouble = Trouble::of(kind, which);
            model.step(&mut outbox, &trouble, size);
            model.check(&outbox)?;
        }
        for _ in 0..500 {
            model.step(&mut outbox, &Trouble::None, 5);
        }
        model.check(&outbox)?;
        prop_assert!(outbox.iter().all(|row| row.published), "everything goes out once nothing fails");
        prop_assert_eq!(model.held.len(), 0);
    }
}

#[derive(Debug, Clone)]
struct ModelRow {
    id: i64,
    topic: String,
    key: String,
    held: bool,
    published: bool,
}

enum Trouble {
    None,
    Key(String),
    Topic(String),
    BrokerAfter(usize),
    /// The marks are lost after the messages went out.
    MarksLost,
}

impl Trouble {
    fn of(kind: u8, which: u8) -> Self {
        match kind % 6 {
            0 => Trouble::Key(format!("k{}", which % 4)),
            1 => Trouble::Topic(format!("t{}", which % 2)),
            2 => Trouble::BrokerAfter(usize::from(which % 4)),
            3 => Trouble::MarksLost,
            _ => Trouble::None,
        }
    }
}

/// A shard's holder reduced to its decisions.
struct Model {
    held: HeldKeys,
    /// (topic, key, id) in the order of acknowledgement.
    log: Vec<(String, String, i64)>,
    now: Duration,
    prefer_held: bool,
}

impl Model {
    fn step(&mut self, outbox: &mut [ModelRow], trouble: &Trouble, size: usize) {
        self.now += Duration::from_secs(400);
        self.prefer_held = !self.prefer_held;
        let due = self.held.due(self.now).filter(|_| self.prefer_held);
        let of_held = due.as_ref().map(|due| match due {
            Due::Key { topic, key, .. } => (topic.clone(), Some(key.clone())),
            Due::Topic { topic, .. } => (topic.clone(), None),
        });
        let mut claimed: Vec<ModelRow> = outbox
            .iter()
            .filter(|row| !row.published)
            .filter(|row| match &due {
                None => !row.held,
                Some(Due::Key { topic, key, .. }) => row.held && row.topic == *topic && row.key == *key,
                Some(Due::Topic { topic, except }) => row.held && row.topic == *topic && !except.contains(&row.key),
            })
            .cloned()
            .collect();
        if due.is_some() {
            claimed.sort_by(|a, b| (&a.key, a.id).cmp(&(&b.key, b.id)));
        }
        claimed.truncate(if matches!(due, Some(Due::Key { single: true, .. })) { 1 } else { size });
        if let (Some((topic, key)), true) = (&of_held, claimed.is_empty()) {
            self.held.release(topic, key.as_deref());
            return;
        }
        let plan = match of_held {
            Some(_) => Plan { send: (0..claimed.len()).collect(), hold: Vec::new() },
            None => plan(claimed.iter().map(|r| (r.topic.as_str(), r.key.as_str())), &self.held),
        };
        let mut failed = HashSet::new();
        let mut sent = 0;
        let mut outcomes = Vec::new();
        for index in &plan.send {
            let row = &claimed[*index];
            let fail = |scope| Err(PublishFailure::new(scope, "x"));
            let result = match trouble {
                Trouble::Topic(topic) if *topic == row.topic => fail(FailureScope::Topic),
                Trouble::BrokerAfter(n) if sent >= *n => fail(FailureScope::Broker),
                _ if failed.contains(&(&row.topic, &row.key)) => fail(FailureScope::Skipped),
                Trouble::Key(key) if *key == row.key => {
                    failed.insert((&row.topic, &row.key));
                    fail(FailureScope::Key)
                }
                _ => Ok(()),
            };
            if result.is_ok() {
                sent += 1;
                self.log.push((row.topic.clone(), row.key.clone(), row.id));
            }
            outcomes.push(Outcome { id: row.id, topic: &row.topic, key: &row.key, result });
        }
        let settled = settle(outcomes);
        if matches!(trouble, Trouble::MarksLost) {
            return;
        }
        if let (Some((topic, key)), true, true) = (&of_held, settled.newly_held.is_empty(), settled.broker.is_none()) {
            self.held.flow(topic, key.as_deref(), self.now);
        }
        settled.hold(&mut self.held, &BACKOFF, self.now);
        let hold: HashSet<i64> = plan.hold.iter().map(|i| claimed[*i].id).chain(settled.hold.iter().copied()).collect();
        for row in outbox {
            row.published |= settled.published.contains(&row.id);
            row.held |= hold.contains(&row.id);
        }
    }

    fn check(&self, outbox: &[ModelRow]) -> Result<(), TestCaseError> {
        let mut next: HashMap<(&str, &str), i64> = HashMap::new();
        for (topic, key, id) in &self.log {
            let last = next.entry((topic, key)).or_insert(-1);
            if *id > *last {
                let skipped = outbox.iter().any(|r| r.topic == *topic && r.key == *key && r.id > *last && r.id < *id);
                prop_assert!(!skipped, "{}/{} delivered {} first, before an earlier row", topic, key, id);
                *last = *id;
            }
        }
        Ok(())
    }
}
