//! One run: start everything, let it flow, stop it in order, gather the evidence.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracium_testkit::history::History;

use super::chaos::{self, Chain, Kills};
use super::evidence::Evidence;
use super::observer::{Observer, Seen};
use super::progress::{self, Progress};
use super::shop::AGGREGATE_TYPE;
use super::verdict::{Run, Verdict, judge};
use super::writers::Shop;
use super::{PARTITIONS, picture};
use crate::connect;
use crate::failure::{Failure, Outcome};
use crate::stage::{Broker, Database};

/// A fault to plant, so that the verdict can be seen to notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Plant {
    /// A row is marked as published that never was.
    Lost,
    /// An event takes effect a second time.
    Double,
    /// A document of the read model is changed.
    Document,
}

/// What to run.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) events: u64,
    pub(super) seed: u64,
    pub(super) started: Instant,
    pub(super) topic: String,
    pub(super) group_prefix: String,
    pub(super) plant: Option<Plant>,
    pub(super) kills: bool,
    pub(super) patience: Duration,
}

fn broken(error: anyhow::Error) -> Failure {
    Failure::found(error.context("the demo could not be played"))
}

/// Plays a run.
pub(super) async fn play(plan: &Plan, broker: &mut Broker, database: &Database) -> Outcome<Verdict> {
    let logs = tempfile::Builder::new().prefix("tracium-demo-").tempdir().map_err(|e| broken(anyhow!(e)))?;
    let verdict = play_with_logs(plan, broker, database, logs.path()).await;
    if !verdict.as_ref().is_ok_and(|v| v.summary.ok) {
        crate::out::note(format!("logs of relays and consumer are kept in {}", logs.keep().display()));
    }
    verdict
}

async fn play_with_logs(plan: &Plan, broker: &mut Broker, database: &Database, logs: &std::path::Path) -> Outcome<Verdict> {
    broker.create_topic(&plan.topic, PARTITIONS).await?;
    for projection in ["orders", "counts"] {
        broker.forget_group(format!("{}.{projection}.e1", plan.group_prefix));
    }
    let options = connect::options(&database.url)?;
    let pool = PgPoolOptions::new().max_connections(12).connect_lazy_with(options);
    sqlx::query("SELECT tracium.set_route($1, $2)")
        .bind(AGGREGATE_TYPE)
        .bind(&plan.topic)
        .execute(&pool)
        .await
        .map_err(|e| broken(anyhow!(e)))?;

    let history = Arc::new(Mutex::new(History::new()));
    let seen = Arc::new(Seen::default());
    let shop = Arc::new(Shop::new(pool.clone(), Arc::clone(&history), plan.events, plan.plant == Some(Plant::Lost)));
    let observer =
        Observer::start(&broker.options, &plan.topic, PARTITIONS, Arc::clone(&history), Arc::clone(&seen)).map_err(broken)?;

    // Real brokers take no session timeout below 6 s. The mock holds the first member of a group back for 3 s, and throws
    // it out, without a word, if its session is over by then.
    let session = Duration::from_millis(if broker.is_mock() { 3500 } else { 6000 });
    let (relays, consumer) =
        chaos::specs(&database.url.value, &broker.options, broker.is_mock(), &plan.topic, &plan.group_prefix, session, logs);
    let (kills_sender, kills) = watch::channel(Kills::default());
    let kill_plan = if plan.kills { chaos::plan(plan.events, relays.len(), plan.seed) } else { Vec::new() };
    let chain = Chain::start(relays, consumer, kill_plan, kills_sender)?;

    let done = CancellationToken::new();
    let (sender, progress) = watch::channel(Progress::default());
    let mut troubles: Vec<String> = Vec::new();
    let mut chain = {
        // All in this one future: dropping it ends the children, whatever else happens.
        let looking = progress::watch(pool.clone(), Arc::clone(&shop), Arc::clone(&seen), sender, done.clone());
        let drawing = picture::draw(plan.events, plan.seed, plan.started, progress.clone(), kills.clone(), done.clone());
        let killing = chain.run(progress.clone(), done.clone());
        let flowing = flow(plan, &shop, progress.clone());
        tokio::pin!(looking, drawing, killing, flowing);
        let mut drawn = false;
        loop {
            tokio::select! {
                flowed = &mut flowing => {
                    troubles.extend(flowed.map_err(broken)?);
                    break;
                }
                ended = &mut killing => {
                    ended?;
                    return Err(broken(anyhow!("the killer ended early")));
                }
                ended = &mut looking => ended.map_err(broken)?,
                () = &mut drawing, if !drawn => drawn = true,
            }
        }
        done.cancel();
        if !drawn {
            drawing.await;
        }
        looking.await.map_err(broken)?;
        killing.await?
    };

    troubles.extend(chain.stop_relays().await);
    if let Err(error) = observer.finish().await {
        troubles.push(format!("{error:#}"));
    }
    troubles.extend(chain.stop_consumer().await);
    if let Some(plant) = plan.plant {
        spoil_read_models(plant, &pool).await.map_err(|e| broken(anyhow!(e)))?;
    }

    let evidence = Evidence::gather(&mut database.connect().await?).await.map_err(broken)?;
    let report = history.lock().unwrap_or_else(PoisonError::into_inner).report();
    let (kills, progress) = (kills.borrow().clone(), progress.borrow().clone());
    let run = Run {
        seed: plan.seed,
        seconds: plan.started.elapsed().as_secs_f64(),
        events: plan.events,
        relay_kills: kills.relay,
        consumer_kills: kills.consumer,
        planned_kills: kills.planned,
        conflicts: shop.conflicts.load(Relaxed),
        ignored: progress.ignored,
        troubles,
    };
    pool.close().await;
    Ok(judge(&run, &report, &evidence))
}

/// Writes all events and waits until all have taken effect, or nothing moves any more: that is told, and judged.
async fn flow(plan: &Plan, shop: &Arc<Shop>, progress: watch::Receiver<Progress>) -> anyhow::Result<Option<String>> {
    let stop = CancellationToken::new();
    let writing = shop.run(plan.seed, &progress, &stop);
    let mut looking = progress.clone();
    tokio::pin!(writing);
    let still = tokio::select! {
        written = &mut writing => { written?; false }
        seen = looking.wait_for(|p| p.still > plan.patience) => seen.is_ok(),
    };
    if still {
        stop.cancel();
        writing.await?;
        return Ok(Some(format!("nothing moved for {:?} while writing: {}", plan.patience, progress.borrow().describe())));
    }
    let mut looking = progress.clone();
    let all = plan.events - u64::from(plan.plant == Some(Plant::Lost));
    let end = looking.wait_for(|p| (p.pending == 0 && p.applied >= all) || p.still > plan.patience).await?.clone();
    if end.pending == 0 && end.applied >= all {
        return Ok(None);
    }
    Ok(Some(format!("the chain did not catch up and nothing moved for {:?}: {}", plan.patience, end.describe())))
}

async fn spoil_read_models(plant: Plant, pool: &PgPool) -> Result<(), sqlx::Error> {
    let statement = match plant {
        Plant::Lost => return Ok(()),
        Plant::Double => {
            "UPDATE public.effect SET times = times + 1 WHERE event_id = (SELECT min(event_id::text)::uuid FROM public.effect)"
        }
        Plant::Document => {
            "UPDATE public.orders_e1 SET doc = jsonb_set(doc::jsonb, '{total_cents}', '-1') WHERE aggregate_id = (SELECT min(aggregate_id) FROM public.orders_e1)"
        }
    };
    sqlx::query(statement).execute(pool).await?;
    Ok(())
}
