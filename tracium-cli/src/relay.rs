//! `tracium relay run`: the relay as a process.

mod http;

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::anyhow;
use clap::{Args, Subcommand};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::info;
use tracium_core::{Class, Classify};
use tracium_relay::{KafkaPublisher, Relay, RelayError};

use crate::config::{ConfigArgs, DatabaseArgs, KafkaArgs, Origins, Settings, Sourced};
use crate::connect;
use crate::failure::{Failure, Outcome};

/// Carries the outbox to Kafka.
#[derive(Debug, Subcommand)]
pub(crate) enum RelayCommand {
    Run(RelayRunArgs),
}

/// Runs a relay until SIGTERM or Ctrl-C. Start as many as you like: they share the shards.
///
/// A stopping relay finishes what Kafka has acknowledged and gives its shards back, within seconds and without a
/// duplicate. After a crash another relay takes over when the lease has expired (relay.lease_ttl, 30s).
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  DATABASE_URL=postgres://relay@localhost/shop TRACIUM_KAFKA=localhost:9092 tracium relay run --http 127.0.0.1:9100
  tracium relay run --config tracium.toml --set relay.batch_size=1000")]
pub(crate) struct RelayRunArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    kafka: KafkaArgs,
    /// Serve /metrics (Prometheus), /livez and /readyz there; port 0 takes a free one and logs it.
    #[arg(long, value_name = "ADDR")]
    http: Option<SocketAddr>,
    /// Stop when standard input closes: for a parent that may be killed.
    #[arg(long, hide = true)]
    until_stdin_closes: bool,
}

pub(crate) async fn run(config: &ConfigArgs, args: &RelayRunArgs) -> Outcome {
    let stop = stop_signal(args.until_stdin_closes)?;
    let settings = Settings::load(config, Some(&args.database), Some(&args.kafka))?;
    let url = settings.database()?.clone();
    let options = connect::options(&url)?;
    // Both at once, before anything is taken: which of the two is missing must be clear.
    let (database, broker) =
        tokio::join!(connect::migrated_database(&url), connect::broker(&settings.relay.kafka, &settings.origins));
    drop(database?);
    broker?;
    connect::warn_of_unverified(&options);

    let failure = |error| relay_failure(error, &url, &settings.origins);
    let publisher = KafkaPublisher::new(&settings.relay.kafka).map_err(|error| failure(error.into()))?;
    let relay = Relay::new(settings.relay.clone(), options, Arc::new(publisher)).map_err(Failure::usage)?;
    let server = match args.http {
        Some(address) => Some(http::Server::bind(address, relay.metrics(), stop.clone()).await?),
        None => None,
    };
    let result = relay.run(stop.clone()).await;
    stop.cancel();
    if let Some(server) = server {
        server.ended().await;
    }
    result.map_err(failure)?;
    info!("relay stopped");
    Ok(())
}

fn relay_failure(error: RelayError, url: &Sourced<String>, origins: &Origins) -> Failure {
    match error {
        RelayError::Publisher(publisher) => connect::broker_failure(publisher.error, origins),
        RelayError::Schema(error) => connect::schema_failure(error, url),
        RelayError::Options(_) => Failure::usage(error),
        error if error.class() == Class::Transient => Failure::unreachable(error),
        error => Failure::usage(error),
    }
}

/// Cancelled by SIGTERM or Ctrl-C. The second one ends the process at once.
pub(crate) fn stop_signal(until_stdin_closes: bool) -> Outcome<CancellationToken> {
    let stop = CancellationToken::new();
    let listen = |kind| signal(kind).map_err(|e| Failure::found(anyhow!(e).context("cannot listen for signals")));
    let (mut term, mut int) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    let token = stop.clone();
    tokio::spawn(async move {
        for first in [true, false] {
            let name = tokio::select! { _ = term.recv() => "SIGTERM", _ = int.recv() => "SIGINT" };
            if !first {
                std::process::exit(130);
            }
            info!(signal = name, "stopping");
            token.cancel();
        }
    });
    if until_stdin_closes {
        let token = stop.clone();
        // A thread of its own: a read that never ends would hold up the runtime's shutdown.
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
            token.cancel();
        });
    }
    Ok(stop)
}
