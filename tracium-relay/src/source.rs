//! The seam to the outbox: claim and mark of one shard.

mod postgres;

use tracium_core::wire::Envelope;

use crate::SourceError;
use crate::decision::{HeldKey, HeldKeys};

pub(crate) use postgres::{PgOutbox, within};

/// Who publishes a shard, and under which term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Fence {
    pub(crate) shard: i16,
    pub(crate) owner: String,
    pub(crate) term: i64,
}

/// A claimed row.
#[derive(Debug, Clone)]
pub(crate) struct ClaimedRow {
    pub(crate) id: i64,
    pub(crate) topic: String,
    pub(crate) partition_key: String,
    /// Ready to be sent, or why the stored row cannot be read.
    pub(crate) envelope: Result<Envelope, String>,
}

/// What a claim found.
#[derive(Debug, Default)]
pub(crate) struct Claimed {
    /// Locked, in id order.
    pub(crate) rows: Vec<ClaimedRow>,
    /// Whether the index had any row at all, locked by somebody else or not.
    pub(crate) any: bool,
}

/// Which rows to claim.
#[derive(Debug, Clone)]
pub(crate) enum Claim {
    /// The oldest pending ones.
    Pending,
    /// Those of a held (topic, key), at most so many.
    HeldKey { topic: String, key: String, limit: i64 },
    /// Those of a held topic.
    HeldTopic { topic: String, except: Vec<String> },
}

/// What a batch leaves behind, written in its own transaction.
#[derive(Debug, Clone, Default)]
pub(crate) struct Marks {
    pub(crate) published: Vec<i64>,
    pub(crate) hold: Vec<i64>,
    pub(crate) failed: Vec<(i64, String)>,
    /// With the delay until the next attempt.
    pub(crate) held_keys: Vec<(HeldKey, std::time::Duration)>,
    /// (topic, key) or topic of which no held row is left.
    pub(crate) release: Option<(String, Option<String>)>,
}

/// Claims, marks and holds rows of one shard. One batch at a time; between [`ShardOutbox::claim`] and
/// [`ShardOutbox::finish`] its transaction is open and holds the fence. Any error drops the connection and with it the
/// transaction: nothing of the batch is marked.
#[async_trait::async_trait]
pub(crate) trait ShardOutbox: Send {
    /// Whether a pending row is there; no locks.
    async fn peek(&mut self) -> Result<bool, SourceError>;
    /// Puts the shard in order after a takeover and reads its held keys. `due` is relative to now.
    async fn take_over(&mut self, fence: &Fence) -> Result<HeldKeys, SourceError>;
    /// Opens a batch under the fence and claims rows, in id order.
    async fn claim(&mut self, fence: &Fence, claim: Claim) -> Result<Claimed, SourceError>;
    /// Writes the marks and ends the batch.
    async fn finish(&mut self, marks: Marks) -> Result<(), SourceError>;
    /// Forgets an open batch.
    async fn abandon(&mut self);
}
