//! Merging file, environment and flags into one table that knows where each key came from.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, anyhow};
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::ConfigArgs;
use crate::failure::{Failure, Outcome};
use crate::redact::{self, MASK};

/// Variables of ours that are no settings, those of the development stack (`dev/README.md`) included.
const NOT_SETTINGS: [&str; 23] = [
    "TRACIUM_CONFIG",
    "TRACIUM_LOG",
    "TRACIUM_BIN",
    "TRACIUM_CACHE_DIR",
    "TRACIUM_CLICKHOUSE_PORT",
    "TRACIUM_CLUSTER_EVENTS",
    "TRACIUM_ES_HEAP",
    "TRACIUM_ES_PORT",
    "TRACIUM_JAVA",
    "TRACIUM_KAFKA_CLUSTER_HEAP",
    "TRACIUM_KAFKA_CLUSTER_PORT",
    "TRACIUM_KAFKA_HEAP",
    "TRACIUM_KAFKA_PORT",
    "TRACIUM_KAFKA_PROPS",
    "TRACIUM_OPENSEARCH_PORT",
    "TRACIUM_PG17_PORT",
    "TRACIUM_PG_BIN",
    "TRACIUM_PG_CONF",
    "TRACIUM_PG_PORT",
    "TRACIUM_PG_USER",
    "TRACIUM_REDIS_PORT",
    "TRACIUM_STACK_DIR",
    "TRACIUM_VERIFY_MINUTES",
];
/// The addresses of test services, as `dev/stack env` prints them.
const TEST_PREFIX: &str = "TRACIUM_TEST_";
/// Short names for the settings everybody needs.
const SHORT: [(&str, &[&str]); 3] = [
    ("DATABASE_URL", &["database_url"]),
    ("DATABASE_PASSWORD", &["database_password"]),
    ("TRACIUM_KAFKA", &["relay", "kafka", "bootstrap_servers"]),
];
/// Secrets, which the settings file may name by a file of their own: with `_file` behind the key.
const SECRETS: [&str; 4] = ["database_url", "database_password", "relay.kafka.sasl_password", "relay.kafka.ssl_key_password"];

/// One merged table.
#[derive(Debug, Default)]
pub(super) struct Layers {
    table: Table,
    /// Dotted path of every leaf, and what set it.
    origins: BTreeMap<String, String>,
    /// Leaves that came as text and were taken for numbers or booleans: their path and text.
    guessed: BTreeMap<String, (Vec<String>, String)>,
}

impl Layers {
    /// The file, then the environment, then `--set`.
    pub(super) fn read(args: &ConfigArgs, env: impl Iterator<Item = (OsString, OsString)>) -> Outcome<Self> {
        let env: BTreeMap<String, OsString> = env.filter_map(|(name, value)| Some((name.into_string().ok()?, value))).collect();
        let mut layers = Self::default();
        let path = args.config.as_deref().or_else(|| env.get("TRACIUM_CONFIG").map(Path::new));
        if let Some(path) = path {
            layers.add_file(path)?;
        }
        // Sorted, so the short names come first and the long one of the same key wins; both are the environment.
        for (name, value) in &env {
            layers.add_variable(name, value)?;
        }
        for pair in &args.set {
            let Some((key, value)) = pair.split_once('=') else {
                // Not the whole of it, which may be a password behind another sign than "=".
                let key: String = pair.chars().take_while(|c| c.is_ascii_lowercase() || matches!(c, '.' | '_')).collect();
                return Err(Failure::usage(anyhow!("--set {key}…: not KEY=VALUE")).way_out("--set relay.batch_size=100"));
            };
            let path: Vec<&str> = key.splitn(if key.starts_with("relay.kafka.properties.") { 4 } else { 32 }, '.').collect();
            layers.set_text(&path, value, format!("--set {key}"));
        }
        Ok(layers)
    }

