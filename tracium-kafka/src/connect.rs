//! Whether a broker lets us in, and why not.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rdkafka::ClientContext;
use rdkafka::config::RDKafkaLogLevel;
use rdkafka::consumer::ConsumerContext;
use rdkafka::error::{KafkaError, RDKafkaErrorCode};
use rdkafka::producer::{BaseProducer, DeliveryResult, Producer, ProducerContext};
use tracium_core::{Class, Classify};

use crate::{KafkaOptions, certificate};

/// How long a slice of [`check`] waits before it looks whether the reason is known.
const SLICE: Duration = Duration::from_millis(300);
/// How long the look at a refused certificate may take.
const LOOK: Duration = Duration::from_secs(3);

/// A broker that does not let us in.
///
/// Class: transient if time or the broker's side can mend it, fatal if only a setting of ours can.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot reach Kafka at {bootstrap_servers}: {problem}")]
pub struct ConnectError {
    /// The configured address.
    pub bootstrap_servers: String,
    /// What is wrong.
    pub problem: Problem,
}

/// What is wrong with a connection.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// Nothing answers: no listener, no route, no such host, or not in time.
    #[error("{reason}")]
    NoAnswer {
        /// librdkafka's reason.
        reason: String,
    },
    /// The broker's certificate is past its date.
    #[error("the broker's certificate has expired ({since})")]
    CertificateExpired {
        /// The date.
        since: String,
    },
    /// The broker's certificate is for other names.
    #[error("the broker's certificate is not for {host}, but for {}", list(names))]
    HostName {
        /// What was asked for.
        host: String,
        /// What the certificate is for.
        names: Vec<String>,
    },
    /// Nobody we trust has signed the broker's certificate.
    #[error("the broker's certificate is signed by no authority that is trusted here ({reason})")]
    UnknownAuthority {
        /// OpenSSL's reason.
        reason: String,
    },
    /// The broker's certificate is refused for another reason.
    #[error("the broker's certificate is refused ({reason})")]
    Certificate {
        /// OpenSSL's, or librdkafka's, reason.
        reason: String,
    },
    /// We speak TLS, the listener does not.
    #[error("the listener does not speak TLS ({reason})")]
    NotTls {
        /// librdkafka's reason.
        reason: String,
    },
    /// The listener hangs up on what we say: most likely it speaks TLS, or wants a login, and we do not.
    #[error("the listener hangs up: it wants TLS or a login ({reason})")]
    HungUp {
        /// librdkafka's reason.
        reason: String,
    },
    /// The broker wants a certificate of ours, or refuses it.
    #[error("the broker refuses our certificate, or the lack of one ({reason})")]
    ClientCertificate {
        /// librdkafka's reason.
        reason: String,
    },
    /// User or password is wrong.
    #[error("the broker refuses the login ({reason})")]
    Login {
        /// The broker's reason.
        reason: String,
    },
    /// The broker does not know this way to log in.
    #[error("the broker does not take this mechanism ({reason})")]
    Mechanism {
        /// The broker's reason, with the mechanisms it takes.
        reason: String,
    },
    /// librdkafka refuses a property.
    #[error("librdkafka refuses the property {property:?}: {reason}")]
    Property {
        /// The property.
        property: String,
        /// librdkafka's reason.
        reason: String,
    },
}

fn list(names: &[String]) -> String {
    if names.is_empty() { "no name at all".to_owned() } else { names.join(", ") }
}

impl Problem {
    /// The options to look at, most likely first, by their names in `[relay.kafka]` or `[consumer.kafka]`.
    #[must_use]
    pub fn options(&self) -> &'static [&'static str] {
        match self {
            Self::NoAnswer { .. } | Self::HostName { .. } | Self::CertificateExpired { .. } => &["bootstrap_servers"],
            Self::UnknownAuthority { .. } | Self::Certificate { .. } => &["ssl_ca"],
            Self::NotTls { .. } | Self::HungUp { .. } => &["security_protocol"],
            Self::ClientCertificate { .. } => &["ssl_certificate", "ssl_key"],
            Self::Login { .. } => &["sasl_username", "sasl_password"],
            Self::Mechanism { .. } => &["sasl_mechanism"],
            Self::Property { .. } => &["properties"],
        }
    }

    /// What to do, with `{…}` for the options that [`Problem::options`] names.
    fn advice(&self) -> &'static str {
        match self {
            Self::NoAnswer { .. } => {
                "check that the broker runs, that {0} names it, and that it advertises an address this machine reaches"
            }
            Self::CertificateExpired { .. } => {
                "renew the certificate of the broker that {0} names, or set this machine's clock; nothing is sent before"
            }
            Self::HostName { .. } => {
                "name the broker in {0} as its certificate does, or give it a certificate for that name; its advertised.listeners count as well"
            }
            Self::UnknownAuthority { .. } | Self::Certificate { .. } => {
                "name in {0} the PEM file of the authority that signed the broker's certificate"
            }
            Self::NotTls { .. } => "set {0} to plaintext or sasl_plaintext, or name the broker's TLS listener",
            Self::HungUp { .. } => "set {0} to what the listener speaks (ssl, sasl_ssl), or name a plaintext listener",
            Self::ClientCertificate { .. } => "set {0} and {1} to a certificate that the broker's truststore knows",
            Self::Login { .. } => "check {0} and {1}",
            Self::Mechanism { .. } => "set {0} to one that the broker takes",
            Self::Property { .. } => "correct it in {0}; librdkafka's CONFIGURATION.md lists all",
        }
    }

    /// The way out, where `name` says what to call an option: its key in the file, or the variable that set it.
    #[must_use]
    pub fn way_out(&self, name: impl Fn(&str) -> String) -> String {
        let mut text = self.advice().to_owned();
        for (n, option) in self.options().iter().enumerate() {
            text = text.replace(&format!("{{{n}}}"), &name(option));
        }
        text
    }
}

