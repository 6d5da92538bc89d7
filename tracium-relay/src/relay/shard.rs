//! The task of one shard: look, claim, confirm, publish, mark.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracium_core::Backoff;
use tracium_core::wire::Envelope;

use crate::decision::{Due, HeldKeys, Outcome, plan, settle};
use crate::lease::{Heartbeat, Lease};
use crate::publisher::{FailureScope, PublishFailure, Publisher, TopicInfo, wire_size};
use crate::source::{Claim, Claimed, ClaimedRow, Marks, ShardOutbox};
use crate::{Metrics, RelayOptions, SourceError};

/// While the broker does not answer.
const BROKER_BACKOFF: Backoff = Backoff { initial: Duration::from_millis(200), max: Duration::from_secs(10) };
/// While the database does not answer.
const DATABASE_BACKOFF: Backoff = Backoff { initial: Duration::from_millis(50), max: Duration::from_secs(2) };

pub(crate) struct ShardTask {
    outbox: Box<dyn ShardOutbox>,
    lease: Arc<Lease>,
    heartbeat: Heartbeat,
    publisher: Arc<dyn Publisher>,
    options: RelayOptions,
    metrics: Arc<Metrics>,
    stop: CancellationToken,
    /// `None`: to be read from the database, at the start and after every failed batch.
    held: Option<HeldKeys>,
    epoch: Instant,
    counted_held: u64,
    /// The last claim was full: no need to look first.
    more: bool,
    /// The last round served a held key: pending rows come next.
    served_held: bool,
    broker_failures: u32,
}

/// How a round ended.
enum Round {
    Worked,
    Idle,
    BrokerDown,
}

impl ShardTask {
    pub(crate) fn new(
        outbox: Box<dyn ShardOutbox>,
        lease: Arc<Lease>,
        heartbeat: Heartbeat,
        publisher: Arc<dyn Publisher>,
        options: RelayOptions,
        metrics: Arc<Metrics>,
        stop: CancellationToken,
    ) -> Self {
        Self {
            outbox,
            lease,
            heartbeat,
            publisher,
            options,
            metrics,
            stop,
            held: None,
            epoch: Instant::now(),
            counted_held: 0,
            more: false,
            served_held: false,
            broker_failures: 0,
        }
    }

