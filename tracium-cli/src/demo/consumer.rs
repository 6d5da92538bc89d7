//! `tracium demo-consumer` (hidden): the demo's read models as a process that can be killed.

use std::time::Duration;

use clap::Args;
use sqlx::postgres::PgPoolOptions;
use tracium_consumer::{Consumer, ConsumerOptions, IntoPostgres, Projection, Start, Subscription};

use super::shop::{Counts, Orders};
use crate::config::{ConfigArgs, Settings};
use crate::failure::{Failure, Outcome};
use crate::{connect, relay};

/// The read models of `tracium demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoConsumerArgs {
    #[arg(long)]
    topic: String,
    #[arg(long)]
    group_prefix: String,
    #[arg(long)]
    session_ms: u64,
}

pub(crate) async fn run(config: &ConfigArgs, args: &DemoConsumerArgs) -> Outcome {
    let stop = relay::stop_signal(true)?;
    let settings = Settings::load(config, None, None)?;
    let pool = PgPoolOptions::new().max_connections(4).connect_lazy_with(connect::options(settings.database()?)?);
    let options = ConsumerOptions {
        kafka: settings.relay.kafka.clone(),
        group_prefix: Some(args.group_prefix.clone()),
        session_timeout: Duration::from_millis(args.session_ms),
        ..ConsumerOptions::default()
    };
    let subscription = Subscription::to([args.topic.as_str()], Start::Earliest).map_err(Failure::usage)?;
    Consumer::new(options)
        .with(Orders.into_postgres(pool.clone()), subscription.clone())
        .and_then(|consumer| consumer.with(Counts.on_postgres(pool), subscription))
        .map_err(connect::consumer_failure)?
        .run(stop)
        .await
        .map_err(connect::consumer_failure)
}
