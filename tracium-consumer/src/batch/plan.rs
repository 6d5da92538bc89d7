//! What is to become of every record of a batch. Decisions only, no IO.
//!
//! ```text
//! record ──decode──▶ event ──last_seen, quarantine, processed──▶ candidate ──effect──▶ applied
//!    └─▶ dead letter     └─▶ duplicate, parked                        └─▶ duplicate, dead letter, parked
//! ```

use std::collections::{BTreeMap, HashSet};

use chrono::{DateTime, Utc};
use tracium_core::{Aggregate, Event, Version};
use uuid::Uuid;

use crate::Start;
use crate::consumer::Record;
use crate::decision::{Decision, Position, decide, gap_cause};
use crate::effect::Effected;
use crate::error::chain;

/// What becomes of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Not decided yet, or a candidate for the effect.
    Open,
    /// It takes effect.
    Applied,
    /// It had its effect before.
    Duplicate,
    /// It goes to the dead letters.
    Dead(String),
    /// It goes to the dead letters behind another.
    Parked(String),
}

/// Why an aggregate stands still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    Gap,
    Forked,
    Poison,
}

impl Reason {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Reason::Gap => "gap",
            Reason::Forked => "forked",
            Reason::Poison => "poison",
        }
    }
}

/// A record on its way.
pub(crate) struct Item<'a> {
    pub(crate) record: &'a Record,
    /// Until it goes to the effect.
    event: Option<Event>,
    pub(crate) event_id: Option<Uuid>,
    pub(crate) version: Option<Version>,
    position: Option<Position>,
    event_time: Option<DateTime<Utc>>,
    /// Its aggregate's place in [`Plan::aggregates`].
    slot: Option<usize>,
    pub(crate) fate: Fate,
}

/// An aggregate of the batch.
pub(crate) struct Entry {
    pub(crate) aggregate: Aggregate,
    /// Whether an event of it has a version: only then has it a last_seen.
    versioned: bool,
    last_seen: Option<(Version, Uuid)>,
    standing: Option<String>,
    /// A quarantine that begins with this batch.
    pub(crate) quarantine: Option<(Reason, String)>,
    /// What last_seen rises to.
    pub(crate) reached: Option<(Version, Uuid)>,
}

/// A partition's part of the batch.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Progress {
    pub(crate) next_offset: i64,
    pub(crate) end_offset: i64,
    pub(crate) applied: i64,
    pub(crate) duplicates: i64,
    pub(crate) event_time: Option<DateTime<Utc>>,
}

/// What a batch did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Summary {
    pub(crate) applied: usize,
    pub(crate) duplicates: usize,
    pub(crate) dead: usize,
    pub(crate) parked: usize,
    /// For the log: who stands still from now on, and why.
    pub(crate) quarantined: Vec<(Aggregate, Reason, String)>,
}

/// See the module.
pub(crate) struct Plan<'a> {
    pub(crate) items: Vec<Item<'a>>,
    /// In key order, the order of locks.
    pub(crate) aggregates: Vec<Entry>,
    candidates: Vec<usize>,
}

impl<'a> Plan<'a> {
    /// Reads the records.
    pub(crate) fn decode(records: &'a [Record], needs_versions: bool) -> Self {
        let mut items: Vec<Item<'a>> = records.iter().map(|record| Item::decode(record, needs_versions)).collect();
        let mut known: BTreeMap<&Aggregate, (usize, bool)> = BTreeMap::new();
        for event in items.iter().filter_map(|i| i.event.as_ref()) {
            if let Some(aggregate) = &event.aggregate {
                known.entry(aggregate).or_default().1 |= event.version.is_some();
            }
        }
        for (slot, (place, _)) in known.values_mut().enumerate() {
            *place = slot;
        }
        let slots: Vec<Option<usize>> = items
            .iter()
            .map(|i| i.event.as_ref()?.aggregate.as_ref().and_then(|a| known.get(a)).map(|(slot, _)| *slot))
            .collect();
        let aggregates = known.into_iter().map(|(aggregate, (_, versioned))| Entry::new(aggregate.clone(), versioned)).collect();
        for (item, slot) in items.iter_mut().zip(slots) {
            item.slot = slot;
        }
        Self { items, aggregates, candidates: Vec::new() }
    }

