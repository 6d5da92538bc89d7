//! A test's own topic, database and consumer groups, and projections that betray a second effect.

use std::time::Duration;

use async_trait::async_trait;
use rdkafka::ClientConfig;
use rdkafka::consumer::{BaseConsumer, CommitMode, Consumer as _};
use rdkafka::topic_partition_list::{Offset, TopicPartitionList};
use serde::{Deserialize, Serialize};
use sqlx::{AssertSqlSafe, PgConnection};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tracium_consumer::{
    Consumer, ConsumerError, ConsumerOptions, IntoPostgres, KafkaOptions, Projection, ProjectionError, Start, Subscription, Wired,
};
use tracium_core::wire::Envelope;
use tracium_core::{Aggregate, Event, EventType, EvolveError, Headers, Payload, Version, View};
use tracium_testkit::{TestDatabase, eventually, kafka};
use uuid::Uuid;

/// How long anything may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(40);

/// One document an aggregate: the versions folded into it, in order. A second effect shows as a repeated version.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Folded {
    pub(crate) versions: Vec<i64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) note: Option<String>,
}

pub(crate) struct Ledger;

impl View for Ledger {
    const NAME: &'static str = "ledger";
    type Doc = Folded;

    fn evolve(doc: Option<Folded>, event: &Event) -> Result<Option<Folded>, EvolveError> {
        let mut doc = doc.unwrap_or_default();
        match event.event_type.as_str() {
            "thing.poison" => return Err(EvolveError::refused("this event is poison")),
            "thing.panic" => panic!("the fold panics"),
            "thing.removed" => return Ok(None),
            "thing.nul" => doc.note = Some("PostgreSQL takes no \0 in jsonb".to_owned()),
            _ => {}
        }
        doc.versions.push(event.version.map_or(0, Version::get));
        Ok(Some(doc))
    }
}

/// Counts the effects of every event, which is not idempotent by itself: a second effect shows as 2.
pub(crate) struct Effects;

#[async_trait]
impl Projection for Effects {
    fn name(&self) -> &str {
        "effects"
    }

    async fn prepare(&self, conn: &mut PgConnection, _epoch: i32) -> Result<(), ProjectionError> {
        let ddl = "CREATE TABLE IF NOT EXISTS effects (n bigserial, event_id uuid, aggregate_id text, version bigint, \
                   times int NOT NULL, PRIMARY KEY (event_id)); \
                   CREATE TABLE IF NOT EXISTS total (one int PRIMARY KEY, events bigint NOT NULL)";
        sqlx::raw_sql(ddl).execute(conn).await?;
        Ok(())
    }

    async fn apply(&self, tx: &mut PgConnection, events: &[Event]) -> Result<(), ProjectionError> {
        for event in events {
            match event.event_type.as_str() {
                "thing.poison" => {
                    // by the database, so that the transaction is broken as well
                    sqlx::query("SELECT 1 / 0").execute(&mut *tx).await?;
                }
                "thing.panic" => panic!("the projection panics"),
                "thing.swallowed" => {
                    let _dropped = sqlx::query("SELECT 1 / 0").execute(&mut *tx).await;
                }
                _ => {}
            }
            let id = event.aggregate.as_ref().map(|a| a.aggregate_id.as_str());
            sqlx::query(
                "INSERT INTO effects AS e (event_id, aggregate_id, version, times) VALUES ($1, $2, $3, 1)
                 ON CONFLICT (event_id) DO UPDATE SET times = e.times + 1",
            )
            .bind(event.event_id)
            .bind(id)
            .bind(event.version.map(Version::get))
            .execute(&mut *tx)
            .await?;
        }
        let count = i64::try_from(events.len()).unwrap();
        sqlx::query("INSERT INTO total AS t VALUES (1, $1) ON CONFLICT (one) DO UPDATE SET events = t.events + $1")
            .bind(count)
            .execute(tx)
            .await?;
        Ok(())
    }
}

/// An event of a test: version and predecessor of an aggregate of type `thing`.
pub(crate) fn thing(id: &str, version: i64) -> Event {
    Event {
        event_id: Uuid::now_v7(),
        event_type: EventType::new("thing.happened").unwrap(),
        aggregate: Some(Aggregate::new("thing", id).unwrap()),
        version: Version::new(version),
        previous_version: Version::new(version - 1),
        schema_version: 1,
        created_at: chrono::Utc::now(),
        payload: Payload::Json(format!("{{\"version\":{version}}}").into_bytes()),
        headers: Headers::new(),
    }
}

