//! Writers: several at once, on the same orders, each transaction an append that commits, rolls back or conflicts.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, anyhow};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sqlx::PgPool;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracium_core::{Aggregate, AppendError, Appended, EventStore, Expected, NewEvent, Version, View};
use tracium_testkit::history::{History, Outcome};

use super::progress::Progress;
use super::shop::{AGGREGATE_TYPE, Order, Orders, is_over, next_events};

/// Writers side by side.
const WRITERS: u64 = 8;
/// Orders under way at once: few enough that writers meet on one now and then.
const OPEN_ORDERS: usize = 100;

/// What the writers share.
#[derive(Debug)]
pub(super) struct Shop {
    pool: PgPool,
    history: Arc<Mutex<History>>,
    open: Mutex<Vec<Open>>,
    next_order: AtomicU64,
    /// Events not reserved by a transaction yet.
    budget: AtomicU64,
    /// How far the writers may run ahead of the read models: kills are to hit a chain with traffic in all of its parts.
    lead: u64,
    /// Whether the relay is still to be cheated of an event.
    cheat: AtomicBool,
    pub(super) appended: AtomicU64,
    pub(super) rolled_back: AtomicU64,
    pub(super) transactions: AtomicU64,
    pub(super) rollbacks: AtomicU64,
    pub(super) conflicts: AtomicU64,
}

/// Marks an order's last event before any relay sees it. Nothing comes after it, so no gap tells of it.
const MARK_UNSENT: &str = "
    UPDATE tracium.outbox SET published_at = clock_timestamp()
    WHERE event_id = $1 AND event_type IN ('order.shipped', 'order.cancelled')";

#[derive(Debug, Clone)]
struct Open {
    aggregate: Aggregate,
    version: Version,
    order: Option<Order>,
}

impl Shop {
    pub(super) fn new(pool: PgPool, history: Arc<Mutex<History>>, events: u64, cheat: bool) -> Self {
        Self {
            pool,
            history,
            open: Mutex::default(),
            next_order: AtomicU64::new(1),
            budget: AtomicU64::new(events),
            lead: (events / 5).max(200),
            cheat: AtomicBool::new(cheat),
            appended: AtomicU64::new(0),
            rolled_back: AtomicU64::new(0),
            transactions: AtomicU64::new(0),
            rollbacks: AtomicU64::new(0),
            conflicts: AtomicU64::new(0),
        }
    }

    /// Appends until the events are used up or the token is cancelled.
    pub(super) async fn run(
        self: &Arc<Self>,
        seed: u64,
        progress: &watch::Receiver<Progress>,
        stop: &CancellationToken,
    ) -> anyhow::Result<()> {
        // Again while a rollback's events went back to the budget after the others had left.
        for round in 0_u64.. {
            let mut tasks = tokio::task::JoinSet::new();
            for writer in 0..WRITERS {
                let (shop, progress, stop) = (Arc::clone(self), progress.clone(), stop.clone());
                let rng = StdRng::seed_from_u64(seed.wrapping_mul(1_000_003).wrapping_add(round * WRITERS + writer));
                tasks.spawn(async move { shop.write(rng, progress, stop).await });
            }
            while let Some(ended) = tasks.join_next().await {
                ended.context("a writer panicked")??;
            }
            if stop.is_cancelled() || self.budget.load(Relaxed) == 0 {
                break;
            }
        }
        Ok(())
    }

