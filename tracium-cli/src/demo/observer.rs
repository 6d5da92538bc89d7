//! The observer: reads the topic by itself, in no group, and tells the history checker every delivery.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use rdkafka::consumer::{BaseConsumer, Consumer};
use rdkafka::message::{BorrowedMessage, Headers, Message};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use tracium_core::wire;
use tracium_kafka::KafkaOptions;
use tracium_testkit::history::{Delivery, History};
use uuid::Uuid;

/// How long the broker may take over metadata and watermarks.
const DEADLINE: Duration = Duration::from_secs(15);
/// How long it may take to read what is left once the relays have stopped.
const FINISH: Duration = Duration::from_secs(30);

/// Counts, for those who only look.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) delivered: AtomicU64,
    pub(super) first_delivered: AtomicU64,
}

/// A thread that reads the topic.
#[derive(Debug)]
pub(super) struct Observer {
    thread: JoinHandle<anyhow::Result<()>>,
    finish: Arc<AtomicBool>,
}

impl Observer {
    pub(super) fn start(
        kafka: &KafkaOptions,
        topic: &str,
        partitions: i32,
        history: Arc<Mutex<History>>,
        seen: Arc<Seen>,
    ) -> anyhow::Result<Self> {
        let consumer: BaseConsumer = kafka
            .client_config()
            // librdkafka wants a group's name even where none is joined and nothing committed.
            .set("group.id", "tracium-demo-observer")
            .set("enable.auto.commit", "false")
            .set("enable.auto.offset.store", "false")
            .create()
            .context("the observer's Kafka client")?;
        let mut assignment = TopicPartitionList::new();
        for partition in 0..partitions {
            assignment.add_partition_offset(topic, partition, Offset::Offset(0)).context("the observer's assignment")?;
        }
        consumer.assign(&assignment).context("the observer's assignment")?;
        let finish = Arc::new(AtomicBool::new(false));
        let (topic, asked) = (topic.to_owned(), Arc::clone(&finish));
        let thread = std::thread::Builder::new()
            .name("observer".to_owned())
            .spawn(move || observe(&consumer, &topic, partitions, &history, &seen, &asked))
            .context("the observer's thread")?;
        Ok(Self { thread, finish })
    }

    /// Reads to the end of every partition. Call it when nothing is being sent any more.
    pub(super) async fn finish(self) -> anyhow::Result<()> {
        self.finish.store(true, Relaxed);
        let joined = tokio::task::spawn_blocking(move || self.thread.join()).await.context("the observer's end")?;
        joined.map_err(|_| anyhow!("the observer panicked"))?
    }
}

fn observe(
    consumer: &BaseConsumer,
    topic: &str,
    partitions: i32,
    history: &Mutex<History>,
    seen: &Seen,
    finish: &AtomicBool,
) -> anyhow::Result<()> {
    let mut next: HashMap<i32, i64> = HashMap::new();
    let mut end: Option<(HashMap<i32, i64>, Instant)> = None;
    loop {
        if finish.load(Relaxed) && end.is_none() {
            let mut highs = HashMap::new();
            for partition in 0..partitions {
                let (low, high) = consumer.fetch_watermarks(topic, partition, DEADLINE).context("the topic's end")?;
                let read = next.get(&partition).copied().unwrap_or(0);
                if read < low {
                    bail!("the broker dropped offsets {read} to {low} of partition {partition} before the observer read them");
                }
                highs.insert(partition, high);
            }
            end = Some((highs, Instant::now() + FINISH));
        }
        if let Some((highs, deadline)) = &end {
            let left: i64 = highs.iter().map(|(p, high)| high - next.get(p).copied().unwrap_or(0)).sum();
            if left <= 0 {
                return Ok(());
            }
            if Instant::now() > *deadline {
                bail!("the observer did not reach the topic's end within {FINISH:?}: {left} messages left");
            }
        }
        match consumer.poll(Duration::from_millis(50)) {
            None => {}
            // The client reconnects by itself.
            Some(Err(error)) => tracing::debug!(%error, "the observer's poll"),
            Some(Ok(message)) => {
                let partition = message.partition();
                let expected = next.get(&partition).copied().unwrap_or(0);
                if message.offset() != expected {
                    bail!("the observer got offset {} of partition {partition}, not {expected}", message.offset());
                }
                next.insert(partition, message.offset() + 1);
                record(&message, history, seen).with_context(|| format!("partition {partition}, offset {}", message.offset()))?;
            }
        }
    }
}

fn record(message: &BorrowedMessage<'_>, history: &Mutex<History>, seen: &Seen) -> anyhow::Result<()> {
    let header = |name: &str| {
        let headers = message.headers()?;
        let header = headers.iter().find(|h| h.key == name)?;
        std::str::from_utf8(header.value?).ok()
    };
    let event_id: Uuid = header(wire::EVENT_ID).context("a message without event_id")?.parse().context("event_id")?;
    let version: i64 =
        header(wire::AGGREGATE_VERSION).context("a message without aggregate_version")?.parse().context("version")?;
    let key = std::str::from_utf8(message.key().context("a message without a key")?).context("the key")?;
    let delivery = Delivery { event_id, key, version, partition: message.partition() };
    let first = history.lock().unwrap_or_else(PoisonError::into_inner).delivered(delivery);
    seen.delivered.fetch_add(1, Relaxed);
    if first {
        seen.first_delivered.fetch_add(1, Relaxed);
    }
    Ok(())
}