/// The versions `from` to `to` of an aggregate.
pub(crate) fn things(id: &str, from: i64, to: i64) -> Vec<Event> {
    (from..=to).map(|version| thing(id, version)).collect()
}

/// Another type of event.
pub(crate) fn of_type(mut event: Event, event_type: &str) -> Event {
    event.event_type = EventType::new(event_type).unwrap();
    event
}

/// A message without a version.
pub(crate) fn unversioned(event_id: Uuid) -> Event {
    Event { event_id, aggregate: None, version: None, previous_version: None, ..thing("x", 1) }
}

/// A test's own everything.
pub(crate) struct Bed {
    pub(crate) database: TestDatabase,
    pub(crate) topic: String,
    pub(crate) options: ConsumerOptions,
}

impl Bed {
    pub(crate) async fn new(partitions: i32) -> Self {
        let (database, topic) = tokio::join!(TestDatabase::new(), kafka::create_topic("things", partitions));
        let options = ConsumerOptions {
            kafka: KafkaOptions { bootstrap_servers: kafka::bootstrap(), ..KafkaOptions::default() },
            group_prefix: Some(kafka::unique("test")),
            session_timeout: Duration::from_secs(6),
            commit_interval: Duration::from_millis(20),
            backoff_initial: Duration::from_millis(20),
            backoff_max: Duration::from_millis(200),
            lock_timeout: Duration::from_millis(300),
            ..ConsumerOptions::default()
        };
        Self { database, topic, options }
    }

    pub(crate) fn envelope(&self, event: &Event) -> Envelope {
        let key = event.aggregate.as_ref().map_or_else(|| event.event_id.to_string(), |a| a.aggregate_id.to_string());
        Envelope::of(event, &self.topic, &key)
    }

