//! Connection 2: refreshes the leases, and confirms a batch before it is sent.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::{Lease, trust_of};
use crate::source::within;
use crate::{SourceError, sql};

/// The handle that shard tasks and the coordinator have of connection 2.
#[derive(Clone)]
pub(crate) struct Heartbeat {
    leases: Arc<Mutex<HashMap<i16, Arc<Lease>>>>,
    requests: mpsc::Sender<Confirm>,
}

struct Confirm {
    lease: Arc<Lease>,
    answer: oneshot::Sender<Result<(), SourceError>>,
}

struct Actor {
    options: PgConnectOptions,
    connection: Option<PgConnection>,
    leases: Arc<Mutex<HashMap<i16, Arc<Lease>>>>,
    requests: mpsc::Receiver<Confirm>,
    ttl: Duration,
    refresh: Duration,
    deadline: Duration,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Heartbeat {
    /// The handle, and the task that does the work until `stop`.
    pub(crate) fn new(
        options: PgConnectOptions,
        ttl: Duration,
        refresh: Duration,
        deadline: Duration,
        stop: CancellationToken,
    ) -> (Self, impl Future<Output = ()> + Send) {
        let (sender, requests) = mpsc::channel(256);
        let leases = Arc::new(Mutex::new(HashMap::new()));
        let actor = Actor { options, connection: None, leases: Arc::clone(&leases), requests, ttl, refresh, deadline };
        (Self { leases, requests: sender }, actor.run(stop))
    }

    /// Refreshes this lease from now on.
    pub(crate) fn add(&self, lease: Arc<Lease>) {
        lock(&self.leases).insert(lease.fence.shard, lease);
    }

    /// No longer.
    pub(crate) fn remove(&self, shard: i16) {
        lock(&self.leases).remove(&shard);
    }

    /// Confirms that the lease holds and flushes the WAL past everything claimed before this call: after `Ok` the batch may
    /// be sent. Batches that wait at the same time share one round trip and one flush.
    pub(crate) async fn confirm(&self, lease: &Arc<Lease>) -> Result<(), SourceError> {
        let (answer, confirmed) = oneshot::channel();
        let lost = || SourceError::LeaseLost { shard: lease.fence.shard };
        self.requests.send(Confirm { lease: Arc::clone(lease), answer }).await.map_err(|_| lost())?;
        confirmed.await.map_err(|_| lost())?
    }
}

impl Actor {
    async fn run(mut self, stop: CancellationToken) {
        let mut tick = tokio::time::interval_at(Instant::now() + self.refresh, self.refresh);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Only the waiting is under select: a call is never cancelled, it ends by its deadline.
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = tick.tick() => self.refresh_all().await,
                Some(first) = self.requests.recv() => {
                    let mut waiting = vec![first];
                    while let Ok(next) = self.requests.try_recv() {
                        waiting.push(next);
                    }
                    self.confirm_all(waiting).await;
                }
            }
        }
    }

    async fn take(&mut self) -> Result<PgConnection, SourceError> {
        match self.connection.take() {
            Some(connection) => Ok(connection),
            None => within(self.deadline, PgConnection::connect_with(&self.options)).await,
        }
    }

    async fn refresh_all(&mut self) {
        let leases: Vec<Arc<Lease>> = lock(&self.leases).values().cloned().collect();
        if leases.is_empty() {
            return;
        }
        let sent = Instant::now();
        match self.call(sql::REFRESH, &leases, Some(self.ttl)).await {
            Ok(held) => {
                for lease in leases {
                    if held.contains(&lease.fence.shard) {
                        lease.trust(trust_of(sent, self.ttl));
                    } else {
                        tracing::warn!(shard = lease.fence.shard, term = lease.fence.term, "lease lost to another relay");
                        lock(&self.leases).remove(&lease.fence.shard);
                        lease.lost.cancel();
                    }
                }
            }
            // The trust ends by itself.
            Err(error) => tracing::warn!(%error, "leases could not be refreshed; publishing stops when they run out"),
        }
    }

    async fn confirm_all(&mut self, waiting: Vec<Confirm>) {
        let leases: Vec<Arc<Lease>> = waiting.iter().map(|request| Arc::clone(&request.lease)).collect();
        let answer = self.call(sql::CONFIRM_AND_FLUSH, &leases, None).await;
        let cause = answer.as_ref().err().map(ToString::to_string);
        let held = answer.unwrap_or_default();
        for request in waiting {
            let shard = request.lease.fence.shard;
            let outcome = match &cause {
                Some(cause) => Err(SourceError::Database(sqlx::Error::Protocol(format!("lease not confirmed: {cause}")))),
                None if held.contains(&shard) => Ok(()),
                None => Err(SourceError::LeaseLost { shard }),
            };
            // A shard task that has gone does not want to know.
            let _ = request.answer.send(outcome);
        }
    }

    async fn call(
        &mut self,
        statement: &'static str,
        leases: &[Arc<Lease>],
        ttl: Option<Duration>,
    ) -> Result<Vec<i16>, SourceError> {
        let Some(first) = leases.first() else { return Ok(Vec::new()) };
        let (shards, terms): (Vec<i16>, Vec<i64>) = leases.iter().map(|l| (l.fence.shard, l.fence.term)).unzip();
        let mut query = sqlx::query_scalar(statement).bind(shards).bind(terms).bind(first.fence.owner.clone());
        if let Some(ttl) = ttl {
            query = query.bind(ttl.as_secs_f64());
        }
        let mut connection = self.take().await?;
        let held = within(self.deadline, query.fetch_all(&mut connection)).await?;
        self.connection = Some(connection);
        Ok(held)
    }
}
