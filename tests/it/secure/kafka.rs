//! A broker that does not let us in: the error names the setting, for the relay, the consumer and the command line.

use std::time::Duration;

use tracium_consumer::{Consumer, ConsumerError, ConsumerOptions, IntoPostgres, KafkaOptions, Start, Subscription};
use tracium_core::{Class, Classify};
use tracium_kafka::{ConnectError, Problem, SaslMechanism, SecurityProtocol, check};
use tracium_relay::{KafkaPublisher, Publisher};
use tracium_testkit::{TestDatabase, kafka, secure};

use crate::cli::support::tracium;
use crate::consumer::support::Ledger;

async fn asked(options: KafkaOptions) -> Result<(), ConnectError> {
    tokio::task::spawn_blocking(move || check(&options, Duration::from_secs(20))).await.unwrap()
}

async fn refused(change: impl FnOnce(&mut KafkaOptions)) -> ConnectError {
    let mut options = secure::kafka();
    change(&mut options);
    let text = format!("{options:?}");
    asked(options).await.map(|()| text).expect_err("must be refused")
}

fn at_another_name(options: &mut KafkaOptions) {
    options.bootstrap_servers = options.bootstrap_servers.replace("localhost", "127.0.0.1");
}

#[tokio::test]
async fn who_is_trusted_and_knows_the_password_comes_in() {
    asked(secure::kafka()).await.unwrap();
}

#[tokio::test]
async fn an_expired_certificate_is_told_with_its_date() {
    let error = asked(secure::expired_kafka()).await.unwrap_err();
    assert!(matches!(&error.problem, Problem::CertificateExpired { since } if since.contains("2021")), "{error:?}");
    assert_eq!(error.class(), Class::Transient);
}

#[tokio::test]
async fn a_certificate_for_another_host_is_told_with_the_names_it_is_for() {
    let error = refused(at_another_name).await;
    let expected = Problem::HostName { host: "127.0.0.1".to_owned(), names: vec!["localhost".to_owned()] };
    assert_eq!(error.problem, expected);
    assert_eq!(error.class(), Class::Fatal);
}

#[tokio::test]
async fn a_certificate_of_an_unknown_authority_asks_for_ssl_ca() {
    for ca in [Some(secure::tls_file("other-ca.pem")), None] {
        let error = refused(|options| options.ssl_ca = ca).await;
        assert!(matches!(error.problem, Problem::UnknownAuthority { .. }), "{error:?}");
        assert_eq!(error.problem.options(), ["ssl_ca"]);
    }
}

#[tokio::test]
async fn a_wrong_password_or_user_asks_for_both() {
    let error = refused(|options| options.sasl_password = Some("wrong".into())).await;
    assert!(matches!(error.problem, Problem::Login { .. }), "{error:?}");
    let error = refused(|options| options.sasl_username = Some("nobody".to_owned())).await;
    assert!(matches!(error.problem, Problem::Login { .. }), "{error:?}");
    assert_eq!(error.problem.options(), ["sasl_username", "sasl_password"]);
    assert_eq!(error.class(), Class::Fatal);
}

#[tokio::test]
async fn a_mechanism_that_the_broker_does_not_take_is_told_with_those_it_takes() {
    let error = refused(|options| options.sasl_mechanism = SaslMechanism::Plain).await;
    assert!(matches!(&error.problem, Problem::Mechanism { reason } if reason.contains("SCRAM-SHA-512")), "{error:?}");
}

#[tokio::test]
async fn tls_and_plaintext_that_meet_ask_for_security_protocol() {
    let plain = KafkaOptions { bootstrap_servers: secure::kafka().bootstrap_servers, ..KafkaOptions::default() };
    let error = asked(plain).await.unwrap_err();
    assert_eq!(error.problem.options(), ["security_protocol"], "{error:?}");
    let error = refused(|options| options.bootstrap_servers = kafka::bootstrap()).await;
    assert_eq!(error.problem.options(), ["security_protocol"], "{error:?}");
}

#[tokio::test]
async fn the_relays_and_the_consumers_errors_name_the_option_in_their_own_table() {
    let mut options = secure::kafka();
    options.sasl_password = Some("wrong".into());
    let error = KafkaPublisher::new(&options).unwrap().check().await.unwrap_err();
    assert!(error.to_string().contains("check relay.kafka.sasl_username and relay.kafka.sasl_password"), "{error}");

    let database = TestDatabase::new().await;
    let options = ConsumerOptions { kafka: options, ..ConsumerOptions::default() };
    let subscription = Subscription::to(["things"], Start::Earliest).unwrap();
    let consumer = Consumer::new(options).with(Ledger.into_postgres(database.pool), subscription).unwrap();
    let error = consumer.run(Default::default()).await.unwrap_err();
    assert!(matches!(&error, ConsumerError::Connect { .. }), "{error:?}");
    assert!(error.to_string().contains("check consumer.kafka.sasl_username and consumer.kafka.sasl_password"), "{error}");
    assert_eq!(error.class(), Class::Fatal);
}

/// `tracium relay run` on the secured services, but for what the variables change.
async fn relay_says(variables: &[(&str, &str)], code: i32, words: &[&str]) {
    let database = TestDatabase::new().await;
    let options = secure::kafka();
    let mut relay = tracium(&["relay", "run"])
        .env("DATABASE_URL", &database.url)
        .env("TRACIUM_KAFKA", &options.bootstrap_servers)
        .env("TRACIUM_RELAY__KAFKA__SECURITY_PROTOCOL", SecurityProtocol::SaslSsl.as_str())
        .env("TRACIUM_RELAY__KAFKA__SSL_CA", options.ssl_ca.unwrap())
        .env("TRACIUM_RELAY__KAFKA__SASL_USERNAME", options.sasl_username.unwrap())
        .env("TRACIUM_RELAY__KAFKA__SASL_PASSWORD", options.sasl_password.unwrap().expose());
    for (name, value) in variables {
        relay = relay.env(name, value);
    }
    let ended = relay.run().await;
    ended.exits(code);
    for word in words {
        ended.says(word);
    }
}

#[tokio::test]
async fn the_command_line_names_the_very_variable_that_is_wrong() {
    let wrong = ["TRACIUM_RELAY__KAFKA__SASL_PASSWORD", "refuses the login"];
    relay_says(&[("TRACIUM_RELAY__KAFKA__SASL_PASSWORD", "wrong-by-intent")], 2, &wrong).await;
    let expired = secure::expired_kafka().bootstrap_servers;
    relay_says(&[("TRACIUM_KAFKA", &expired)], 3, &["TRACIUM_KAFKA", "certificate has expired", "2021"]).await;
    let other = secure::kafka().bootstrap_servers.replace("localhost", "127.0.0.1");
    relay_says(&[("TRACIUM_KAFKA", &other)], 2, &["TRACIUM_KAFKA", "not for 127.0.0.1, but for localhost"]).await;
    let ca = secure::tls_file("other-ca.pem").display().to_string();
    relay_says(&[("TRACIUM_RELAY__KAFKA__SSL_CA", &ca)], 2, &["TRACIUM_RELAY__KAFKA__SSL_CA", "no authority"]).await;
    let missing = ["relay.kafka.ssl_ca names /nowhere/ca.pem", "TRACIUM_RELAY__KAFKA__SSL_CA"];
    relay_says(&[("TRACIUM_RELAY__KAFKA__SSL_CA", "/nowhere/ca.pem")], 2, &missing).await;
}
