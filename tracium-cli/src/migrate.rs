//! `tracium migrate`: makes or upgrades schema `tracium`.

use anyhow::anyhow;
use clap::Args;
use tracium_core::schema;

use crate::config::{ConfigArgs, DatabaseArgs, Settings};
use crate::failure::{Failure, Outcome};
use crate::{connect, out};

/// Makes or upgrades schema tracium in a database. Safe to run again, and from several places at once.
///
/// The schema holds the event store, the outbox with its shard tables, the relay's leases and the consumers' state, and
/// the roles app_writer, tracium_relay, tracium_consumer and tracium_viewer. Nothing else runs migrations.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  DATABASE_URL=postgres://owner@localhost/shop tracium migrate
  tracium migrate --print --shards 16 | psql postgres://owner@localhost/shop")]
pub(crate) struct MigrateArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Print the SQL for an empty database instead of running it.
    #[arg(long)]
    print: bool,
    /// Shards of the outbox, fixed once made. As many as relays may ever work side by side [default: 8].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    shards: Option<u16>,
}

pub(crate) async fn run(config: &ConfigArgs, args: &MigrateArgs) -> Outcome {
    if args.print {
        out::line(schema::script(args.shards.unwrap_or(schema::DEFAULT_SHARDS)).trim_end());
        return Ok(());
    }
    let settings = Settings::load(config, Some(&args.database), None)?;
    let url = settings.database()?;
    let mut connection = connect::database(url).await?;
    let before = schema::check(&mut connection).await.ok();
    let installed = schema::migrate(&mut connection, args.shards).await.map_err(|e| connect::schema_failure(e, url))?;
    let what = match before {
        Some(before) if before == installed => "is up to date",
        Some(_) => "is upgraded",
        None => "is installed",
    };
    if args.shards.is_some_and(|wanted| wanted != installed.shards) {
        return Err(Failure::found(anyhow!("the outbox has {} shards", installed.shards)));
    }
    out::line(format!("schema tracium {what}: version {}, {} shards", installed.version, installed.shards));
    Ok(())
}
