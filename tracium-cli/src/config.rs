//! Settings: flags > environment > file > default, each knowing where it came from.
//!
//! The file is TOML (`--config tracium.toml`, or `TRACIUM_CONFIG`). An environment variable is `TRACIUM_` and the path
//! with `__` between the parts: `TRACIUM_RELAY__BATCH_SIZE=100` is `relay.batch_size`. `DATABASE_URL` is `database_url`,
//! `TRACIUM_KAFKA` is `relay.kafka.bootstrap_servers`. With `_FILE` behind the name it names a file that holds the value;
//! in the file itself the secrets may be named so too: `relay.kafka.sasl_password_file = "/run/secrets/kafka"`.
//!
//! A key that nothing knows is an error in all three, for a setting with a typing error would silently be its default.

mod layers;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::anyhow;
use clap::Args;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize};
use tracium_kafka::{KafkaOptions, Secret};
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

/// The shape of `tracium.toml`.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    database_url: Option<String>,
    /// Goes into the URL: for platforms that hand out passwords apart from addresses.
    database_password: Option<Secret>,
    relay: RelayOptions,
}

/// What set each key that is not at its default.
#[derive(Debug, Clone, Default)]
pub(crate) struct Origins(BTreeMap<String, String>);

impl Origins {
    /// What set the key, or the key itself: what to change.
    pub(crate) fn of(&self, key: &str) -> String {
        self.0.get(key).cloned().unwrap_or_else(|| key.to_owned())
    }

    /// What set the key, unless it is at its default.
    pub(crate) fn set_by(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }
}

/// All settings, merged and checked.
#[derive(Debug)]
pub(crate) struct Settings {
    database_url: Option<Sourced<String>>,
    pub(crate) relay: RelayOptions,
    pub(crate) origins: Origins,
    /// Everything as it is in force, secrets masked: for `config show`.
    pub(crate) shown: toml::Table,
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
        let origins = Origins(layers.origins().clone());
        let file: File = layers.deserialize()?;
        // Before anything is printed: what is secret.
        let kafka = &file.relay.kafka;
        let secrets = [&file.database_password, &kafka.sasl_password, &kafka.ssl_key_password];
        secrets.into_iter().flatten().for_each(|secret| crate::redact::remember(secret.expose()));
        file.database_url.iter().for_each(|url| remember_url(url));
        let secret_properties = kafka.properties.iter().filter(|(name, _)| is_secret(name));
        secret_properties.for_each(|(_, value)| crate::redact::remember(value));

        file.relay.validate().map_err(|error| {
            let origin = origins.set_by(&error.setting).map(|origin| format!("see {origin}"));
            let failure = Failure::usage(error);
            match origin {
                Some(origin) => failure.way_out(origin),
                None => failure,
            }
        })?;
        let shown = toml::Table::try_from(&file).map_err(|error| Failure::found(anyhow!(error).context("BUG: settings")))?;
        let database_url = match (file.database_url, &file.database_password) {
            (Some(url), None) => Some(url),
            (Some(url), Some(password)) => Some(with_password(&url, password)),
            (None, None) => None,
            (None, Some(_)) => {
                let origin = origins.of("database_password");
                return Err(Failure::usage(anyhow!("{origin} is set, and no database is named")).way_out(NAME_A_DATABASE));
            }
        };
        let password = origins.set_by("database_password").map(|origin| format!(" with {origin}")).unwrap_or_default();
        let database_url = database_url.map(|value| {
            remember_url(&value);
            Sourced { value, origin: format!("{}{password}", origins.of("database_url")) }
        });
        Ok(Self { database_url, relay: file.relay, origins, shown })
    }

    /// The broker, if a setting names one.
    pub(crate) fn kafka(&self) -> Option<&KafkaOptions> {
        self.origins.set_by("relay.kafka.bootstrap_servers").map(|_| &self.relay.kafka)
    }

    /// The database, which has no default: a guess could migrate the wrong one.
    pub(crate) fn database(&self) -> Outcome<&Sourced<String>> {
        self.database_url.as_ref().ok_or_else(|| Failure::usage(anyhow!("no database is named")).way_out(NAME_A_DATABASE))
    }
}

const NAME_A_DATABASE: &str = "set DATABASE_URL or --database-url to postgres://user@host:port/database";

/// Whether a librdkafka property of that name must not be printed.
pub(crate) fn is_secret(property: &str) -> bool {
    ["password", "secret", ".pem", "token", "jaas"].iter().any(|part| property.contains(part))
}

/// As libpq takes it: a parameter of the URL. One that the URL has already loses.
fn with_password(url: &str, password: &Secret) -> String {
    let separator = if url.contains('?') { '&' } else { '?' };
    format!("{url}{separator}password={}", utf8_percent_encode(password.expose(), NON_ALPHANUMERIC))
}

/// The settings of the broker as variables for a child: command lines can be read by others.
pub(crate) fn kafka_environment(kafka: &KafkaOptions) -> Vec<(String, String)> {
    let prefix = "TRACIUM_RELAY__KAFKA__";
    let mut set = vec![
        ("BOOTSTRAP_SERVERS", kafka.bootstrap_servers.clone()),
        ("SECURITY_PROTOCOL", kafka.security_protocol.as_str().to_owned()),
        ("SASL_MECHANISM", kafka.sasl_mechanism.as_str().to_owned()),
    ];
    let paths = [("SSL_CA", &kafka.ssl_ca), ("SSL_CERTIFICATE", &kafka.ssl_certificate), ("SSL_KEY", &kafka.ssl_key)];
    set.extend(paths.into_iter().filter_map(|(name, path)| Some((name, path.as_ref()?.display().to_string()))));
    set.extend(kafka.sasl_username.iter().map(|user| ("SASL_USERNAME", user.clone())));
    let secrets = [("SASL_PASSWORD", &kafka.sasl_password), ("SSL_KEY_PASSWORD", &kafka.ssl_key_password)];
    set.extend(secrets.into_iter().filter_map(|(name, secret)| Some((name, secret.as_ref()?.expose().to_owned()))));
    let properties = kafka
        .properties
        .iter()
        .map(|(name, value)| (format!("PROPERTIES__{}", name.to_uppercase().replace('.', "_")), value.clone()));
    set.into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .chain(properties)
        .map(|(name, value)| (format!("{prefix}{name}"), value))
        .collect()
}
