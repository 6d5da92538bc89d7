//! `tracium bench consume`: a full topic through one consumer with a View on PostgreSQL.

use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use serde::{Deserialize, Serialize};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tracium_consumer::{Consumer, ConsumerOptions, IntoPostgres, Start, Subscription};
use tracium_core::{Event, EvolveError, View};

use super::{Bench, Report, failed, load, measure};
use crate::config::{ConfigArgs, Settings};
use crate::failure::{Failure, Outcome};
use crate::stage::Process;
use crate::{connect, out, relay::stop_signal};

/// How long the consumer may take to end.
const STOP_DEADLINE: Duration = Duration::from_secs(15);

/// The consumer that is measured.
#[derive(Debug, Args)]
pub(crate) struct BenchConsumerArgs {
    #[arg(long)]
    topic: String,
}

/// What the consumer keeps of an order.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Basket {
    items: u64,
    total_cents: u64,
    events: u64,
}

#[derive(Debug, Deserialize)]
struct ItemAdded {
    quantity: u64,
    cents: u64,
}

struct Baskets;

impl View for Baskets {
    const NAME: &'static str = "baskets";
    type Doc = Basket;

    fn evolve(basket: Option<Basket>, event: &Event) -> Result<Option<Basket>, EvolveError> {
        let mut basket = basket.unwrap_or_default();
        let item: ItemAdded = event.data()?;
        basket.items += item.quantity;
        basket.total_cents += item.cents * item.quantity;
        basket.events += 1;
        Ok(Some(basket))
    }
}

/// Runs the consumer until its standard input closes or a signal comes.
pub(crate) async fn run_consumer(config: &ConfigArgs, args: &BenchConsumerArgs) -> Outcome {
    let stop = stop_signal(true)?;
    let settings = Settings::load(config, None, None)?;
    let pool = PgPoolOptions::new().max_connections(2).connect_lazy_with(connect::options(settings.database()?)?);
    let options = ConsumerOptions {
        kafka: settings.relay.kafka.clone(),
        // Groups are the broker's, the topic's name is the run's.
        group_prefix: Some(args.topic.clone()),
        ..ConsumerOptions::default()
    };
    let subscription = Subscription::to([args.topic.as_str()], Start::Earliest).map_err(Failure::usage)?;
    Consumer::new(options)
        .with(Baskets.into_postgres(pool), subscription)
        .map_err(connect::consumer_failure)?
        .run(stop)
        .await
        .map_err(connect::consumer_failure)
}

pub(super) async fn run(bench: &mut Bench) -> Outcome<Report> {
    let topic = bench.topic.clone();
    let broker = bench.make_topic().await?;
    broker.forget_group(format!("{topic}.{}.e1", Baskets::NAME));
    let kafka = broker.options.clone();
    let events = bench.events;
    out::note(format!("producing {events} events"));
    let (to, into) = (kafka.clone(), topic.clone());
    let produced = tokio::task::spawn_blocking(move || load::fill_topic(&to, &into, events)).await;
    produced.map_err(|e| failed(anyhow!(e)))?.map_err(failed)?;

    out::note("consuming them");
    let pool = PgPoolOptions::new().max_connections(2).connect_lazy_with(connect::options(&bench.database.url)?);
    let mut consumer = Process::spawn(bench.child("consumer", &["bench", "consumer", "--topic", &topic], &kafka))?;
    let figures = measure::time(&mut consumer, events, || applied(pool.clone())).await.map_err(failed)?;
    consumer.stop(STOP_DEADLINE).await.map_err(|trouble| failed(anyhow!(trouble)))?;
    check(&pool, events).await.map_err(failed)?;
    pool.close().await;
    Ok(bench.report("consume", &figures))
}

async fn applied(pool: PgPool) -> anyhow::Result<u64> {
    let projections = tracium_consumer::status(&pool).await.context("the look at the projection")?;
    let stand = projections.iter().map(|p| p.quarantined).sum::<i64>();
    anyhow::ensure!(stand == 0, "{stand} aggregates stand still: the view refused their events");
    Ok(projections.iter().map(|p| u64::try_from(p.applied).unwrap_or(0)).sum())
}

/// A rate of wrong results would be worth nothing.
async fn check(pool: &PgPool, events: u64) -> anyhow::Result<()> {
    let folded: i64 = sqlx::query_scalar("SELECT coalesce(sum((doc ->> 'events')::bigint), 0)::bigint FROM public.baskets")
        .fetch_one(pool)
        .await
        .context("the look at the read model")?;
    anyhow::ensure!(u64::try_from(folded) == Ok(events), "the read model holds {folded} events, not {events}");
    Ok(())
}
