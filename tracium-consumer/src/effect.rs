//! The seam between the consumer and a projection on its sink. It knows neither Kafka nor last_seen.

use async_trait::async_trait;
use sqlx::{PgConnection, PgPool};
use tracium_core::Event;

use crate::ProjectionError;

/// Header of an envelope that stands in for an event an operator skipped: the version counts, the event does not.
const SKIPPED: &str = "tracium-skipped";

/// Whether an operator skipped this event.
pub(crate) fn is_skipped(event: &Event) -> bool {
    event.headers.iter().any(|(name, _)| name == SKIPPED)
}

/// A projection wired to its sink; made of [`crate::PostgresView`] or [`crate::PostgresProjection`] by `into()`.
pub struct Wired(Box<dyn Effect>);

impl Wired {
    pub(crate) fn new(effect: impl Effect) -> Self {
        Self(Box::new(effect))
    }

    pub(crate) fn effect(&self) -> &dyn Effect {
        self.0.as_ref()
    }
}

impl std::fmt::Debug for Wired {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Wired").field(&self.0.name()).finish()
    }
}

/// What became of an event in the sink.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Effected {
    /// It took effect.
    Applied,
    /// The sink had its effect already.
    Duplicate,
    /// It never will take effect; the cause.
    Refused(String),
    /// The sink lacks versions before it; the cause.
    Gap(String),
    /// An earlier event of its aggregate in the same call was refused.
    Behind,
}

/// A projection's effect on its sink, in the transaction that also moves last_seen.
#[async_trait]
pub(crate) trait Effect: Send + Sync + 'static {
    fn name(&self) -> &str;

    /// Everything about the declaration that the sink's content depends on.
    fn fingerprint(&self) -> String;

    /// Whether an event without a version is poison.
    fn needs_versions(&self) -> bool;

    /// The sink's kind, as `status` shows it.
    fn sink(&self) -> &'static str {
        "postgres"
    }

    /// Where last_seen lives.
    fn pool(&self) -> &PgPool;

    /// Makes what the effect needs.
    async fn prepare(&self, connection: &mut PgConnection, epoch: i32) -> Result<(), ProjectionError>;

    /// Events that last_seen lets through, in per-aggregate order; one answer each.
    async fn apply(&self, tx: &mut PgConnection, epoch: i32, events: &[Event]) -> Result<Vec<Effected>, ProjectionError>;
}
