//! The figures, all of them read from the read models.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use sqlx::PgPool;

use crate::events::CARRIER;

/// What the read models say.
#[derive(Debug)]
pub(crate) struct Figures {
    flights: i64,
    cancelled: i64,
    aircraft: i64,
    no_tailnum: i64,
    departed_without_arr_delay: i64,
    mean_arr_delay_min: Option<f64>,
    by_carrier: BTreeMap<String, i64>,
    /// The same sums of both read models.
    by_totals: Sums,
    by_aircraft: Sums,
}

/// Flights scheduled, departed, arrived and cancelled, and minutes late on arrival.
type Sums = (i64, i64, i64, i64, i64);

const TOTALS: &str = "
    SELECT coalesce(sum(scheduled), 0)::bigint, coalesce(sum(departed), 0)::bigint, coalesce(sum(arrived), 0)::bigint,
           coalesce(sum(cancelled), 0)::bigint, coalesce(sum(arr_delay_min), 0)::bigint
    FROM flights.carrier_month";
const OF_AIRCRAFT: &str = "
    SELECT coalesce(sum((doc ->> 'scheduled')::bigint), 0)::bigint, coalesce(sum((doc ->> 'departed')::bigint), 0)::bigint,
           coalesce(sum((doc ->> 'arrived')::bigint), 0)::bigint, coalesce(sum((doc ->> 'cancelled')::bigint), 0)::bigint,
           coalesce(sum((doc ->> 'arr_delay_min')::bigint), 0)::bigint
    FROM flights.aircraft";
const MEAN: &str = "SELECT sum(arr_delay_min)::float8 / nullif(sum(arrived), 0)::float8 FROM flights.carrier_month";
const NO_TAILNUM: &str = "SELECT coalesce(sum(no_tailnum), 0)::bigint FROM flights.carrier_month";
const AIRCRAFT: &str = "SELECT count(*) FROM flights.aircraft WHERE NOT starts_with(aggregate_id, $1)";
const BY_CARRIER: &str = "SELECT carrier, sum(scheduled)::bigint FROM flights.carrier_month GROUP BY carrier";

/// Of every row of both read models, whatever its place in the table.
const DIGEST: &str = "
    SELECT encode(sha256(convert_to(coalesce(string_agg(line, E'\\n' ORDER BY line), ''), 'UTF8')), 'hex') FROM (
        SELECT jsonb_build_array('aircraft', aggregate_type, aggregate_id, version, doc)::text AS line FROM flights.aircraft
        UNION ALL
        SELECT jsonb_build_array('carrier_month', t.*)::text FROM flights.carrier_month t) lines";

/// Reads them.
pub(crate) async fn read(pool: &PgPool) -> Result<Figures> {
    let by_totals: Sums = sqlx::query_as(TOTALS).fetch_one(pool).await?;
    let by_carrier: Vec<(String, i64)> = sqlx::query_as(BY_CARRIER).fetch_all(pool).await?;
    let (flights, departed, arrived, cancelled, _) = by_totals;
    Ok(Figures {
        flights,
        cancelled,
        aircraft: sqlx::query_scalar(AIRCRAFT).bind(CARRIER).fetch_one(pool).await?,
        no_tailnum: sqlx::query_scalar(NO_TAILNUM).fetch_one(pool).await?,
        departed_without_arr_delay: departed - arrived,
        mean_arr_delay_min: sqlx::query_scalar(MEAN).fetch_one(pool).await?,
        by_carrier: by_carrier.into_iter().collect(),
        by_totals,
        by_aircraft: sqlx::query_as(OF_AIRCRAFT).fetch_one(pool).await?,
    })
}

/// The same for the same content.
pub(crate) async fn digest(pool: &PgPool) -> Result<String> {
    Ok(sqlx::query_scalar(DIGEST).fetch_one(pool).await?)
}

impl Figures {
    /// The object that the command contract promises.
    pub(crate) fn json(&self) -> Value {
        json!({
            "flights": self.flights,
            "cancelled": self.cancelled,
            "aircraft": self.aircraft,
            "no_tailnum": self.no_tailnum,
            "departed_without_arr_delay": self.departed_without_arr_delay,
            "mean_arr_delay_min": self.mean_arr_delay_min,
            "by_carrier": self.by_carrier,
            "stores": {"postgres": self.by_aircraft.0},
        })
    }

    /// For people.
    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "{} flights of {} aircraft, {} cancelled, {} without a tail number\n",
            self.flights, self.aircraft, self.cancelled, self.no_tailnum
        );
        if let Some(mean) = self.mean_arr_delay_min {
            text += &format!("{mean:.2} minutes late on arrival in the mean; ");
        }
        text += &format!("{} departed and have no arrival delay\n", self.departed_without_arr_delay);
        let mut carriers: Vec<_> = self.by_carrier.iter().collect();
        carriers.sort_by_key(|(_, flights)| -**flights);
        for (carrier, flights) in carriers {
            text += &format!("  {carrier} {flights:>7}\n");
        }
        text
    }

    /// Two read models of one stream tell the same.
    pub(crate) fn check(&self) -> Result<()> {
        ensure!(
            self.by_totals == self.by_aircraft,
            "the read models differ: scheduled, departed, arrived, cancelled and minutes late are {:?} by the totals of the \
             carriers, {:?} by the documents of the aircraft",
            self.by_totals,
            self.by_aircraft
        );
        Ok(())
    }
}
