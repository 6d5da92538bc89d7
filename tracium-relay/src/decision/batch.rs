//! One batch: what of a claim goes out, and what its outcomes mean for the rows.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tracium_core::Backoff;

use super::hold::HeldKeys;
use crate::publisher::{FailureScope, PublishFailure};

/// Topic and partition key: what order is promised for.
pub(crate) type TopicKey = (String, String);

/// A claimed row leaves the batch if an earlier row of its (topic, key) could not be locked: somebody else, an operator
/// or a relay that is being replaced, is at it, and the key's order is theirs until they are done.
///
/// `rows` are in id order; `lock` tells whether the row was locked.
pub(crate) fn leave_unlocked_keys<R>(rows: Vec<(R, bool)>, key: impl Fn(&R) -> TopicKey) -> Vec<R> {
    let mut blocked = HashSet::new();
    rows.into_iter()
        .filter_map(|(row, locked)| {
            if !locked {
                blocked.insert(key(&row));
                return None;
            }
            if !blocked.is_empty() && blocked.contains(&key(&row)) {
                return None;
            }
            Some(row)
        })
        .collect()
}

/// What to do with the rows of a claim, by their index.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Plan {
    /// To be sent, in order.
    pub(crate) send: Vec<usize>,
    /// To be marked held: their (topic, key) or topic is.
    pub(crate) hold: Vec<usize>,
}

/// Splits a claim into what is sent and what joins a held key.
pub(crate) fn plan<'a>(keys: impl Iterator<Item = (&'a str, &'a str)>, held: &HeldKeys) -> Plan {
    let mut plan = Plan::default();
    for (index, (topic, key)) in keys.enumerate() {
        match held.contains(topic, key) {
            true => plan.hold.push(index),
            false => plan.send.push(index),
        }
    }
    plan
}

/// The outcome of one row that was to be sent.
pub(crate) struct Outcome<'a> {
    pub(crate) id: i64,
    pub(crate) topic: &'a str,
    pub(crate) key: &'a str,
    pub(crate) result: Result<(), PublishFailure>,
}

/// What the outcomes mean.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Settlement {
    /// Acknowledged: mark them.
    pub(crate) published: Vec<i64>,
    /// To be marked held.
    pub(crate) hold: Vec<i64>,
    /// Attempted without success, with the reason for `last_error`.
    pub(crate) failed: Vec<(i64, String)>,
    /// (topic, key)s or whole topics (`None`) that failed in this batch, with the reason, once each.
    pub(crate) newly_held: Vec<(String, Option<String>, String)>,
    /// The broker did not answer: wait before the next batch.
    pub(crate) broker: Option<String>,
}

/// Turns the outcomes of a batch, in id order, into what to mark.
///
/// A row that failed by itself, and every later row of its (topic, key) that did not get through, is held. When the
/// broker is the cause nothing is held: the rows stay pending and are claimed again in the same order.
pub(crate) fn settle(outcomes: Vec<Outcome<'_>>) -> Settlement {
    let mut settlement = Settlement::default();
    let mut failed_keys: HashMap<TopicKey, ()> = HashMap::new();
    let mut failed_topics: HashSet<String> = HashSet::new();
    for outcome in outcomes {
        let at = || (outcome.topic.to_owned(), outcome.key.to_owned());
        match outcome.result {
            Ok(()) => settlement.published.push(outcome.id),
            Err(failure) => match failure.scope {
                FailureScope::Broker => {
                    settlement.failed.push((outcome.id, failure.cause.clone()));
                    settlement.broker.get_or_insert(failure.cause);
                }
                FailureScope::Key => {
                    settlement.hold.push(outcome.id);
                    settlement.failed.push((outcome.id, failure.cause.clone()));
                    if failed_keys.insert(at(), ()).is_none() {
                        settlement.newly_held.push((outcome.topic.to_owned(), Some(outcome.key.to_owned()), failure.cause));
                    }
                }
                FailureScope::Topic => {
                    settlement.hold.push(outcome.id);
                    settlement.failed.push((outcome.id, failure.cause.clone()));
                    if failed_topics.insert(outcome.topic.to_owned()) {
                        settlement.newly_held.push((outcome.topic.to_owned(), None, failure.cause));
                    }
                }
                // Held with its key if that failed by itself, pending if the broker was the cause.
                FailureScope::Skipped => {
                    if failed_keys.contains_key(&at()) || failed_topics.contains(outcome.topic) {
                        settlement.hold.push(outcome.id);
                    }
                }
            },
        }
    }
    settlement
}

impl Settlement {
    /// Takes the failures into the held keys. Returns what `held_key` rows have to say: (topic, key, attempts, delay,
    /// cause), and how many keys reached the stuck mark.
    pub(crate) fn hold(&self, held: &mut HeldKeys, backoff: &Backoff, now: Duration) -> (Vec<super::HeldKey>, usize) {
        let mut rows = Vec::new();
        let mut stuck = 0;
        for (topic, key, cause) in &self.newly_held {
            let row = held.fail(topic, key.as_deref(), cause, backoff, now);
            if row.attempts == super::STUCK_ATTEMPTS {
                stuck += 1;
            }
            rows.push(row);
        }
        (rows, stuck)
    }
}
