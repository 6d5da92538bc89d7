//! Held (topic, key)s: what waits, and until when.

use std::collections::HashMap;
use std::time::Duration;

use tracium_core::Backoff;

/// Failed attempts at which a key counts as stuck: an operator should look.
pub(crate) const STUCK_ATTEMPTS: u32 = 10;

/// One held (topic, key), or a held topic (`key` is `None`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HeldKey {
    pub(crate) topic: String,
    pub(crate) key: Option<String>,
    /// Failures in a row.
    pub(crate) attempts: u32,
    /// When it may be tried again, on the caller's clock.
    pub(crate) due: Duration,
    pub(crate) cause: String,
    /// Its last attempt went through: the rest of its rows may follow in full batches.
    pub(crate) flowing: bool,
}

/// What may be tried again now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Due {
    /// Rows of this (topic, key), at most so many.
    Key { topic: String, key: String, single: bool },
    /// Rows of this topic, except those of keys held by themselves.
    Topic { topic: String, except: Vec<String> },
}

/// The held keys of one shard. A copy of the shard's `held_key` rows, owned by the shard's holder.
#[derive(Debug, Clone, Default)]
pub(crate) struct HeldKeys {
    topics: HashMap<String, HeldTopic>,
    count: usize,
}

#[derive(Debug, Clone, Default)]
struct HeldTopic {
    whole: Option<HeldKey>,
    keys: HashMap<String, HeldKey>,
}

impl HeldKeys {
    /// From the stored rows.
    pub(crate) fn from_rows(rows: Vec<HeldKey>) -> Self {
        let mut held = Self::default();
        for row in rows {
            held.put(row);
        }
        held
    }

    fn put(&mut self, row: HeldKey) {
        let topic = self.topics.entry(row.topic.clone()).or_default();
        let replaced = match row.key.clone() {
            None => topic.whole.replace(row),
            Some(key) => topic.keys.insert(key, row),
        };
        self.count += usize::from(replaced.is_none());
    }

    /// How many are held.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Whether the (topic, key) may not be sent with the pending rows.
    pub(crate) fn contains(&self, topic: &str, key: &str) -> bool {
        self.topics.get(topic).is_some_and(|t| t.whole.is_some() || t.keys.contains_key(key))
    }

    /// One more failure: holds it, or backs off further. Returns the new state.
    pub(crate) fn fail(&mut self, topic: &str, key: Option<&str>, cause: &str, backoff: &Backoff, now: Duration) -> HeldKey {
        let before = self.get(topic, key).map_or(0, |held| held.attempts);
        let attempts = before.saturating_add(1);
        let row = HeldKey {
            topic: topic.to_owned(),
            key: key.map(str::to_owned),
            attempts,
            due: now + backoff.delay(attempts),
            cause: cause.to_owned(),
            flowing: false,
        };
        self.put(row.clone());
        row
    }

    /// An attempt went through: what is left of it may follow at once.
    pub(crate) fn flow(&mut self, topic: &str, key: Option<&str>, now: Duration) {
        let Some(held) = self.topics.get_mut(topic) else { return };
        let held = match key {
            None => held.whole.as_mut(),
            Some(key) => held.keys.get_mut(key),
        };
        if let Some(held) = held {
            held.flowing = true;
            held.due = now;
        }
    }

    /// No row of it is left in the held index: it goes with the pending rows again.
    pub(crate) fn release(&mut self, topic: &str, key: Option<&str>) {
        let Some(held) = self.topics.get_mut(topic) else { return };
        let removed = match key {
            None => held.whole.take(),
            Some(key) => held.keys.remove(key),
        };
        self.count -= usize::from(removed.is_some());
        if held.whole.is_none() && held.keys.is_empty() {
            self.topics.remove(topic);
        }
    }

    fn get(&self, topic: &str, key: Option<&str>) -> Option<&HeldKey> {
        let held = self.topics.get(topic)?;
        match key {
            None => held.whole.as_ref(),
            Some(key) => held.keys.get(key),
        }
    }

    /// The one that is due the longest, if any is due. A key of a topic that is held as a whole waits for the topic.
    pub(crate) fn due(&self, now: Duration) -> Option<Due> {
        let rows = self.topics.values().flat_map(|topic| match &topic.whole {
            Some(whole) => itertools_either(std::slice::from_ref(whole).iter(), None),
            None => itertools_either([].iter(), Some(topic.keys.values())),
        });
        let row = rows.filter(|row| row.due <= now).min_by(|a, b| (a.due, &a.topic, &a.key).cmp(&(b.due, &b.topic, &b.key)))?;
        Some(match &row.key {
            Some(key) => Due::Key { topic: row.topic.clone(), key: key.clone(), single: !row.flowing },
            None => Due::Topic {
                topic: row.topic.clone(),
                except: self.topics.get(&row.topic).map(|t| t.keys.keys().cloned().collect()).unwrap_or_default(),
            },
        })
    }

    /// When the next one is due.
    pub(crate) fn next_due(&self) -> Option<Duration> {
        let of = |topic: &HeldTopic| match &topic.whole {
            Some(whole) => Some(whole.due),
            None => topic.keys.values().map(|row| row.due).min(),
        };
        self.topics.values().filter_map(of).min()
    }
}

/// One of two iterators over rows.
fn itertools_either<'a>(
    whole: std::slice::Iter<'a, HeldKey>,
    keys: Option<std::collections::hash_map::Values<'a, String, HeldKey>>,
) -> impl Iterator<Item = &'a HeldKey> {
    whole.chain(keys.into_iter().flatten())
}
