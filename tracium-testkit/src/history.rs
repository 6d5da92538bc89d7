//! The history checker: what writers did against what a topic delivered.
//!
//! Tell it of every event that a writer tried to append ([`History::appended`], with the transaction's [`Outcome`]) and
//! of every delivery in the order of its partition ([`History::delivered`]); the two may come interleaved, a delivery
//! even before its append is told. [`History::report`] then says what broke the promise:
//!
//! - **lost**: committed and never delivered;
//! - **phantom**: delivered, but its transaction rolled back, or nobody appended it;
//! - **reordered**: the first delivery of an aggregate's event came after that of a later version;
//! - **altered**: delivered with another key or version than it was appended with;
//! - **split**: deliveries of one key in more than one partition, where no order holds.
//!
//! A duplicate is not a violation: it is counted. It is pure and keeps a few words an event, no payloads.

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use uuid::Uuid;

/// How many offenders of a kind are named.
const NAMED: usize = 10;

/// What became of the transaction that appended an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// COMMIT was confirmed: the event must be delivered.
    Committed,
    /// It was rolled back: the event must not be delivered.
    RolledBack,
    /// The connection broke at COMMIT: the event may or may not be delivered.
    Unknown,
}

/// One delivery of an event from a topic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery<'a> {
    /// The event.
    pub event_id: Uuid,
    /// The message's key: the aggregate.
    pub key: &'a str,
    /// The aggregate's version.
    pub version: i64,
    /// The partition it came from.
    pub partition: i32,
}

/// A kind of violation: how many, and the first of them by name.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Findings {
    /// All of them.
    pub count: u64,
    /// The first ten, in words.
    pub examples: Vec<String>,
}

impl Findings {
    /// Counts one, and keeps its words if it is among the first.
    pub fn add(&mut self, example: impl FnOnce() -> String) {
        self.count += 1;
        if self.examples.len() < NAMED {
            self.examples.push(example());
        }
    }
}

/// What the checker found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Events whose transaction committed.
    pub appended: u64,
    /// Events whose transaction was rolled back.
    pub rolled_back: u64,
    /// Events whose transaction's outcome is unknown.
    pub unknown: u64,
    /// Deliveries, duplicates included.
    pub delivered: u64,
    /// Deliveries of an event that had been delivered before.
    pub duplicates_delivered: u64,
    /// Committed and never delivered.
    pub lost: Findings,
    /// Delivered although rolled back or never appended.
    pub phantom: Findings,
    /// First deliveries behind a later version of the same aggregate.
    pub reordered: Findings,
    /// Delivered with another key or version than appended with.
    pub altered: Findings,
    /// Keys found in more than one partition.
    pub split: Findings,
}

impl Report {
    /// Whether the promise was kept.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.violations().iter().all(|(_, findings)| findings.count == 0)
    }

    /// Every kind of violation with its findings.
    #[must_use]
    pub fn violations(&self) -> [(&'static str, &Findings); 5] {
        [
            ("lost", &self.lost),
            ("phantom", &self.phantom),
            ("reordered", &self.reordered),
            ("altered", &self.altered),
            ("split", &self.split),
        ]
    }
}

#[derive(Debug)]
struct Fact {
    key: String,
    version: i64,
    outcome: Outcome,
}

#[derive(Debug)]
struct First {
    key: String,
    version: i64,
}

#[derive(Debug)]
struct Key {
    partition: i32,
    split: bool,
    highest: i64,
}

/// Collects appends and deliveries.
#[derive(Debug, Default)]
pub struct History {
    facts: HashMap<Uuid, Fact>,
    firsts: HashMap<Uuid, First>,
    keys: HashMap<String, Key>,
    delivered: u64,
    reordered: Findings,
    split: Findings,
}

impl History {
    /// Nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A writer appended an event, and its transaction ended so.
    pub fn appended(&mut self, event_id: Uuid, key: &str, version: i64, outcome: Outcome) {
        self.facts.insert(event_id, Fact { key: key.to_owned(), version, outcome });
    }

    /// The topic delivered an event. Returns whether this is the first delivery of it.
    pub fn delivered(&mut self, delivery: Delivery<'_>) -> bool {
        let Delivery { event_id, key, version, partition } = delivery;
        self.delivered += 1;
        let state = self.keys.entry(key.to_owned()).or_insert(Key { partition, split: false, highest: 0 });
        if state.partition != partition && !state.split {
            state.split = true;
            self.split.add(|| format!("key {key:?} is in partitions {} and {partition}", state.partition));
        }
        if self.firsts.contains_key(&event_id) {
            return false;
        }
        if version <= state.highest {
            self.reordered
                .add(|| format!("event {event_id} (key {key:?}, version {version}) came after version {}", state.highest));
        }
        state.highest = state.highest.max(version);
        self.firsts.insert(event_id, First { key: key.to_owned(), version });
        true
    }

    /// Deliveries so far.
    #[must_use]
    pub fn deliveries(&self) -> u64 {
        self.delivered
    }

    /// Deliveries so far that were not the first of their event.
    #[must_use]
    pub fn duplicates(&self) -> u64 {
        self.delivered - self.firsts.len() as u64
    }

    /// Committed events that no delivery has shown yet.
    #[must_use]
    pub fn missing(&self) -> u64 {
        self.facts.iter().filter(|(id, fact)| fact.outcome == Outcome::Committed && !self.firsts.contains_key(id)).count() as u64
    }

    /// Judges what was told so far. Offenders come in a fixed order, so that two runs over one history read the same.
    #[must_use]
    pub fn report(&self) -> Report {
        let mut report = Report {
            delivered: self.delivered,
            duplicates_delivered: self.duplicates(),
            reordered: self.reordered.clone(),
            split: self.split.clone(),
            ..Report::default()
        };
        let mut facts: Vec<_> = self.facts.iter().collect();
        facts.sort_by(|(_, a), (_, b)| (&a.key, a.version).cmp(&(&b.key, b.version)));
        for (id, fact) in facts {
            let Fact { key, version, outcome } = fact;
            match outcome {
                Outcome::Committed => report.appended += 1,
                Outcome::RolledBack => report.rolled_back += 1,
                Outcome::Unknown => report.unknown += 1,
            }
            match (outcome, self.firsts.get(id)) {
                (Outcome::Committed, None) => report.lost.add(|| format!("event {id} (key {key:?}, version {version})")),
                (Outcome::RolledBack, Some(_)) => {
                    report.phantom.add(|| format!("event {id} (key {key:?}, version {version}) was rolled back"));
                }
                (_, Some(first)) if (&first.key, first.version) != (key, *version) => report.altered.add(|| {
                    format!("event {id} was {key:?} version {version}, came as {:?} version {}", first.key, first.version)
                }),
                _ => {}
            }
        }
        let mut unknown: Vec<_> = self.firsts.iter().filter(|(id, _)| !self.facts.contains_key(id)).collect();
        unknown.sort_by(|(_, a), (_, b)| (&a.key, a.version).cmp(&(&b.key, b.version)));
        for (id, first) in unknown {
            report.phantom.add(|| format!("event {id} (key {:?}, version {}) was appended by nobody", first.key, first.version));
        }
        report
    }
}
