//! Reading what the run left behind: the event store, the outbox and the read models, each by statements of its own.

use std::collections::BTreeMap;

use anyhow::{Context, anyhow};
use futures::TryStreamExt;
use sqlx::{PgConnection, Row};
use tracium_core::{Aggregate, Event, EventType, Headers, Payload, Version, View};
use uuid::Uuid;

use super::progress::unsigned;
use super::shop::{AGGREGATE_TYPE, Order, Orders};

/// What a verdict is made of.
#[derive(Debug, Default)]
pub(super) struct Evidence {
    /// Outbox rows that are marked.
    pub(super) published: u64,
    /// Outbox rows that are not.
    pub(super) pending: u64,
    /// The fold of every order's events, from the event store.
    pub(super) expected: BTreeMap<String, Order>,
    /// The documents of the read model.
    pub(super) documents: BTreeMap<String, serde_json::Value>,
    /// Event id → name, from the event store.
    pub(super) stored: BTreeMap<Uuid, String>,
    /// Event id → how often it took effect in the counting projection.
    pub(super) effects: BTreeMap<Uuid, u64>,
    /// By event type: number and bytes, from the event store.
    pub(super) expected_counts: BTreeMap<String, (i64, i64)>,
    /// By event type: number and bytes, as counted with + 1.
    pub(super) counts: BTreeMap<String, (i64, i64)>,
    /// Aggregates that a projection gave up on, with the reason.
    pub(super) quarantined: Vec<String>,
}

const EVENTS: &str = "
    SELECT event_id, event_type, aggregate_id, version, recorded_at, payload::text AS payload
    FROM tracium.event_store ORDER BY aggregate_type, aggregate_id, version";

const OUTBOX: &str = "
    SELECT count(*) FILTER (WHERE published_at IS NOT NULL), count(*) FILTER (WHERE published_at IS NULL) FROM tracium.outbox";

const QUARANTINED: &str = "
    SELECT projection || ': ' || aggregate_id || ' (' || reason || ': ' || cause || ')' FROM tracium.quarantine ORDER BY since LIMIT 20";

impl Evidence {
    /// Reads everything; what a consumer never made counts as empty.
    pub(super) async fn gather(connection: &mut PgConnection) -> anyhow::Result<Self> {
        let mut evidence = Self::default();
        let (published, pending): (i64, i64) = sqlx::query_as(OUTBOX).fetch_one(&mut *connection).await.context("the outbox")?;
        (evidence.published, evidence.pending) = (unsigned(published), unsigned(pending));
        evidence.quarantined = sqlx::query_scalar(QUARANTINED).fetch_all(&mut *connection).await.context("the quarantine")?;
        evidence.fold_event_store(connection).await.context("the event store")?;
        if exists(connection, "public.orders").await? {
            let documents = sqlx::query_as("SELECT aggregate_id, doc FROM public.orders").fetch_all(&mut *connection).await;
            evidence.documents = documents.context("the read model")?.into_iter().collect();
        }
        if exists(connection, "public.effect").await? {
            let effects: Vec<(Uuid, i64)> = sqlx::query_as("SELECT event_id, times FROM public.effect")
                .fetch_all(&mut *connection)
                .await
                .context("the effects")?;
            evidence.effects = effects.into_iter().map(|(id, times)| (id, unsigned(times))).collect();
            let counts: Vec<(String, i64, i64)> = sqlx::query_as("SELECT event_type, events, bytes FROM public.event_count")
                .fetch_all(&mut *connection)
                .await
                .context("the counts")?;
            evidence.counts = counts.into_iter().map(|(kind, events, bytes)| (kind, (events, bytes))).collect();
        }
        Ok(evidence)
    }

    async fn fold_event_store(&mut self, connection: &mut PgConnection) -> anyhow::Result<()> {
        let mut rows = sqlx::query(EVENTS).fetch(connection);
        let mut current: Option<(String, Option<Order>)> = None;
        while let Some(row) = rows.try_next().await? {
            let aggregate_id: String = row.try_get("aggregate_id")?;
            let event_type: String = row.try_get("event_type")?;
            let version: i64 = row.try_get("version")?;
            let payload: String = row.try_get::<Option<String>, _>("payload")?.unwrap_or_default();
            let (count, bytes) = self.expected_counts.entry(event_type.clone()).or_default();
            *count += 1;
            *bytes += i64::try_from(payload.len())?;
            let event = Event {
                event_id: row.try_get("event_id")?,
                event_type: EventType::new(event_type)?,
                aggregate: Some(Aggregate::new(AGGREGATE_TYPE, aggregate_id.as_str())?),
                version: Version::new(version),
                previous_version: None,
                schema_version: 1,
                created_at: row.try_get("recorded_at")?,
                payload: Payload::Json(payload.into_bytes()),
                headers: Headers::new(),
            };
            self.stored.insert(event.event_id, format!("event {} ({aggregate_id:?}, version {version})", event.event_id));
            let order = match current.take() {
                Some((id, order)) if id == aggregate_id => order,
                finished => {
                    self.expected.extend(finished.and_then(|(id, order)| Some((id, order?))));
                    None
                }
            };
            let order =
                Orders::evolve(order, &event).map_err(|e| anyhow!(e).context(format!("{aggregate_id:?} version {version}")))?;
            current = Some((aggregate_id, order));
        }
        self.expected.extend(current.and_then(|(id, order)| Some((id, order?))));
        Ok(())
    }
}

async fn exists(connection: &mut PgConnection, relation: &str) -> anyhow::Result<bool> {
    let exists = sqlx::query_scalar("SELECT to_regclass($1) IS NOT NULL").bind(relation).fetch_one(connection).await;
    exists.with_context(|| format!("look for {relation}"))
}
