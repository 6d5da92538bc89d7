//! `tracium`: migrate, relay, status, bench and demo.
//!
//! Exit codes: 0 fine, 1 a check failed or found something, 2 usage or configuration, 3 a dependency is unreachable.

mod bench;
mod config;
mod config_show;
mod connect;
mod demo;
mod failure;
mod migrate;
mod out;
mod outbox;
mod redact;
mod relay;
mod stage;
mod status;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

use config::ConfigArgs;
use failure::{Failure, Outcome};

/// Rows and messages are many small allocations on several threads (docs/performance.md).
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Events from one PostgreSQL transaction to Kafka and into read models.
///
/// A service appends events in its own transaction; the relay carries them to Kafka; consumers turn them into read
/// models, each event taking effect exactly once.
///
/// See all of it at once, with no service running:   tracium demo
#[derive(Debug, Parser)]
#[command(name = "tracium", version, max_term_width = 110, propagate_version = true, after_help = AFTER_HELP)]
struct Cli {
    #[command(flatten)]
    config: ConfigArgs,
    #[command(subcommand)]
    command: Command,
}

const AFTER_HELP: &str = "\
Settings: flags > environment (TRACIUM_RELAY__BATCH_SIZE, DATABASE_URL, TRACIUM_KAFKA; …_FILE reads a file) >
--config tracium.toml > default. Unknown keys are errors. Logs go to stderr, as TRACIUM_LOG says (info).
Exit codes: 0 fine, 1 a check failed, 2 usage or configuration, 3 a dependency is unreachable.";

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::DemoArgs),
    #[command(subcommand)]
    Bench(bench::BenchCommand),
    Migrate(migrate::MigrateArgs),
    #[command(subcommand)]
    Relay(relay::RelayCommand),
    Status(status::StatusArgs),
    #[command(subcommand)]
    Outbox(outbox::OutboxCommand),
    #[command(subcommand)]
    Config(config_show::ConfigCommand),
    #[command(hide = true)]
    DemoConsumer(demo::consumer::DemoConsumerArgs),
}

fn main() -> ExitCode {
    // clap ends with 2 on wrong usage and with 0 after --help and --version.
    let cli = Cli::parse();
    start_logging();
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return report(&Failure::found(error)),
    };
    let outcome = runtime.block_on(run(cli));
    // A blocked look-up of a dead host's name must not keep a finished command.
    runtime.shutdown_background();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => report(&failure),
    }
}

async fn run(cli: Cli) -> Outcome {
    match cli.command {
        Command::Bench(command) => bench::run(&cli.config, &command).await,
        Command::Demo(args) => demo::run(&cli.config, &args).await,
        Command::DemoConsumer(args) => demo::consumer::run(&cli.config, &args).await,
        Command::Config(config_show::ConfigCommand::Show(args)) => config_show::run(&cli.config, &args),
        Command::Migrate(args) => migrate::run(&cli.config, &args).await,
        Command::Relay(relay::RelayCommand::Run(args)) => relay::run(&cli.config, &args).await,
        Command::Status(args) => status::run(&cli.config, &args).await,
        Command::Outbox(outbox::OutboxCommand::Stats(args)) => outbox::stats(&cli.config, &args).await,
    }
}

fn report(failure: &Failure) -> ExitCode {
    out::note(failure.render());
    failure.exit_code()
}

fn start_logging() {
    let filter =
        EnvFilter::try_from_env("TRACIUM_LOG").unwrap_or_else(|_| EnvFilter::new("info,librdkafka=warn,rdkafka=warn,sqlx=warn"));
    let ansi = std::io::IsTerminal::is_terminal(&std::io::stderr());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| out::LogWriter).with_ansi(ansi).init();
}
