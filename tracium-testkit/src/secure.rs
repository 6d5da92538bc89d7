//! The test services' TLS listeners and logins, as `dev/stack env` names them.

use std::path::PathBuf;

use crate::variable;
use tracium_kafka::{KafkaOptions, SecurityProtocol};

/// A file of the stack's certificates: `ca.pem`, `other-ca.pem`, `expired.pem`, `expired.key`, ….
#[must_use]
pub fn tls_file(name: &str) -> PathBuf {
    PathBuf::from(variable("TRACIUM_TEST_TLS_DIR")).join(name)
}

/// How to get into the broker's SASL_SSL listener.
#[must_use]
pub fn kafka() -> KafkaOptions {
    kafka_at(variable("TRACIUM_TEST_KAFKA_TLS_URL"))
}

/// As [`kafka`], at the listener whose certificate has expired.
#[must_use]
pub fn expired_kafka() -> KafkaOptions {
    kafka_at(variable("TRACIUM_TEST_KAFKA_EXPIRED_URL"))
}

fn kafka_at(bootstrap_servers: String) -> KafkaOptions {
    KafkaOptions {
        bootstrap_servers,
        security_protocol: SecurityProtocol::SaslSsl,
        ssl_ca: Some(tls_file("ca.pem")),
        sasl_username: Some(variable("TRACIUM_TEST_KAFKA_USER")),
        sasl_password: Some(variable("TRACIUM_TEST_KAFKA_PASSWORD").into()),
        ..KafkaOptions::default()
    }
}

/// A database of the test server as a login reaches it that may only use TLS, with `sslmode=verify-full`.
#[must_use]
pub fn postgres(database: &str) -> String {
    let url = crate::database::with_database(&variable("TRACIUM_TEST_POSTGRES_TLS_URL"), database);
    format!("{url}?sslmode=verify-full&sslrootcert={}", tls_file("ca.pem").display())
}
