//! The read model `flights.aircraft`: one document per aircraft.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use tracium_core::{Event, EvolveError, View};

use crate::events::{ARRIVED, Arrived, CANCELLED, Cancelled, DEPARTED, Departed, FlightKey, SCHEDULED, Scheduled};

/// The view.
pub(crate) struct AircraftView;

/// What is known of an aircraft.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Aircraft {
    /// Seventeen of the year flew for two.
    carriers: BTreeSet<String>,
    scheduled: u32,
    departed: u32,
    arrived: u32,
    cancelled: u32,
    arr_delay_min: i64,
    last: Option<Leg>,
}

/// The flight it is on, or was on last.
#[derive(Debug, Serialize, Deserialize)]
struct Leg {
    #[serde(flatten)]
    flight: FlightKey,
    state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Scheduled,
    Departed,
    Arrived,
    Cancelled,
}

impl Aircraft {
    /// Moves the last flight on. An event that comes twice, or before its turn, is refused here.
    fn advance(&mut self, flight: &FlightKey, from: State, to: State) -> Result<(), EvolveError> {
        match &mut self.last {
            Some(leg) if leg.flight == *flight && leg.state == from => {
                leg.state = to;
                Ok(())
            }
            last => Err(EvolveError::refused(format!("flight {flight} cannot be {to:?} after {last:?}"))),
        }
    }
}

impl View for AircraftView {
    const NAME: &'static str = "aircraft";
    type Doc = Aircraft;

    fn evolve(doc: Option<Aircraft>, event: &Event) -> Result<Option<Aircraft>, EvolveError> {
        let mut aircraft = doc.unwrap_or_default();
        match event.event_type.as_str() {
            SCHEDULED => {
                let scheduled: Scheduled = event.data()?;
                aircraft.scheduled += 1;
                aircraft.carriers.insert(scheduled.key.carrier.to_string());
                aircraft.last = Some(Leg { flight: scheduled.key, state: State::Scheduled });
            }
            DEPARTED => {
                let departed: Departed = event.data()?;
                aircraft.advance(&departed.key, State::Scheduled, State::Departed)?;
                aircraft.departed += 1;
            }
            ARRIVED => {
                let arrived: Arrived = event.data()?;
                aircraft.advance(&arrived.key, State::Departed, State::Arrived)?;
                aircraft.arrived += 1;
                aircraft.arr_delay_min += arrived.arr_delay_min;
            }
            CANCELLED => {
                let cancelled: Cancelled = event.data()?;
                aircraft.advance(&cancelled.key, State::Scheduled, State::Cancelled)?;
                aircraft.cancelled += 1;
            }
            _ => {}
        }
        Ok(Some(aircraft))
    }
}
