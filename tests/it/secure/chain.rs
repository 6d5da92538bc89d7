//! The chain on secured services.

use std::time::Duration;

use tracium_core::Aggregate;
use tracium_testkit::{TestDatabase, eventually, kafka, secure};

use crate::cli::support::{PATIENCE, tracium};
use crate::relay::fixture::{SOON, Shop, options};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_go_from_a_database_over_tls_to_a_broker_over_sasl_ssl() {
    let mut shop = Shop::open(3).await;
    shop.db.url = secure::postgres(&shop.db.name);
    let mut options = options();
    // TLS and a login take their time on a busy machine.
    (options.lease_ttl, options.batch_deadline, options.database_deadline) = (SOON, SOON / 2, SOON / 2);
    options.kafka = secure::kafka();
    let running = shop.start_with(options);
    shop.append("o-1", 5).await;
    shop.drained().await;
    running.stop().await;
    assert_eq!(shop.records().await.iter().map(|r| r.version().unwrap()).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
}

/// The settings file of the documentation, with secrets in files of their own.
#[tokio::test]
async fn tracium_toml_may_name_secrets_by_file() {
    let database = TestDatabase::new().await;
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let kafka = secure::kafka();
    let password = write("kafka", &format!("{}\n", kafka.sasl_password.unwrap().expose()));
    let url = write("url", &secure::postgres(&database.name));
    let file = write(
        "tracium.toml",
        &format!(
            "database_url_file = {url:?}\n[relay.kafka]\nbootstrap_servers = {:?}\nsecurity_protocol = \"sasl_ssl\"\nssl_ca = {:?}\nsasl_username = {:?}\nsasl_password_file = {password:?}\n",
            kafka.bootstrap_servers,
            kafka.ssl_ca.unwrap(),
            kafka.sasl_username.unwrap(),
        ),
    );
    let mut relay = tracium(&["relay", "run", "--config", &file, "--http", "127.0.0.1:0"]).start();
    let held = || async {
        let all = "SELECT count(*) FROM tracium.relay_lease WHERE owner IS NULL";
        (database.count(all).await == 0).then_some(())
    };
    eventually("the relay holds all shards", PATIENCE, held).await;
    relay.signal(rustix::process::Signal::TERM);
    relay.says("relay stopped").await;
    relay.ended(PATIENCE).await.exits(0);
}

#[tokio::test]
async fn a_demo_on_secured_services_passes_its_settings_on_to_its_children() {
    let server = TestDatabase::empty().await;
    let kafka = secure::kafka();
    let demo = tracium(&["demo", "--events", "600", "--seed", "7", "--json", "--kafka", &kafka.bootstrap_servers])
        .env("DATABASE_URL", secure::postgres(&server.name))
        .env("TRACIUM_RELAY__KAFKA__SECURITY_PROTOCOL", "sasl_ssl")
        .env("TRACIUM_RELAY__KAFKA__SSL_CA", kafka.ssl_ca.unwrap())
        .env("TRACIUM_RELAY__KAFKA__SASL_USERNAME", kafka.sasl_username.unwrap())
        .env("TRACIUM_RELAY__KAFKA__SASL_PASSWORD", kafka.sasl_password.unwrap().expose())
        .run()
        .await;
    let run = demo.exits(0).says("by sasl_ssl").json();
    assert_eq!(run["ok"], true, "{run:#}");
}

/// The password is changed at the broker, or ours is wrong from the start: nothing is lost, and the row says why it waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_refused_while_running_loses_nothing_and_is_told_in_the_log() {
    let shop = Shop::open(1).await;
    let mut wrong = options();
    wrong.kafka = secure::kafka();
    wrong.kafka.sasl_password = Some("wrong".into());
    let publisher = tracium_relay::KafkaPublisher::new(&wrong.kafka).unwrap();
    shop.append("o-1", 1).await;
    let envelopes = [tracium_core::wire::Envelope::of(
        &tracium_core::Event {
            aggregate: Some(Aggregate::new("order", "o-1").unwrap()),
            ..crate::consumer::support::thing("o-1", 1)
        },
        &shop.topic,
        "o-1",
    )];
    // A busy machine may need more than one deadline for TLS and the refusal.
    eventually("the refusal is told", PATIENCE, || async {
        let deadline = tokio::time::Instant::now() + Duration::from_millis(1500);
        let outcomes = tracium_relay::Publisher::publish(&publisher, &envelopes, deadline).await;
        let failure = outcomes[0].as_ref().unwrap_err();
        assert_eq!(failure.scope, tracium_relay::FailureScope::Broker);
        failure.cause.contains("SASL authentication error").then_some(())
    })
    .await;
    assert_eq!(kafka::read_all(&shop.topic).await.len(), 0);
    assert_eq!(shop.pending().await, 1);
}