    pub(crate) async fn produce<'a>(&self, events: impl IntoIterator<Item = &'a Event>) {
        kafka::produce(events.into_iter().map(|event| self.envelope(event)).collect()).await;
    }

    pub(crate) fn subscription(&self, start: Start) -> Subscription {
        Subscription::to([self.topic.as_str()], start).unwrap()
    }

    pub(crate) fn ledger(&self) -> Wired {
        Ledger.into_postgres(self.database.pool.clone()).into()
    }

    pub(crate) fn effects(&self) -> Wired {
        Effects.on_postgres(self.database.pool.clone()).into()
    }

    pub(crate) fn consumer(&self, projections: Vec<Wired>) -> Consumer {
        self.consumer_with(&self.options, projections, Start::Earliest)
    }

    pub(crate) fn consumer_with(&self, options: &ConsumerOptions, projections: Vec<Wired>, start: Start) -> Consumer {
        projections.into_iter().fold(Consumer::new(options.clone()), |consumer, projection| {
            consumer.with(projection, self.subscription(start)).unwrap()
        })
    }

    /// The group of a projection.
    pub(crate) fn group(&self, projection: &str) -> String {
        format!("{}.{projection}.e1", self.options.group_prefix.as_deref().unwrap())
    }

    /// The sum of the offsets that a projection's group has committed.
    pub(crate) async fn committed(&self, projection: &str) -> i64 {
        let (group, topic) = (self.group(projection), self.topic.clone());
        tokio::task::spawn_blocking(move || {
            let consumer = group_client(&group);
            let offsets = consumer.committed_offsets(partitions(&consumer, &topic), Duration::from_secs(20)).unwrap();
            let committed = |offset: Offset| if let Offset::Offset(n) = offset { n } else { 0 };
            offsets.elements().iter().map(|e| committed(e.offset())).sum()
        })
        .await
        .unwrap()
    }

    /// Sets a projection's group, which has no member, back to the first message.
    pub(crate) async fn rewind(&self, projection: &str) {
        let (group, topic) = (self.group(projection), self.topic.clone());
        tokio::task::spawn_blocking(move || {
            let consumer = group_client(&group);
            let mut list = partitions(&consumer, &topic);
            list.set_all_offsets(Offset::Offset(0)).unwrap();
            consumer.assign(&list).unwrap();
            consumer.commit(&list, CommitMode::Sync).unwrap();
        })
        .await
        .unwrap();
    }

    pub(crate) async fn wait_committed(&self, projection: &str, offsets: i64) {
        let what = format!("{projection} has committed {offsets}");
        eventually(&what, PATIENCE, || async { (self.committed(projection).await == offsets).then_some(()) }).await;
    }

    pub(crate) async fn count(&self, sql: &str) -> i64 {
        self.database.count(sql).await
    }

    pub(crate) async fn wait_count(&self, sql: &str, expected: i64) {
        let count = || async {
            match sqlx::query_scalar::<_, i64>(AssertSqlSafe(sql.to_owned())).fetch_one(&self.database.pool).await {
                Err(error) if is_undefined_table(&error) => false, // the consumer has not made its table yet
                count => count.unwrap_or_else(|e| panic!("{sql}: {e}")) == expected,
            }
        };
        eventually(&format!("{sql} = {expected}"), PATIENCE, || async { count().await.then_some(()) }).await;
    }

    pub(crate) async fn text(&self, sql: &str) -> String {
        let text: Option<String> = sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
            .fetch_one(&self.database.pool)
            .await
            .unwrap_or_else(|e| panic!("{sql}: {e}"));
        text.unwrap_or_default()
    }

    /// The versions folded into an aggregate's document; none before the consumer has made its table.
    pub(crate) async fn folded(&self, id: &str) -> Vec<i64> {
        let doc =
            sqlx::query_scalar("SELECT doc FROM ledger WHERE aggregate_id = $1").bind(id).fetch_optional(&self.database.pool);
        let doc: Option<sqlx::types::Json<Folded>> = match doc.await {
            Err(error) if is_undefined_table(&error) => None,
            doc => doc.unwrap(),
        };
        doc.map_or_else(Vec::new, |doc| doc.0.versions)
    }

    pub(crate) async fn wait_folded(&self, id: &str, versions: &[i64]) {
        let what = format!("{id} folded to {versions:?}");
        eventually(&what, PATIENCE, || async { (self.folded(id).await == versions).then_some(()) }).await;
    }

    /// A digest over everything that the two projections hold.
    pub(crate) async fn digest(&self) -> String {
        self.text(
            "SELECT md5((SELECT string_agg(aggregate_id || version || doc::text, ',' ORDER BY aggregate_id) FROM ledger_e1)
                || (SELECT string_agg(event_id::text || times, ',' ORDER BY event_id) FROM effects)
                || (SELECT events::text FROM total))",
        )
        .await
    }
}

fn is_undefined_table(error: &sqlx::Error) -> bool {
    error.as_database_error().is_some_and(|e| e.code().as_deref() == Some("42P01"))
}

fn group_client(group: &str) -> BaseConsumer {
    // Its drop polls: committing by itself, it would take the group on to where that poll came.
    ClientConfig::new()
        .set("bootstrap.servers", kafka::bootstrap())
        .set("group.id", group)
        .set("enable.auto.commit", "false")
        .create()
        .unwrap()
}

fn partitions(consumer: &BaseConsumer, topic: &str) -> TopicPartitionList {
    let metadata = consumer.fetch_metadata(Some(topic), Duration::from_secs(20)).unwrap();
    let mut list = TopicPartitionList::new();
    for partition in metadata.topics()[0].partitions() {
        list.add_partition(topic, partition.id());
    }
    list
}

/// A consumer that runs in the background.
pub(crate) struct Running {
    stop: CancellationToken,
    task: JoinHandle<Result<(), ConsumerError>>,
}

impl Running {
    pub(crate) fn start(consumer: Consumer) -> Self {
        let stop = CancellationToken::new();
        Self { task: tokio::spawn(consumer.run(stop.clone())), stop }
    }

    /// A clean shutdown.
    pub(crate) async fn stop(self) {
        self.stop.cancel();
        self.task.await.unwrap().unwrap();
    }

    /// The error that it ends with by itself.
    pub(crate) async fn error(self) -> ConsumerError {
        tokio::time::timeout(PATIENCE, self.task).await.expect("it should end by itself").unwrap().unwrap_err()
    }
}