    fn add_file(&mut self, path: &Path) -> Outcome {
        let name = path.display();
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("cannot read the settings file {name}"))
            .map_err(|error| Failure::usage(error).way_out("name an existing file with --config, or leave it out"))?;
        let mut table: Table = toml::from_str(&text).map_err(|error: toml::de::Error| {
            // Its own text quotes the line, and the line may be that of a password.
            let line = error.span().map_or(1, |span| 1 + text[..span.start.min(text.len())].matches('\n').count());
            Failure::usage(anyhow!("{}", error.message()).context(format!("{name} is not TOML, in line {line}")))
        })?;
        if let Some(Value::Table(properties)) =
            table.get_mut("relay").and_then(|t| t.get_mut("kafka")).and_then(|t| t.get_mut("properties"))
        {
            *properties = flattened(properties);
        }
        self.merge(&mut Vec::new(), table, &format!("{name}"))
    }

    fn merge(&mut self, path: &mut Vec<String>, table: Table, file: &str) -> Outcome {
        for (key, value) in table {
            path.push(key);
            match value {
                Value::Table(inner) if !inner.is_empty() => self.merge(path, inner, file)?,
                value => {
                    let key = path.join(".");
                    let origin = format!("{key} in {file}");
                    match (SECRETS.iter().find(|secret| key.strip_suffix("_file") == Some(**secret)), value.as_str()) {
                        (Some(secret), Some(named)) => {
                            let parts: Vec<&str> = secret.split('.').collect();
                            let text = read_value(named, &origin)?;
                            self.put(&parts, Value::String(text), origin);
                        }
                        _ => {
                            let parts: Vec<&str> = path.iter().map(String::as_str).collect();
                            self.put(&parts, value, origin);
                        }
                    }
                }
            }
            path.pop();
        }
        Ok(())
    }

    fn add_variable(&mut self, name: &str, value: &OsString) -> Outcome {
        if NOT_SETTINGS.contains(&name) || name.starts_with(TEST_PREFIX) {
            return Ok(());
        }
        let (bare, from_file) = match name.strip_suffix("_FILE") {
            Some(bare) => (bare, true),
            None => (name, false),
        };
        let short =
            SHORT.iter().find(|(short, _)| *short == bare).map(|(_, path)| path.iter().map(|p| (*p).to_owned()).collect());
        let Some(path) = short.or_else(|| path_of(bare)) else { return Ok(()) };
        let value = value.to_str().ok_or_else(|| Failure::usage(anyhow!("{name} is not UTF-8")))?.to_owned();
        let value = if from_file { read_value(&value, name)? } else { value };
        let path: Vec<&str> = path.iter().map(String::as_str).collect();
        self.set_text(&path, &value, name.to_owned());
        Ok(())
    }

    /// Sets a text on top of what is there.
    pub(super) fn set(&mut self, path: &[&str], value: &str, origin: &str) {
        self.put(path, Value::String(value.to_owned()), origin.to_owned());
    }

    /// As [`Layers::set`], taking what looks like a number or boolean for one.
    fn set_text(&mut self, path: &[&str], text: &str, origin: String) {
        let value = if let Ok(number) = text.parse::<i64>() {
            Value::Integer(number)
        } else if let Ok(boolean) = text.parse::<bool>() {
            Value::Boolean(boolean)
        } else {
            Value::String(text.to_owned())
        };
        if !value.is_str() {
            self.guessed.insert(path.join("."), (path.iter().map(|p| (*p).to_owned()).collect(), text.to_owned()));
        }
        self.put(path, value, origin);
    }

    fn put(&mut self, path: &[&str], value: Value, origin: String) {
        let Some((leaf, parents)) = path.split_last() else { return };
        let mut table = &mut self.table;
        for part in parents {
            let entry = table.entry((*part).to_owned()).or_insert_with(|| Value::Table(Table::new()));
            if !entry.is_table() {
                *entry = Value::Table(Table::new());
            }
            let Value::Table(next) = entry else { unreachable!("BUG: just made a table") };
            table = next;
        }
        // Before anything can be wrong with it, and be printed.
        let secret = leaf.contains("password") || leaf.contains("secret") || SECRETS.contains(&path.join(".").as_str());
        if let (true, Some(text)) = (secret, value.as_str()) {
            if *leaf == "database_url" { redact::remember_url(text) } else { redact::remember(text) }
        }
        table.insert((*leaf).to_owned(), value);
        self.origins.insert(path.join("."), origin);
    }

    /// What set each key.
    pub(super) fn origins(&self) -> &BTreeMap<String, String> {
        &self.origins
    }

    /// What set a key, or the first key under it.
    fn origin(&self, key: &str) -> Option<String> {
        let under = format!("{key}.");
        self.origins.get(key).or_else(|| self.origins.iter().find(|(path, _)| path.starts_with(&under)).map(|(_, o)| o)).cloned()
    }

    /// The settings, or the error that names the key, where it stands and the nearest known key.
    pub(super) fn deserialize<T: DeserializeOwned>(mut self) -> Outcome<T> {
        loop {
            let error = match serde_path_to_error::deserialize(self.table.clone()) {
                Ok(settings) => return Ok(settings),
                Err(error) => error,
            };
            let key = error.path().to_string();
            let message = error.into_inner().message().to_owned();
            // A text that looked like a number where a text is wanted.
            if let Some((path, text)) = self.guessed.remove(&key) {
                let origin = self.origin(&key).unwrap_or_default();
                self.put(&path.iter().map(String::as_str).collect::<Vec<_>>(), Value::String(text), origin);
                continue;
            }
            return Err(self.failure(&key, &message));
        }
    }

    fn failure(&self, key: &str, message: &str) -> Failure {
        let origin = self.origin(key).unwrap_or_else(|| key.to_owned());
        if !message.starts_with("unknown field") {
            return Failure::usage(anyhow!("setting {origin}: {}", without_value(key, message)));
        }
        // serde: unknown field `a`, expected one of `b`, `c`
        let (parent, wrong) = key.rsplit_once('.').map_or(("", key), |(parent, leaf)| (parent, leaf));
        let known: Vec<&str> = message.split('`').skip(3).step_by(2).collect();
        let full = |leaf: &str| if parent.is_empty() { leaf.to_owned() } else { format!("{parent}.{leaf}") };
        let nearest = known.iter().min_by_key(|k| strsim::damerau_levenshtein(k, wrong)).map(|k| full(k));
        let way_out = match nearest.filter(|n| strsim::normalized_damerau_levenshtein(n, key) > 0.6) {
            Some(nearest) => format!("did you mean {nearest}?"),
            None => format!("known here: {}", known.iter().map(|k| full(k)).collect::<Vec<_>>().join(", ")),
        };
        let place = if origin == key { key.to_owned() } else { format!("{key} (set by {origin})") };
        Failure::usage(anyhow!("unknown setting {place}")).way_out(way_out)
    }
}

