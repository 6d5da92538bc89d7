//! Reaching PostgreSQL and Kafka within a bounded time, or saying which setting named what cannot be reached.

use std::time::Duration;

use anyhow::anyhow;
use sqlx::postgres::{PgConnectOptions, PgSslMode};
use sqlx::{Connection, PgConnection};
use tracium_consumer::ConsumerError;
use tracium_core::schema::{self, Installed, SchemaError};
use tracium_core::{Class, Classify, TlsProblem};
use tracium_kafka::{ConnectError, KafkaOptions};

use crate::config::{Origins, Sourced};
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
    check_files(url)?;
    Ok(options.application_name("tracium"))
}

/// The client library says of a missing file only that there is none, not which.
fn check_files(url: &Sourced<String>) -> Outcome {
    let query = url.value.split_once('?').map_or("", |(_, query)| query);
    for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
        if !matches!(name, "sslrootcert" | "sslcert" | "sslkey" | "ssl-root-cert" | "ssl-ca" | "ssl-cert" | "ssl-key") {
            continue;
        }
        let path = percent_encoding::percent_decode_str(value).decode_utf8_lossy();
        std::fs::File::open(path.as_ref()).map_err(|e| {
            Failure::usage(anyhow!(e).context(format!("{name} in {} names {path}, which cannot be read", url.origin)))
        })?;
    }
    Ok(())
}

/// Says once what a careful reader of the URL would: that nothing proves who the server is.
pub(crate) fn warn_of_unverified(options: &PgConnectOptions) {
    let host = options.get_host();
    let local = host.starts_with('/') || host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback());
    if !local && !matches!(options.get_ssl_mode(), PgSslMode::VerifyFull | PgSslMode::VerifyCa) {
        tracing::warn!(
            host,
            "the connection to PostgreSQL does not prove who the server is; add sslmode=verify-full&sslrootcert=FILE to the database URL"
        );
    }
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
    let tls = TlsProblem::of(&error);
    let failure = match sqlstate.as_deref() {
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
        None if tls.is_some() => Failure::usage(anyhow!(error).context(format!("{place} could not be trusted"))),
        None => Failure::unreachable(anyhow!(error).context(format!("cannot reach {place}")))
            .way_out(format!("check that the server runs and that {} names it", url.origin)),
    };
    Err(match tls {
        Some(problem) => failure.way_out(format!("{} in {}: {problem}", problem.parameter(), url.origin)),
        None => failure,
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

/// Whether the broker lets us in; if not, the failure names what is wrong and the setting.
pub(crate) async fn broker(kafka: &KafkaOptions, origins: &Origins) -> Outcome {
    let options = kafka.clone();
    let answer = tokio::task::spawn_blocking(move || tracium_kafka::check(&options, DEADLINE)).await;
    answer.expect("BUG: the probe panicked").map_err(|error| broker_failure(error, origins))
}

/// A broker that does not let us in, as an exit code and a way out in the names of our settings.
pub(crate) fn broker_failure(error: ConnectError, origins: &Origins) -> Failure {
    let name = |option: &str| origins.of(&format!("relay.kafka.{option}"));
    let way_out = error.problem.way_out(name);
    let place = format!("cannot reach Kafka at {} (named by {})", error.bootstrap_servers, name("bootstrap_servers"));
    let class = error.class();
    let error = anyhow!(error.problem).context(place);
    match class {
        Class::Transient => Failure::unreachable(error),
        _ => Failure::usage(error),
    }
    .way_out(way_out)
}
