//! The worker: batches from the [`Intake`] to the projection's database, again and again until they are there.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};
use tokio_util::sync::CancellationToken;
use tracium_core::{Backoff, Class, Classify};

use super::intake::Intake;
use super::record::Record;
use crate::batch::{self, Mode, Scope, Summary};
use crate::error::chain;
use crate::{ConsumerError, ConsumerOptions, ProjectionError, sql};

/// A projection's database: one connection, never a pool's, dropped after whatever went wrong on it.
pub(crate) struct Session {
    options: Arc<PgConnectOptions>,
    application: String,
    lock_timeout: Duration,
    statement_timeout: Duration,
    connection: Option<PgConnection>,
}

impl Session {
    pub(crate) fn new(options: Arc<PgConnectOptions>, projection: &str, timeouts: &ConsumerOptions) -> Self {
        Self {
            options,
            application: format!("tracium-consumer {projection}"),
            lock_timeout: timeouts.lock_timeout,
            statement_timeout: timeouts.batch_deadline,
            connection: None,
        }
    }

    /// The connection, new if there is none.
    pub(crate) async fn connection(&mut self) -> Result<&mut PgConnection, sqlx::Error> {
        if self.connection.is_none() {
            let mut connection = PgConnection::connect_with(&self.options).await?;
            let ms = |duration: Duration| duration.as_millis().max(1).to_string();
            sqlx::query(sql::SET_SESSION)
                .bind(ms(self.lock_timeout))
                .bind(ms(self.statement_timeout))
                .bind(&self.application)
                .execute(&mut connection)
                .await?;
            self.connection = Some(connection);
        }
        self.connection.as_mut().ok_or(sqlx::Error::WorkerCrashed)
    }

    /// Forgets the connection; the server rolls back what was open on it.
    pub(crate) fn discard(&mut self) {
        self.connection = None;
    }

    /// Says good-bye to the server.
    pub(crate) async fn close(&mut self, deadline: Duration) {
        if let Some(connection) = self.connection.take() {
            // the server notices by itself if it did not hear
            let _ = tokio::time::timeout(deadline, connection.close()).await;
        }
    }
}

/// See the module.
pub(crate) struct Worker<'a> {
    pub(crate) scope: Scope<'a>,
    pub(crate) intake: &'a Intake,
    pub(crate) session: Session,
    pub(crate) backoff: Backoff,
    pub(crate) batch_deadline: Duration,
    pub(crate) drain_deadline: Duration,
    pub(crate) stop: CancellationToken,
}

/// How an attempt ended.
enum Ended {
    Committed(Summary),
    Failed(ProjectionError),
    /// The shutdown's deadline passed.
    Abandoned,
}

impl Worker<'_> {
    /// Runs until the stop, the source's failure or an error for good.
    pub(crate) async fn run(&mut self) -> Result<(), ConsumerError> {
        loop {
            let batch = tokio::select! {
                biased;
                () = self.stop.cancelled() => break,
                batch = self.intake.next() => batch?,
            };
            let Some(batch) = batch else { break };
            let done = self.finish(batch).await;
            self.intake.put_down();
            done?;
        }
        self.session.close(Duration::from_secs(1)).await;
        Ok(())
    }

    /// Tries a batch until it is committed, given back or abandoned.
    async fn finish(&mut self, mut batch: Vec<Record>) -> Result<(), ConsumerError> {
        let projection = self.scope.effect.name().to_owned();
        let mut mode = Mode::Together;
        let mut failures = 0_u32;
        loop {
            let intake = self.intake;
            // nothing left: all of its partitions were given back meanwhile
            let Some(in_flight) = intake.begin(&mut batch) else { return Ok(()) };
            let error = match self.attempt(&batch, mode).await {
                Ended::Committed(summary) => {
                    // Only here: the effect is committed. What is confirmed may be committed to Kafka.
                    intake.confirm(&batch);
                    report(&projection, &summary);
                    return Ok(());
                }
                Ended::Abandoned => {
                    self.session.discard();
                    tracing::warn!(projection, "stopped before the batch in flight was done; it will be delivered again");
                    return Ok(());
                }
                Ended::Failed(error) => error,
            };
            drop(in_flight);
            self.session.discard();
            match error.class() {
                Class::Transient => {
                    failures = failures.saturating_add(1);
                    let pause = self.backoff.delay(failures);
                    tracing::warn!(projection, failures, ?pause, error = chain(&error), "batch failed; it is tried again");
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = intake.released() => {}
                        () = self.stop.cancelled() => return Ok(()),
                    }
                }
                Class::Poison if mode == Mode::Together => {
                    tracing::warn!(projection, error = chain(&error), "batch holds poison; it is tried event by event");
                    mode = Mode::OneByOne;
                }
                Class::Poison | Class::Fatal => return Err(ConsumerError::Projection { projection, source: error }),
            }
        }
    }

    async fn attempt(&mut self, batch: &[Record], mode: Mode) -> Ended {
        let scope = self.scope;
        let session = &mut self.session;
        let deadline = self.batch_deadline;
        let transaction = async {
            let connection = session.connection().await?;
            batch::apply(connection, scope, batch, mode).await
        };
        let drained = async {
            self.stop.cancelled().await;
            tokio::time::sleep(self.drain_deadline).await;
        };
        tokio::select! {
            biased;
            result = tokio::time::timeout(deadline, transaction) => match result {
                Ok(Ok(summary)) => Ended::Committed(summary),
                Ok(Err(error)) => Ended::Failed(error),
                Err(_) => Ended::Failed(ProjectionError::transient(format!("the batch was not done within {deadline:?}"))),
            },
            () = drained => Ended::Abandoned,
        }
    }
}

fn report(projection: &str, summary: &Summary) {
    for (aggregate, reason, cause) in &summary.quarantined {
        tracing::error!(projection, %aggregate, reason = reason.as_str(), cause, "aggregate stands still; the others go on");
    }
    if summary.dead > 0 {
        tracing::error!(projection, events = summary.dead, "events went to the dead letters");
    }
    let Summary { applied, duplicates, parked, .. } = summary;
    tracing::debug!(projection, applied, duplicates, parked, "batch committed");
}
