//! Settings: flags > environment > file > default, each knowing where it came from.
//!
//! The file is TOML (`--config tracium.toml`, or `TRACIUM_CONFIG`). An environment variable is `TRACIUM_` and the path
//! with `__` between the parts: `TRACIUM_RELAY__BATCH_SIZE=100` is `relay.batch_size`. `DATABASE_URL` is `database_url`,
//! `TRACIUM_KAFKA` is `relay.kafka.bootstrap_servers`. With `_FILE` behind the name it names a file that holds the value.
//!
//! A key that nothing knows is an error in all three, for a setting with a typing error would silently be its default.

mod layers;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use anyhow::anyhow;
use clap::Args;
use serde::Deserialize;
use tracium_relay::RelayOptions;

use crate::failure::{Failure, Outcome};
use crate::redact::remember_url;
use layers::Layers;

/// Flags that say where settings come from.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ConfigArgs {
    /// Settings file; also TRACIUM_CONFIG.
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) config: Option<PathBuf>,
    /// One setting of the file, as in --set relay.batch_size=100; may be repeated.
    #[arg(long = "set", value_name = "KEY=VALUE", global = true)]
    pub(crate) set: Vec<String>,
}

/// The flag for the database.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct DatabaseArgs {
    /// postgres://user@host:port/database; also DATABASE_URL, DATABASE_URL_FILE, or database_url in the file.
    /// Other users of this machine can read a password given as a flag; the file forms keep it.
    #[arg(long, value_name = "URL")]
    pub(crate) database_url: Option<String>,
}

/// The flag for the broker.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct KafkaArgs {
    /// Kafka's bootstrap servers; also TRACIUM_KAFKA, or relay.kafka.bootstrap_servers in the file.
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) kafka: Option<String>,
}

/// A value and the setting that gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Sourced<T> {
    pub(crate) value: T,
    pub(crate) origin: String,
}

const DEFAULT_BROKER: &str = "the default of relay.kafka.bootstrap_servers";

/// The shape of `tracium.toml`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    database_url: Option<String>,
    relay: RelayOptions,
}

/// All settings, merged and checked.
#[derive(Debug)]
pub(crate) struct Settings {
    database_url: Option<Sourced<String>>,
    pub(crate) relay: RelayOptions,
    /// Which setting named the broker.
    pub(crate) kafka_origin: String,
}

impl Settings {
    /// Reads file and environment and puts the flags on top.
    pub(crate) fn load(config: &ConfigArgs, database: Option<&DatabaseArgs>, kafka: Option<&KafkaArgs>) -> Outcome<Self> {
        let mut layers = Layers::read(config, std::env::vars_os())?;
        if let Some(url) = database.and_then(|d| d.database_url.as_deref()) {
            layers.set(&["database_url"], url, "--database-url");
        }
        if let Some(servers) = kafka.and_then(|k| k.kafka.as_deref()) {
            layers.set(&["relay", "kafka", "bootstrap_servers"], servers, "--kafka");
        }
        Self::from_layers(layers)
    }

    fn from_layers(layers: Layers) -> Outcome<Self> {
        let origin = |key: &str, default: &str| layers.origin(key).unwrap_or_else(|| default.to_owned());
        let kafka_origin = origin("relay.kafka.bootstrap_servers", DEFAULT_BROKER);
        let database_origin = origin("database_url", "");
        let file: File = layers.deserialize()?;
        let database_url = file.database_url.map(|value| {
            remember_url(&value);
            Sourced { value, origin: database_origin }
        });
        file.relay
            .kafka
            .properties
            .iter()
            .filter(|(name, _)| name.contains("password") || name.contains("secret"))
            .for_each(|(_, value)| crate::redact::remember(value));
        file.relay.validate().map_err(Failure::usage)?;
        Ok(Self { database_url, relay: file.relay, kafka_origin })
    }

    /// The broker, if a setting names one.
    pub(crate) fn kafka(&self) -> Option<Sourced<String>> {
        let value = self.relay.kafka.bootstrap_servers.clone();
        (self.kafka_origin != DEFAULT_BROKER).then(|| Sourced { value, origin: self.kafka_origin.clone() })
    }

    /// The database, which has no default: a guess could migrate the wrong one.
    pub(crate) fn database(&self) -> Outcome<&Sourced<String>> {
        self.database_url.as_ref().ok_or_else(|| {
            Failure::usage(anyhow!("no database is named"))
                .way_out("set DATABASE_URL or --database-url to postgres://user@host:port/database")
        })
    }
}
