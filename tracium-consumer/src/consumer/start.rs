//! What is checked and made before the first message: broker and topics, database, schema, fingerprint, tables.

use std::time::{Duration, Instant};

use rdkafka::consumer::{BaseConsumer, Consumer as _};
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};
use tracium_core::{Topic, schema};

use super::source::{client_config, refused};
use super::worker::Session;
use crate::effect::Effect;
use crate::error::is_fatal;
use crate::{ConsumerError, ConsumerOptions, ProjectionError, sql};

/// How long a topic may be unknown before it counts as missing: a new one is not known everywhere at once.
const TOPIC_GRACE: Duration = Duration::from_secs(2);

/// Asks the broker for every topic, blocking the thread.
pub(crate) fn check_topics(options: &ConsumerOptions, topics: &[(String, Topic)]) -> Result<(), ConsumerError> {
    let client: BaseConsumer = client_config(options).create().map_err(|error| refused("", "", error))?;
    let began = Instant::now();
    tracium_kafka::check(&options.kafka, options.start_deadline).map_err(|error| ConsumerError::Connect { error })?;
    for (projection, topic) in topics {
        loop {
            let left = options.start_deadline.saturating_sub(began.elapsed());
            let left = left.min(options.kafka.request_timeout).max(Duration::from_millis(100));
            let error = match client.fetch_metadata(Some(topic.as_str()), left) {
                Ok(metadata) => {
                    let found = metadata.topics().iter().find(|t| t.name() == topic.as_str());
                    if found.is_some_and(|t| t.error().is_none() && !t.partitions().is_empty()) {
                        break;
                    }
                    let code = found.and_then(|t| t.error()).map(RDKafkaErrorCode::from);
                    KafkaError::MetadataFetch(code.unwrap_or(RDKafkaErrorCode::UnknownTopicOrPartition))
                }
                Err(error) => error,
            };
            if is_fatal(&error) {
                return Err(refused(projection, "", error));
            }
            if error.rdkafka_error_code() == Some(RDKafkaErrorCode::UnknownTopicOrPartition) {
                if began.elapsed() >= TOPIC_GRACE.min(options.start_deadline) {
                    return Err(ConsumerError::TopicMissing {
                        topic: topic.to_string(),
                        projection: projection.clone(),
                        bootstrap_servers: options.kafka.bootstrap_servers.clone(),
                    });
                }
            } else if began.elapsed() >= options.start_deadline {
                return Err(ConsumerError::TopicUnknown {
                    topic: topic.to_string(),
                    projection: projection.clone(),
                    bootstrap_servers: options.kafka.bootstrap_servers.clone(),
                    within: options.start_deadline,
                    source: Box::new(error),
                });
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    Ok(())
}

/// Checks the projection's database, registers the epoch and makes the tables.
pub(crate) async fn prepare(
    effect: &dyn Effect,
    epoch: i32,
    session: &mut Session,
    deadline: Duration,
) -> Result<(), ConsumerError> {
    let projection = effect.name().to_owned();
    let database = address(&effect.pool().connect_options());
    let unreachable =
        |source| ConsumerError::DatabaseUnreachable { projection: projection.clone(), database: database.clone(), source };
    let connection = match tokio::time::timeout(deadline, session.connection()).await {
        Ok(connection) => connection.map_err(unreachable)?,
        Err(_) => return Err(unreachable(sqlx::Error::PoolTimedOut)),
    };
    schema::check(connection).await.map_err(|source| ConsumerError::Schema {
        projection: projection.clone(),
        database: database.clone(),
        source,
    })?;
    let declared = effect.fingerprint();
    match register(connection, effect, epoch, &declared).await {
        Ok(stored) if stored == declared => Ok(()),
        Ok(stored) => Err(ConsumerError::FingerprintChanged { projection, stored, declared }),
        Err(source) => Err(ConsumerError::Prepare { projection, source }),
    }
}

/// Returns the stored fingerprint; commits only if it is the declared one.
async fn register(
    connection: &mut PgConnection,
    effect: &dyn Effect,
    epoch: i32,
    declared: &str,
) -> Result<String, ProjectionError> {
    let mut tx = connection.begin_with(sql::BEGIN).await?;
    sqlx::query(sql::LOCK_PREPARE).execute(&mut *tx).await?;
    sqlx::query(sql::REGISTER).bind(effect.name()).bind(epoch).bind(declared).bind(effect.sink()).execute(&mut *tx).await?;
    let stored: String = sqlx::query_scalar(sql::FINGERPRINT).bind(effect.name()).bind(epoch).fetch_one(&mut *tx).await?;
    if stored == declared {
        effect.prepare(&mut tx, epoch).await?;
        tx.commit().await?;
    } else {
        tx.rollback().await?;
    }
    Ok(stored)
}

fn address(options: &PgConnectOptions) -> String {
    format!("{}:{}/{}", options.get_host(), options.get_port(), options.get_database().unwrap_or_default())
}
