//! Leases: who may publish a shard.
//!
//! ```text
//!            take (term + 1)                    refresh every lease_refresh
//!   free ───────────────────────▶ held ◀───────────────────────────────────┐
//!    ▲                             │ └──────────────────────────────────────┘
//!    │ release at a clean stop     │ no refresh for lease_ttl
//!    └─────────────────────────────┤
//!                                  ▼
//!                               expired ── another relay takes it, after the holder's open batch has ended
//! ```
//!
//! The row is the truth. A holder trusts its lease on its own monotonic clock, from before it sent the refresh, and for a
//! tenth less than the TTL: its trust ends before the lease does, whatever the clocks say.

mod coordinator;
mod heartbeat;

use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) use coordinator::Coordinator;
pub(crate) use heartbeat::Heartbeat;

use crate::source::Fence;

/// A lease this relay holds.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) fence: Fence,
    trusted_until: Mutex<Instant>,
    /// Cancelled when the lease is gone for good.
    pub(crate) lost: CancellationToken,
}

impl Lease {
    pub(crate) fn new(fence: Fence, trusted_until: Instant) -> Self {
        Self { fence, trusted_until: Mutex::new(trusted_until), lost: CancellationToken::new() }
    }

    /// Until when nobody else can hold the lease.
    pub(crate) fn trusted_until(&self) -> Instant {
        *self.trusted_until.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn trust(&self, until: Instant) {
        let mut trusted = self.trusted_until.lock().unwrap_or_else(PoisonError::into_inner);
        *trusted = until.max(*trusted);
    }
}

/// How long a lease refreshed at `sent` is trusted.
pub(crate) fn trust_of(sent: Instant, ttl: std::time::Duration) -> Instant {
    sent + ttl - ttl / 10
}
