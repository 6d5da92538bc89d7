//! The read model `flights.carrier_month`: totals per carrier and month, over all aircraft.

use std::collections::BTreeMap;

use async_trait::async_trait;
use chrono::NaiveDate;
use sqlx::PgConnection;
use tracium_consumer::{Projection, ProjectionError};
use tracium_core::Event;

use crate::events::{ARRIVED, Arrived, CANCELLED, Cancelled, DEPARTED, Departed, FlightKey, SCHEDULED, Scheduled};

/// The projection.
pub(crate) struct CarrierMonths;

const CREATE: &str = "
    CREATE TABLE IF NOT EXISTS flights.carrier_month (
        carrier       text   NOT NULL,
        month         date   NOT NULL,
        scheduled     bigint NOT NULL,
        departed      bigint NOT NULL,
        arrived       bigint NOT NULL,
        cancelled     bigint NOT NULL,
        no_tailnum    bigint NOT NULL,
        arr_delay_min bigint NOT NULL,
        CONSTRAINT carrier_month_pkey PRIMARY KEY (carrier, month)
    )";

/// In key order, so that two batches wait for each other instead of deadlocking.
const ADD: &str = "
    INSERT INTO flights.carrier_month AS t (carrier, month, scheduled, departed, arrived, cancelled, no_tailnum, arr_delay_min)
    SELECT * FROM unnest($1::text[], $2::date[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[])
    ON CONFLICT (carrier, month) DO UPDATE SET
        scheduled = t.scheduled + excluded.scheduled, departed = t.departed + excluded.departed,
        arrived = t.arrived + excluded.arrived, cancelled = t.cancelled + excluded.cancelled,
        no_tailnum = t.no_tailnum + excluded.no_tailnum, arr_delay_min = t.arr_delay_min + excluded.arr_delay_min";

#[derive(Default)]
struct Sums {
    scheduled: i64,
    departed: i64,
    arrived: i64,
    cancelled: i64,
    no_tailnum: i64,
    arr_delay_min: i64,
}

#[async_trait]
impl Projection for CarrierMonths {
    fn name(&self) -> &str {
        "carrier_month"
    }

    async fn prepare(&self, conn: &mut PgConnection, _epoch: i32) -> Result<(), ProjectionError> {
        sqlx::query(CREATE).execute(conn).await?;
        Ok(())
    }

    async fn apply(&self, tx: &mut PgConnection, events: &[Event]) -> Result<(), ProjectionError> {
        let mut sums: BTreeMap<(String, NaiveDate), Sums> = BTreeMap::new();
        let mut of = |key: FlightKey, add: &dyn Fn(&mut Sums)| {
            let month = key.month();
            add(sums.entry((key.carrier.to_string(), month)).or_default());
        };
        for event in events {
            match event.event_type.as_str() {
                SCHEDULED => {
                    let scheduled: Scheduled = event.data()?;
                    let no_tailnum = i64::from(scheduled.tailnum.is_none());
                    of(scheduled.key, &|s| {
                        s.scheduled += 1;
                        s.no_tailnum += no_tailnum;
                    });
                }
                DEPARTED => of(event.data::<Departed>()?.key, &|s| s.departed += 1),
                ARRIVED => {
                    let arrived: Arrived = event.data()?;
                    of(arrived.key, &|s| {
                        s.arrived += 1;
                        s.arr_delay_min += arrived.arr_delay_min;
                    });
                }
                CANCELLED => of(event.data::<Cancelled>()?.key, &|s| s.cancelled += 1),
                _ => {}
            }
        }
        let column = |of: fn(&Sums) -> i64| sums.values().map(of).collect::<Vec<_>>();
        sqlx::query(ADD)
            .bind(sums.keys().map(|(carrier, _)| carrier.as_str()).collect::<Vec<_>>())
            .bind(sums.keys().map(|(_, month)| *month).collect::<Vec<_>>())
            .bind(column(|s| s.scheduled))
            .bind(column(|s| s.departed))
            .bind(column(|s| s.arrived))
            .bind(column(|s| s.cancelled))
            .bind(column(|s| s.no_tailnum))
            .bind(column(|s| s.arr_delay_min))
            .execute(tx)
            .await?;
        Ok(())
    }
}