    fn now(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// Until it is stopped, between two batches, or the lease is lost.
    pub(crate) async fn run(mut self) {
        let mut idle = self.options.poll_min;
        let mut database_failures = 0_u32;
        while !self.stop.is_cancelled() && !self.lease.lost.is_cancelled() {
            let pause = match self.round().await {
                Ok(Round::Worked) => {
                    (idle, database_failures, self.broker_failures) = (self.options.poll_min, 0, 0);
                    continue;
                }
                Ok(Round::Idle) => {
                    let due = self.held.as_ref().and_then(HeldKeys::next_due).map(|due| due.saturating_sub(self.now()));
                    let pause = due.map_or(idle, |due| due.clamp(self.options.poll_min, idle));
                    idle = (idle * 2).min(self.options.poll_max);
                    database_failures = 0;
                    pause
                }
                Ok(Round::BrokerDown) => {
                    self.broker_failures += 1;
                    Metrics::add(&self.metrics.broker_failures, 1);
                    BROKER_BACKOFF.delay(self.broker_failures)
                }
                Err(SourceError::LeaseLost { shard }) => {
                    tracing::warn!(shard, term = self.lease.fence.term, "the lease is gone; nothing more is published");
                    self.outbox.abandon().await;
                    self.lease.lost.cancel();
                    break;
                }
                Err(error) => {
                    self.outbox.abandon().await;
                    self.held = None;
                    self.more = false;
                    database_failures += 1;
                    tracing::warn!(shard = self.lease.fence.shard, %error, "batch given up; trying again");
                    DATABASE_BACKOFF.delay(database_failures)
                }
            };
            tokio::select! {
                () = self.stop.cancelled() => {}
                () = self.lease.lost.cancelled() => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        self.count_held(0);
    }

    async fn round(&mut self) -> Result<Round, SourceError> {
        if Instant::now() >= self.lease.trusted_until() {
            return Ok(Round::Idle);
        }
        if self.held.is_none() {
            self.epoch = Instant::now();
            self.held = Some(self.outbox.take_over(&self.lease.fence).await?);
        }
        let now = self.now();
        let due = self.held.as_ref().and_then(|held| held.due(now));
        let pending = (due.is_none() || self.served_held) && (self.more || self.outbox.peek().await?);
        match due {
            Some(due) if !pending => {
                self.served_held = true;
                self.serve_held(due).await
            }
            _ if pending => {
                self.served_held = false;
                let claimed = self.outbox.claim(&self.lease.fence, Claim::Pending).await?;
                self.more = claimed.rows.len() >= self.options.batch_size as usize;
                self.batch(claimed.rows, None).await
            }
            _ => {
                self.served_held = false;
                Ok(Round::Idle)
            }
        }
    }

    /// Tries what was held back: its oldest row alone, and once that went through the rest in full batches.
    async fn serve_held(&mut self, due: Due) -> Result<Round, SourceError> {
        let (topic, key, claim) = match due {
            Due::Key { topic, key, single } => {
                let limit = if single { 1 } else { i64::from(self.options.batch_size) };
                (topic.clone(), Some(key.clone()), Claim::HeldKey { topic, key, limit })
            }
            Due::Topic { topic, except } => (topic.clone(), None, Claim::HeldTopic { topic, except }),
        };
        let Claimed { rows, any } = self.outbox.claim(&self.lease.fence, claim).await?;
        if !any {
            let release = Some((topic.clone(), key.clone()));
            self.outbox.finish(Marks { release, ..Marks::default() }).await?;
            if let Some(held) = &mut self.held {
                held.release(&topic, key.as_deref());
                tracing::info!(topic, "held rows are through; the key goes with the others again");
            }
            self.count_held_now();
            return Ok(Round::Worked);
        }
        self.batch(rows, Some((topic, key))).await
    }

    /// Publishes claimed rows and marks them, in the claim's transaction.
    async fn batch(&mut self, rows: Vec<ClaimedRow>, of_held: Option<(String, Option<String>)>) -> Result<Round, SourceError> {
        if rows.is_empty() {
            self.outbox.finish(Marks::default()).await?;
            return Ok(Round::Idle);
        }
        let held = self.held.get_or_insert_default();
        let plan = match of_held {
            Some(_) => crate::decision::Plan { send: (0..rows.len()).collect(), hold: Vec::new() },
            None => plan(rows.iter().map(|row| (row.topic.as_str(), row.partition_key.as_str())), held),
        };
        let mut marks = Marks { hold: plan.hold.iter().map(|index| rows[*index].id).collect(), ..Marks::default() };
        let send: Vec<&ClaimedRow> = plan.send.iter().map(|index| &rows[*index]).collect();
        let mut round = Round::Worked;
        if !send.is_empty() {
            self.heartbeat.confirm(&self.lease).await?;
            let deadline = (Instant::now() + self.options.batch_deadline).min(self.lease.trusted_until());
            let results = Self::publish(&*self.publisher, &send, deadline).await;
            let outcomes = send.iter().zip(results).map(|(row, result)| Outcome {
                id: row.id,
                topic: &row.topic,
                key: &row.partition_key,
                result,
            });
            let settlement = settle(outcomes.collect());
            let now = self.now();
            let backoff = self.options.backoff();
            let held = self.held.get_or_insert_default();
            if let Some((topic, key)) = &of_held
                && settlement.newly_held.is_empty()
                && settlement.broker.is_none()
            {
                held.flow(topic, key.as_deref(), now);
            }
            let (held_rows, stuck) = settlement.hold(held, &backoff, now);
            Metrics::add(&self.metrics.stuck, stuck);
            for row in &held_rows {
                tracing::warn!(topic = row.topic, attempts = row.attempts, cause = row.cause, "held back; all else goes on");
            }
            marks.held_keys = held_rows.into_iter().map(|row| (row.clone(), row.due.saturating_sub(now))).collect();
            marks.hold.extend(&settlement.hold);
            marks.published = settlement.published;
            marks.failed = settlement.failed;
            if let Some(cause) = settlement.broker {
                tracing::warn!(shard = self.lease.fence.shard, cause, "the broker did not take the batch; its rows stay pending");
                round = Round::BrokerDown;
            }
        }
        let (published, failed) = (marks.published.len(), marks.failed.len());
        if let Err(error) = self.outbox.finish(marks).await {
            if published > 0 {
                Metrics::add(&self.metrics.stale_marks, 1);
            }
            return Err(error);
        }
        Metrics::add(&self.metrics.batches, 1);
        Metrics::add(&self.metrics.published, published);
        Metrics::add(&self.metrics.failures, failed);
        self.count_held_now();
        Ok(round)
    }

    /// Checks what can be checked before sending, which keeps most permanent errors out of a running batch, and sends the
    /// rest. One outcome a row.
    async fn publish(publisher: &dyn Publisher, rows: &[&ClaimedRow], deadline: Instant) -> Vec<Result<(), PublishFailure>> {
        let mut topics: HashMap<&str, Result<TopicInfo, PublishFailure>> = HashMap::new();
        for row in rows {
            if !topics.contains_key(row.topic.as_str()) {
                let info = publisher.topic(&row.topic).await;
                topics.insert(&row.topic, info);
            }
        }
        let mut failed: HashSet<(&str, &str)> = HashSet::new();
        let mut checked: Vec<Result<&Envelope, PublishFailure>> = Vec::with_capacity(rows.len());
        for row in rows {
            let at = (row.topic.as_str(), row.partition_key.as_str());
            let outcome = match (failed.contains(&at), &topics[at.0], &row.envelope) {
                (true, ..) => Err(PublishFailure::new(FailureScope::Skipped, "an earlier message of the key failed")),
                (_, Err(failure), _) => Err(failure.clone()),
                (_, _, Err(cause)) => {
                    Err(PublishFailure::new(FailureScope::Key, format!("the stored row cannot be read: {cause}")))
                }
                (_, Ok(info), Ok(envelope)) => match info.max_message_bytes {
                    Some(limit) if wire_size(envelope) > limit => Err(PublishFailure::new(
                        FailureScope::Key,
                        format!(
                            "message of {} bytes is over topic {}'s max.message.bytes of {limit}",
                            wire_size(envelope),
                            row.topic
                        ),
                    )),
                    _ => Ok(envelope),
                },
            };
            if outcome.is_err() {
                failed.insert(at);
            }
            checked.push(outcome);
        }
        let envelopes: Vec<Envelope> = checked.iter().filter_map(|c| c.as_ref().ok().map(|e| (*e).clone())).collect();
        let mut sent = match envelopes.is_empty() {
            true => Vec::new().into_iter(),
            false => publisher.publish(&envelopes, deadline).await.into_iter(),
        };
        let unanswered = || Err(PublishFailure::new(FailureScope::Broker, "the publisher gave no answer"));
        checked.into_iter().map(|c| c.and_then(|_| sent.next().unwrap_or_else(unanswered))).collect()
    }

    fn count_held_now(&mut self) {
        self.count_held(self.held.as_ref().map_or(0, HeldKeys::len) as u64);
    }

    fn count_held(&mut self, now: u64) {
        self.metrics.held_keys.fetch_add(now.wrapping_sub(self.counted_held), Relaxed);
        self.counted_held = now;
    }
}
