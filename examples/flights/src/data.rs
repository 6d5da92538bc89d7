//! The flights of a CSV, in the order of their scheduled departure. The columns: `data/README.md`.

use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use chrono::{DateTime, Duration, NaiveDate, Utc};
use compact_str::CompactString;
use serde::{Deserialize, Deserializer};

use crate::events::FlightKey;

/// One line.
#[derive(Debug)]
pub(crate) struct Flight {
    /// What no other flight has.
    pub(crate) key: FlightKey,
    /// The tail number; unknown for some that were cancelled.
    pub(crate) tailnum: Option<CompactString>,
    pub(crate) dest: CompactString,
    pub(crate) distance_mi: u32,
    pub(crate) scheduled_at: DateTime<Utc>,
    pub(crate) outcome: Outcome,
}

impl Flight {
    /// The first day of its month.
    pub(crate) fn month(&self) -> NaiveDate {
        self.key.month()
    }
}

/// What became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Cancelled,
    /// Minutes late; no `arr_delay_min`: diverted, or not recorded.
    Departed {
        dep_delay_min: i64,
        arr_delay_min: Option<i64>,
    },
}

impl Outcome {
    /// How many events tell it, `flight.scheduled` included.
    pub(crate) fn events(self) -> u64 {
        match self {
            Outcome::Departed { arr_delay_min: Some(_), .. } => 3,
            Outcome::Departed { .. } | Outcome::Cancelled => 2,
        }
    }
}

#[derive(Deserialize)]
struct Row {
    year: i32,
    month: u32,
    day: u32,
    #[serde(deserialize_with = "or_na")]
    dep_time: Option<String>,
    #[serde(deserialize_with = "or_na")]
    dep_delay: Option<String>,
    #[serde(deserialize_with = "or_na")]
    arr_delay: Option<String>,
    carrier: CompactString,
    flight: u32,
    #[serde(deserialize_with = "or_na")]
    tailnum: Option<String>,
    origin: CompactString,
    dest: CompactString,
    distance: u32,
    minute: i64,
    time_hour: DateTime<Utc>,
}

/// The source writes "no value" as `NA`.
fn or_na<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(Some(String::deserialize(deserializer)?).filter(|text| !text.is_empty() && text != "NA"))
}

fn minutes(column: &str, text: Option<&str>) -> Result<Option<i64>> {
    text.map(|t| t.parse().with_context(|| format!("{column} {t:?} is no number of minutes"))).transpose()
}

impl Row {
    fn flight(self) -> Result<Flight> {
        let date = NaiveDate::from_ymd_opt(self.year, self.month, self.day).context("year, month and day are no date")?;
        let dep_delay = minutes("dep_delay", self.dep_delay.as_deref())?;
        let arr_delay_min = minutes("arr_delay", self.arr_delay.as_deref())?;
        let outcome = match (self.dep_time, dep_delay) {
            (Some(_), Some(dep_delay_min)) => Outcome::Departed { dep_delay_min, arr_delay_min },
            (None, None) if arr_delay_min.is_none() => Outcome::Cancelled,
            _ => bail!("dep_time, dep_delay and arr_delay do not go together"),
        };
        Ok(Flight {
            key: FlightKey { date, carrier: self.carrier, flight: self.flight, origin: self.origin },
            tailnum: self.tailnum.map(CompactString::from),
            dest: self.dest,
            distance_mi: self.distance,
            scheduled_at: self.time_hour + Duration::minutes(self.minute),
            outcome,
        })
    }
}

/// Reads a CSV, gzipped or not.
pub(crate) fn read(path: &Path) -> Result<Vec<Flight>> {
    let file = File::open(path).with_context(|| format!("cannot open {}; dev/flights-data fetches the data", path.display()))?;
    let input: Box<dyn Read> = if path.extension().is_some_and(|e| e == "gz") {
        Box::new(flate2::read::MultiGzDecoder::new(file))
    } else {
        Box::new(file)
    };
    parse(input).with_context(|| format!("{} is not a CSV of flights", path.display()))
}

