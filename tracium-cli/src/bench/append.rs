//! `tracium bench append`: writers side by side.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use anyhow::{Context, anyhow};
use serde_json::value::RawValue;
use sqlx::postgres::PgPoolOptions;
use sqlx::{Connection, PgConnection, PgPool};
use tracium_core::{Aggregate, EventStore, Expected, NewEvent};

use super::measure::{Figures, Usage};
use super::{Bench, Report, failed, load};
use crate::failure::Outcome;
use crate::{connect, out};

pub(super) async fn run(bench: &mut Bench, writers: u32, per_transaction: u32) -> Outcome<Report> {
    let events = bench.events;
    let options = connect::options(&bench.database.url)?;
    // All connections are made before the clock starts.
    let mut connections = Vec::new();
    for _ in 0..writers {
        connections.push(PgConnection::connect_with(&options).await.map_err(|e| failed(anyhow!(e)))?);
    }
    out::note(format!("{writers} writers append {events} events, {per_transaction} a transaction"));
    let before = Usage::of(std::process::id()).map_err(failed)?;
    let began = Instant::now();
    let left = Arc::new(AtomicU64::new(events));
    let mut tasks = tokio::task::JoinSet::new();
    for (writer, connection) in connections.into_iter().enumerate() {
        tasks.spawn(write(connection, writer, u64::from(per_transaction), Arc::clone(&left)));
    }
    while let Some(ended) = tasks.join_next().await {
        ended.map_err(|e| failed(anyhow!(e)))?.map_err(failed)?;
    }
    let elapsed = began.elapsed();
    let after = Usage::of(std::process::id()).map_err(failed)?;
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(options);
    check(&pool, events).await.map_err(failed)?;
    pool.close().await;
    let usage = Usage { cpu: after.cpu.saturating_sub(before.cpu), ..after };
    Ok(bench.report("append", &Figures::of(elapsed, events, events, usage)))
}

/// Transactions, one after another, until the events are used up.
async fn write(mut connection: PgConnection, writer: usize, per_transaction: u64, left: Arc<AtomicU64>) -> anyhow::Result<()> {
    let payload = RawValue::from_string(load::payload(writer as u64))?;
    let mut aggregate = 0_u64;
    let mut appended = 0;
    loop {
        let before = left.fetch_update(Relaxed, Relaxed, |left| Some(left.saturating_sub(per_transaction))).unwrap_or(0);
        let count = per_transaction.min(before);
        if count == 0 {
            return Ok(connection.close().await?);
        }
        let events: Vec<NewEvent> = (0..count).map(|_| NewEvent::json(load::EVENT_TYPE, &payload)).collect::<Result<_, _>>()?;
        let id = Aggregate::new(load::AGGREGATE_TYPE, format!("order-{writer}-{aggregate}"))?;
        let mut tx = connection.begin().await.context("a writer cannot begin")?;
        EventStore::append(&mut tx, &id, Expected::Any, &events).await.context("a writer cannot append")?;
        tx.commit().await.context("a writer cannot commit")?;
        appended += count;
        aggregate = load::aggregate_of(appended);
    }
}

/// A rate of events that are not there would be worth nothing.
async fn check(pool: &PgPool, events: u64) -> anyhow::Result<()> {
    let stored: i64 =
        sqlx::query_scalar("SELECT count(*) FROM tracium.event_store").fetch_one(pool).await.context("the event store")?;
    anyhow::ensure!(u64::try_from(stored) == Ok(events), "the event store holds {stored} events, not {events}");
    Ok(())
}
