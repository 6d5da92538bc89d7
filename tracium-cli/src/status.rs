//! `tracium status`: outbox and projections of a database.

use clap::Args;
use serde::Serialize;
use sqlx::postgres::PgPoolOptions;
use tracium_consumer::ProjectionStatus;
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
    projections: Vec<ProjectionStatus>,
}

pub(crate) async fn run(config: &ConfigArgs, args: &StatusArgs) -> Outcome {
    let settings = Settings::load(config, Some(&args.database), None)?;
    let url = settings.database()?;
    let (mut connection, _) = connect::migrated_database(url).await?;
    let outbox = outbox::read(&mut connection).await?;
    let pool = PgPoolOptions::new().max_connections(1).connect_lazy_with(connect::options(url)?);
    let projections = tracium_consumer::status(&pool).await.map_err(connect::consumer_failure)?;
    let status = Status { outbox, projections };
    if args.json {
        out::json(&status);
        return Ok(());
    }
    outbox::print(&status.outbox);
    print(&status.projections);
    Ok(())
}

fn print(projections: &[ProjectionStatus]) {
    if projections.is_empty() {
        out::line("no projection has run on this database");
        return;
    }
    out::line(format!(
        "{:<24} {:>5}  {:<8} {:>10} {:>9} {:>11} {:>12}",
        "projection", "epoch", "state", "applied", "behind", "stand still", "dead letters"
    ));
    for p in projections {
        out::line(format!(
            "{:<24} {:>5}  {:<8} {:>10} {:>9} {:>11} {:>12}",
            p.name, p.epoch, p.state, p.applied, p.lag_events, p.quarantined, p.dead_letters
        ));
    }
}
