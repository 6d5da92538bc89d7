//! `tracium migrate`.

use std::process::Stdio;

use tokio::io::AsyncWriteExt;
use tokio::process::Command;
use tracium_testkit::TestDatabase;

use super::support::tracium;

#[tokio::test]
async fn migrate_installs_and_says_so_and_does_nothing_the_second_time() {
    let database = TestDatabase::empty().await;
    let first = tracium(&["migrate", "--shards", "4"]).env("DATABASE_URL", &database.url).run().await;
    assert!(first.exits(0).stdout.contains("is installed"), "{first:#?}");
    let second = tracium(&["migrate"]).env("DATABASE_URL", &database.url).run().await;
    assert!(second.exits(0).stdout.contains("is up to date") && second.stdout.contains("4 shards"), "{second:#?}");
    assert_eq!(database.count("SELECT count(*) FROM tracium.relay_lease").await, 4);
}

#[tokio::test]
async fn other_shards_than_there_are_exit_not_zero_and_change_nothing() {
    let database = TestDatabase::with_shards(4).await;
    let other = tracium(&["migrate", "--shards", "8"]).env("DATABASE_URL", &database.url).run().await;
    assert!(matches!(other.code, Some(1 | 2)), "{other:#?}");
    other.says("4");
    assert_eq!(database.count("SELECT count(*) FROM tracium.relay_lease").await, 4);
}

#[tokio::test]
async fn what_print_prints_is_the_same_schema_and_migrate_goes_on_from_it() {
    let printed = tracium(&["migrate", "--print", "--shards", "2"]).run().await;
    printed.exits(0);
    assert_eq!(printed.stderr, "");
    let database = TestDatabase::empty().await;
    // The URL has parameters behind it that only our own client knows.
    let url = database.url.split('?').next().unwrap();
    let mut psql = Command::new("psql")
        .args(["-X", "-q", "-v", "ON_ERROR_STOP=1", url])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut stdin = psql.stdin.take().unwrap();
    stdin.write_all(printed.stdout.as_bytes()).await.unwrap();
    drop(stdin);
    assert!(psql.wait().await.unwrap().success());
    let migrated = tracium(&["migrate"]).env("DATABASE_URL", &database.url).run().await;
    assert!(migrated.exits(0).stdout.contains("is up to date") && migrated.stdout.contains("2 shards"), "{migrated:#?}");
}
