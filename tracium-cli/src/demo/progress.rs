//! How far the chain is, as everybody in the demo sees it.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::Context;
use sqlx::PgPool;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracium_consumer::ProjectionStatus;

use super::observer::Seen;
use super::writers::Shop;

/// How often the chain is looked at.
const TICK: Duration = Duration::from_millis(100);

/// A look at the chain.
#[derive(Debug, Clone, Default)]
pub(super) struct Progress {
    pub(super) appended: u64,
    pub(super) rolled_back: u64,
    pub(super) conflicts: u64,
    /// Deliveries, and how many of them were first ones.
    pub(super) delivered: u64,
    pub(super) first_delivered: u64,
    /// Rows of the outbox that are not marked.
    pub(super) pending: u64,
    /// Events that took effect in the slower of the projections.
    pub(super) applied: u64,
    /// Deliveries that the projections dropped as duplicates.
    pub(super) ignored: u64,
    pub(super) quarantined: u64,
    /// For how long nothing of this has changed.
    pub(super) still: Duration,
}

impl Progress {
    /// What must change for the chain to be alive.
    fn position(&self) -> [u64; 5] {
        [self.appended, self.delivered, self.applied, self.ignored, self.pending]
    }

    /// In one line.
    pub(super) fn describe(&self) -> String {
        format!(
            "{} appended, {} waiting in the outbox, {} delivered, {} applied, {} aggregates quarantined",
            self.appended, self.pending, self.delivered, self.applied, self.quarantined
        )
    }
}

/// Looks at the chain until the token is cancelled.
pub(super) async fn watch(
    pool: PgPool,
    shop: Arc<Shop>,
    seen: Arc<Seen>,
    sender: watch::Sender<Progress>,
    stop: CancellationToken,
) -> anyhow::Result<()> {
    let mut tick = tokio::time::interval(TICK);
    let mut changed = Instant::now();
    loop {
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            _ = tick.tick() => {}
        }
        let pending: i64 = sqlx::query_scalar("SELECT count(*) FROM tracium.outbox WHERE published_at IS NULL")
            .fetch_one(&pool)
            .await
            .context("cannot look into the outbox")?;
        let projections = tracium_consumer::status(&pool).await.context("cannot look at the projections")?;
        let sum = |value: fn(&ProjectionStatus) -> i64| projections.iter().map(value).map(unsigned).sum();
        let mut now = Progress {
            appended: shop.appended.load(Relaxed),
            rolled_back: shop.rolled_back.load(Relaxed),
            conflicts: shop.conflicts.load(Relaxed),
            delivered: seen.delivered.load(Relaxed),
            first_delivered: seen.first_delivered.load(Relaxed),
            pending: unsigned(pending),
            applied: if projections.len() < 2 { 0 } else { projections.iter().map(|p| unsigned(p.applied)).min().unwrap_or(0) },
            ignored: sum(|p| p.duplicates),
            quarantined: sum(|p| p.quarantined),
            still: Duration::ZERO,
        };
        if now.position() != sender.borrow().position() {
            changed = Instant::now();
        }
        now.still = changed.elapsed();
        sender.send_replace(now);
    }
}

pub(super) fn unsigned(n: i64) -> u64 {
    u64::try_from(n).unwrap_or(0)
}
