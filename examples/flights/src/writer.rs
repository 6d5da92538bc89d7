//! Appends the flights, month by month.
//!
//! One append is one aircraft and one month. Its event ids follow from the flights, so the same append in a later run, or
//! after a COMMIT whose outcome is not known, is recognised and adds nothing.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use chrono::NaiveDate;
use sqlx::{Connection, PgConnection};
use tokio::task::JoinSet;
use tracium_core::{Aggregate, AppendError, Appended, Backoff, Class, Classify, EventStore, Expected, NewEvent};

use crate::data::Flight;

/// Aircraft in a transaction at most: some two thousand events.
const BATCH: usize = 25;
/// How often a transaction is run again after a transient error.
const ATTEMPTS: u32 = 8;
const BACKOFF: Backoff = Backoff { initial: Duration::from_millis(100), max: Duration::from_secs(5) };

/// What was appended.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// Events that are new.
    pub(crate) appended: AtomicU64,
    /// Events that were there already.
    pub(crate) repeated: AtomicU64,
}

impl Written {
    fn add(&self, appended: &Appended) {
        let counter = if appended.repeated { &self.repeated } else { &self.appended };
        counter.fetch_add(appended.events.len() as u64, Ordering::Relaxed);
    }
}

type Batch = Vec<(Aggregate, Expected, Vec<NewEvent>)>;

/// Appends everything over several connections. An aircraft is always the same writer's, so its flights stay in order.
pub(crate) async fn append_all(database_url: String, flights: Vec<Flight>, writers: u32, written: Arc<Written>) -> Result<()> {
    let flights = Arc::new(flights);
    let mut tasks = JoinSet::new();
    for writer in 0..u64::from(writers) {
        let (url, flights, written) = (database_url.clone(), Arc::clone(&flights), Arc::clone(&written));
        let mine = move |aggregate: &Aggregate| {
            let mut hasher = DefaultHasher::new();
            aggregate.hash(&mut hasher);
            hasher.finish() % u64::from(writers) == writer
        };
        tasks.spawn(async move { write(&url, &flights, mine, &written).await });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.context("a writer panicked")??; // dropping the set stops the others
    }
    Ok(())
}

async fn write(url: &str, flights: &[Flight], mine: impl Fn(&Aggregate) -> bool, written: &Written) -> Result<()> {
    let mut session = Session { url, connection: None };
    // The flights are in the order of their instants, and so of their months.
    for month in flights.chunk_by(|a, b| a.month() == b.month()) {
        let mut aircraft: BTreeMap<Aggregate, Vec<NewEvent>> = BTreeMap::new();
        for flight in month {
            let aggregate = flight.aggregate()?;
            if mine(&aggregate) {
                aircraft.entry(aggregate).or_default().extend(flight.events()?);
            }
        }
        let mut appends: Batch = aircraft.into_iter().map(|(aggregate, events)| (aggregate, Expected::Any, events)).collect();
        while !appends.is_empty() {
            let rest = appends.split_off(appends.len().min(BATCH));
            let batch = std::mem::replace(&mut appends, rest);
            for appended in session.commit(&batch, month[0].month()).await? {
                written.add(&appended);
            }
        }
    }
    Ok(())
}

/// A writer's connection, made anew after an error.
struct Session<'a> {
    url: &'a str,
    connection: Option<PgConnection>,
}

impl Session<'_> {
    /// One transaction, run again after a transient error: a repeated append is recognised by its event ids.
    async fn commit(&mut self, batch: &Batch, month: NaiveDate) -> Result<Vec<Appended>> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            match self.attempt(batch).await {
                Ok(done) => return Ok(done),
                Err(error) if error.class() == Class::Transient && attempt < ATTEMPTS => {
                    tracing::warn!(%error, attempt, "running the transaction again");
                    self.connection = None;
                    tokio::time::sleep(BACKOFF.delay(attempt)).await;
                }
                Err(error) => return Err(error).with_context(|| format!("flights of the month {month} could not be appended")),
            }
        }
    }

    async fn attempt(&mut self, batch: &Batch) -> Result<Vec<Appended>, AppendError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(PgConnection::connect(self.url).await.map_err(AppendError::Database)?),
        };
        let mut tx = connection.begin().await.map_err(AppendError::Database)?;
        let done = EventStore::append_all(&mut tx, batch.clone()).await?;
        tx.commit().await.map_err(AppendError::Database)?;
        Ok(done.into_iter().map(|(_, appended)| appended).collect())
    }
}
