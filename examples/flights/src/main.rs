//! A year of flights through the whole chain: CSV → event store and outbox → Kafka → two read models in PostgreSQL.
//!
//! Every aircraft is an aggregate; its flights are scheduled, depart, arrive or are cancelled. The figures at the end are
//! read from the read models, and `check/check.py` computes the same ones straight from the CSV.

mod aircraft;
mod consumer;
mod data;
mod events;
mod figures;
mod kafka;
mod memory;
mod run;
mod totals;
mod watch;
mod writer;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// Flights through Tracium.
#[derive(Debug, Parser)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Appends the flights of a CSV, publishes them, folds them, and prints the figures of the read models.
    ///
    /// It runs the migrations, makes its topic and its database schema `flights`, and embeds the relay; the consumer is a
    /// process of its own. Run again over the same data it changes nothing: event ids follow from the flights.
    ///
    /// Exit codes: 0 fine, 1 something is wrong with the result, 2 usage, 3 PostgreSQL or Kafka cannot be reached.
    Run(RunArgs),
    /// The consumer, as `run` starts it. Ends when its standard input does.
    #[command(hide = true)]
    Consume(ServiceArgs),
}

/// Where the services are.
#[derive(Debug, Clone, Args)]
pub(crate) struct ServiceArgs {
    /// A database whose owner may create roles. Read from the environment too, and so it is not in the process list.
    #[arg(long, env = "DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub(crate) database_url: String,
    /// Kafka, several brokers with commas.
    #[arg(long, env = "TRACIUM_KAFKA", value_name = "HOST:PORT")]
    pub(crate) kafka: String,
    /// The topic of the aircraft, made if it is not there. Consumer groups are named after it.
    #[arg(long, default_value = "flights.aircraft")]
    pub(crate) topic: String,
}

/// What to run.
#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) services: ServiceArgs,
    /// The flights, as `dev/flights-data` prints their place; may be gzipped.
    #[arg(long, value_name = "CSV[.gz]")]
    pub(crate) data: PathBuf,
    /// Connections that append at the same time.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) writers: u32,
    /// Kill the consumer (SIGKILL) that many times on the way, evenly over its progress.
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub(crate) kill_consumer: u32,
    /// At the end forget the consumer's offsets, read the whole topic again and see that no table changes.
    #[arg(long)]
    pub(crate) again: bool,
    /// Print one JSON object as the last line instead of text.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A service that does not answer: exit code 3.
#[derive(Debug)]
pub(crate) struct Unreachable(pub(crate) String);

impl std::fmt::Display for Unreachable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = EnvFilter::try_from_env("TRACIUM_LOG").unwrap_or_else(|_| EnvFilter::new("warn,example_flights=info"));
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_env_filter(filter).with_target(false).init();
    let result = match cli.command {
        Command::Consume(services) => consumer::consume(services).await,
        Command::Run(args) => run::run(&args).await.and_then(|report| {
            let text = if args.json { report.json().to_string() } else { report.text() };
            writeln!(std::io::stdout(), "{text}")?;
            report.verdict()
        }),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::from(if error.downcast_ref::<Unreachable>().is_some() { 3 } else { 1 })
        }
    }
}
