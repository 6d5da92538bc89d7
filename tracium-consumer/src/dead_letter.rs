//! What is put aside: dead letters in their original bytes, and the aggregates that stand still behind them.

use serde_json::{Value, json};
use sqlx::PgConnection;
use tracium_core::Aggregate;

use crate::batch::{Fate, Item, Plan};
use crate::consumer::Record;
use crate::sql::{self, columns};

/// Locks the quarantines of these aggregates, which are in key order; returns their places and causes.
pub(crate) async fn lock_quarantines(
    tx: &mut PgConnection,
    projection: &str,
    epoch: i32,
    aggregates: &[&Aggregate],
) -> Result<Vec<(usize, String)>, sqlx::Error> {
    if aggregates.is_empty() {
        return Ok(Vec::new());
    }
    let (types, ids) = columns(aggregates.iter().copied());
    let rows: Vec<(i64, String)> =
        sqlx::query_as(sql::LOCK_QUARANTINE).bind(projection).bind(epoch).bind(types).bind(ids).fetch_all(tx).await?;
    Ok(rows.into_iter().filter_map(|(ordinal, cause)| Some((usize::try_from(ordinal - 1).ok()?, cause))).collect())
}

/// Begins the batch's quarantines and keeps its dead letters.
pub(crate) async fn keep(tx: &mut PgConnection, projection: &str, epoch: i32, plan: &Plan<'_>) -> Result<(), sqlx::Error> {
    let stopped: Vec<_> = plan.aggregates.iter().filter_map(|a| a.quarantine.as_ref().map(|q| (&a.aggregate, q))).collect();
    if !stopped.is_empty() {
        let (types, ids) = columns(stopped.iter().map(|(aggregate, _)| *aggregate));
        sqlx::query(sql::INSERT_QUARANTINE)
            .bind(projection)
            .bind(epoch)
            .bind(types)
            .bind(ids)
            .bind(stopped.iter().map(|(_, (reason, _))| reason.as_str()).collect::<Vec<_>>())
            .bind(stopped.iter().map(|(_, (_, cause))| cause.as_str()).collect::<Vec<_>>())
            .execute(&mut *tx)
            .await?;
    }
    let letters: Vec<Letter<'_>> = plan.items.iter().filter_map(|item| Letter::of(plan, item)).collect();
    if letters.is_empty() {
        return Ok(());
    }
    fn all<'a, T>(letters: &'a [Letter<'a>], part: impl Fn(&'a Letter<'a>) -> T) -> Vec<T> {
        letters.iter().map(part).collect()
    }
    sqlx::query(sql::INSERT_DEAD_LETTERS)
        .bind(projection)
        .bind(epoch)
        .bind(all(&letters, |l| l.aggregate.map(|a| a.aggregate_type.as_str())))
        .bind(all(&letters, |l| l.aggregate.map(|a| a.aggregate_id.as_str())))
        .bind(all(&letters, |l| l.item.version.map(|v| v.get())))
        .bind(all(&letters, |l| l.item.event_id))
        .bind(all(&letters, |l| l.cause))
        .bind(all(&letters, |l| &*l.item.record.partition.topic))
        .bind(all(&letters, |l| l.item.record.partition.number))
        .bind(all(&letters, |l| l.item.record.offset))
        .bind(all(&letters, |l| l.item.record.key()))
        .bind(all(&letters, |l| l.item.record.payload()))
        .bind(all(&letters, |l| headers(l.item.record)))
        .bind(all(&letters, |l| l.item.record.timestamp_ms))
        .bind(all(&letters, |l| l.parked))
        .execute(tx)
        .await?;
    Ok(())
}

struct Letter<'a> {
    item: &'a Item<'a>,
    aggregate: Option<&'a Aggregate>,
    cause: &'a str,
    parked: bool,
}

impl<'a> Letter<'a> {
    fn of(plan: &'a Plan<'_>, item: &'a Item<'a>) -> Option<Self> {
        let (cause, parked) = match &item.fate {
            Fate::Dead(cause) => (cause, false),
            Fate::Parked(cause) => (cause, true),
            Fate::Open | Fate::Applied | Fate::Duplicate => return None,
        };
        Some(Self { item, aggregate: plan.aggregate(item), cause, parked })
    }
}

/// Headers in the form of [`tracium_core::Headers`]: ordered, repeatable, byte-exact.
fn headers(record: &Record) -> String {
    use base64::Engine;
    let value = |value: Option<&[u8]>| match value.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        None => Value::Null,
        // JSONB's text takes no NUL
        Some((_, Ok(text))) if !text.contains('\0') => text.into(),
        Some((bytes, _)) => json!({"base64": base64::engine::general_purpose::STANDARD.encode(bytes)}),
    };
    Value::Array(record.headers().map(|(name, v)| json!([name, value(v)])).collect()).to_string()
}