fn parse(input: impl Read) -> Result<Vec<Flight>> {
    let mut flights = Vec::new();
    let mut reader = csv::Reader::from_reader(input);
    for (n, row) in reader.deserialize::<Row>().enumerate() {
        // csv's own error names the line
        flights.push(row?.flight().with_context(|| format!("line {}", n + 2))?);
    }
    ensure!(!flights.is_empty(), "there is no flight in it");
    let mut keys = HashSet::with_capacity(flights.len());
    if let Some(twice) = flights.iter().find(|flight| !keys.insert(&flight.key)) {
        bail!("flight {} is there twice; event ids follow from it", twice.key);
    }
    drop(keys);
    // (aircraft, minute) is not unique: two flights of one aircraft at one minute are told apart by the rest of the key.
    flights.shrink_to_fit();
    flights.sort_unstable_by(|a, b| (a.scheduled_at, &a.key).cmp(&(b.scheduled_at, &b.key)));
    Ok(flights)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str = "year,month,day,dep_time,sched_dep_time,dep_delay,arr_time,sched_arr_time,arr_delay,carrier,flight,\
                          tailnum,origin,dest,air_time,distance,hour,minute,time_hour\n";

    fn parsed(rows: &str) -> Result<Vec<Flight>> {
        parse(format!("{HEADER}{rows}").as_bytes())
    }

    #[test]
    fn flights_come_in_the_order_of_their_scheduled_instants_whatever_the_files_order() {
        let flights = parsed(
            "2013,10,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-10-01T09:00:00Z\n\
             2013,2,1,2400,2359,1,430,440,-10,B6,739,N504JB,JFK,PSE,190,1617,23,59,2013-02-02T04:00:00Z\n",
        )
        .unwrap();
        let at: Vec<_> = flights.iter().map(|f| (f.key.carrier.as_str(), f.scheduled_at.to_rfc3339())).collect();
        assert_eq!(at, [("B6", "2013-02-02T04:59:00+00:00".to_owned()), ("UA", "2013-10-01T09:15:00+00:00".to_owned())]);
        assert_eq!(flights[0].key.date.to_string(), "2013-02-01", "the day is the local one");
        assert_eq!(flights[0].outcome, Outcome::Departed { dep_delay_min: 1, arr_delay_min: Some(-10) });
    }

    #[test]
    fn na_is_no_value_and_a_flight_that_did_not_depart_was_cancelled() {
        let flights = parsed(
            "2013,1,1,NA,1630,NA,NA,1815,NA,EV,4308,NA,EWR,RDU,NA,416,16,30,2013-01-01T21:00:00Z\n\
             2013,1,1,1525,1530,-5,1934,1805,NA,MQ,4525,N719MQ,LGA,XNA,NA,1147,15,30,2013-01-01T20:00:00Z\n",
        )
        .unwrap();
        assert_eq!(flights[0].outcome, Outcome::Departed { dep_delay_min: -5, arr_delay_min: None });
        assert_eq!((flights[1].outcome, flights[1].tailnum.as_deref()), (Outcome::Cancelled, None));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        let row = "2013,1,1,517,515,2,830,819,11,UA,1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z\n";
        for (rows, expected) in [
            (String::new(), "no flight"),
            (format!("{row}{row}"), "flight 2013-01-01 UA 1545 EWR is there twice"),
            (row.replace(",2,830", ",NA,830"), "line 2: dep_time, dep_delay and arr_delay do not go together"),
            (format!("{row}{}", row.replace("1545", "x")), "line: 3"),
            (row.replace("2013,1,1,", "2013,2,30,"), "no date"),
        ] {
            let error = format!("{:#}", parsed(&rows).unwrap_err());
            assert!(error.contains(expected), "{error}");
        }
    }
}
