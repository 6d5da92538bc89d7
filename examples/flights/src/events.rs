//! The events of a flight, and whose they are.

use std::fmt;

use anyhow::Result;
use chrono::{DateTime, Datelike, Duration, NaiveDate, Utc};
use compact_str::CompactString;
use serde::{Deserialize, Serialize};
use tracium_core::{Aggregate, AggregateType, NameError, NewEvent};
use uuid::Uuid;

use crate::data::{Flight, Outcome};

/// The aggregate's type.
pub(crate) const AIRCRAFT: &str = "aircraft";
/// Before the carrier, where the aircraft is not known: such flights are the carrier's.
pub(crate) const CARRIER: &str = "carrier:";

pub(crate) const SCHEDULED: &str = "flight.scheduled";
pub(crate) const DEPARTED: &str = "flight.departed";
pub(crate) const ARRIVED: &str = "flight.arrived";
pub(crate) const CANCELLED: &str = "flight.cancelled";

/// Event ids are UUIDs of version 5 in this namespace: the same flight has the same ids in every run.
const NAMESPACE: Uuid = Uuid::from_u128(0x6c0f_3a52_5f0e_4b7e_9d3a_2f4c_81b7_d0e6);

/// What names a flight: the local day of its scheduled departure, carrier, number and origin.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct FlightKey {
    pub(crate) date: NaiveDate,
    pub(crate) carrier: CompactString,
    pub(crate) flight: u32,
    pub(crate) origin: CompactString,
}

impl FlightKey {
    /// The first day of its month.
    pub(crate) fn month(&self) -> NaiveDate {
        self.date.with_day(1).expect("BUG: every month has a first day")
    }
}

impl fmt::Display for FlightKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", self.date, self.carrier, self.flight, self.origin)
    }
}

/// `flight.scheduled`
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Scheduled {
    #[serde(flatten)]
    pub(crate) key: FlightKey,
    pub(crate) tailnum: Option<CompactString>,
    pub(crate) dest: CompactString,
    pub(crate) distance_mi: u32,
    pub(crate) scheduled_at: DateTime<Utc>,
}

/// `flight.departed`
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Departed {
    #[serde(flatten)]
    pub(crate) key: FlightKey,
    pub(crate) departed_at: DateTime<Utc>,
    pub(crate) dep_delay_min: i64,
}

/// `flight.arrived`
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Arrived {
    #[serde(flatten)]
    pub(crate) key: FlightKey,
    pub(crate) arr_delay_min: i64,
}

/// `flight.cancelled`
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Cancelled {
    #[serde(flatten)]
    pub(crate) key: FlightKey,
}

impl Flight {
    /// Whose events these are.
    pub(crate) fn aggregate(&self) -> Result<Aggregate, NameError> {
        let id = self.tailnum.as_ref().map_or_else(|| format!("{CARRIER}{}", self.key.carrier), ToString::to_string);
        Aggregate::new(AIRCRAFT, id)
    }

    /// Its events, in order.
    pub(crate) fn events(&self) -> Result<Vec<NewEvent>> {
        let key = || self.key.clone();
        let mut events = vec![self.event(
            SCHEDULED,
            &Scheduled {
                key: key(),
                tailnum: self.tailnum.clone(),
                dest: self.dest.clone(),
                distance_mi: self.distance_mi,
                scheduled_at: self.scheduled_at,
            },
        )?];
        match self.outcome {
            Outcome::Cancelled => events.push(self.event(CANCELLED, &Cancelled { key: key() })?),
            Outcome::Departed { dep_delay_min, arr_delay_min } => {
                let departed_at = self.scheduled_at + Duration::minutes(dep_delay_min);
                events.push(self.event(DEPARTED, &Departed { key: key(), departed_at, dep_delay_min })?);
                if let Some(arr_delay_min) = arr_delay_min {
                    events.push(self.event(ARRIVED, &Arrived { key: key(), arr_delay_min })?);
                }
            }
        }
        Ok(events)
    }

    fn event(&self, event_type: &str, payload: &impl Serialize) -> Result<NewEvent> {
        let name = format!("{} {event_type}", self.key);
        Ok(NewEvent::json(event_type, payload)?.with_id(Uuid::new_v5(&NAMESPACE, name.as_bytes())))
    }
}

/// The aggregate type as a type.
pub(crate) fn aircraft() -> Result<AggregateType, NameError> {
    AggregateType::new(AIRCRAFT)
}
