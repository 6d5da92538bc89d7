//! Where Kafka is and how to get in.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rdkafka::ClientConfig;
use serde::{Deserialize, Serialize};

use crate::Secret;

/// Where and how to reach Kafka: the tables `[relay.kafka]` and `[consumer.kafka]`. Unknown keys are errors.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct KafkaOptions {
    /// `host:port`, several with commas. Default `localhost:9092`.
    pub bootstrap_servers: String,
    /// How long one question about a topic or the cluster may take. Default 5 s.
    #[serde(with = "humantime_serde")]
    pub request_timeout: Duration,
    /// Whether the connection is encrypted and whether it logs in. Default plaintext.
    pub security_protocol: SecurityProtocol,
    /// PEM file of the authorities whose broker certificates are believed. Default: the system's.
    pub ssl_ca: Option<PathBuf>,
    /// PEM file of our own certificate, for brokers that ask for one; with [`KafkaOptions::ssl_key`].
    pub ssl_certificate: Option<PathBuf>,
    /// PEM file of that certificate's key.
    pub ssl_key: Option<PathBuf>,
    /// The password of that key, if it is encrypted.
    pub ssl_key_password: Option<Secret>,
    /// How the login is proved. Default SCRAM-SHA-512, which never sends the password.
    pub sasl_mechanism: SaslMechanism,
    /// The login.
    pub sasl_username: Option<String>,
    /// Its password.
    pub sasl_password: Option<Secret>,
    /// Further librdkafka properties (`linger.ms`, `client.rack`, …; its CONFIGURATION.md lists them). Those that are
    /// options of their own, or that the guarantees stand on, are refused.
    pub properties: BTreeMap<String, String>,
}

/// librdkafka's `security.protocol`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SecurityProtocol {
    /// Neither encrypted nor logged in.
    #[default]
    Plaintext,
    /// TLS.
    Ssl,
    /// A login without encryption: only where nobody listens.
    SaslPlaintext,
    /// TLS, then a login.
    SaslSsl,
}

impl SecurityProtocol {
    /// Whether it encrypts.
    #[must_use]
    pub fn is_tls(self) -> bool {
        matches!(self, Self::Ssl | Self::SaslSsl)
    }

    /// Whether it logs in.
    #[must_use]
    pub fn is_sasl(self) -> bool {
        matches!(self, Self::SaslPlaintext | Self::SaslSsl)
    }

    /// Its name in settings and in librdkafka.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Plaintext => "plaintext",
            Self::Ssl => "ssl",
            Self::SaslPlaintext => "sasl_plaintext",
            Self::SaslSsl => "sasl_ssl",
        }
    }
}

/// librdkafka's `sasl.mechanism`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum SaslMechanism {
    /// Challenge and response over SHA-512.
    #[default]
    #[serde(rename = "SCRAM-SHA-512")]
    ScramSha512,
    /// Challenge and response over SHA-256.
    #[serde(rename = "SCRAM-SHA-256")]
    ScramSha256,
    /// The password itself: with `sasl_ssl` only.
    #[serde(rename = "PLAIN")]
    Plain,
}

impl SaslMechanism {
    /// Its name in settings and in librdkafka.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ScramSha512 => "SCRAM-SHA-512",
            Self::ScramSha256 => "SCRAM-SHA-256",
            Self::Plain => "PLAIN",
        }
    }
}

/// An option that cannot have its value. Class: fatal.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{option} {rule}")]
pub struct OptionsError {
    /// The option's name in the table, as in `sasl_password`.
    pub option: &'static str,
    /// What it must be, or what is wrong with the file it names.
    pub rule: String,
}

impl Default for KafkaOptions {
    fn default() -> Self {
        Self {
            bootstrap_servers: "localhost:9092".to_owned(),
            request_timeout: Duration::from_secs(5),
            security_protocol: SecurityProtocol::default(),
            ssl_ca: None,
            ssl_certificate: None,
            ssl_key: None,
            ssl_key_password: None,
            sasl_mechanism: SaslMechanism::default(),
            sasl_username: None,
            sasl_password: None,
            properties: BTreeMap::new(),
        }
    }
}