    async fn write(
        &self,
        mut rng: StdRng,
        mut progress: watch::Receiver<Progress>,
        stop: CancellationToken,
    ) -> anyhow::Result<()> {
        loop {
            let applied = || self.appended.load(Relaxed).saturating_sub(self.lead);
            let ahead = progress.wait_for(|p| p.applied >= applied());
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                seen = ahead => { seen.context("the observer of progress is gone")?; }
            }
            let open = self.pick(&mut rng)?;
            let mut events = next_events(open.order.as_ref(), &mut rng)?;
            let reserved = self.reserve(events.len() as u64);
            if reserved == 0 {
                return Ok(());
            }
            events.truncate(usize::try_from(reserved).unwrap_or(usize::MAX));
            self.transact(open, events, &mut rng).await?;
        }
    }

    /// Takes up to `wanted` events off the budget.
    fn reserve(&self, wanted: u64) -> u64 {
        let before = self.budget.fetch_update(Relaxed, Relaxed, |left| Some(left - wanted.min(left)));
        wanted.min(before.unwrap_or(0))
    }

    fn pick(&self, rng: &mut StdRng) -> anyhow::Result<Open> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.len() >= OPEN_ORDERS || (!open.is_empty() && rng.random_bool(0.7)) {
            return Ok(open[rng.random_range(0..open.len())].clone());
        }
        drop(open);
        let number = self.next_order.fetch_add(1, Relaxed);
        // Ids are anybody's text: quotes and emoji go the whole way too.
        let id = if number.is_multiple_of(50) { format!("o'rder \"{number}\" 🍕") } else { format!("order-{number:06}") };
        Ok(Open { aggregate: Aggregate::new(AGGREGATE_TYPE, id)?, version: Version::ZERO, order: None })
    }

    /// Uses up the reservation: rolls back now and then, decides anew after a conflict, until a commit.
    async fn transact(&self, mut open: Open, mut events: Vec<NewEvent>, rng: &mut StdRng) -> anyhow::Result<()> {
        loop {
            let expected = if open.version == Version::ZERO { Expected::New } else { Expected::Version(open.version) };
            let mut tx = self.pool.begin().await.context("a writer cannot begin")?;
            let appended = match EventStore::append(&mut tx, &open.aggregate, expected, &events).await {
                Ok(appended) => appended,
                Err(AppendError::VersionConflict { .. }) => {
                    tx.rollback().await.context("a writer cannot roll back")?;
                    self.conflicts.fetch_add(1, Relaxed);
                    open = self.reload(open).await?;
                    while open.order.as_ref().is_some_and(is_over) {
                        open = self.pick(rng)?;
                    }
                    events = self.decide_again(&open, events.len(), rng)?;
                    continue;
                }
                Err(AppendError::RetryTransaction(_)) => continue,
                Err(error) => return Err(anyhow!(error).context("a writer's append failed")),
            };
            let transactions = self.transactions.fetch_add(1, Relaxed);
            let too_few = self.rollbacks.load(Relaxed) * 18 < transactions;
            let outcome = if too_few || rng.random_bool(0.02) {
                tx.rollback().await.context("a writer cannot roll back")?;
                Outcome::RolledBack
            } else if self.commit(tx, &appended).await? {
                Outcome::Committed
            } else {
                Outcome::Unknown
            };
            self.tell_history(&open.aggregate, &appended, outcome);
            let n = appended.events.len() as u64;
            match outcome {
                Outcome::Committed => {
                    self.appended.fetch_add(n, Relaxed);
                    let open = self.reload(open).await?;
                    self.put_back(&open);
                    return Ok(());
                }
                Outcome::RolledBack => {
                    self.rollbacks.fetch_add(1, Relaxed);
                    self.rolled_back.fetch_add(n, Relaxed);
                    events = self.decide_again(&open, events.len(), rng)?;
                }
                Outcome::Unknown => return Err(anyhow!("a writer's COMMIT was not answered")),
            }
        }
    }

    /// Commits; false if the answer did not come.
    async fn commit(&self, mut tx: sqlx::PgTransaction<'_>, appended: &Appended) -> anyhow::Result<bool> {
        // Taken first, so that one writer alone tries it.
        if self.cheat.swap(false, Relaxed) {
            let last = appended.events.last().map(|e| e.event_id);
            let marked = sqlx::query(MARK_UNSENT).bind(last).execute(&mut *tx).await.context("the plant")?;
            self.cheat.store(marked.rows_affected() == 0, Relaxed);
        }
        Ok(tx.commit().await.is_ok())
    }

    fn tell_history(&self, aggregate: &Aggregate, appended: &Appended, outcome: Outcome) {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        for event in &appended.events {
            history.appended(event.event_id, aggregate.aggregate_id.as_str(), event.version.get(), outcome);
        }
    }

    /// The order as it is now, from the event store.
    async fn reload(&self, open: Open) -> anyhow::Result<Open> {
        let Open { aggregate, mut version, mut order } = open;
        for event in EventStore::load(&self.pool, &aggregate, version).await? {
            version = event.version.unwrap_or(version);
            order = Orders::evolve(order, &event)?;
        }
        Ok(Open { aggregate, version, order })
    }

    /// New events for the state as it is now, within the reservation; what they do not need goes back.
    fn decide_again(&self, open: &Open, reserved: usize, rng: &mut StdRng) -> anyhow::Result<Vec<NewEvent>> {
        let mut events = next_events(open.order.as_ref(), rng)?;
        events.truncate(reserved);
        self.give_back(reserved - events.len());
        Ok(events)
    }

    fn give_back(&self, events: usize) {
        self.budget.fetch_add(events as u64, Relaxed);
    }

    /// Keeps the newest state of an order, or lets it go when it is over.
    fn put_back(&self, new: &Open) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let over = new.order.as_ref().is_none_or(is_over);
        match open.iter_mut().position(|known| known.aggregate == new.aggregate) {
            Some(at) if over => {
                open.swap_remove(at);
            }
            Some(at) if open[at].version < new.version => open[at] = new.clone(),
            None if !over => open.push(new.clone()),
            _ => {}
        }
    }
}
