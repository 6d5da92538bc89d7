//! The whole run: set up, append, publish and fold at the same time, then read the figures.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde_json::{Value, json};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracium_core::schema;
use tracium_relay::{KafkaPublisher, Relay, RelayError, RelayOptions};

use crate::consumer::{self, Process, SCHEMA};
use crate::events::{AIRCRAFT, aircraft};
use crate::figures::{self, Figures};
use crate::memory::Memory;
use crate::watch::Watch;
use crate::writer::{self, Written};
use crate::{RunArgs, ServiceArgs, Unreachable, data, kafka};

const LOOK: Duration = Duration::from_millis(200);
const REPORT: Duration = Duration::from_secs(5);

/// What happened.
#[derive(Debug)]
pub(crate) struct Report {
    figures: Figures,
    appended: u64,
    repeated: u64,
    kills: u32,
    digest: String,
    again: Option<Again>,
    memory: Memory,
    seconds: f64,
}

/// What a second reading of the whole topic did.
#[derive(Debug)]
struct Again {
    delivered: u64,
    digest: String,
}

impl Report {
    pub(crate) fn json(&self) -> Value {
        let mut json = self.figures.json();
        json["appended"] = json!(self.appended);
        json["repeated"] = json!(self.repeated);
        json["kills"] = json!(self.kills);
        json["digest"] = json!(self.digest);
        json["rss_mib"] = self.memory.json();
        json["seconds"] = json!((self.seconds * 10.0).round() / 10.0);
        if let Some(again) = &self.again {
            json["again"] = json!({"delivered": again.delivered, "changed": again.digest != self.digest});
        }
        json
    }

    pub(crate) fn text(&self) -> String {
        let mut text = self.figures.text();
        text += &format!(
            "{} events appended, {} were there already; {:.1} s; the consumer was killed {} times",
            self.appended, self.repeated, self.seconds, self.kills
        );
        if let Some(again) = &self.again {
            let what = if again.digest == self.digest { "changed nothing" } else { "CHANGED the read models" };
            text += &format!("\nthe whole topic read again, {} deliveries: {what}", again.delivered);
        }
        text
    }

    /// Whether the read models can be believed.
    pub(crate) fn verdict(&self) -> Result<()> {
        self.figures.check()?;
        if let Some(again) = &self.again {
            ensure!(again.digest == self.digest, "reading the topic again changed the read models");
            ensure!(again.delivered > 0, "the topic was not read again");
        }
        Ok(())
    }
}

/// Runs everything.
pub(crate) async fn run(args: &RunArgs) -> Result<Report> {
    tokio::select! {
        report = all(args) => report,
        _ = tokio::signal::ctrl_c() => bail!("interrupted; run it again to go on from there"),
    }
}

