//! A topic of its own for every test, and reading and writing it byte for byte.

use std::time::Duration;

use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{Header, Headers, Message, OwnedHeaders};
use rdkafka::producer::{BaseRecord, Producer, ThreadedProducer};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tracium_core::wire::Envelope;

/// A message as it is in the topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// Its partition.
    pub partition: i32,
    /// Its offset.
    pub offset: i64,
    /// Its key.
    pub key: Option<Vec<u8>>,
    /// Its value.
    pub payload: Option<Vec<u8>>,
    /// Its headers in order.
    pub headers: Vec<(String, Option<Vec<u8>>)>,
    /// Its timestamp.
    pub timestamp_ms: Option<i64>,
}

impl Record {
    /// The first value of a header, as text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        let (_, value) = self.headers.iter().find(|(n, _)| n == name)?;
        std::str::from_utf8(value.as_deref()?).ok()
    }

    /// The aggregate version header.
    #[must_use]
    pub fn version(&self) -> Option<i64> {
        self.header("aggregate_version")?.parse().ok()
    }

    /// The key as text.
    #[must_use]
    pub fn key_text(&self) -> &str {
        self.key.as_deref().and_then(|k| std::str::from_utf8(k).ok()).unwrap_or("")
    }
}

/// The test broker's address.
///
/// # Panics
/// If `TRACIUM_TEST_KAFKA_URL` is not set.
#[must_use]
pub fn bootstrap() -> String {
    crate::variable("TRACIUM_TEST_KAFKA_URL")
}

fn client() -> ClientConfig {
    let mut config = ClientConfig::new();
    config.set("bootstrap.servers", bootstrap());
    config
}

/// A name that no other test uses.
#[must_use]
pub fn unique(prefix: &str) -> String {
    format!("{prefix}-{}", uuid::Uuid::new_v4().simple())
}

/// Makes a topic with a name of its own.
pub async fn create_topic(prefix: &str, partitions: i32) -> String {
    let name = unique(prefix);
    create_topic_named(&name, partitions, &[]).await;
    name
}

/// Makes a topic of that name, with topic settings.
pub async fn create_topic_named(name: &str, partitions: i32, settings: &[(&str, &str)]) {
    let admin: AdminClient<_> = client().create().expect("admin client");
    let mut topic = NewTopic::new(name, partitions, TopicReplication::Fixed(1));
    for (key, value) in settings {
        topic = topic.set(key, value);
    }
    let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(20)));
    for result in admin.create_topics([&topic], &options).await.expect("reach the broker") {
        result.unwrap_or_else(|(topic, error)| panic!("create topic {topic}: {error}"));
    }
}

/// Deletes a topic.
pub async fn delete_topic(name: &str) {
    let admin: AdminClient<_> = client().create().expect("admin client");
    let options = AdminOptions::new().operation_timeout(Some(Duration::from_secs(20)));
    admin.delete_topics(&[name], &options).await.expect("reach the broker");
}

/// Everything in the topic now, partition by partition in offset order.
pub async fn read_all(topic: &str) -> Vec<Record> {
    let topic = topic.to_owned();
    tokio::task::spawn_blocking(move || read_all_blocking(&bootstrap(), &topic)).await.expect("reader")
}

/// As [`read_all`], from any broker, blocking the thread.
///
/// # Panics
/// If the broker does not answer within 20 s.
#[must_use]
pub fn read_all_blocking(bootstrap: &str, topic: &str) -> Vec<Record> {
    let timeout = Duration::from_secs(20);
    let consumer: BaseConsumer = ClientConfig::new()
        .set("bootstrap.servers", bootstrap)
        .set("group.id", unique("reader"))
        .set("enable.auto.commit", "false")
        .set("isolation.level", "read_committed")
        .create()
        .expect("consumer");
    let metadata = consumer.fetch_metadata(Some(topic), timeout).expect("metadata");
    let partitions = metadata.topics().first().map_or(0, |t| t.partitions().len());
    let mut records = Vec::new();
    for partition in 0..i32::try_from(partitions).expect("few partitions") {
        let (low, high) = consumer.fetch_watermarks(topic, partition, timeout).expect("watermarks");
        if low >= high {
            continue;
        }
        let mut list = TopicPartitionList::new();
        list.add_partition_offset(topic, partition, Offset::Offset(low)).expect("offset");
        consumer.assign(&list).expect("assign");
        let mut next = low;
        while next < high {
            let message = consumer
                .poll(timeout)
                .unwrap_or_else(|| panic!("{topic}/{partition} ended at {next} of {high}"))
                .expect("message");
            next = message.offset() + 1;
            records.push(Record {
                partition,
                offset: message.offset(),
                key: message.key().map(<[u8]>::to_vec),
                payload: message.payload().map(<[u8]>::to_vec),
                headers: message.headers().map_or_else(Vec::new, |headers| {
                    headers.iter().map(|h| (h.key.to_owned(), h.value.map(<[u8]>::to_vec))).collect()
                }),
                timestamp_ms: message.timestamp().to_millis(),
            });
        }
    }
    records
}

/// Puts messages into their topics as they are, in order, and waits until the broker has them.
pub async fn produce(envelopes: Vec<Envelope>) {
    tokio::task::spawn_blocking(move || {
        let producer: ThreadedProducer<rdkafka::producer::DefaultProducerContext> =
            client().set("enable.idempotence", "true").set("partitioner", "murmur2_random").create().expect("producer");
        for envelope in &envelopes {
            let mut headers = OwnedHeaders::new_with_capacity(envelope.headers.len());
            for (key, value) in &envelope.headers {
                headers = headers.insert(Header { key, value: value.as_deref() });
            }
            let mut record = BaseRecord::<[u8], [u8]>::to(&envelope.topic)
                .key(&envelope.key)
                .timestamp(envelope.timestamp_ms)
                .headers(headers);
            if let Some(payload) = &envelope.payload {
                record = record.payload(payload);
            }
            producer.send(record).map_err(|(error, _)| error).expect("enqueue");
        }
        producer.flush(Duration::from_secs(20)).expect("flush");
    })
    .await
    .expect("producer task");
}

/// Changes one setting of a topic.
pub async fn alter_topic(name: &str, setting: &str, value: &str) {
    use rdkafka::admin::{AlterConfig, ResourceSpecifier};
    let admin: AdminClient<_> = client().create().expect("admin client");
    let options = AdminOptions::new().request_timeout(Some(Duration::from_secs(20)));
    let change = AlterConfig::new(ResourceSpecifier::Topic(name)).set(setting, value);
    for result in admin.alter_configs([&change], &options).await.expect("reach the broker") {
        result.unwrap_or_else(|(resource, error)| panic!("alter {resource:?}: {error}"));
    }
}
