//! `tracium status`: outbox and projections of a database.

use clap::Args;
use serde::Serialize;
use tracium_relay::OutboxStats;

use crate::config::{ConfigArgs, DatabaseArgs, Settings};
use crate::failure::Outcome;
use crate::{connect, out, outbox};

/// Shows what waits in the outbox, who relays it, and how far the projections are.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tracium status
  tracium status --json | jq .outbox.pending")]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    /// One JSON object as the last line of stdout.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Status {
    outbox: OutboxStats,
    projections: Vec<serde_json::Value>,
}

pub(crate) async fn run(config: &ConfigArgs, args: &StatusArgs) -> Outcome {
    let settings = Settings::load(config, Some(&args.database), None)?;
    let (mut connection, _) = connect::migrated_database(settings.database()?).await?;
    let outbox = outbox::read(&mut connection).await?;
    let status = Status { outbox, projections: Vec::new() };
    if args.json {
        out::json(&status);
        return Ok(());
    }
    outbox::print(&status.outbox);
    Ok(())
}
