//! What goes wrong says what, why and the way out, with an exit code that a script can tell apart.

use tracium_core::{Aggregate, EventStore, Expected, NewEvent};
use tracium_testkit::{TestDatabase, eventually, kafka};

use super::support::{PATIENCE, dead_address, tracium};

#[tokio::test]
async fn an_unknown_setting_exits_2_and_names_the_nearest_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tracium.toml");
    std::fs::write(&file, "[relay]\nbatchsize = 5\n").unwrap();
    let in_file = tracium(&["status", "--config", file.to_str().unwrap()]).run().await;
    in_file.exits(2).says("relay.batchsize").says("tracium.toml").says("did you mean relay.batch_size?");
    let in_environment = tracium(&["status"]).env("TRACIUM_RELAY__BATCH_SIZ", "5").run().await;
    in_environment.exits(2).says("TRACIUM_RELAY__BATCH_SIZ").says("did you mean relay.batch_size?");
    let by_flag = tracium(&["status", "--set", "relay.leese_ttl=5s"]).run().await;
    by_flag.exits(2).says("--set relay.leese_ttl").says("did you mean relay.lease_ttl?");
}

#[tokio::test]
async fn no_database_exits_2_and_says_how_to_name_one() {
    for command in [&["status"][..], &["migrate"], &["relay", "run"], &["outbox", "stats"]] {
        tracium(command).run().await.exits(2).says("no database is named").says("DATABASE_URL");
    }
    tracium(&["status"]).env("DATABASE_URL", "mysql://h/d").run().await.exits(2).says("DATABASE_URL is not a PostgreSQL URL");
}

#[tokio::test]
async fn an_unreachable_database_exits_3_and_is_named_without_its_password() {
    let address = dead_address();
    let url = format!("postgres://ada:open%2Dsesame@{address}/shop");
    for command in
        [&["status", "--json"][..], &["migrate"], &["relay", "run"], &["outbox", "stats"], &["demo"], &["bench", "append"]]
    {
        let failed = tracium(command).env("DATABASE_URL", &url).run().await;
        failed.exits(3).says(&format!("cannot reach PostgreSQL at {address} (named by DATABASE_URL)"));
        failed.never_says("sesame");
        assert_eq!(failed.stdout, "");
    }
}

#[tokio::test]
async fn an_unreachable_broker_exits_3_and_is_named_with_its_setting() {
    let database = TestDatabase::new().await;
    let address = dead_address();
    let relay = tracium(&["relay", "run"]).env("DATABASE_URL", &database.url).env("TRACIUM_KAFKA", &address).run().await;
    relay.exits(3).says(&address).says("TRACIUM_KAFKA");
    tracium(&["demo", "--kafka", &address]).run().await.exits(3).says(&address).says("--kafka");
    tracium(&["bench", "relay", "--kafka", &address]).run().await.exits(3).says(&address).says("--kafka");
}

#[tokio::test]
async fn a_missing_schema_exits_2_and_says_tracium_migrate() {
    let database = TestDatabase::empty().await;
    for command in [&["status"][..], &["outbox", "stats"], &["relay", "run"]] {
        let failed = tracium(command).env("DATABASE_URL", &database.url).env("TRACIUM_KAFKA", kafka::bootstrap()).run().await;
        failed.exits(2).says("tracium migrate").says("DATABASE_URL");
    }
}

#[tokio::test]
async fn a_newer_schema_exits_2_and_says_which_tracium_to_install() {
    let database = TestDatabase::new().await;
    database.execute("UPDATE tracium.setting SET value = '9999' WHERE name = 'oldest_binary'").await;
    for command in [&["status"][..], &["migrate"], &["relay", "run"]] {
        let failed = tracium(command).env("DATABASE_URL", &database.url).env("TRACIUM_KAFKA", kafka::bootstrap()).run().await;
        failed.exits(2).says("9999").says("install the tracium that migrated it");
    }
}

#[tokio::test]
async fn a_missing_topic_holds_its_events_and_the_relay_names_it() {
    let database = TestDatabase::new().await;
    let topic = kafka::unique("nobody-made-this");
    database.execute(&format!("SELECT tracium.set_route('order', '{topic}')")).await;
    let mut tx = database.pool.begin().await.unwrap();
    let order = Aggregate::new("order", "o-1").unwrap();
    let event = NewEvent::json("order.created", &1).unwrap();
    EventStore::append(&mut tx, &order, Expected::New, &[event]).await.unwrap();
    tx.commit().await.unwrap();

    let mut relay =
        tracium(&["relay", "run"]).env("DATABASE_URL", &database.url).env("TRACIUM_KAFKA", kafka::bootstrap()).start();
    relay.says(&format!("unknown topic {topic}: create it on the broker")).await;
    let held = || async {
        let stats = tracium(&["outbox", "stats", "--json"]).env("DATABASE_URL", &database.url).run().await;
        let stats = stats.exits(0).json();
        (stats["held_keys"] == 1 && stats["pending"] == 1).then_some(())
    };
    eventually("the event is held and still there", PATIENCE, held).await;
    relay.signal(rustix::process::Signal::TERM);
    relay.ended(PATIENCE).await.exits(0);
}
