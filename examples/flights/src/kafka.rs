//! The topic and the consumer groups, through Kafka's admin API.

use std::time::Duration;

use anyhow::{Result, anyhow, bail};
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::config::{ClientConfig, RDKafkaLogLevel};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::error::RDKafkaErrorCode;
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tokio::time::{Instant, sleep};

use crate::{ServiceArgs, Unreachable};

const DEADLINE: Duration = Duration::from_secs(10);
/// Of the topic, where this example makes it.
const PARTITIONS: i32 = 4;

fn client(services: &ServiceArgs) -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", &services.kafka).set_log_level(RDKafkaLogLevel::Critical);
    config
}

fn unreachable(services: &ServiceArgs, error: impl std::error::Error + Send + Sync + 'static) -> anyhow::Error {
    let place = format!("Kafka at {} (--kafka) does not answer; check that it runs and what it advertises", services.kafka);
    anyhow!(error).context(Unreachable(place))
}

/// Makes the topic if it is not there.
pub(crate) async fn ensure_topic(services: &ServiceArgs) -> Result<()> {
    let admin: AdminClient<DefaultClientContext> = client(services).create()?;
    let topic = NewTopic::new(&services.topic, PARTITIONS, TopicReplication::Fixed(-1));
    let options = AdminOptions::new().request_timeout(Some(DEADLINE)).operation_timeout(Some(DEADLINE));
    for result in admin.create_topics([&topic], &options).await.map_err(|e| unreachable(services, e))? {
        match result {
            Ok(_) => tracing::info!(topic = services.topic, partitions = PARTITIONS, "topic made"),
            Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => {}
            Err((topic, code)) => bail!("Kafka did not make topic {topic}: {code}"),
        }
    }
    Ok(())
}

/// Forgets what the groups have read. A group whose consumer has just left counts as busy for a while.
pub(crate) async fn forget(services: &ServiceArgs, groups: &[String]) -> Result<()> {
    let admin: AdminClient<DefaultClientContext> = client(services).create()?;
    let options = AdminOptions::new().request_timeout(Some(DEADLINE));
    let end = Instant::now() + Duration::from_secs(60);
    let mut left: Vec<&str> = groups.iter().map(String::as_str).collect();
    while !left.is_empty() {
        let results = admin.delete_groups(&left, &options).await.map_err(|e| unreachable(services, e))?;
        for result in results {
            match result {
                Ok(gone) | Err((gone, RDKafkaErrorCode::GroupIdNotFound)) => left.retain(|group| *group != gone),
                Err((_, RDKafkaErrorCode::NonEmptyGroup)) if Instant::now() < end => {}
                Err((group, code)) => bail!("Kafka did not delete consumer group {group}: {code}"),
            }
        }
        if !left.is_empty() {
            sleep(Duration::from_millis(250)).await;
        }
    }
    Ok(())
}

/// Messages that a group has not yet confirmed, by the broker alone.
pub(crate) async fn lag(services: &ServiceArgs, group: &str) -> Result<i64> {
    let (services, group) = (services.clone(), group.to_owned());
    tokio::task::spawn_blocking(move || {
        let consumer: BaseConsumer = client(&services).set("group.id", &group).create()?;
        let failed = |e| unreachable(&services, e);
        let metadata = consumer.fetch_metadata(Some(&services.topic), DEADLINE).map_err(failed)?;
        let partitions: Vec<i32> = metadata.topics().iter().flat_map(|t| t.partitions()).map(|p| p.id()).collect();
        let mut list = TopicPartitionList::new();
        for partition in &partitions {
            list.add_partition(&services.topic, *partition);
        }
        let committed = consumer.committed_offsets(list, DEADLINE).map_err(failed)?;
        let mut lag = 0;
        for partition in partitions {
            let (low, high) = consumer.fetch_watermarks(&services.topic, partition, DEADLINE).map_err(failed)?;
            let at = match committed.find_partition(&services.topic, partition).map(|p| p.offset()) {
                Some(Offset::Offset(offset)) => offset,
                _ => low,
            };
            lag += (high - at).max(0);
        }
        Ok(lag)
    })
    .await?
}
