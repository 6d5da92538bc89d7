//! The consumer: a process of its own, so that it can be killed.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use sqlx::PgPool;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracium_consumer::{Consumer, ConsumerOptions, IntoPostgres, KafkaOptions, Projection, Start, Subscription};
use tracium_core::{SqlIdentifier, View};

use crate::ServiceArgs;
use crate::aircraft::AircraftView;
use crate::totals::CarrierMonths;

/// The read models' schema.
pub(crate) const SCHEMA: &str = "flights";
/// The projections.
pub(crate) const PROJECTIONS: [&str; 2] = [AircraftView::NAME, "carrier_month"];

/// A killed consumer's partitions go to the next one after this long.
const SESSION: Duration = Duration::from_secs(6);

/// The consumer groups of the projections on a topic.
pub(crate) fn groups(topic: &str) -> [String; 2] {
    PROJECTIONS.map(|projection| format!("{topic}.{projection}.e1"))
}

/// Runs both projections until standard input closes, SIGTERM or Ctrl-C.
pub(crate) async fn consume(services: ServiceArgs) -> Result<()> {
    let stop = CancellationToken::new();
    let token = stop.clone();
    // A thread of its own: a read that never ends would hold up the end of the runtime.
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        token.cancel();
    });
    let (token, mut term) = (stop.clone(), signal(SignalKind::terminate())?);
    tokio::spawn(async move {
        tokio::select! { _ = term.recv() => {} _ = tokio::signal::ctrl_c() => {} }
        token.cancel();
    });

    let pool = PgPool::connect_lazy(&services.database_url).context("--database-url")?;
    let options = ConsumerOptions {
        kafka: KafkaOptions { bootstrap_servers: services.kafka, ..KafkaOptions::default() },
        group_prefix: Some(services.topic.clone()),
        session_timeout: SESSION,
        batch_size: 1000,
        ..ConsumerOptions::default()
    };
    let topic = Subscription::to([services.topic], Start::Earliest)?;
    Consumer::new(options)
        .with(AircraftView.into_postgres(pool.clone()).in_schema(SqlIdentifier::new(SCHEMA)?), topic.clone())?
        .with(CarrierMonths.on_postgres(pool), topic)?
        .run(stop)
        .await?;
    Ok(())
}

/// The consumer's process. It is killed on drop, and ends by itself when this process is gone.
pub(crate) struct Process {
    child: Child,
    services: ServiceArgs,
}

impl Process {
    pub(crate) fn start(services: &ServiceArgs) -> Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            .args(["consume", "--topic", &services.topic])
            // not an argument: a password would be in the process list
            .env("DATABASE_URL", &services.database_url)
            .env("TRACIUM_KAFKA", &services.kafka)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            // Ctrl-C on the terminal is the parent's to handle
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .context("cannot start the consumer")?;
        Ok(Self { child, services: services.clone() })
    }

    /// Its process id, while it runs.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// An error if it ended by itself.
    pub(crate) fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => bail!("the consumer ended by itself ({status}); its reason stands above"),
        }
    }

    /// SIGKILL, and another one.
    pub(crate) async fn kill_and_restart(&mut self) -> Result<()> {
        self.child.kill().await.context("cannot kill the consumer")?;
        *self = Self::start(&self.services)?;
        Ok(())
    }

    /// Lets it drain and commit.
    pub(crate) async fn stop(mut self) -> Result<()> {
        drop(self.child.stdin.take());
        let ended = tokio::time::timeout(Duration::from_secs(15), self.child.wait()).await;
        let status: ExitStatus = ended.context("the consumer did not stop within 15 s")??;
        ensure!(status.success(), "the consumer stopped with {status}; its reason stands above");
        Ok(())
    }
}