/// librdkafka's names of what is an option here: two places for one thing would be one too many, and a password among
/// properties is printed with them.
const OWNED_PROPERTIES: [(&str, &str); 14] = [
    ("bootstrap.servers", "bootstrap_servers"),
    ("metadata.broker.list", "bootstrap_servers"),
    ("security.protocol", "security_protocol"),
    ("ssl.ca.location", "ssl_ca"),
    ("ssl.certificate.location", "ssl_certificate"),
    ("ssl.key.location", "ssl_key"),
    ("ssl.key.password", "ssl_key_password"),
    ("ssl.key.pem", "ssl_key"),
    ("sasl.mechanism", "sasl_mechanism"),
    ("sasl.mechanisms", "sasl_mechanism"),
    ("sasl.username", "sasl_username"),
    ("sasl.password", "sasl_password"),
    ("allow.auto.create.topics", ""),
    ("ssl.keystore.password", "ssl_key_password"),
];

impl KafkaOptions {
    /// Checks what the types do not, and that the files named are there and PEM.
    ///
    /// # Errors
    /// [`OptionsError`] naming the option.
    pub fn validate(&self) -> Result<(), OptionsError> {
        let wrong = |option: &'static str, rule: &str| Err(OptionsError { option, rule: rule.to_owned() });
        let protocol = self.security_protocol;
        if self.bootstrap_servers.trim().is_empty() {
            return wrong("bootstrap_servers", "must name at least one host:port");
        }
        if self.request_timeout.is_zero() {
            return wrong("request_timeout", "must be more than 0");
        }
        if protocol.is_sasl() {
            if self.sasl_username.as_deref().is_none_or(str::is_empty) {
                return wrong("sasl_username", &format!("is missing: security_protocol is {}", protocol.as_str()));
            }
            if self.sasl_password.as_ref().is_none_or(|p| p.expose().is_empty()) {
                return wrong("sasl_password", &format!("is missing: security_protocol is {}", protocol.as_str()));
            }
            if self.sasl_mechanism == SaslMechanism::Plain && !protocol.is_tls() {
                return wrong("sasl_mechanism", "PLAIN sends the password as it is: set security_protocol to sasl_ssl");
            }
        } else if self.sasl_username.is_some() || self.sasl_password.is_some() {
            let option = if self.sasl_username.is_some() { "sasl_username" } else { "sasl_password" };
            let rule = format!("has no effect while security_protocol is {}: set that to sasl_ssl", protocol.as_str());
            return wrong(option, &rule);
        }
        let files = [("ssl_ca", &self.ssl_ca), ("ssl_certificate", &self.ssl_certificate), ("ssl_key", &self.ssl_key)];
        for (option, path) in files {
            let Some(path) = path else { continue };
            if !protocol.is_tls() {
                let rule = format!("has no effect while security_protocol is {}: set that to ssl or sasl_ssl", protocol.as_str());
                return wrong(option, &rule);
            }
            check_pem(path).map_err(|rule| OptionsError { option, rule })?;
        }
        match (&self.ssl_certificate, &self.ssl_key) {
            (Some(_), None) => return wrong("ssl_key", "is missing: ssl_certificate is set"),
            (None, Some(_)) => return wrong("ssl_certificate", "is missing: ssl_key is set"),
            _ => {}
        }
        for (property, option) in OWNED_PROPERTIES {
            if self.properties.contains_key(property) {
                let rule = if option.is_empty() {
                    format!("may not set {property}: a misspelt topic must fail, not come to be")
                } else {
                    format!("may not set {property}: it is the option {option}")
                };
                return wrong("properties", &rule);
            }
        }
        Ok(())
    }

    /// Puts the further properties, then the connection, on top of what is there; set what must not change after it.
    pub fn apply(&self, config: &mut ClientConfig) {
        for (property, value) in &self.properties {
            config.set(property, value);
        }
        config
            .set("bootstrap.servers", &self.bootstrap_servers)
            .set("security.protocol", self.security_protocol.as_str())
            .set("allow.auto.create.topics", "false");
        let files = [
            ("ssl.ca.location", &self.ssl_ca),
            ("ssl.certificate.location", &self.ssl_certificate),
            ("ssl.key.location", &self.ssl_key),
        ];
        for (property, path) in files {
            if let Some(path) = path {
                config.set(property, path.to_string_lossy());
            }
        }
        if let Some(password) = &self.ssl_key_password {
            config.set("ssl.key.password", password.expose());
        }
        if self.security_protocol.is_sasl() {
            config.set("sasl.mechanism", self.sasl_mechanism.as_str());
            if let (Some(user), Some(password)) = (&self.sasl_username, &self.sasl_password) {
                config.set("sasl.username", user).set("sasl.password", password.expose());
            }
        }
    }

