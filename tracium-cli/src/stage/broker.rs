//! A broker: the user's, or librdkafka's mock cluster in this process.

use std::time::Duration;

use anyhow::anyhow;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::client::DefaultClientContext;
use rdkafka::mocking::MockCluster;
use rdkafka::producer::DefaultProducerContext;
use tracium_kafka::{KafkaOptions, SecurityProtocol};

use crate::config::Settings;
use crate::connect;
use crate::failure::{Failure, Outcome};

/// How long the broker may take over a topic.
const ADMIN_DEADLINE: Duration = Duration::from_secs(15);

/// A broker and the topics and groups that were made on it.
pub(crate) struct Broker {
    /// How to reach it.
    pub(crate) options: KafkaOptions,
    /// What to say of it.
    pub(crate) description: String,
    mock: Option<MockCluster<'static, DefaultProducerContext>>,
    topics: Vec<String>,
    groups: Vec<String>,
}

impl Broker {
    /// Bytes that the mock keeps of a partition; older ones it drops, read or not.
    const MOCK_PARTITION_BYTES: u64 = 5 * 1024 * 1024;

    /// The broker that the settings name, or a mock.
    pub(crate) async fn make(settings: &Settings) -> Outcome<Self> {
        let (options, description, mock) = match settings.kafka() {
            Some(kafka) => {
                connect::broker(kafka, &settings.origins).await?;
                let how = match kafka.security_protocol {
                    SecurityProtocol::Plaintext => String::new(),
                    other => format!(" by {}", other.as_str()),
                };
                (kafka.clone(), format!("Kafka at {}{how}", kafka.bootstrap_servers), None)
            }
            None => {
                let mock = MockCluster::new(1)
                    .map_err(|error| Failure::found(anyhow!(error).context("librdkafka's mock broker did not start")))?;
                let options = KafkaOptions { bootstrap_servers: mock.bootstrap_servers(), ..KafkaOptions::default() };
                (options, "librdkafka's mock broker, in this process".to_owned(), Some(mock))
            }
        };
        Ok(Self { options, description, mock, topics: Vec::new(), groups: Vec::new() })
    }

    /// The mock drops what is more than it holds, read or not: events would be missing, and nobody's fault.
    pub(crate) fn refuse_what_the_mock_cannot_hold(events: u64, partitions: i32, event_bytes: u64) -> Outcome {
        let holds = Self::MOCK_PARTITION_BYTES * u64::from(partitions.unsigned_abs()) / event_bytes;
        if events <= holds {
            return Ok(());
        }
        let limit = Self::MOCK_PARTITION_BYTES / 1024 / 1024;
        Err(Failure::usage(anyhow!(
            "{events} events are more than the mock broker holds: it keeps {limit} MiB a partition and drops the rest, so {holds} events are the limit"
        ))
        .way_out("use --kafka HOST:PORT (or TRACIUM_KAFKA) to run on a real broker"))
    }

    /// Whether it is the mock.
    pub(crate) fn is_mock(&self) -> bool {
        self.mock.is_some()
    }

    /// Makes a topic; on a real broker it is deleted at the end.
    pub(crate) async fn create_topic(&mut self, name: &str, partitions: i32) -> Outcome {
        let failed = |error: anyhow::Error| Failure::found(error.context(format!("cannot make topic {name}")));
        if let Some(mock) = &self.mock {
            return mock.create_topic(name, partitions, 1).map_err(|error| failed(anyhow!(error)));
        }
        let admin = self.admin()?;
        let topic = NewTopic::new(name, partitions, TopicReplication::Fixed(-1));
        let options = AdminOptions::new().operation_timeout(Some(ADMIN_DEADLINE)).request_timeout(Some(ADMIN_DEADLINE));
        for result in admin.create_topics([&topic], &options).await.map_err(|error| failed(anyhow!(error)))? {
            result.map_err(|(_, code)| failed(anyhow!(code)))?;
        }
        self.topics.push(name.to_owned());
        Ok(())
    }

    /// Consumer groups to delete at the end.
    pub(crate) fn forget_group(&mut self, name: String) {
        self.groups.push(name);
    }

    /// Deletes what was made.
    pub(crate) async fn remove(self) -> Outcome {
        if self.is_mock() || self.topics.is_empty() {
            return Ok(());
        }
        let admin = self.admin()?;
        let options = AdminOptions::new().operation_timeout(Some(ADMIN_DEADLINE)).request_timeout(Some(ADMIN_DEADLINE));
        let topics: Vec<&str> = self.topics.iter().map(String::as_str).collect();
        let groups: Vec<&str> = self.groups.iter().map(String::as_str).collect();
        // A group that never came to be cannot be deleted, and need not.
        let _ = admin.delete_groups(&groups, &options).await;
        let failed = |error: anyhow::Error| Failure::found(error.context(format!("cannot delete topic {}", topics.join(", "))));
        for result in admin.delete_topics(&topics, &options).await.map_err(|error| failed(anyhow!(error)))? {
            result.map_err(|(_, code)| failed(anyhow!(code)))?;
        }
        Ok(())
    }

    fn admin(&self) -> Outcome<AdminClient<DefaultClientContext>> {
        self.options
            .client_config()
            .create()
            .map_err(|error| Failure::usage(anyhow!(error).context("librdkafka refuses its settings")))
    }
}
