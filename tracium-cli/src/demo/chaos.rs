//! Chaos: kills relays and the consumer at moments that the seed chooses, by how far the chain is.

use std::path::Path;
use std::time::Duration;

use anyhow::anyhow;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::progress::Progress;
use tracium_kafka::KafkaOptions;

use crate::config::kafka_environment;
use crate::failure::{Failure, Outcome};
use crate::stage::{Process, Spec, log_tail};

/// How long a child may take to end after SIGTERM.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// What is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// One of the relays, when that many events were delivered.
    Relay(usize),
    /// The consumer, when that many were applied.
    Consumer,
}

/// A planned kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Kill {
    target: Target,
    at: u64,
    /// A little later, so that the moment does not depend on how often we look.
    jitter: Duration,
}

/// Kills spread over the run: at least two of each kind, more in a longer run.
pub(super) fn plan(events: u64, relays: usize, seed: u64) -> Vec<Kill> {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x6b69_6c6c);
    let mut kills = Vec::new();
    let relay_kills = (events / 7000).clamp(2, 8);
    let consumer_kills = (events / 50_000).clamp(2, 4);
    let mut spread = |count: u64, target: &mut dyn FnMut(&mut StdRng) -> Target| {
        // One in each of `count` equal parts of the first 85 %, so that traffic still flows at the last.
        for part in 0..count {
            let width = events * 85 / 100 / count;
            let at = (part * width + rng.random_range(width / 4..=width.max(1))).max(1);
            let jitter = Duration::from_millis(rng.random_range(0..80));
            kills.push(Kill { target: target(&mut rng), at, jitter });
        }
    };
    spread(relay_kills, &mut |rng| Target::Relay(rng.random_range(0..relays)));
    spread(consumer_kills, &mut |_| Target::Consumer);
    kills
}

/// What was killed so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Kills {
    pub(super) relay: u64,
    pub(super) consumer: u64,
    pub(super) planned: u64,
    pub(super) last: String,
}

/// The chain's processes.
#[derive(Debug)]
pub(super) struct Chain {
    relays: Vec<Process>,
    consumer: Process,
    plan: Vec<Kill>,
    kills: watch::Sender<Kills>,
}

impl Chain {
    pub(super) fn start(relays: Vec<Spec>, consumer: Spec, plan: Vec<Kill>, kills: watch::Sender<Kills>) -> Outcome<Self> {
        kills.send_modify(|k| k.planned = plan.len() as u64);
        let relays = relays.into_iter().map(Process::spawn).collect::<Outcome<Vec<_>>>()?;
        Ok(Self { relays, consumer: Process::spawn(consumer)?, plan, kills })
    }

    /// Kills as planned until the token is cancelled. A child that ends by itself is a failure.
    pub(super) async fn run(mut self, mut progress: watch::Receiver<Progress>, stop: CancellationToken) -> Outcome<Self> {
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(self),
                changed = progress.changed() => if changed.is_err() { return Ok(self) },
            }
            let now = progress.borrow_and_update().clone();
            for process in self.relays.iter_mut().chain([&mut self.consumer]) {
                if let Some(status) = process.ended() {
                    let spec = &process.spec;
                    return Err(Failure::found(anyhow!("{} ended by itself with {status}: {}", spec.name, log_tail(&spec.log))));
                }
            }
            let due = self.plan.iter().position(|kill| match kill.target {
                Target::Relay(_) => now.first_delivered >= kill.at,
                Target::Consumer => now.applied >= kill.at,
            });
            if let Some(due) = due {
                let kill = self.plan.remove(due);
                self.execute(kill).await?;
            }
        }
    }

    async fn execute(&mut self, kill: Kill) -> Outcome {
        tokio::time::sleep(kill.jitter).await;
        let process = match kill.target {
            Target::Relay(n) => &mut self.relays[n],
            Target::Consumer => &mut self.consumer,
        };
        process.kill_and_restart().await?;
        let name = process.spec.name.clone();
        self.kills.send_modify(|kills| {
            match kill.target {
                Target::Relay(_) => kills.relay += 1,
                Target::Consumer => kills.consumer += 1,
            }
            kills.last = name;
        });
        Ok(())
    }

    /// SIGTERM to the relays; returns what did not go well.
    pub(super) async fn stop_relays(&mut self) -> Vec<String> {
        let stops = self.relays.drain(..).map(|relay| relay.stop(STOP_DEADLINE));
        futures::future::join_all(stops).await.into_iter().filter_map(Result::err).collect()
    }

    /// SIGTERM to the consumer; returns what did not go well.
    pub(super) async fn stop_consumer(self) -> Vec<String> {
        self.consumer.stop(STOP_DEADLINE).await.err().into_iter().collect()
    }
}

/// The children's specs: two relays and a consumer, quick to notice each other's death.
pub(super) fn specs(
    database_url: &str,
    kafka: &KafkaOptions,
    mock: bool,
    topic: &str,
    group_prefix: &str,
    session: Duration,
    logs: &Path,
) -> (Vec<Spec>, Spec) {
    let mut env = kafka_environment(kafka);
    env.push(("DATABASE_URL".to_owned(), database_url.to_owned()));
    let spec = |name: &str, args: &[&str]| Spec {
        name: name.to_owned(),
        args: args.iter().map(|a| (*a).to_owned()).collect(),
        env: env.clone(),
        keeps_settings: false,
        log: logs.join(format!("{name}.log")),
    };
    let relay = ["relay", "run", "--until-stdin-closes"];
    let quick: &[&str] = if mock {
        // It answers no question about a topic's limits: do not wait for it.
        &[
            "lease_ttl=2s",
            "lease_refresh=500ms",
            "batch_deadline=1500ms",
            "database_deadline=1500ms",
            "kafka.request_timeout=500ms",
        ]
    } else {
        // A first batch may have to wait for TLS and a login, on a machine that is busy.
        &["lease_ttl=5s", "lease_refresh=1s", "batch_deadline=4s", "database_deadline=4s"]
    };
    let set: Vec<String> = quick.iter().map(|setting| format!("--set=relay.{setting}")).collect();
    let relay: Vec<&str> = relay.into_iter().chain(set.iter().map(String::as_str)).collect();
    let session = session.as_millis().to_string();
    let consumer = ["demo-consumer", "--topic", topic, "--group-prefix", group_prefix, "--session-ms", &session];
    (vec![spec("relay-1", &relay), spec("relay-2", &relay)], spec("consumer", &consumer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_plan_kills_each_kind_twice_while_events_flow() {
        for seed in 0..200 {
            for events in [1000, 2000, 20_000, 500_000] {
                let kills = plan(events, 2, seed);
                let consumer = kills.iter().filter(|k| k.target == Target::Consumer).count();
                assert!(consumer >= 2 && kills.len() - consumer >= 2, "{kills:?}");
                assert!(kills.iter().all(|k| k.at >= 1 && k.at <= events * 9 / 10), "{kills:?}");
            }
        }
        assert_eq!(plan(20_000, 2, 7), plan(20_000, 2, 7));
        assert_ne!(plan(20_000, 2, 7), plan(20_000, 2, 8));
    }
}
