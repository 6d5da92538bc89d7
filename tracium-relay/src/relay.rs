//! `Relay`: holds a fair share of the shards and runs a task for each.

mod shard;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tracium_core::{Class, Classify, schema};
use uuid::Uuid;

use self::shard::ShardTask;
use crate::decision::{quota, shards_to_release, shards_to_take};
use crate::lease::{Coordinator, Heartbeat, Lease};
use crate::source::{PgOutbox, within};
use crate::{Metrics, OptionsError, Publisher, RelayError, RelayOptions, SourceError};

/// A relay. Run one or several, anywhere, also inside a service.
pub struct Relay {
    options: RelayOptions,
    database: PgConnectOptions,
    publisher: Arc<dyn Publisher>,
    metrics: Arc<Metrics>,
    owner: String,
}

struct Running {
    lease: Arc<Lease>,
    stop: CancellationToken,
}

impl Relay {
    /// A relay with these options. It does not connect yet.
    ///
    /// # Errors
    /// [`OptionsError`] naming the setting that is not valid.
    pub fn new(options: RelayOptions, database: PgConnectOptions, publisher: Arc<dyn Publisher>) -> Result<Self, OptionsError> {
        options.validate()?;
        let metrics = Arc::new(Metrics::default());
        publisher.set_metrics(Arc::clone(&metrics));
        let database = database.application_name("tracium-relay");
        Ok(Self { options, database, publisher, metrics, owner: Uuid::new_v4().to_string() })
    }

    /// Its counters.
    #[must_use]
    pub fn metrics(&self) -> Arc<Metrics> {
        Arc::clone(&self.metrics)
    }

    /// The name it holds leases under.
    #[must_use]
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Publishes until `stop` is cancelled, then drains: no new batch, those under way are sent and marked, the leases are
    /// handed back. That takes up to `drain_deadline` and causes no duplicate while PostgreSQL and Kafka answer.
    ///
    /// At the start it fails if PostgreSQL or Kafka cannot be reached or the schema does not fit. Later it retries by itself.
    ///
    /// Cancel safety: dropping the future ends all tasks at once; what was in flight is sent again by the next holder, and
    /// the leases expire.
    ///
    /// # Errors
    /// [`RelayError`] if it could not start.
    pub async fn run(self, stop: CancellationToken) -> Result<(), RelayError> {
        self.check_database().await?;
        self.publisher.check().await?;

        let heartbeat_stop = CancellationToken::new();
        let _heartbeat_guard = heartbeat_stop.clone().drop_guard();
        let (heartbeat, heartbeat_task) = Heartbeat::new(
            self.database.clone(),
            self.options.lease_ttl,
            self.options.lease_refresh,
            self.options.database_deadline,
            heartbeat_stop.clone(),
        );
        let mut background = JoinSet::new();
        background.spawn(heartbeat_task);
        let coordinator =
            Coordinator::new(self.database.clone(), self.owner.clone(), self.options.lease_ttl, self.options.database_deadline);
        let mut supervisor = Supervisor { relay: &self, coordinator, heartbeat, running: HashMap::new(), tasks: JoinSet::new() };
        let result = supervisor.serve(&stop).await;
        supervisor.drain().await;
        heartbeat_stop.cancel();
        while background.join_next().await.is_some() {}
        result
    }

    async fn check_database(&self) -> Result<(), RelayError> {
        let address = format!("{}:{}", self.database.get_host(), self.database.get_port());
        // Nobody waits for a lease yet, so a slow first connection is no reason to give up.
        let deadline = self.options.database_deadline.max(FIRST_CONNECTION);
        let unreachable = |source| RelayError::DatabaseUnreachable { address: address.clone(), source };
        let mut connection = within(deadline, PgConnection::connect_with(&self.database)).await.map_err(unreachable)?;
        match tokio::time::timeout(deadline, schema::check(&mut connection)).await {
            Ok(checked) => {
                checked?;
                Ok(())
            }
            Err(_) => Err(unreachable(SourceError::Deadline(deadline))),
        }
    }
}

/// How long the connection of the start may take at least.
const FIRST_CONNECTION: Duration = Duration::from_secs(10);

struct Supervisor<'a> {
    relay: &'a Relay,
    coordinator: Coordinator,
    heartbeat: Heartbeat,
    running: HashMap<i16, Running>,
    tasks: JoinSet<i16>,
}

