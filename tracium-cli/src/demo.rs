//! `tracium demo`: the whole chain in one command, with processes killed on the way, and a verdict.
//!
//! This process holds the writers, the observer and (without `--kafka`) the broker; relays and consumer are children of
//! the same binary, so that a SIGKILL hits what it would hit in production.

mod chaos;
pub(crate) mod consumer;
mod evidence;
mod observer;
mod picture;
mod play;
mod progress;
pub(crate) mod shop;
mod verdict;
mod writers;

use std::time::{Duration, Instant};

use anyhow::anyhow;
use clap::Args;

use crate::config::{ConfigArgs, DatabaseArgs, KafkaArgs, Settings};
use crate::failure::{Failure, Outcome};
use crate::stage::{Broker, Database, short_id};
use crate::{out, relay};
use verdict::{Summary, Verdict};

/// Two for each relay.
const SHARDS: u16 = 4;
pub(crate) const PARTITIONS: i32 = 12;
/// Bytes an event takes in the mock broker, with room for duplicates and for partitions that are fuller than others.
const MOCK_EVENT_BYTES: u64 = 800;

/// Sends orders' events through the whole chain, kills relay and consumer on the way, and checks every event.
///
/// Needs nothing: it starts a throw-away PostgreSQL and librdkafka's mock broker. Eight writers append events to many
/// orders; some transactions roll back, some conflict. Two relays carry them to Kafka, a consumer keeps a document an
/// order and counters. Both kinds are killed with SIGKILL at moments the seed chooses, and started again. At the end:
/// was every committed event delivered, none of a rolled-back one, in order; did each take effect exactly once; is every
/// document what the events of the event store make?
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tracium demo
  tracium demo --events 20000 --seed 7 --json
  DATABASE_URL=postgres://owner@localhost/postgres tracium demo --kafka localhost:9092 --events 200000

With a server of yours it works in a database tracium_demo_… and a topic tracium-demo-… of its own and removes both;
the roles that `tracium migrate` makes stay.")]
pub(crate) struct DemoArgs {
    /// Events to commit.
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(100..))]
    events: u64,
    /// Chooses orders, rollbacks and the moments of the kills [default: a random one, shown].
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    #[command(flatten)]
    database: DatabaseArgs,
    #[command(flatten)]
    kafka: KafkaArgs,
    /// One JSON object as the last line of stdout.
    #[arg(long)]
    json: bool,
    /// Spoil the run, to see that the verdict notices.
    #[arg(long, hide = true)]
    plant: Option<play::Plant>,
    /// Kill no process: for campaigns whose fault is another.
    #[arg(long, hide = true)]
    no_kills: bool,
    /// Seconds for which nothing may move before the run is judged as it stands: longer than any lease, session and backoff
    /// in it, and than any fault from outside.
    #[arg(long, hide = true, default_value_t = 30)]
    patience: u64,
}

pub(crate) async fn run(config: &ConfigArgs, args: &DemoArgs) -> Outcome {
    let started = Instant::now();
    let stop = relay::stop_signal(false)?;
    let settings = Settings::load(config, Some(&args.database), Some(&args.kafka))?;
    if settings.kafka().is_none() {
        Broker::refuse_what_the_mock_cannot_hold(args.events, PARTITIONS, MOCK_EVENT_BYTES)?;
    }
    let mut broker = Broker::make(&settings).await?;
    let database = Database::make(settings.database().ok(), "demo", Some(SHARDS)).await?;
    let seed = args.seed.unwrap_or_else(|| uuid::Uuid::new_v4().as_u64_pair().0 % 1_000_000);
    out::note(format!("seed {seed}; {}; {}", database.description, broker.description));

    let plan = play::Plan {
        events: args.events,
        seed,
        started,
        topic: if broker.is_mock() { "orders".to_owned() } else { format!("tracium-demo-{}", short_id()) },
        group_prefix: format!("tracium-demo-{}", short_id()),
        plant: args.plant,
        kills: !args.no_kills,
        patience: Duration::from_secs(args.patience),
    };
    let played = tokio::select! {
        biased;
        () = stop.cancelled() => Err(Failure::found(anyhow!("interrupted; what was made for the run is removed"))),
        played = play::play(&plan, &mut broker, &database) => played,
    };
    let removed = (database.remove().await, broker.remove().await);
    let verdict = played?;
    report(&verdict, args.json);
    removed.0?;
    removed.1?;
    if verdict.summary.ok { Ok(()) } else { Err(Failure::found(anyhow!("the verdict is: not ok"))) }
}

fn report(verdict: &Verdict, json: bool) {
    for problem in &verdict.problems {
        out::note(format!("  ✗ {problem}"));
    }
    if json {
        out::json(&verdict.summary);
        return;
    }
    for line in words(&verdict.summary) {
        out::line(line);
    }
}

/// What was proved, for people.
fn words(s: &Summary) -> Vec<String> {
    let mark = |ok: bool| if ok { "✓" } else { "✗" };
    vec![
        String::new(),
        format!(
            "{} events of {} orders committed, {} rolled back, {} version conflicts decided anew",
            s.appended, s.orders, s.rolled_back, s.conflicts
        ),
        format!(
            "killed with SIGKILL while events flowed: relays {} times, the consumer {} times",
            s.relay_kills, s.consumer_kills
        ),
        format!(
            "  {} delivered: every committed event ({} lost), none that was rolled back ({} phantoms)",
            mark(s.lost + s.phantom == 0),
            s.lost,
            s.phantom
        ),
        format!(
            "  {} in order: first deliveries of an order in version order ({} out of order)",
            mark(s.reordered == 0),
            s.reordered
        ),
        format!(
            "  {} once: {} duplicates delivered, each event took effect exactly once ({} double, {} missing)",
            mark(s.double_effects + s.missing_effects == 0),
            s.duplicates_delivered,
            s.double_effects,
            s.missing_effects
        ),
        format!(
            "  {} read model: {} documents equal the fold of the event store ({} differ)",
            mark(s.wrong_documents == 0),
            s.orders - s.wrong_documents.min(s.orders),
            s.wrong_documents
        ),
        format!("{} in {:.1} s, seed {}", if s.ok { "ok" } else { "NOT OK" }, s.seconds, s.seed),
    ]
}
