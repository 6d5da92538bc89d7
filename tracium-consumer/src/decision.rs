//! What an event is to a projection that has seen others of its aggregate. Plain functions: no time, no IO.
//!
//! The rule keeps one effect per (projection, aggregate, version), whatever Kafka redelivers: re-sent 1, 2, 3, 1, 2, 3
//! count once, and a hole is seen exactly where there is one, because every event names its predecessor.

#[cfg(test)]
mod tests;

use tracium_core::{Event, Version};
use uuid::Uuid;

/// Where a projection begins with an aggregate it has never seen. There is no default: a wrong guess would either miss
/// history or quarantine everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// With version 1: the topic has the whole history. An aggregate that begins later has a gap and is quarantined.
    Earliest,
    /// With the first version that arrives, as baseline: the topic's beginning is gone, and what came before does not
    /// matter to this projection.
    Adopt,
}

/// What to do with an event that has a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Decision {
    /// It has had its effect.
    Duplicate,
    /// It is the next one.
    Apply,
    /// Versions between are missing.
    Gap {
        /// The last one seen; 0 = none.
        last: Version,
        /// The one that has to come before this event.
        previous: Version,
    },
    /// Another event had this version: the aggregate's history was written twice, by a restored or a copied database.
    Forked {
        /// The event that was seen first.
        seen: Uuid,
    },
}

/// The position of an event in its aggregate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) version: Version,
    pub(crate) previous: Version,
    pub(crate) event_id: Uuid,
}

impl Position {
    /// The position, if the event has a version. Without a previous version it is the one before.
    pub(crate) fn of(event: &Event) -> Option<Self> {
        let version = event.version?;
        let before = Version::new(version.get() - 1).unwrap_or_default();
        Some(Self { version, previous: event.previous_version.unwrap_or(before), event_id: event.event_id })
    }
}

/// The rule. `last_seen`: `None` for an aggregate that the projection has never seen.
pub(crate) fn decide(last_seen: Option<(Version, Uuid)>, event: Position, start: Start) -> Decision {
    let Some((last, seen)) = last_seen else {
        return match start {
            Start::Adopt => Decision::Apply,
            Start::Earliest if event.previous == Version::ZERO => Decision::Apply,
            Start::Earliest => Decision::Gap { last: Version::ZERO, previous: event.previous },
        };
    };
    if event.version < last {
        Decision::Duplicate
    } else if event.version == last {
        if event.event_id == seen { Decision::Duplicate } else { Decision::Forked { seen } }
    } else if event.previous <= last {
        Decision::Apply
    } else {
        Decision::Gap { last, previous: event.previous }
    }
}

/// The missing versions in words. What was not published in between is not missing, so only the last one is certain.
pub(crate) fn gap_cause(last: Version, event: Position) -> String {
    let first = last.next();
    let missing = if first >= event.previous {
        format!("version {}", event.previous)
    } else {
        format!("versions {first} to {}", event.previous)
    };
    format!("{missing} missing: version {} follows {}, the last one seen is {last}", event.version, event.previous)
}
