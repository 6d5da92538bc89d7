//! No secret in any output: every command, at its most talkative, with every secret set to a word that must not be seen.

use tracium_testkit::{TestDatabase, secure};

use crate::cli::support::{Tracium, dead_address, tracium};

/// What a URL, a shell and TOML would each have to escape.
const CANARY: &str = "c4n4ry/ä%+\"'$x";

fn canary(n: u32) -> String {
    format!("{CANARY}{n}")
}

fn encoded(n: u32) -> String {
    canary(n).bytes().map(|b| format!("%{b:02X}")).collect()
}

fn talkative(command: Tracium) -> Tracium {
    command.env("TRACIUM_LOG", "trace,sqlx=trace,librdkafka=trace,rdkafka=trace")
}

fn secrets(command: Tracium, database: &str, kafka: &str) -> Tracium {
    let place = database.split('@').next_back().unwrap();
    talkative(command)
        .env("DATABASE_URL", format!("postgres://tracium_tls:{}@{place}", encoded(1)))
        .env("DATABASE_PASSWORD", canary(2))
        .env("TRACIUM_KAFKA", kafka)
        .env("TRACIUM_RELAY__KAFKA__SECURITY_PROTOCOL", "sasl_ssl")
        .env("TRACIUM_RELAY__KAFKA__SSL_CA", secure::tls_file("ca.pem"))
        .env("TRACIUM_RELAY__KAFKA__SASL_USERNAME", "tracium")
        .env("TRACIUM_RELAY__KAFKA__SASL_PASSWORD", canary(3))
        .env("TRACIUM_RELAY__KAFKA__SSL_KEY_PASSWORD", canary(4))
        .env("TRACIUM_RELAY__KAFKA__PROPERTIES__SSL_TRUSTSTORE_PASSWORD", canary(5))
        .env("TRACIUM_RELAY__KAFKA__PROPERTIES__DEBUG", "all")
}

async fn shows_nothing(command: Tracium, what: &str) -> String {
    let ended = command.run().await;
    let said = format!("{}{}", ended.stdout, ended.stderr);
    assert!(!said.is_empty(), "{what} said nothing");
    for n in 1..=6 {
        for form in [canary(n), encoded(n), encoded(n).to_lowercase(), format!("{:?}", canary(n))] {
            let at = said.find(form.as_str());
            assert_eq!(at, None, "{what} shows a secret: …{}…", &said[at.unwrap_or(0).saturating_sub(60)..]);
        }
    }
    assert!(!said.contains("c4n4ry"), "{what} shows a part of a secret:\n{said}");
    said
}

#[tokio::test]
async fn no_command_shows_a_secret_whatever_goes_wrong() {
    let database = TestDatabase::new().await;
    let url = secure::postgres(&database.name);
    let (there, away) = (secure::kafka().bootstrap_servers, dead_address());
    let wrong = secure::kafka().bootstrap_servers.replace("localhost", "127.0.0.1");
    for args in [
        &["config", "show"][..],
        &["config", "show", "--json"],
        &["relay", "run"],
        &["status"],
        &["outbox", "stats", "--json"],
        &["migrate"],
        &["demo", "--events", "100"],
        &["bench", "relay", "--events", "100"],
        &["relay", "run", "--set", "relay.batch_size=0"],
        &["relay", "run", "--set", "relay.kafka.sasl_pasword=c4n4ry6"],
    ] {
        shows_nothing(secrets(tracium(args), &url, &there), &format!("{args:?}")).await;
    }
    for kafka in [&away, &wrong] {
        shows_nothing(secrets(tracium(&["relay", "run"]), &url, kafka), &format!("relay run with Kafka at {kafka}")).await;
    }
}

#[tokio::test]
async fn a_settings_file_that_is_wrong_shows_none_of_its_secrets() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tracium.toml");
    let run = async |text: String| {
        std::fs::write(&file, text).unwrap();
        let command = talkative(tracium(&["config", "show", "--config", file.to_str().unwrap()]));
        shows_nothing(command, "a settings file").await
    };
    let url = format!("database_url = \"postgres://u:{}@h/d\"\n", encoded(1));
    assert!(run(url.clone()).await.contains("postgres://u:***@h/d"));
    // a syntax error in the line of a secret: TOML's own message would quote it
    run(format!("{url}[relay.kafka]\nsasl_password = c4n4ry\n")).await;
    run(format!("{url}[relay.kafka]\nsasl_password = \"c4n4ry\n")).await;
    // of the wrong kind: serde's own message would quote it
    run(format!("{url}[relay.kafka]\nsasl_password = [\"c4n4ry\"]\n")).await;
    run(format!("{url}[relay]\nkafka = \"c4n4ry\"\n")).await;
    // two wrong, one of them before the secrets are known
    run(format!("nonsense = \"c4n4ry\"\n{url}")).await;
    run(format!("{url}[relay.kafka]\nsasl_password = \"c4n4ry\"\n")).await;
    run(format!("{url}[relay.kafka.properties]\nsasl.password = \"c4n4ry\"\n")).await;
}
