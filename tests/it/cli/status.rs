//! `tracium status` and `tracium outbox stats`.

use serde_json::json;
use tracium_core::{Aggregate, EventStore, Expected, NewEvent};
use tracium_testkit::{TestDatabase, kafka};

use super::support::{has_fields, tracium};

async fn with_two_events() -> TestDatabase {
    let database = TestDatabase::with_shards(2).await;
    let mut tx = database.pool.begin().await.unwrap();
    for id in ["o-1", "o-2"] {
        let event = NewEvent::json("order.created", &1).unwrap();
        EventStore::append(&mut tx, &Aggregate::new("order", id).unwrap(), Expected::New, &[event]).await.unwrap();
    }
    tx.commit().await.unwrap();
    database
}

#[tokio::test]
async fn status_json_has_the_contracts_shape() {
    let database = with_two_events().await;
    // What a consumer leaves behind, by a consumer: a projection that has run and read nothing.
    let topic = kafka::create_topic("empty", 1).await;
    let mut consumer = tracium(&["bench", "consumer", "--topic", &topic])
        .env("DATABASE_URL", &database.url)
        .env("TRACIUM_KAFKA", kafka::bootstrap())
        .start();
    consumer.says("projection runs").await;

    let status = tracium(&["status", "--json"]).env("DATABASE_URL", &database.url).run().await;
    assert_eq!(status.exits(0).stdout.lines().count(), 1, "{status:#?}");
    let status = status.json();
    has_fields(&status["outbox"], &["pending", "oldest_age_s", "held_keys", "stuck", "shards"]);
    assert_eq!(status["outbox"]["pending"], 2);
    let shards = status["outbox"]["shards"].as_array().unwrap();
    assert_eq!(shards.len(), 2);
    for shard in shards {
        has_fields(shard, &["shard", "owner", "term", "expires_in_s", "pending"]);
    }
    let projections = status["projections"].as_array().unwrap();
    assert_eq!(projections.len(), 1, "{status:#}");
    has_fields(
        &projections[0],
        &[
            "name",
            "epoch",
            "sink",
            "state",
            "lag_events",
            "lag_s",
            "applied",
            "duplicates",
            "healed",
            "quarantined",
            "dead_letters",
        ],
    );
    assert_eq!((&projections[0]["name"], &projections[0]["sink"]), (&json!("baskets"), &json!("postgres")));

    let people = tracium(&["status"]).env("DATABASE_URL", &database.url).run().await;
    assert!(people.exits(0).stdout.contains("2 wait") && people.stdout.contains("baskets"), "{people:#?}");
    assert!(people.stdout.contains("no relay runs: start one with `tracium relay run`"), "{people:#?}");
}

#[tokio::test]
async fn outbox_stats_is_the_outbox_of_status() {
    let database = with_two_events().await;
    let ask = |args: &'static [&'static str]| tracium(args).env("DATABASE_URL", &database.url).run();
    let (status, stats) = (ask(&["status", "--json"]).await, ask(&["outbox", "stats", "--json"]).await);
    let (mut outbox, mut stats) = (status.exits(0).json()["outbox"].clone(), stats.exits(0).json());
    // The second look is a little later.
    (outbox["oldest_age_s"], stats["oldest_age_s"]) = (json!(0), json!(0));
    assert_eq!(outbox, stats);
}
