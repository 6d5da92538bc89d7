//! The start: where to begin, and what cannot work.

use std::time::Duration;

use tracium_consumer::{Consumer, ConsumerError, IntoPostgres, KafkaOptions, Projection, Start, Subscription};
use tracium_core::{Class, Classify, Event, EvolveError, SqlIdentifier, View};
use tracium_testkit::{TestDatabase, kafka};

use super::support::{Bed, Effects, Folded, Ledger, Running, thing, things};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn adopt_takes_the_first_version_seen_as_baseline_and_earliest_does_not() {
    let bed = Bed::new(1).await;
    bed.produce(things("x", 7, 8).iter().chain([&thing("y", 1)])).await;
    let strict = Ledger.into_postgres(bed.database.pool.clone()).named(SqlIdentifier::new("strict").unwrap());
    let consumer = bed.consumer_with(&bed.options, vec![bed.ledger(), bed.effects()], Start::Adopt);
    let running = Running::start(consumer.with(strict, bed.subscription(Start::Earliest)).unwrap());
    bed.wait_folded("x", &[7, 8]).await;
    bed.wait_count("SELECT count(*) FROM effects", 3).await;
    bed.wait_committed("strict", 3).await;
    assert_eq!(bed.text("SELECT string_agg(aggregate_id, ',') FROM strict").await, "y");
    assert_eq!(bed.text("SELECT string_agg(projection || ' ' || reason, ',') FROM tracium.quarantine").await, "strict gap");
    // from the baseline on it is strict
    bed.produce([&thing("x", 6), &thing("x", 10)]).await;
    bed.wait_committed("ledger", 5).await;
    running.stop().await;
    assert_eq!(bed.folded("x").await, [7, 8]);
    assert_eq!(bed.text("SELECT reason FROM tracium.quarantine WHERE projection = 'ledger'").await, "gap");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unreachable_broker_is_named() {
    let database = TestDatabase::new().await;
    let options = tracium_consumer::ConsumerOptions {
        kafka: KafkaOptions { bootstrap_servers: "127.0.0.1:1".to_owned(), ..KafkaOptions::default() },
        start_deadline: Duration::from_millis(700),
        ..Default::default()
    };
    let subscription = Subscription::to(["things"], Start::Earliest).unwrap();
    let consumer = Consumer::new(options).with(Ledger.into_postgres(database.pool), subscription).unwrap();
    let error = Running::start(consumer).error().await;
    assert!(matches!(error, ConsumerError::Connect { .. }), "{error:?}");
    assert!(
        error.to_string().contains("127.0.0.1:1") && error.to_string().contains("consumer.kafka.bootstrap_servers"),
        "{error}"
    );
    assert_eq!(error.class(), Class::Transient);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_topic_is_named_with_its_projection() {
    let bed = Bed::new(1).await;
    let missing = kafka::unique("missing");
    let subscription = Subscription::to([bed.topic.as_str(), missing.as_str()], Start::Earliest).unwrap();
    let consumer = Consumer::new(bed.options.clone()).with(bed.ledger(), subscription).unwrap();
    let error = Running::start(consumer).error().await;
    let text = error.to_string();
    assert!(text.contains(&missing) && text.contains("ledger") && text.contains("create it"), "{text}");
    assert_eq!(error.class(), Class::Fatal);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_missing_schema_and_an_unreachable_database_are_named() {
    let mut bed = Bed::new(1).await;
    bed.database = TestDatabase::empty().await;
    let error = Running::start(bed.consumer(vec![bed.ledger()])).error().await;
    assert!(matches!(error, ConsumerError::Schema { .. }), "{error:?}");
    assert!(error.to_string().contains(&bed.database.name), "{error}");
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("tracium migrate"));

    let pool = sqlx::PgPool::connect_lazy("postgres://nobody@127.0.0.1:1/nowhere").unwrap();
    let consumer = bed.consumer(vec![Ledger.into_postgres(pool).into()]);
    let error = Running::start(consumer).error().await;
    assert!(error.to_string().contains("127.0.0.1:1/nowhere"), "{error}");
    assert_eq!(error.class(), Class::Transient);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_misspelt_librdkafka_property_is_named() {
    let mut bed = Bed::new(1).await;
    bed.options.kafka.properties.insert("fetch.wait.maxx.ms".to_owned(), "5".to_owned());
    let error = Running::start(bed.consumer(vec![bed.ledger()])).error().await;
    assert!(error.to_string().contains("fetch.wait.maxx.ms"), "{error}");
    assert_eq!(error.class(), Class::Fatal);
}

#[tokio::test]
async fn wiring_that_cannot_work_is_refused_before_anything_runs() {
    let pool = sqlx::PgPool::connect_lazy("postgres://nobody@127.0.0.1:1/nowhere").unwrap();
    let to = |topics: &[&str]| Subscription::to(topics.iter().copied(), Start::Earliest).unwrap();
    let new = || Consumer::new(Default::default());
    let error = |result: Result<Consumer, ConsumerError>| result.unwrap_err().to_string();

    let twice =
        new().with(Effects.on_postgres(pool.clone()), to(&["a"])).unwrap().with(Effects.on_postgres(pool.clone()), to(&["b"]));
    assert!(error(twice).contains("projection effects was added twice"));
    assert!(error(new().with(Ledger.into_postgres(pool.clone()), to(&[]))).contains("ledger subscribes to no topic"));
    let copies = error(new().with(Ledger.into_postgres(pool.clone()), to(&["orders", "users", "orders.v2"])));
    assert!(copies.contains("orders and to orders.v2"), "{copies}");
    assert!(Subscription::to(["or ders"], Start::Earliest).unwrap_err().to_string().contains("or ders"));

    struct BadName;
    impl View for BadName {
        const NAME: &'static str = "Bad Name";
        type Doc = Folded;
        fn evolve(doc: Option<Folded>, _event: &Event) -> Result<Option<Folded>, EvolveError> {
            Ok(doc)
        }
    }
    assert!(error(new().with(BadName.into_postgres(pool), to(&["a"]))).contains("\"Bad Name\""));
    let nothing = new().run(Default::default()).await.unwrap_err().to_string();
    assert!(nothing.contains("Consumer::with"), "{nothing}");
}

/// The ledger, changed.
struct Changed;

impl View for Changed {
    const NAME: &'static str = "ledger";
    const VERSION: u32 = 2;
    type Doc = Folded;
    fn evolve(doc: Option<Folded>, event: &Event) -> Result<Option<Folded>, EvolveError> {
        Ledger::evolve(doc, event)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_declaration_under_an_old_name_is_refused_and_says_what_to_do() {
    let bed = Bed::new(1).await;
    bed.produce([&thing("x", 1)]).await;
    let running = Running::start(bed.consumer(vec![bed.ledger()]));
    bed.wait_folded("x", &[1]).await;
    running.stop().await;
    let error = Running::start(bed.consumer(vec![Changed.into_postgres(bed.database.pool.clone()).into()])).error().await;
    let text = error.to_string();
    assert!(text.contains("version=1") && text.contains("version=2") && text.contains("new name"), "{text}");
    assert_eq!(bed.folded("x").await, [1]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_table_of_the_readers_name_is_not_touched() {
    let bed = Bed::new(1).await;
    bed.database.execute("CREATE TABLE public.ledger (mine int)").await;
    let error = Running::start(bed.consumer(vec![bed.ledger(), bed.effects()])).error().await;
    assert!(matches!(&error, ConsumerError::Prepare { projection, .. } if projection == "ledger"), "{error:?}");
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("\"public\".\"ledger\""));
    assert_eq!(bed.count("SELECT count(*) FROM tracium.projection WHERE name = 'ledger'").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_processes_may_start_on_an_empty_database_at_once() {
    let bed = Bed::new(2).await;
    bed.produce(&things("x", 1, 3)).await;
    let running: Vec<Running> = (0..3).map(|_| Running::start(bed.consumer(vec![bed.ledger(), bed.effects()]))).collect();
    bed.wait_folded("x", &[1, 2, 3]).await;
    bed.wait_count("SELECT count(*) FROM effects WHERE times = 1", 3).await;
    for one in running {
        one.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_projections_error_stops_the_others_cleanly_and_is_returned() {
    struct Broken;
    #[async_trait::async_trait]
    impl Projection for Broken {
        fn name(&self) -> &str {
            "broken"
        }
        async fn apply(&self, tx: &mut sqlx::PgConnection, _events: &[Event]) -> Result<(), tracium_consumer::ProjectionError> {
            sqlx::query("SELECT * FROM no_such_table").execute(tx).await?;
            Ok(())
        }
    }
    let mut bed = Bed::new(1).await;
    bed.options.commit_interval = Duration::from_secs(3600);
    let running = Running::start(bed.consumer(vec![bed.ledger()]));
    bed.produce(&things("x", 1, 3)).await;
    bed.wait_folded("x", &[1, 2, 3]).await;
    running.stop().await;
    let broken = Broken.on_postgres(bed.database.pool.clone()).into();
    let error = Running::start(bed.consumer(vec![bed.ledger(), broken])).error().await;
    assert!(matches!(&error, ConsumerError::Projection { projection, .. } if projection == "broken"), "{error:?}");
    assert_eq!(error.class(), Class::Fatal);
    assert_eq!((bed.committed("ledger").await, bed.committed("broken").await), (3, 0));
}
