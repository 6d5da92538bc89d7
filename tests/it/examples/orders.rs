use super::{TestDatabase, binary, bootstrap, output, unique};
use tokio::process::Command;

#[tokio::test]
async fn the_orders_example_shows_a_commit_a_rollback_and_a_conflict() {
    let db = TestDatabase::empty().await;
    let run = output(
        Command::new(binary("example-orders").await)
            .env("DATABASE_URL", &db.url)
            .env("TRACIUM_KAFKA", bootstrap())
            .env("ORDERS_TOPIC", unique("orders")),
    )
    .await;
    assert!(run.status.success());
    let text = String::from_utf8(run.stdout).unwrap();
    let line = |start: &str| text.lines().filter(|l| l.starts_with(start)).map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(line("read model:").len(), 2);
    assert!(line("read model:")[0].contains(r#""paid": false"#) && line("read model:")[1].contains(r#""paid": true"#));
    assert!(line("paid twice:")[0].contains("is at version 4, expected 3"));

    // The database says the same: one order, paid once, and nothing of the one that was rolled back.
    let doc = "SELECT count(*) FROM orders WHERE version = 4 AND doc = jsonb_build_object('customer', 'ada', 'items', \
               jsonb_build_array('tea', 'cup'), 'total_cents', 1650, 'paid', true)";
    assert_eq!(db.count(doc).await, 1);
    assert_eq!(db.count("SELECT count(*) FROM orders").await, 1);
    assert_eq!(db.count("SELECT count(*) FROM shop_request").await, 1);
    assert_eq!(db.count("SELECT count(*) FROM tracium.outbox WHERE published_at IS NOT NULL").await, 4);
    assert_eq!(db.count("SELECT count(*) FROM tracium.outbox").await, 4);
}

#[tokio::test]
async fn the_orders_example_says_which_setting_is_missing() {
    let run = output(Command::new(binary("example-orders").await).env_remove("DATABASE_URL").env_remove("TRACIUM_KAFKA")).await;
    assert!(!run.status.success());
    assert!(String::from_utf8(run.stderr).unwrap().contains("DATABASE_URL is not set"));
}
