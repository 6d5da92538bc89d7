//! `tracium bench`: how fast relay, consumer and append are here, and what an event costs.
//!
//! Relay and consumer are measured as children of the same binary, so that CPU and memory are theirs alone; the clock
//! runs from the first event that is through to the last, so a process's start is not in the rate.

mod append;
mod consume;
mod floor;
mod load;
mod measure;
mod relay;

use std::path::Path;

use anyhow::anyhow;
use clap::{Args, Subcommand};
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use tracium_kafka::KafkaOptions;

use crate::config::{ConfigArgs, DatabaseArgs, KafkaArgs, Settings};
use crate::failure::{Failure, Outcome};
use crate::stage::{Broker, Database, Spec, short_id};
use crate::{out, relay::stop_signal};
pub(crate) use consume::{BenchConsumerArgs, run_consumer};

const PARTITIONS: i32 = 12;

/// Measures relay, consumer or append.
///
/// With DATABASE_URL and TRACIUM_KAFKA (or the flags) on your services, in a database tracium_bench_… and a topic
/// tracium-bench-… of its own that are removed at the end. Without them on a throw-away PostgreSQL and librdkafka's mock
/// broker in this process: good for a look, but the mock is no Kafka.
///
/// The figures are of this machine, with everything on it: compare only runs of one machine with one another.
#[derive(Debug, Subcommand)]
#[command(after_help = "\
Examples:
  tracium bench relay
  tracium bench append --events 50000 --writers 16 --json
  DATABASE_URL=postgres://owner@db/postgres TRACIUM_KAFKA=kafka:9092 tracium bench consume --events 500000 --json
  tracium bench relay --set relay.batch_size=2000 --set relay.kafka.properties.compression.type=zstd")]
pub(crate) enum BenchCommand {
    Relay(RelayArgs),
    Consume(ConsumeArgs),
    Append(AppendArgs),
    #[command(hide = true)]
    Consumer(BenchConsumerArgs),
}

/// Times a relay over a backlog: outbox → topic.
///
/// Appends the events first, through tracium.append, then starts one relay and waits until every row is marked.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  tracium bench relay --events 200000 --json | jq '{events_per_s, cpu_us_per_event, peak_rss_mb}'
  tracium bench relay --events 200000 --floor --json | jq '{events_per_s, of_floor, floor}'")]
pub(crate) struct RelayArgs {
    #[command(flatten)]
    common: Common,
    /// Measure the SQL floor too, in the same tables: claiming and marking as many rows without a broker, as a loop over
    /// one connection and over one connection a shard.
    #[arg(long)]
    floor: bool,
    #[command(flatten)]
    kafka: KafkaArgs,
}

/// Times a consumer over a full topic: topic → View in PostgreSQL.
///
/// Produces the events first, ten versions of each aggregate spread over the topic, then starts one consumer and waits
/// until every event has taken effect.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  tracium bench consume --events 200000 --json | jq '{events_per_s, cpu_us_per_event, peak_rss_mb}'")]
pub(crate) struct ConsumeArgs {
    #[command(flatten)]
    common: Common,
    #[command(flatten)]
    kafka: KafkaArgs,
}

/// Times writers: EventStore::append, one transaction after another in each.
///
/// CPU and memory are this process's, not the server's.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tracium bench append --events 20000 --json
  tracium bench append --writers 32 --per-transaction 5")]
pub(crate) struct AppendArgs {
    #[command(flatten)]
    common: Common,
    /// Writers side by side, each with a connection and aggregates of its own.
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    writers: u32,
    /// Events in a transaction, all of one aggregate.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    per_transaction: u32,
}

#[derive(Debug, Args)]
struct Common {
    /// How many events.
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(100..=100_000_000))]
    events: u64,
    #[command(flatten)]
    database: DatabaseArgs,
    /// One JSON object as the last line of stdout.
    #[arg(long)]
    json: bool,
}

/// The contract's line, and what the figures depend on.
#[derive(Debug, Serialize)]
struct Report {
    bench: &'static str,
    events: u64,
    seconds: f64,
    events_per_s: f64,
    cpu_us_per_event: f64,
    peak_rss_mb: f64,
    aggregates: u64,
    payload_bytes: u64,
    database: String,
    /// The relay's rate as a part of `floor.sql_eps`.
    #[serde(skip_serializing_if = "Option::is_none")]
    of_floor: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    floor: Option<floor::Floor>,
    #[serde(skip_serializing_if = "Option::is_none")]
    broker: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    topic: Option<String>,
}