    /// A client's configuration with nothing but the connection and the further properties.
    #[must_use]
    pub fn client_config(&self) -> ClientConfig {
        let mut config = ClientConfig::new();
        self.apply(&mut config);
        config
    }
}

/// librdkafka says of a missing file only that a client could not be made.
fn check_pem(path: &Path) -> Result<(), String> {
    let place = path.display();
    let text = std::fs::read(path).map_err(|error| format!("names {place}, which cannot be read: {error}"))?;
    if String::from_utf8_lossy(&text).contains("-----BEGIN ") {
        return Ok(());
    }
    Err(format!("names {place}, which is not PEM (a text with -----BEGIN …); openssl x509 -inform der converts a DER file"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(change: impl FnOnce(&mut KafkaOptions)) -> String {
        let mut options = KafkaOptions::default();
        change(&mut options);
        options.validate().map(|()| format!("{options:?}")).expect_err("must be refused").to_string()
    }

    #[test]
    fn what_is_missing_for_a_login_is_named() {
        let text = refusal(|o| o.security_protocol = SecurityProtocol::SaslSsl);
        assert_eq!(text, "sasl_username is missing: security_protocol is sasl_ssl");
        let text = refusal(|o| {
            o.security_protocol = SecurityProtocol::SaslSsl;
            o.sasl_username = Some("u".to_owned());
        });
        assert_eq!(text, "sasl_password is missing: security_protocol is sasl_ssl");
    }

    #[test]
    fn what_would_have_no_effect_is_refused_so_that_nobody_takes_a_plain_connection_for_a_safe_one() {
        let text = refusal(|o| o.sasl_password = Some("p".into()));
        assert!(text.starts_with("sasl_password has no effect while security_protocol is plaintext"), "{text}");
        let text = refusal(|o| o.ssl_ca = Some("/ca.pem".into()));
        assert!(text.starts_with("ssl_ca has no effect while security_protocol is plaintext"), "{text}");
        let text = refusal(|o| {
            o.security_protocol = SecurityProtocol::SaslPlaintext;
            o.sasl_mechanism = SaslMechanism::Plain;
            o.sasl_username = Some("u".to_owned());
            o.sasl_password = Some("p".into());
        });
        assert!(text.contains("PLAIN sends the password as it is"), "{text}");
    }

    #[test]
    fn a_file_that_is_missing_or_not_pem_is_named_with_its_option() {
        let directory = tempfile::tempdir().expect("directory");
        let der = directory.path().join("ca.der");
        std::fs::write(&der, [0x30, 0x82]).expect("write");
        let text = refusal(|o| {
            o.security_protocol = SecurityProtocol::Ssl;
            o.ssl_ca = Some(der.clone());
        });
        assert!(text.starts_with("ssl_ca names ") && text.contains("is not PEM"), "{text}");
        let text = refusal(|o| {
            o.security_protocol = SecurityProtocol::Ssl;
            o.ssl_ca = Some("/nowhere/ca.pem".into());
        });
        assert!(text.starts_with("ssl_ca names /nowhere/ca.pem, which cannot be read"), "{text}");
    }

    #[test]
    fn a_property_that_is_an_option_is_refused_with_the_options_name() {
        let text = refusal(|o| {
            o.properties.insert("sasl.password".to_owned(), "geheim".to_owned());
        });
        assert_eq!(text, "properties may not set sasl.password: it is the option sasl_password");
    }

    #[test]
    fn names_are_those_that_kafka_users_know_and_secrets_are_never_shown() {
        let text =
            r#"{"security_protocol":"sasl_ssl","sasl_mechanism":"SCRAM-SHA-256","sasl_username":"u","sasl_password":"geheim"}"#;
        let options: KafkaOptions = serde_json::from_str(text).expect("valid");
        assert_eq!(options.validate(), Ok(()));
        let config = options.client_config();
        assert_eq!(config.get("sasl.mechanism"), Some("SCRAM-SHA-256"));
        assert_eq!(config.get("sasl.password"), Some("geheim"));
        let shown = format!("{options:?} {}", serde_json::to_string(&options).expect("JSON"));
        assert!(!shown.contains("geheim") && shown.contains("***"), "{shown}");
    }
}