    /// The aggregates whose last_seen the batch needs, in key order.
    pub(crate) fn versioned(&self) -> Vec<&Aggregate> {
        self.aggregates.iter().filter(|a| a.versioned).map(|a| &a.aggregate).collect()
    }

    /// Takes the answer for [`Plan::versioned`].
    pub(crate) fn set_last_seen(&mut self, last_seen: Vec<Option<(Version, Uuid)>>) {
        for (entry, seen) in self.aggregates.iter_mut().filter(|a| a.versioned).zip(last_seen) {
            entry.last_seen = seen;
        }
    }

    /// Every aggregate of the batch, in key order.
    pub(crate) fn all(&self) -> Vec<&Aggregate> {
        self.aggregates.iter().map(|a| &a.aggregate).collect()
    }

    /// Takes the causes of the quarantines there are, by place in [`Plan::all`].
    pub(crate) fn set_quarantined(&mut self, causes: Vec<(usize, String)>) {
        for (slot, cause) in causes {
            if let Some(entry) = self.aggregates.get_mut(slot) {
                entry.standing = Some(cause);
            }
        }
    }

    /// The ids of events without a version.
    pub(crate) fn unversioned(&self) -> Vec<Uuid> {
        let open = self.items.iter().filter(|i| i.fate == Fate::Open && i.position.is_none());
        let ids: HashSet<Uuid> = open.filter_map(|i| i.event_id).collect();
        ids.into_iter().collect()
    }

    /// Decides every event, in order, and hands out the candidates for the effect. `new`: which of [`Plan::unversioned`]
    /// were never seen.
    pub(crate) fn decide(&mut self, start: Start, mut new: HashSet<Uuid>) -> Vec<Event> {
        let mut events = Vec::with_capacity(self.items.len());
        for (index, item) in self.items.iter_mut().enumerate().filter(|(_, i)| i.fate == Fate::Open) {
            let entry = item.slot.and_then(|slot| self.aggregates.get_mut(slot));
            item.fate = match (item.position, entry) {
                (Some(position), Some(entry)) => entry.decide(position, start),
                (_, entry) => match item.event_id {
                    Some(id) if !new.remove(&id) => Fate::Duplicate,
                    _ => entry.and_then(|e| e.standing.as_deref()).map_or(Fate::Open, Fate::parked),
                },
            };
            if item.fate == Fate::Open {
                self.candidates.push(index);
                events.extend(item.event.take());
            }
        }
        events
    }

    /// Takes the effect's answers for the candidates, in their order.
    pub(crate) fn set_effects(&mut self, effects: Vec<Effected>) {
        for (index, effect) in std::mem::take(&mut self.candidates).into_iter().zip(effects) {
            let item = &mut self.items[index];
            let entry = item.slot.and_then(|slot| self.aggregates.get_mut(slot));
            item.fate = match effect {
                Effected::Applied => Fate::Applied,
                Effected::Duplicate => Fate::Duplicate,
                Effected::Refused(cause) => {
                    if let Some(entry) = entry {
                        entry.stop(Reason::Poison, format!("{}: {cause}", item.label()));
                    }
                    item.fate = Fate::Dead(cause);
                    continue;
                }
                Effected::Gap(cause) => {
                    item.fate = match entry {
                        Some(entry) => entry.stop(Reason::Gap, cause),
                        None => Fate::Dead(cause),
                    };
                    continue;
                }
                Effected::Behind => {
                    item.fate = Fate::parked(entry.and_then(|e| e.standing.as_deref()).unwrap_or("an earlier event"));
                    continue;
                }
            };
            if let (Some(position), Some(entry)) = (item.position, entry) {
                entry.reached = Some((position.version, position.event_id));
            }
        }
    }

