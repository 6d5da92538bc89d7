//! `tracium outbox …`: the outbox of a database.

use anyhow::anyhow;
use clap::{Args, Subcommand};
use sqlx::PgConnection;
use tracium_relay::OutboxStats;

use crate::config::{ConfigArgs, DatabaseArgs, Settings};
use crate::failure::{Failure, Outcome};
use crate::{connect, out};

/// Looks into the outbox.
#[derive(Debug, Subcommand)]
pub(crate) enum OutboxCommand {
    Stats(OutboxStatsArgs),
}

/// Shows what waits, since when, and who holds the shards.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  tracium outbox stats --json | jq '.shards[] | select(.owner == null)'")]
pub(crate) struct OutboxStatsArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    /// One JSON object as the last line of stdout.
    #[arg(long)]
    json: bool,
}

pub(crate) async fn stats(config: &ConfigArgs, args: &OutboxStatsArgs) -> Outcome {
    let settings = Settings::load(config, Some(&args.database), None)?;
    let (mut connection, _) = connect::migrated_database(settings.database()?).await?;
    let outbox = read(&mut connection).await?;
    if args.json {
        out::json(&outbox);
    } else {
        print(&outbox);
    }
    Ok(())
}

pub(crate) async fn read(connection: &mut PgConnection) -> Outcome<OutboxStats> {
    tracium_relay::stats(connection).await.map_err(|error| Failure::found(anyhow!(error).context("the outbox cannot be read")))
}

/// The outbox for people.
pub(crate) fn print(outbox: &OutboxStats) {
    out::line(match outbox.pending {
        0 => "outbox: nothing waits".to_owned(),
        n => format!("outbox: {n} wait, the oldest for {}", seconds(outbox.oldest_age_s)),
    });
    if outbox.held_keys > 0 {
        out::line(format!("held keys: {} ({} stuck, with ten failed attempts or more)", outbox.held_keys, outbox.stuck));
    }
    out::line(format!("{:>5}  {:>9}  {:>6}  {:>10}  relay", "shard", "waiting", "term", "expires in"));
    for shard in &outbox.shards {
        let (expires, owner) = match &shard.owner {
            Some(owner) if shard.expires_in_s > 0.0 => (seconds(shard.expires_in_s), owner.as_str()),
            Some(owner) => ("expired".to_owned(), owner.as_str()),
            None => ("-".to_owned(), "(nobody)"),
        };
        out::line(format!("{:>5}  {:>9}  {:>6}  {expires:>10}  {owner}", shard.shard, shard.pending, shard.term));
    }
    if outbox.shards.iter().all(|s| s.owner.is_none() || s.expires_in_s <= 0.0) {
        out::line("no relay runs: start one with `tracium relay run`");
    }
}

fn seconds(seconds: f64) -> String {
    if seconds < 120.0 { format!("{seconds:.1} s") } else { format!("{:.0} min", seconds / 60.0) }
}