impl Supervisor<'_> {
    /// Keeps the share of shards right until `stop`. The first round's fatal errors end the relay: they are of the set-up.
    async fn serve(&mut self, stop: &CancellationToken) -> Result<(), RelayError> {
        let mut tick = tokio::time::interval((self.relay.options.lease_ttl / 10).min(Duration::from_secs(1)));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut first = true;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                Some(ended) = self.tasks.join_next() => self.reap(ended).await,
                _ = tick.tick() => {
                    match self.balance().await {
                        Ok(()) => first = false,
                        Err(error) if first && error.class() == Class::Fatal => return Err(RelayError::Denied(error)),
                        Err(error) => tracing::warn!(%error, "shards could not be looked at; trying again"),
                    }
                }
            }
        }
    }

    async fn balance(&mut self) -> Result<(), SourceError> {
        let overview = self.coordinator.overview().await?;
        let quota = quota(&overview.members, &self.relay.owner, overview.leases.len());
        let staying = self.running.iter().filter(|(_, running)| !running.stop.is_cancelled());
        let staying: Vec<i16> = staying.map(|(shard, _)| *shard).collect();
        for shard in shards_to_release(staying.clone(), quota) {
            if let Some(running) = self.running.get(&shard) {
                tracing::info!(shard, "handing the shard to another relay");
                running.stop.cancel();
            }
        }
        let wanted = shards_to_take(&overview.leases, staying.len(), quota);
        for shard in wanted.into_iter().filter(|shard| !self.running.contains_key(shard)).collect::<Vec<_>>() {
            if let Some(lease) = self.coordinator.take(shard, self.relay.options.database_deadline / 4).await? {
                self.start(lease);
            }
        }
        Ok(())
    }

    fn start(&mut self, lease: Arc<Lease>) {
        let relay = self.relay;
        let shard = lease.fence.shard;
        tracing::info!(shard, term = lease.fence.term, "shard taken");
        Metrics::add(&relay.metrics.takeovers, 1);
        relay.metrics.shards.fetch_add(1, Relaxed);
        self.heartbeat.add(Arc::clone(&lease));
        let stop = CancellationToken::new();
        let outbox = PgOutbox::new(
            relay.database.clone(),
            shard,
            relay.options.batch_size,
            relay.options.batch_bytes,
            relay.options.database_deadline,
        );
        let task = ShardTask::new(
            Box::new(outbox),
            Arc::clone(&lease),
            self.heartbeat.clone(),
            Arc::clone(&relay.publisher),
            relay.options.clone(),
            Arc::clone(&relay.metrics),
            stop.clone(),
        );
        self.running.insert(shard, Running { lease, stop });
        self.tasks.spawn(async move {
            task.run().await;
            shard
        });
    }

    /// A shard task has ended: by request, by a lost lease, or by a bug (a panic, which is not hidden).
    async fn reap(&mut self, ended: Result<i16, tokio::task::JoinError>) {
        let shard = match ended {
            Ok(shard) => shard,
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => return,
        };
        let Some(running) = self.running.remove(&shard) else { return };
        self.heartbeat.remove(shard);
        self.relay.metrics.shards.fetch_sub(1, Relaxed);
        if running.lease.lost.is_cancelled() {
            Metrics::add(&self.relay.metrics.leases_lost, 1);
        } else if let Err(error) = self.coordinator.release(&running.lease.fence).await {
            tracing::warn!(shard, %error, "the lease could not be handed back; it expires by itself");
        }
    }

    /// The one way out: no new batch, wait for those under way, hand the leases back.
    async fn drain(&mut self) {
        let end = Instant::now() + self.relay.options.drain_deadline;
        for running in self.running.values() {
            running.stop.cancel();
        }
        while !self.tasks.is_empty() {
            match tokio::time::timeout_at(end, self.tasks.join_next()).await {
                Ok(Some(ended)) => self.reap(ended).await,
                Ok(None) => break,
                Err(_) => {
                    tracing::warn!(shards = self.tasks.len(), "batches did not end in time; their rows are sent again later");
                    self.tasks.shutdown().await;
                    break;
                }
            }
        }
        if let Err(error) = self.coordinator.leave().await {
            tracing::debug!(%error, "the member row expires by itself");
        }
    }
}