    /// Every partition's part.
    pub(crate) fn progress(&self) -> BTreeMap<(&str, i32), Progress> {
        let mut parts: BTreeMap<(&str, i32), Progress> = BTreeMap::new();
        for item in &self.items {
            let partition = &item.record.partition;
            let part = parts.entry((&partition.topic, partition.number)).or_default();
            part.next_offset = part.next_offset.max(item.record.offset + 1);
            part.end_offset = partition.end_offset.load(std::sync::atomic::Ordering::Relaxed).max(part.next_offset);
            part.applied += i64::from(item.fate == Fate::Applied);
            part.duplicates += i64::from(item.fate == Fate::Duplicate);
            part.event_time = item.event_time.or(part.event_time);
        }
        parts
    }

    /// What the batch did.
    pub(crate) fn summary(&self) -> Summary {
        let mut summary = Summary::default();
        for item in &self.items {
            match item.fate {
                Fate::Open => {}
                Fate::Applied => summary.applied += 1,
                Fate::Duplicate => summary.duplicates += 1,
                Fate::Dead(_) => summary.dead += 1,
                Fate::Parked(_) => summary.parked += 1,
            }
        }
        let stopped = self.aggregates.iter().filter_map(|a| a.quarantine.clone().map(|(r, c)| (a.aggregate.clone(), r, c)));
        summary.quarantined = stopped.collect();
        summary
    }

    /// An item's aggregate.
    pub(crate) fn aggregate(&self, item: &Item<'_>) -> Option<&Aggregate> {
        item.slot.and_then(|slot| self.aggregates.get(slot)).map(|entry| &entry.aggregate)
    }
}

impl<'a> Item<'a> {
    fn decode(record: &'a Record, needs_versions: bool) -> Self {
        let (event, fate) = match record.decode() {
            Ok(event) if needs_versions && event.version.is_none() => {
                (Some(event), Fate::Dead("it has no version; a View needs versions; use a Projection".to_owned()))
            }
            Ok(event) => (Some(event), Fate::Open),
            Err(error) => (None, Fate::Dead(chain(&error))),
        };
        Self {
            record,
            event_id: event.as_ref().map(|e| e.event_id),
            version: event.as_ref().and_then(|e| e.version),
            position: event.as_ref().and_then(Position::of),
            event_time: event.as_ref().map(|e| e.created_at),
            event,
            slot: None,
            fate,
        }
    }

    fn label(&self) -> String {
        match self.version {
            Some(version) => format!("version {version}"),
            None => "an event without a version".to_owned(),
        }
    }
}

impl Entry {
    fn new(aggregate: Aggregate, versioned: bool) -> Self {
        Self { aggregate, versioned, last_seen: None, standing: None, quarantine: None, reached: None }
    }

    fn decide(&mut self, position: Position, start: Start) -> Fate {
        let decision = decide(self.last_seen, position, start);
        if decision == Decision::Duplicate {
            return Fate::Duplicate;
        }
        if let Some(cause) = &self.standing {
            return Fate::parked(cause);
        }
        match decision {
            Decision::Duplicate => Fate::Duplicate,
            Decision::Apply => {
                self.last_seen = Some((position.version, position.event_id));
                Fate::Open
            }
            Decision::Gap { last, .. } => self.stop(Reason::Gap, gap_cause(last, position)),
            Decision::Forked { seen } => self.stop(
                Reason::Forked,
                format!("version {} came as event {}, and before as event {seen}", position.version, position.event_id),
            ),
        }
    }

    /// The first reason stays.
    fn stop(&mut self, reason: Reason, cause: String) -> Fate {
        let fate = Fate::parked(&cause);
        self.standing.get_or_insert_with(|| cause.clone());
        self.quarantine.get_or_insert((reason, cause));
        fate
    }
}

impl Fate {
    fn parked(cause: &str) -> Self {
        Fate::Parked(format!("its aggregate stands still: {cause}"))
    }
}

/// An aggregate's stand-still by event, for a run event by event.
#[derive(Default)]
pub(crate) struct Standing(HashSet<Aggregate>);

impl Standing {
    /// Whether an event before this one was refused.
    pub(crate) fn holds(&self, event: &Event) -> bool {
        event.aggregate.as_ref().is_some_and(|a| self.0.contains(a))
    }

    /// This event was refused.
    pub(crate) fn add(&mut self, event: &Event) {
        if let Some(aggregate) = &event.aggregate {
            self.0.insert(aggregate.clone());
        }
    }
}