impl Classify for ConnectError {
    fn class(&self) -> Class {
        match self.problem {
            Problem::NoAnswer { .. } | Problem::CertificateExpired { .. } => Class::Transient,
            _ => Class::Fatal,
        }
    }
}

/// Keeps what librdkafka says of a connection that fails: the error of the call itself only says that it timed out.
///
/// A context for clients of any kind; clones share what they keep.
#[derive(Debug, Clone, Default)]
pub struct Reasons(Arc<Mutex<Option<Reason>>>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct Reason {
    /// host:port, if it was said.
    server: Option<String>,
    text: String,
}

impl Reasons {
    /// Takes a line of librdkafka's log or the text of its error callback. The first decisive one stays; before that, the
    /// latest.
    pub fn keep(&self, line: &str) {
        // librdkafka sums up what it has said of each broker before.
        if line.contains("brokers are down") {
            return;
        }
        let reason = Reason::of(line);
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !kept.as_ref().is_some_and(|known| known.is_decisive()) {
            *kept = Some(reason);
        }
    }

    /// What was kept, in librdkafka's words.
    #[must_use]
    pub fn last(&self) -> Option<String> {
        self.get().map(|reason| reason.text)
    }

    /// Forgets it: the broker answers again.
    pub fn forget(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn get(&self) -> Option<Reason> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether what was kept cannot be mended by waiting.
    #[must_use]
    pub fn is_decisive(&self) -> bool {
        self.get().is_some_and(|reason| reason.is_decisive())
    }

    /// What was kept, as a problem. For a refused certificate the broker is asked once more, blocking for up to 3 s.
    #[must_use]
    pub fn explain(&self, options: &KafkaOptions, error: &KafkaError) -> ConnectError {
        let problem = match (error, self.get()) {
            (KafkaError::ClientConfig(_, reason, property, _), _) => {
                Problem::Property { property: property.clone(), reason: reason.clone() }
            }
            (_, Some(reason)) => reason.problem(options),
            (error, None) => Problem::NoAnswer { reason: error.to_string() },
        };
        ConnectError { bootstrap_servers: options.bootstrap_servers.clone(), problem }
    }
}

impl Reason {
    fn of(line: &str) -> Self {
        // "[thrd:sasl_ssl://host:1/bootstrap]: sasl_ssl://host:1/bootstrap: SSL handshake failed: …"
        let line = line.rsplit_once("]: ").map_or(line, |(_, rest)| rest);
        let (place, text) = match line.split_once(": ") {
            Some((place, text)) if place.contains('/') && place.contains(':') => (Some(place), text),
            _ => (None, line),
        };
        let server = place.map(|place| {
            let bare = place.rsplit_once("://").map_or(place, |(_, bare)| bare);
            bare.split('/').next().unwrap_or(bare).to_owned()
        });
        Self { server, text: text.to_owned() }
    }

    /// Whether waiting cannot help. A listener also hangs up when its broker goes.
    fn is_decisive(&self) -> bool {
        !matches!(self.kind(), Kind::NoAnswer | Kind::HungUp)
    }

    fn kind(&self) -> Kind {
        let text = self.text.as_str();
        let has = |part: &str| text.contains(part);
        if has("certificate verify failed") || has("broker certificate could not be verified") {
            Kind::Certificate
        } else if has("SASL authentication error") || has("Authentication failed") || has("SaslAuthenticationFailed") {
            Kind::Login
        } else if has("mechanism handshake failed") || has("Unsupported SASL mechanism") {
            Kind::Mechanism
        } else if has("client SSL authentication might be required")
            || has("alert certificate required")
            || has("alert bad certificate")
        {
            Kind::ClientCertificate
        } else if has("connecting to a PLAINTEXT broker listener") || has("wrong version number") || has("packet length too long")
        {
            Kind::NotTls
        } else if has("security.protocol") || (has("Disconnected") && has("in state APIVERSION_QUERY")) {
            Kind::HungUp
        } else {
            Kind::NoAnswer
        }
    }

    fn problem(&self, options: &KafkaOptions) -> Problem {
        let reason = self.text.clone();
        match self.kind() {
            Kind::Certificate => {
                let first = options.bootstrap_servers.split(',').next().unwrap_or_default().trim();
                let server = self.server.as_deref().unwrap_or(first);
                certificate::problem(server, options.ssl_ca.as_deref(), LOOK).unwrap_or(Problem::Certificate { reason })
            }
            Kind::Login => Problem::Login { reason },
            Kind::Mechanism => Problem::Mechanism { reason },
            Kind::ClientCertificate => Problem::ClientCertificate { reason },
            Kind::NotTls => Problem::NotTls { reason },
            Kind::HungUp => Problem::HungUp { reason },
            Kind::NoAnswer => Problem::NoAnswer { reason },
        }
    }
}

enum Kind {
    NoAnswer,
    Certificate,
    Login,
    Mechanism,
    ClientCertificate,
    NotTls,
    HungUp,
}

impl ClientContext for Reasons {
    fn log(&self, level: RDKafkaLogLevel, facility: &str, message: &str) {
        tracing::debug!(facility, message, "librdkafka");
        // A listener that hangs up is no error to librdkafka, only a failed connection.
        if level as i32 <= RDKafkaLogLevel::Error as i32 || facility == "FAIL" {
            self.keep(message);
        }
    }

    fn error(&self, _error: KafkaError, reason: &str) {
        self.keep(reason);
    }
}

impl ProducerContext for Reasons {
    type DeliveryOpaque = ();
    fn delivery(&self, _: &DeliveryResult<'_>, (): Self::DeliveryOpaque) {}
}

impl ConsumerContext for Reasons {}

/// Asks the broker for its metadata, blocking the thread. Ends early when what librdkafka says cannot be mended by
/// waiting: a refused certificate or login.
///
/// # Errors
/// [`ConnectError`] naming the cause; its [`Problem::options`] are the settings to look at.
pub fn check(options: &KafkaOptions, deadline: Duration) -> Result<(), ConnectError> {
    let reasons = Reasons::default();
    let client: BaseProducer<Reasons> = options
        .client_config()
        .set_log_level(RDKafkaLogLevel::Info)
        .create_with_context(reasons.clone())
        .map_err(|error| reasons.explain(options, &error))?;
    let began = Instant::now();
    loop {
        let left = deadline.saturating_sub(began.elapsed());
        // Some topic, and one that cannot exist: the answer for "all" may be megabytes.
        let answer = client.client().fetch_metadata(Some("tracium-probe"), left.clamp(Duration::from_millis(1), SLICE));
        client.poll(Duration::ZERO);
        let Err(error) = answer else { return Ok(()) };
        let refused = error.rdkafka_error_code() == Some(RDKafkaErrorCode::Authentication);
        if left.is_zero() || reasons.is_decisive() || refused {
            return Err(reasons.explain(options, &error));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(line: &str) -> Problem {
        Reason::of(line).problem(&KafkaOptions::default())
    }

    #[test]
    fn librdkafkas_words_are_taken_for_what_they_mean() {
        let line = "[thrd:sasl_ssl://h:1/bootstrap]: sasl_ssl://h:1/bootstrap: SASL authentication error: Authentication failed during authentication due to invalid credentials with SASL mechanism SCRAM-SHA-512 (after 5ms in state AUTH_REQ)";
        let problem = explained(line);
        assert!(matches!(&problem, Problem::Login { reason } if reason.starts_with("SASL authentication error")), "{problem:?}");
        assert_eq!(
            problem.way_out(|o| format!("relay.kafka.{o}")),
            "check relay.kafka.sasl_username and relay.kafka.sasl_password"
        );
        let problem =
            explained("h:1/bootstrap: Connect to ipv4#127.0.0.1:1 failed: Connection refused (after 0ms in state CONNECT)");
        assert!(matches!(&problem, Problem::NoAnswer { reason } if reason.starts_with("Connect to ipv4")), "{problem:?}");
    }

    #[test]
    fn the_server_that_was_spoken_of_is_known() {
        let reason = Reason::of("[thrd:ssl://kafka-2:9093/2]: ssl://kafka-2:9093/2: SSL handshake failed: x");
        assert_eq!(reason.server.as_deref(), Some("kafka-2:9093"));
    }

    #[test]
    fn a_decisive_reason_stays_whatever_is_said_later() {
        let reasons = Reasons::default();
        reasons.keep("h:1/bootstrap: Connect to x failed: Connection refused");
        assert!(!reasons.is_decisive());
        reasons.keep("h:1/bootstrap: SASL authentication error: no");
        reasons.keep("h:1/bootstrap: Connect to x failed: Connection refused");
        reasons.keep("1/1 brokers are down");
        assert_eq!(reasons.last().as_deref(), Some("SASL authentication error: no"));
    }
}