/// serde quotes a value of the wrong kind; that of a secret, or of a table that holds one, is not shown.
fn without_value(key: &str, message: &str) -> String {
    let holds_a_secret = SECRETS.iter().any(|secret| secret.starts_with(key)) || key.contains("password");
    match (holds_a_secret, message.find('"'), message.rfind('"')) {
        (true, Some(from), Some(to)) if from < to => format!("{}{MASK}{}", &message[..from], &message[to + 1..]),
        _ => message.to_owned(),
    }
}

/// The value in a file, without the end of its line.
fn read_value(file: &str, named_by: &str) -> Outcome<String> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("cannot read {file}, the file that {named_by} names"))
        .map_err(Failure::usage)?;
    let value = text.trim_end_matches(['\r', '\n']);
    if value.is_empty() {
        return Err(Failure::usage(anyhow!("{file}, the file that {named_by} names, is empty")));
    }
    Ok(value.to_owned())
}

/// `TRACIUM_RELAY__BATCH_SIZE` → relay, batch_size; librdkafka's own names have dots: `…__PROPERTIES__LINGER_MS` →
/// `linger.ms`.
fn path_of(name: &str) -> Option<Vec<String>> {
    let path: Vec<String> = name.strip_prefix("TRACIUM_")?.split("__").map(str::to_lowercase).collect();
    match path.as_slice() {
        [relay, kafka, properties, name] if properties == "properties" => {
            Some(vec![relay.clone(), kafka.clone(), properties.clone(), name.replace('_', ".")])
        }
        _ => Some(path),
    }
}

/// `sasl.password = "…"` without quotes around the key is a table in TOML; librdkafka's names are flat.
fn flattened(table: &Table) -> Table {
    let mut flat = Table::new();
    for (key, value) in table {
        match value {
            Value::Table(inner) => {
                flat.extend(flattened(inner).into_iter().map(|(rest, value)| (format!("{key}.{rest}"), value)));
            }
            value => {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                flat.insert(key.clone(), Value::String(text));
            }
        }
    }
    flat
}
