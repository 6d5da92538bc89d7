//! A shop in one process: it takes orders, an embedded relay publishes them, and a view tells their state.
//!
//! `DATABASE_URL` names a database whose owner may create roles, `TRACIUM_KAFKA` a broker. The README walks through it.
#![allow(clippy::print_stdout, reason = "it tells what happened")]

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use rdkafka::ClientConfig;
use rdkafka::admin::{AdminClient, AdminOptions, NewTopic, TopicReplication};
use rdkafka::error::RDKafkaErrorCode;
use serde::{Deserialize, Serialize};
use serde_json::json;
use sqlx::{PgPool, Postgres, Transaction};
use tokio_util::sync::CancellationToken;
use tracium_consumer::{Consumer, ConsumerOptions, IntoPostgres, Start, Subscription};
use tracium_core::{Aggregate, Event, EventStore, EvolveError, Expected, NewEvent, Version, View, schema};
use tracium_relay::{KafkaOptions, KafkaPublisher, Relay, RelayOptions};

/// The document of an order: a pure fold of its events.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
struct Order {
    customer: String,
    items: Vec<String>,
    total_cents: i64,
    paid: bool,
}

#[derive(Deserialize)]
struct Item {
    name: String,
    cents: i64,
}

struct Orders;

impl View for Orders {
    const NAME: &'static str = "orders";
    type Doc = Order;

    fn evolve(doc: Option<Order>, event: &Event) -> Result<Option<Order>, EvolveError> {
        let mut order = doc.unwrap_or_default();
        match event.event_type.as_str() {
            "order.created" => order.customer = event.data::<serde_json::Value>()?["customer"].as_str().unwrap_or("").to_owned(),
            "order.item_added" => {
                let item: Item = event.data()?;
                order.items.push(item.name);
                order.total_cents += item.cents;
            }
            "order.paid" => order.paid = true,
            _ => {} // not ours
        }
        Ok(Some(order))
    }
}

/// A service's own statements and its events: one transaction.
async fn place(tx: &mut Transaction<'_, Postgres>, id: &Aggregate, customer: &str) -> Result<Version> {
    let request = sqlx::query("INSERT INTO shop_request (id, customer) VALUES ($1, $2)");
    request.bind(id.aggregate_id.as_str()).bind(customer).execute(&mut **tx).await?;
    let events = [
        NewEvent::json("order.created", &json!({"customer": customer}))?,
        NewEvent::json("order.item_added", &json!({"name": "tea", "cents": 450}))?,
        NewEvent::json("order.item_added", &json!({"name": "cup", "cents": 1200}))?,
    ];
    Ok(EventStore::append(tx, id, Expected::New, &events).await?.version())
}

/// Decided on the order as it was at version `seen`.
async fn pay(pool: &PgPool, id: &Aggregate, seen: Version) -> Result<Version> {
    let mut tx = pool.begin().await?;
    let paid = NewEvent::tombstone("order.paid")?;
    let version = EventStore::append(&mut tx, id, Expected::Version(seen), &[paid]).await?.version();
    tx.commit().await?;
    Ok(version)
}

/// Waits until the read model has that version of an order.
async fn read(pool: &PgPool, id: &Aggregate, version: Version) -> Result<String> {
    let select = "SELECT doc::text FROM orders WHERE aggregate_id = $1 AND version >= $2";
    for _ in 0..600 {
        // an error at first: the consumer makes the view when it starts
        let doc = sqlx::query_scalar(select).bind(id.aggregate_id.as_str()).bind(version.get()).fetch_optional(pool).await;
        if let Ok(Some(doc)) = doc {
            return Ok(doc);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    anyhow::bail!("the read model did not follow within a minute")
}

async fn make_topic(kafka: &str, topic: &str) -> Result<()> {
    let admin: AdminClient<_> = ClientConfig::new().set("bootstrap.servers", kafka).create()?;
    let new = NewTopic::new(topic, 3, TopicReplication::Fixed(-1));
    match admin.create_topics([&new], &AdminOptions::new()).await?.remove(0) {
        Ok(_) | Err((_, RDKafkaErrorCode::TopicAlreadyExists)) => Ok(()),
        Err((topic, code)) => anyhow::bail!("Kafka did not make topic {topic}: {code}"),
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_env_filter("warn").init();
    let url = std::env::var("DATABASE_URL").context("DATABASE_URL is not set: postgres://user@host:port/database")?;
    let kafka = std::env::var("TRACIUM_KAFKA").context("TRACIUM_KAFKA is not set: host:port")?;
    let topic = std::env::var("ORDERS_TOPIC").unwrap_or_else(|_| "orders".to_owned());

    // 1. The schema, the service's own table, the topic.
    let pool = PgPool::connect(&url).await.context("DATABASE_URL: cannot connect")?;
    schema::migrate(&mut *pool.acquire().await?, None).await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS shop_request (id text PRIMARY KEY, customer text)").execute(&pool).await?;
    sqlx::query("SELECT tracium.set_route('order', $1)").bind(&topic).execute(&pool).await?;
    make_topic(&kafka, &topic).await.context("TRACIUM_KAFKA: cannot make the topic")?;

    // 2. The relay and the consumer; in production processes of their own.
    let stop = CancellationToken::new();
    let kafka = KafkaOptions { bootstrap_servers: kafka, ..Default::default() };
    let options = RelayOptions { kafka: kafka.clone(), ..Default::default() };
    let publisher = Arc::new(KafkaPublisher::new(&options.kafka)?);
    let relay = tokio::spawn(Relay::new(options, url.parse()?, publisher)?.run(stop.clone()));
    let options = ConsumerOptions { kafka, group_prefix: Some(topic.clone()), ..Default::default() };
    let consumer =
        Consumer::new(options).with(Orders.into_postgres(pool.clone()), Subscription::to([topic], Start::Earliest)?)?;
    let consumer = tokio::spawn(consumer.run(stop.clone()));

    // 3. The shop.
    let (id, mut tx) = (Aggregate::new("order", uuid::Uuid::new_v4().to_string())?, pool.begin().await?);
    let version = place(&mut tx, &id, "ada").await?;
    tx.commit().await?;
    println!("committed:   {id}, version {version}");

    let (never, mut tx) = (Aggregate::new("order", uuid::Uuid::new_v4().to_string())?, pool.begin().await?);
    place(&mut tx, &never, "bob").await?;
    tx.rollback().await?;
    println!("rolled back: {never}; nobody will hear of it");
    println!("read model:  {}", read(&pool, &id, version).await?);

    let paid = pay(&pool, &id, version).await?;
    let twice = pay(&pool, &id, version).await.expect_err("a conflict");
    println!("paid twice:  {twice}");
    println!("read model:  {}", read(&pool, &id, paid).await?);

    // 4. Stop: drain, commit, hand the leases back.
    stop.cancel();
    relay.await??;
    consumer.await??;
    Ok(())
}