async fn all(args: &RunArgs) -> Result<Report> {
    let began = Instant::now();
    let services = &args.services;
    let flights = data::read(&args.data)?;
    let events: u64 = flights.iter().map(|flight| flight.outcome.events()).sum();
    tracing::info!(flights = flights.len(), events, "flights read");
    let pool = prepare(services).await?;
    kafka::ensure_topic(services).await?;

    let stop = CancellationToken::new();
    let _stop_on_drop = stop.clone().drop_guard();
    let mut relay = Some(start_relay(services, stop.clone())?);
    let mut consumer = Process::start(services)?;
    let written = Arc::new(Written::default());
    let mut writing =
        Some(tokio::spawn(writer::append_all(services.database_url.clone(), flights, args.writers, Arc::clone(&written))));

    let mut watch = Watch::new(&pool);
    let (mut kills, mut reported, mut memory) = (0, Instant::now(), Memory::default());
    loop {
        tokio::time::sleep(LOOK).await;
        if let Some(done) = writing.take_if(|w| w.is_finished()) {
            done.await.context("the writers panicked")??;
            tracing::info!(seconds = began.elapsed().as_secs(), "all appended");
        }
        if let Some(ended) = relay.take_if(|r| r.is_finished()) {
            ended.await.context("the relay panicked")?.map_err(relay_failure)?;
            bail!("the relay ended by itself");
        }
        consumer.check()?;
        let appended = written.appended.load(Relaxed) + written.repeated.load(Relaxed);
        let taken = watch.look(appended).await?;
        memory.look(consumer.pid(), taken, 2 * events);
        // Both projections take every event. The k-th kill is due at k / (kills + 1) of that.
        if kills < args.kill_consumer && taken * u64::from(args.kill_consumer + 1) >= 2 * events * u64::from(kills + 1) {
            consumer.kill_and_restart().await?;
            kills += 1;
            tracing::info!(kills, taken, "consumer killed, another started");
        } else if writing.is_none() && kills == args.kill_consumer && watch.caught_up().await? {
            break;
        }
        if reported.elapsed() > REPORT {
            reported = Instant::now();
            tracing::info!(appended, taken, of = 2 * events, "under way");
        }
    }
    consumer.stop().await?;
    let digest = figures::digest(&pool).await?;
    let again = if args.again { Some(read_again(services, &pool).await?) } else { None };
    stop.cancel();
    if let Some(relay) = relay {
        relay.await.context("the relay panicked")?.map_err(relay_failure)?;
    }
    Ok(Report {
        figures: figures::read(&pool).await?,
        appended: written.appended.load(Relaxed),
        repeated: written.repeated.load(Relaxed),
        kills,
        digest,
        again,
        memory,
        seconds: began.elapsed().as_secs_f64(),
    })
}

/// Schema `tracium`, the read models' schema and the topic of the aircraft.
async fn prepare(services: &ServiceArgs) -> Result<PgPool> {
    let options: PgConnectOptions = services.database_url.parse().context("--database-url is no PostgreSQL URL")?;
    let mut connection = PgConnection::connect_with(&options).await.map_err(|error| {
        let place = format!("{}:{}", options.get_host(), options.get_port());
        let refused = error.as_database_error().is_some();
        let error = anyhow!(error);
        if refused {
            return error.context(format!("PostgreSQL at {place} refuses the connection (--database-url)"));
        }
        error.context(Unreachable(format!("PostgreSQL at {place} (--database-url) does not answer; check that it runs")))
    })?;
    schema::migrate(&mut connection, None).await?;
    sqlx::query(AssertSqlSafe(format!("CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))).execute(&mut connection).await?;
    sqlx::query("SELECT tracium.set_route($1, $2)")
        .bind(aircraft()?.as_str())
        .bind(&services.topic)
        .execute(&mut connection)
        .await
        .with_context(|| format!("aggregate type {AIRCRAFT} cannot go to topic {} (--topic)", services.topic))?;
    connection.close().await?;
    Ok(PgPool::connect_lazy_with(options))
}

fn start_relay(services: &ServiceArgs, stop: CancellationToken) -> Result<JoinHandle<Result<(), RelayError>>> {
    let mut options = RelayOptions::default();
    options.kafka.bootstrap_servers.clone_from(&services.kafka);
    let publisher = Arc::new(KafkaPublisher::new(&options.kafka)?);
    let relay = Relay::new(options, services.database_url.parse()?, publisher)?;
    Ok(tokio::spawn(relay.run(stop)))
}

fn relay_failure(error: RelayError) -> anyhow::Error {
    anyhow!(error).context("the relay could not start")
}

/// Reads the whole topic again, as after a loss of all offsets.
async fn read_again(services: &ServiceArgs, pool: &PgPool) -> Result<Again> {
    let groups = consumer::groups(&services.topic);
    kafka::forget(services, &groups).await?;
    tracing::info!("offsets forgotten, reading the whole topic again");
    let mut watch = Watch::new(pool);
    let before = watch.look(0).await?;
    let mut consumer = Process::start(services)?;
    loop {
        tokio::time::sleep(LOOK).await;
        consumer.check()?;
        watch.look(0).await?;
        let mut lag = 0;
        for group in &groups {
            lag += kafka::lag(services, group).await?;
        }
        if lag == 0 {
            break;
        }
    }
    consumer.stop().await?;
    Ok(Again { delivered: watch.look(0).await? - before, digest: figures::digest(pool).await? })
}
