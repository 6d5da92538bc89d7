//! `tracium config show`: what is in force, and what set it.

use clap::{Args, Subcommand};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::config::{ConfigArgs, Settings, is_secret};
use crate::failure::Outcome;
use crate::out;

/// Shows the settings in force.
#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    Show(ConfigShowArgs),
}

/// Every setting with its value and what set it: flag, variable, file or default. Secrets show as ***.
///
/// Reads and checks them as every command does, and reaches nothing.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tracium config show --config tracium.toml
  tracium config show --json | jq '.settings[] | select(.origin != \"default\")'")]
pub(crate) struct ConfigShowArgs {
    /// One JSON object as the last line of stdout.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Serialize)]
struct Setting {
    key: String,
    value: Value,
    origin: String,
}

pub(crate) fn run(config: &ConfigArgs, args: &ConfigShowArgs) -> Outcome {
    let settings = Settings::load(config, None, None)?;
    let mut list = Vec::new();
    walk(&settings, "", &settings.shown, &mut list);
    if args.json {
        let mut object = Map::new();
        object.insert("settings".to_owned(), serde_json::to_value(&list).expect("BUG: settings that are not JSON"));
        out::json(&object);
        return Ok(());
    }
    let width = list.iter().map(|s| s.key.len() + s.value.to_string().len() + 3).max().unwrap_or(0).min(72);
    for Setting { key, value, origin } in list {
        out::line(format!("{:<width$}  # {origin}", format!("{key} = {value}")));
    }
    Ok(())
}

fn walk(settings: &Settings, prefix: &str, table: &toml::Table, list: &mut Vec<Setting>) {
    for (name, value) in table {
        let key = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        if let toml::Value::Table(inner) = value {
            walk(settings, &key, inner, list);
            continue;
        }
        let property = key.strip_prefix("relay.kafka.properties.");
        let value = match (property, value) {
            (Some(property), _) if is_secret(property) => Value::from(tracium_kafka::Secret::MASK),
            (_, toml::Value::Integer(number)) => Value::from(*number),
            (_, toml::Value::Boolean(boolean)) => Value::from(*boolean),
            (_, toml::Value::String(text)) => Value::from(text.as_str()),
            (_, other) => Value::from(other.to_string()),
        };
        let origin = settings.origins.set_by(&key).unwrap_or("default").to_owned();
        list.push(Setting { key, value, origin });
    }
}