pub(crate) async fn run(config: &ConfigArgs, command: &BenchCommand) -> Outcome {
    let (common, kafka) = match command {
        BenchCommand::Relay(args) => (&args.common, Some(&args.kafka)),
        BenchCommand::Consume(args) => (&args.common, Some(&args.kafka)),
        BenchCommand::Append(args) => (&args.common, None),
        BenchCommand::Consumer(args) => return run_consumer(config, args).await,
    };
    let stop = stop_signal(false)?;
    let settings = Settings::load(config, Some(&common.database), kafka)?;
    if matches!(command, BenchCommand::Consume(_)) && settings.kafka().is_none() {
        Broker::refuse_what_the_mock_cannot_hold(common.events, PARTITIONS, load::EVENT_BYTES)?;
    }
    let broker = match kafka {
        Some(_) => Some(Broker::make(&settings).await?),
        None => None,
    };
    let database = Database::make(settings.database().ok(), "bench", None).await?;
    let mut bench = Bench {
        config: config.clone(),
        events: common.events,
        batch_size: settings.relay.batch_size,
        topic: format!("tracium-bench-{}", short_id()),
        logs: tempfile::Builder::new().prefix("tracium-bench-").tempdir().map_err(|e| failed(anyhow!(e)))?,
        database,
        broker,
    };
    let measured = measure(&mut bench, command, &stop).await;
    let Bench { database, broker, logs, .. } = bench;
    if measured.is_err() && !stop.is_cancelled() {
        out::note(format!("logs are kept in {}", logs.keep().display()));
    }
    let removed = (
        database.remove().await,
        match broker {
            Some(broker) => broker.remove().await,
            None => Ok(()),
        },
    );
    report(&measured?, common.json);
    removed.0.and(removed.1)
}

async fn measure(bench: &mut Bench, command: &BenchCommand, stop: &CancellationToken) -> Outcome<Report> {
    let measuring = async {
        match command {
            BenchCommand::Relay(args) => relay::run(bench, args.floor).await,
            BenchCommand::Consume(_) => consume::run(bench).await,
            BenchCommand::Append(args) => append::run(bench, args.writers, args.per_transaction).await,
            BenchCommand::Consumer(_) => unreachable!("BUG: it returned above"),
        }
    };
    tokio::select! {
        biased;
        () = stop.cancelled() => Err(Failure::found(anyhow!("interrupted; what was made for the run is removed"))),
        report = measuring => report,
    }
}

/// Where a bench plays.
struct Bench {
    config: ConfigArgs,
    events: u64,
    batch_size: u32,
    topic: String,
    logs: tempfile::TempDir,
    database: Database,
    broker: Option<Broker>,
}

impl Bench {
    /// The broker, with the run's topic made on it.
    async fn make_topic(&mut self) -> Outcome<&mut Broker> {
        let broker = self.broker.as_mut().ok_or_else(|| failed(anyhow!("BUG: a bench without a broker")))?;
        broker.create_topic(&self.topic, PARTITIONS).await?;
        Ok(broker)
    }

    /// A child that reads our settings: those of the environment, `--config` and `--set`.
    fn child(&self, name: &str, args: &[&str], kafka: &KafkaOptions) -> Spec {
        let mut args: Vec<String> = args.iter().map(|a| (*a).to_owned()).collect();
        if let Some(config) = &self.config.config {
            args.extend(["--config".to_owned(), config.display().to_string()]);
        }
        for pair in &self.config.set {
            args.extend(["--set".to_owned(), pair.clone()]);
        }
        // Last, so that it wins over all of them.
        args.extend(["--set".to_owned(), format!("relay.kafka.bootstrap_servers={}", kafka.bootstrap_servers)]);
        Spec {
            name: name.to_owned(),
            args,
            env: vec![("DATABASE_URL".to_owned(), self.database.url.value.clone())],
            keeps_settings: true,
            log: self.log(name),
        }
    }

    fn log(&self, name: &str) -> std::path::PathBuf {
        let directory: &Path = self.logs.path();
        directory.join(format!("{name}.log"))
    }

    fn report(&self, bench: &'static str, figures: &measure::Figures) -> Report {
        let round = |value: f64, places: i32| (value * 10_f64.powi(places)).round() / 10_f64.powi(places);
        Report {
            bench,
            events: self.events,
            seconds: round(figures.seconds, 3),
            events_per_s: round(figures.events_per_s, 1),
            cpu_us_per_event: round(figures.usage.cpu.as_secs_f64() * 1e6 / measure::float(self.events), 2),
            peak_rss_mb: round(measure::float(figures.usage.peak_rss_kib) / 1024.0, 1),
            aggregates: load::aggregates(self.events),
            payload_bytes: load::payload(1).len() as u64,
            of_floor: None,
            floor: None,
            database: self.database.description.clone(),
            broker: self.broker.as_ref().map(|broker| broker.description.clone()),
            topic: self.broker.is_some().then(|| self.topic.clone()),
        }
    }
}

fn failed(error: anyhow::Error) -> Failure {
    Failure::found(error.context("the bench could not be run"))
}

fn report(report: &Report, json: bool) {
    if json {
        out::json(report);
        return;
    }
    let on = report.broker.iter().fold(report.database.clone(), |on, broker| format!("{on}, {broker}"));
    out::line(format!("{}: {} events of {} aggregates, on {on}", report.bench, report.events, report.aggregates));
    out::line(format!("  {:>10.0} events/s  ({:.2} s)", report.events_per_s, report.seconds));
    out::line(format!("  {:>10.2} µs of CPU an event", report.cpu_us_per_event));
    out::line(format!("  {:>10.1} MB of memory at most", report.peak_rss_mb));
    if let (Some(floor), Some(part)) = (&report.floor, report.of_floor) {
        out::line(format!("  {:>9.0}% of the SQL floor, {:.0} rows/s over one connection", part * 100.0, floor.sql_eps));
        out::line(format!("  {:>10.0} rows/s over a connection a shard", floor.sql_parallel_eps));
    }
}
