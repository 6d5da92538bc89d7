//! A batch's transaction.
//!
//! ```text
//! BEGIN ─▶ lock last_seen ─▶ lock quarantine ─▶ new ids ─▶ decide ─▶ effect ─▶ last_seen, dead letters, progress ─▶ COMMIT
//! ```

use sqlx::{Connection, PgConnection};
use tracium_core::{Class, Classify, Event};

use super::plan::{Plan, Standing, Summary};
use crate::consumer::Record;
use crate::effect::{Effect, Effected};
use crate::error::chain;
use crate::{ProjectionError, Start, dead_letter, last_seen, progress, sql};

/// Whose batch it is.
#[derive(Clone, Copy)]
pub(crate) struct Scope<'a> {
    pub(crate) effect: &'a dyn Effect,
    pub(crate) epoch: i32,
    pub(crate) start: Start,
}

/// How the effect is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Once for the batch. One poisonous event fails them all.
    Together,
    /// Event by event, each under a savepoint: the poisonous ones are found and the others take effect.
    OneByOne,
}

/// Applies a batch in a transaction of its own and commits it.
///
/// Everything is in the transaction or nothing: after an error the caller drops the connection, or begins again on it.
/// The outcome of a failed COMMIT is unknown, and does not matter: the same batch again has no second effect.
pub(crate) async fn apply(
    connection: &mut PgConnection,
    scope: Scope<'_>,
    records: &[Record],
    mode: Mode,
) -> Result<Summary, ProjectionError> {
    let name = scope.effect.name();
    let mut plan = Plan::decode(records, scope.effect.needs_versions());
    let mut tx = connection.begin_with(sql::BEGIN).await?;

    // Before anything else is read: who comes second sees what the first one did.
    let seen = last_seen::lock(&mut tx, name, scope.epoch, &plan.versioned()).await?;
    plan.set_last_seen(seen);
    let quarantined = dead_letter::lock_quarantines(&mut tx, name, scope.epoch, &plan.all()).await?;
    plan.set_quarantined(quarantined);
    let new = last_seen::record_ids(&mut tx, name, scope.epoch, plan.unversioned()).await?;

    let candidates = plan.decide(scope.start, new);
    let effects = match mode {
        Mode::Together => together(&mut tx, scope, &candidates).await?,
        Mode::OneByOne => one_by_one(&mut tx, scope, &candidates).await?,
    };
    plan.set_effects(effects);

    last_seen::raise(&mut tx, name, scope.epoch, &plan.aggregates).await?;
    dead_letter::keep(&mut tx, name, scope.epoch, &plan).await?;
    progress::save(&mut tx, name, scope.epoch, &plan.progress()).await?;
    tx.commit().await?;
    Ok(plan.summary())
}

async fn together(tx: &mut PgConnection, scope: Scope<'_>, candidates: &[Event]) -> Result<Vec<Effected>, ProjectionError> {
    if candidates.is_empty() {
        return Ok(Vec::new());
    }
    let effects = scope.effect.apply(tx, scope.epoch, candidates).await?;
    if effects.len() != candidates.len() {
        return Err(ProjectionError::fatal("BUG: the effect did not answer for every event"));
    }
    Ok(effects)
}

async fn one_by_one(tx: &mut PgConnection, scope: Scope<'_>, candidates: &[Event]) -> Result<Vec<Effected>, ProjectionError> {
    let mut effects = Vec::with_capacity(candidates.len());
    let mut standing = Standing::default();
    for event in candidates {
        if standing.holds(event) {
            effects.push(Effected::Behind);
            continue;
        }
        sqlx::query(sql::SAVEPOINT).execute(&mut *tx).await?;
        let effect = match isolated(tx, scope, event).await {
            Ok(effect) => effect,
            Err(error) if error.class() == Class::Poison => {
                sqlx::query(sql::ROLLBACK_TO).execute(&mut *tx).await?;
                sqlx::query(sql::RELEASE).execute(&mut *tx).await?;
                Effected::Refused(chain(&error))
            }
            Err(error) => return Err(error),
        };
        if !matches!(effect, Effected::Applied | Effected::Duplicate) {
            standing.add(event);
        }
        effects.push(effect);
    }
    Ok(effects)
}

/// One event, with every constraint checked and the savepoint released.
async fn isolated(tx: &mut PgConnection, scope: Scope<'_>, event: &Event) -> Result<Effected, ProjectionError> {
    let mut effects = scope.effect.apply(tx, scope.epoch, std::slice::from_ref(event)).await?;
    sqlx::query(sql::CHECK_CONSTRAINTS).execute(&mut *tx).await?;
    sqlx::query(sql::RELEASE).execute(&mut *tx).await?;
    effects.pop().ok_or_else(|| ProjectionError::fatal("BUG: the effect gave no answer"))
}
