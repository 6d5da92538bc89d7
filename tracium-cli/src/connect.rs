//! Reaching PostgreSQL and Kafka within a bounded time, or saying which setting named what cannot be reached.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::anyhow;
use rdkafka::client::ClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::error::KafkaError;
use rdkafka::producer::{BaseProducer, Producer, ProducerContext};
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};
use tracium_consumer::ConsumerError;
use tracium_core::schema::{self, Installed, SchemaError};
use tracium_core::{Class, Classify};
use tracium_relay::KafkaOptions;

use crate::config::Sourced;
use crate::failure::{Failure, Outcome};

/// How long an answer may take before a service counts as unreachable.
const DEADLINE: Duration = Duration::from_secs(8);

/// The connect options of a URL, without having reached anything.
pub(crate) fn options(url: &Sourced<String>) -> Outcome<PgConnectOptions> {
    let options: Result<PgConnectOptions, sqlx::Error> = url.value.parse();
    if !(url.value.starts_with("postgres://") || url.value.starts_with("postgresql://")) {
        return Err(Failure::usage(anyhow!("{} is not a PostgreSQL URL", url.origin)).way_out(URL_FORM));
    }
    let options = options
        .map_err(|e| Failure::usage(anyhow!(e).context(format!("{} is not a PostgreSQL URL", url.origin))).way_out(URL_FORM))?;
    Ok(options.application_name("tracium"))
}

const URL_FORM: &str = "postgres://user@host:port/database";

/// A connection to the database.
pub(crate) async fn database(url: &Sourced<String>) -> Outcome<PgConnection> {
    let options = options(url)?;
    let place = format!("PostgreSQL at {}:{} (named by {})", options.get_host(), options.get_port(), url.origin);
    let error = match tokio::time::timeout(DEADLINE, PgConnection::connect_with(&options)).await {
        Ok(Ok(connection)) => return Ok(connection),
        Ok(Err(error)) => error,
        Err(_) => {
            return Err(Failure::unreachable(anyhow!("no answer within {DEADLINE:?}").context(format!("cannot reach {place}")))
                .way_out("check the host, the port and firewalls between"));
        }
    };
    let sqlstate = error.as_database_error().and_then(|e| e.code()).map(|code| code.into_owned());
    Err(match sqlstate.as_deref() {
        // Starting, stopping, no connection left: it is there and cannot serve us.
        Some("57P01" | "57P02" | "57P03" | "53300") => {
            Failure::unreachable(anyhow!(error).context(format!("{place} takes no connection")))
                .way_out("try again when it is up")
        }
        Some("28000" | "28P01") => Failure::usage(anyhow!(error).context(format!("{place} refuses the login")))
            .way_out(format!("check user and password in {}", url.origin)),
        Some("3D000") => Failure::usage(anyhow!(error).context(format!("{place} has no such database"))).way_out(format!(
            "createdb {}, or name another in {}",
            options.get_database().unwrap_or("…"),
            url.origin
        )),
        Some(_) => Failure::usage(anyhow!(error).context(format!("{place} refuses the connection"))),
        None => Failure::unreachable(anyhow!(error).context(format!("cannot reach {place}")))
            .way_out(format!("check that the server runs and that {} names it", url.origin)),
    })
}

/// A connection to a database whose schema serves this binary.
pub(crate) async fn migrated_database(url: &Sourced<String>) -> Outcome<(PgConnection, Installed)> {
    let mut connection = database(url).await?;
    let installed = schema::check(&mut connection).await.map_err(|error| schema_failure(error, url))?;
    Ok((connection, installed))
}

/// A schema error as an exit code and a way out.
pub(crate) fn schema_failure(error: SchemaError, url: &Sourced<String>) -> Failure {
    let named = format!("the database is the one that {} names", url.origin);
    match error {
        SchemaError::Missing | SchemaError::Older { .. } => Failure::usage(error).way_out(format!("tracium migrate; {named}")),
        SchemaError::Newer { .. } => {
            Failure::usage(error).way_out(format!("install the tracium that migrated it, or a newer one; {named}"))
        }
        SchemaError::Shards(_) => Failure::usage(error).way_out("leave --shards out to keep what is there"),
        SchemaError::ServerTooOld { .. } => Failure::usage(error).way_out(format!("upgrade the server; {named}")),
        SchemaError::Migrate(_) => {
            Failure::usage(error).way_out("log in as the owner of the database; only it may make the schema and the roles")
        }
        _ if error.source_is_io() => Failure::unreachable(error),
        _ => Failure::found(error),
    }
}

/// A consumer's error as an exit code.
pub(crate) fn consumer_failure(error: ConsumerError) -> Failure {
    match error.class() {
        Class::Transient => Failure::unreachable(error),
        _ => Failure::usage(error),
    }
}

trait SourceIsIo {
    fn source_is_io(&self) -> bool;
}

impl SourceIsIo for SchemaError {
    fn source_is_io(&self) -> bool {
        matches!(self, SchemaError::Database(sqlx::Error::Io(_)))
    }
}

/// Remembers why librdkafka cannot connect: the error of the call itself only says that it timed out.
#[derive(Debug, Clone, Default)]
struct Reasons(Arc<Mutex<Option<String>>>);

impl Reasons {
    fn keep(&self, reason: &str) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // "thrd:x:9092/bootstrap: x:9092/bootstrap: Connect to … failed: Connection refused (after 0ms in state CONNECT)"
        let text = reason.rsplit_once("bootstrap: ").map_or(reason, |(_, text)| text);
        kept.get_or_insert_with(|| text.to_owned());
    }
}

impl ClientContext for Reasons {
    fn log(&self, level: RDKafkaLogLevel, _facility: &str, message: &str) {
        if level as i32 <= RDKafkaLogLevel::Error as i32 {
            self.keep(message);
        }
    }

    fn error(&self, error: KafkaError, reason: &str) {
        if !reason.contains("brokers are down") {
            self.keep(&format!("{error}: {reason}"));
        }
    }
}

impl ProducerContext for Reasons {
    type DeliveryOpaque = ();
    fn delivery(&self, _: &rdkafka::producer::DeliveryResult<'_>, (): Self::DeliveryOpaque) {}
}

/// Whether the broker answers; if not, the failure names it and the setting.
pub(crate) async fn broker(options: &KafkaOptions, origin: &str) -> Outcome {
    let mut config = ClientConfig::new();
    for (name, value) in &options.properties {
        config.set(name, value);
    }
    config.set("bootstrap.servers", &options.bootstrap_servers);
    let servers = options.bootstrap_servers.clone();
    let reasons = Reasons::default();
    let producer: BaseProducer<Reasons> = config.create_with_context(reasons.clone()).map_err(|error| {
        Failure::usage(anyhow!(error).context("librdkafka refuses the settings in relay.kafka"))
            .way_out("see librdkafka's CONFIGURATION.md")
    })?;
    let answer = tokio::task::spawn_blocking(move || {
        let answer = producer.client().fetch_metadata(Some("tracium-probe"), DEADLINE).map(|_| ());
        producer.poll(Duration::ZERO);
        answer
    });
    let Err(error) = answer.await.expect("BUG: the probe panicked") else { return Ok(()) };
    let reason = reasons.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    let cause = reason.map_or_else(|| anyhow!(error), |reason| anyhow!(reason));
    Err(Failure::unreachable(cause.context(format!("cannot reach Kafka at {servers} (named by {origin})"))).way_out(format!(
        "check that the broker runs, that {origin} names it, and that it advertises an address this machine reaches"
    )))
}
