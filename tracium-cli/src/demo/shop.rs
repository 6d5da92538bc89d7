//! The demo's business: orders, their events, and the read models.

use std::collections::BTreeMap;

use async_trait::async_trait;
use rand::Rng;
use rand::rngs::StdRng;
use serde::{Deserialize, Serialize};
use sqlx::PgConnection;
use tracium_consumer::{Projection, ProjectionError};
use tracium_core::{Event, EventError, EvolveError, NewEvent, View};
use uuid::Uuid;

pub(crate) const AGGREGATE_TYPE: &str = "order";

/// Where an order stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    #[default]
    Open,
    Paid,
    Shipped,
    Cancelled,
}

/// The document of an order.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) status: Status,
    pub(crate) customer: u32,
    pub(crate) items: u32,
    pub(crate) total_cents: i64,
    pub(crate) paid_cents: i64,
    /// Events folded: a second effect of any event shows here.
    pub(crate) events: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct Created {
    customer: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct ItemAdded {
    sku: String,
    quantity: u32,
    cents: i64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Paid {
    cents: i64,
}

/// The read model: one document an order. It refuses what no order of events allows, so a reordering would stand out.
#[derive(Debug)]
pub(crate) struct Orders;

impl View for Orders {
    const NAME: &'static str = "orders";
    type Doc = Order;

    fn evolve(order: Option<Order>, event: &Event) -> Result<Option<Order>, EvolveError> {
        let kind = event.event_type.as_str();
        let mut order = match (kind, order) {
            ("order.created", None) => Order::default(),
            ("order.created", Some(_)) => return Err(EvolveError::refused("the order is created already")),
            (_, None) => return Err(EvolveError::refused(format!("{kind} before order.created"))),
            (_, Some(order)) => order,
        };
        match (kind, order.status) {
            ("order.created", _) => order.customer = event.data::<Created>()?.customer,
            ("order.item_added", Status::Open) => {
                let item: ItemAdded = event.data()?;
                order.items += item.quantity;
                order.total_cents += item.cents * i64::from(item.quantity);
            }
            ("order.paid", Status::Open) => {
                order.paid_cents = event.data::<Paid>()?.cents;
                order.status = Status::Paid;
            }
            ("order.shipped", Status::Paid) => order.status = Status::Shipped,
            ("order.cancelled", Status::Open | Status::Paid) => order.status = Status::Cancelled,
            (kind, status) => return Err(EvolveError::refused(format!("{kind} of an order that is {status:?}"))),
        }
        order.events += 1;
        Ok(Some(order))
    }
}

/// What happens to an order next.
pub(crate) fn next_events(order: Option<&Order>, rng: &mut StdRng) -> Result<Vec<NewEvent>, EventError> {
    let item = |rng: &mut StdRng| {
        let item = ItemAdded {
            sku: format!("sku-{:04}", rng.random_range(0..2000)),
            quantity: rng.random_range(1..4),
            cents: rng.random_range(99..20_000),
        };
        NewEvent::json("order.item_added", &item)
    };
    let Some(order) = order else {
        let mut events = vec![NewEvent::json("order.created", &Created { customer: rng.random_range(1..5000) })?];
        for _ in 0..rng.random_range(1..4) {
            events.push(item(rng)?);
        }
        return Ok(events);
    };
    Ok(vec![match (order.status, rng.random_range(0..100)) {
        (Status::Open, 0..40) => return (0..rng.random_range(1..4)).map(|_| item(rng)).collect(),
        (Status::Open, 40..92) => NewEvent::json("order.paid", &Paid { cents: order.total_cents })?,
        (Status::Paid, 0..92) => NewEvent::json("order.shipped", &serde_json::json!({"carrier": "dhl"}))?,
        _ => NewEvent::json("order.cancelled", &serde_json::json!({"reason": "changed my mind"}))?,
    }])
}

/// Whether nothing can happen to it any more.
pub(crate) fn is_over(order: &Order) -> bool {
    matches!(order.status, Status::Shipped | Status::Cancelled)
}

/// A projection that counts with `+ 1`, by type and by event id: nothing in it is idempotent by itself, so every second
/// effect of an event shows.
#[derive(Debug)]
pub(crate) struct Counts;

const COUNTS_DDL: &str = "
    CREATE TABLE IF NOT EXISTS public.effect (event_id uuid PRIMARY KEY, times bigint NOT NULL);
    CREATE TABLE IF NOT EXISTS public.event_count (event_type text PRIMARY KEY, events bigint NOT NULL, bytes bigint NOT NULL)";

const COUNT_EFFECTS: &str = "
    INSERT INTO public.effect AS e (event_id, times) SELECT * FROM UNNEST($1::uuid[], $2::bigint[])
    ON CONFLICT (event_id) DO UPDATE SET times = e.times + excluded.times";

const COUNT_EVENTS: &str = "
    INSERT INTO public.event_count AS c (event_type, events, bytes) SELECT * FROM UNNEST($1::text[], $2::bigint[], $3::bigint[])
    ON CONFLICT (event_type) DO UPDATE SET events = c.events + excluded.events, bytes = c.bytes + excluded.bytes";

#[async_trait]
impl Projection for Counts {
    fn name(&self) -> &str {
        "counts"
    }

    async fn prepare(&self, conn: &mut PgConnection, _epoch: i32) -> Result<(), ProjectionError> {
        sqlx::raw_sql(COUNTS_DDL).execute(conn).await?;
        Ok(())
    }

    async fn apply(&self, tx: &mut PgConnection, events: &[Event]) -> Result<(), ProjectionError> {
        // Sorted, so that two batches lock rows in one order.
        let mut effects: BTreeMap<Uuid, i64> = BTreeMap::new();
        let mut counts: BTreeMap<&str, (i64, i64)> = BTreeMap::new();
        for event in events {
            *effects.entry(event.event_id).or_default() += 1;
            let (count, bytes) = counts.entry(event.event_type.as_str()).or_default();
            *count += 1;
            *bytes += event.payload.as_bytes().map_or(0, |b| i64::try_from(b.len()).unwrap_or(i64::MAX));
        }
        let (ids, times): (Vec<_>, Vec<_>) = effects.into_iter().unzip();
        sqlx::query(COUNT_EFFECTS).bind(ids).bind(times).execute(&mut *tx).await?;
        let (types, sums): (Vec<_>, Vec<_>) = counts.into_iter().map(|(kind, sums)| (kind.to_owned(), sums)).unzip();
        let (counts, bytes): (Vec<_>, Vec<_>) = sums.into_iter().unzip();
        sqlx::query(COUNT_EVENTS).bind(types).bind(counts).bind(bytes).execute(&mut *tx).await?;
        Ok(())
    }
}
