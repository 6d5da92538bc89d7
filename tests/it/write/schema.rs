//! Installing, checking and printing the schema, each on the oldest major version we serve and on a newer one.

use std::process::Stdio;

use sqlx::Connection;
use tracium_core::schema::{self, Installed, SchemaError};
use tracium_core::{Class, Classify, Expected};
use tracium_testkit::TestDatabase;
use tracium_testkit::database::server_url;

use super::{append, event, order};

/// A server of the stack.
#[derive(Debug, Clone, Copy)]
enum Server {
    Oldest,
    Newer,
}

impl Server {
    /// A database on it without the schema.
    async fn empty(self) -> TestDatabase {
        let url = match self {
            Self::Oldest => server_url(),
            Self::Newer => tracium_testkit::variable("TRACIUM_TEST_POSTGRES17_URL"),
        };
        TestDatabase::empty_at(&url).await
    }
}

/// Makes a test for each server of an `async fn` that takes one.
macro_rules! on_each_server {
    ($($test:ident)*) => {
        mod oldest_major { $(#[tokio::test] async fn $test() { super::$test(super::Server::Oldest).await; })* }
        mod newer_major { $(#[tokio::test] async fn $test() { super::$test(super::Server::Newer).await; })* }
    };
}

on_each_server! {
    the_server_is_of_its_major
    a_database_without_the_schema_an_older_and_a_newer_one_are_told_apart
    migrating_again_changes_nothing
    impossible_numbers_of_shards_are_refused
    four_migrations_at_once_install_one_schema
    the_printed_script_installs_the_schema_through_psql_and_migrate_goes_on_from_there
}

async fn the_server_is_of_its_major(server: Server) {
    let db = server.empty().await;
    let major = db.count("SELECT current_setting('server_version_num')::bigint / 10000").await;
    match server {
        Server::Oldest => assert!(major >= 15, "PostgreSQL {major}"),
        Server::Newer => assert!(major >= 17, "PostgreSQL {major}"),
    }
}

async fn a_database_without_the_schema_an_older_and_a_newer_one_are_told_apart(server: Server) {
    let db = server.empty().await;
    let mut connection = db.connect().await;
    let missing = schema::check(&mut connection).await.unwrap_err();
    assert!(matches!(missing, SchemaError::Missing) && missing.class() == Class::Fatal, "{missing}");

    let installed = schema::migrate(&mut connection, None).await.unwrap();
    assert_eq!(installed, Installed { version: schema::VERSION, shards: schema::DEFAULT_SHARDS });
    assert_eq!(schema::check(&mut connection).await.unwrap(), installed);

    db.execute("UPDATE tracium.setting SET value = '2' WHERE name = 'schema'").await;
    let older = schema::check(&mut connection).await.unwrap_err();
    assert!(matches!(older, SchemaError::Older { found: 2, needed: schema::VERSION }), "{older}");
    assert!(older.to_string().ends_with("run `tracium migrate`"), "{older}");

    // A newer schema that still serves this binary is fine for it, and not its to migrate.
    db.execute("UPDATE tracium.setting SET value = '99' WHERE name = 'schema'").await;
    assert_eq!(schema::check(&mut connection).await.unwrap().version, 99);
    let newer = schema::migrate(&mut connection, None).await.unwrap_err();
    assert!(matches!(newer, SchemaError::Newer { found: 99, .. }), "{newer}");

    db.execute("UPDATE tracium.setting SET value = '98' WHERE name = 'oldest_binary'").await;
    let newer = schema::check(&mut connection).await.unwrap_err();
    assert!(matches!(newer, SchemaError::Newer { found: 99, oldest_binary: 98, binary: schema::VERSION }), "{newer}");
    assert!(newer.to_string().ends_with("install a newer tracium"), "{newer}");
}

async fn migrating_again_changes_nothing(server: Server) {
    let db = server.empty().await;
    let mut connection = db.connect().await;
    let first = schema::migrate(&mut connection, Some(4)).await.unwrap();
    append(&db.pool, &order("o-1"), Expected::New, &[event("order.created")]).await.unwrap();
    for shards in [None, Some(4)] {
        assert_eq!(schema::migrate(&mut connection, shards).await.unwrap(), first);
    }
    let other = schema::migrate(&mut connection, Some(16)).await.unwrap_err();
    assert_eq!(other.to_string(), "shards: the outbox has 4, changing it to 16 is not supported");
    let shards = db.count("SELECT count(*) FROM pg_inherits WHERE inhparent = 'tracium.outbox'::regclass").await;
    assert_eq!((shards, db.count("SELECT count(*) FROM tracium.relay_lease").await), (4, 4));
    assert_eq!(db.count("SELECT count(*) FROM tracium.event_store").await, 1);
}

async fn impossible_numbers_of_shards_are_refused(server: Server) {
    let db = server.empty().await;
    let mut connection = db.connect().await;
    for shards in [0, 257, u16::MAX] {
        let error = schema::migrate(&mut connection, Some(shards)).await.unwrap_err();
        assert_eq!(error.to_string(), format!("shards: {shards} is not between 1 and 256"));
    }
    let none = schema::check(&mut connection).await.unwrap_err();
    assert_eq!(none.to_string(), "the outbox has no shards; run `tracium migrate`");
    let error = append(&db.pool, &order("o-1"), Expected::New, &[event("order.created")]).await.unwrap_err();
    assert!(matches!(error, tracium_core::AppendError::SchemaMissing(_)), "{error}");
    schema::migrate(&mut connection, Some(1)).await.unwrap();
    append(&db.pool, &order("o-1"), Expected::New, &[event("order.created")]).await.unwrap();
}

async fn four_migrations_at_once_install_one_schema(server: Server) {
    let db = server.empty().await;
    let tasks = (0..4).map(|_| {
        let db = db.clone();
        tokio::spawn(async move { schema::migrate(&mut db.connect().await, None).await })
    });
    for result in futures::future::join_all(tasks).await {
        assert_eq!(result.unwrap().unwrap().shards, schema::DEFAULT_SHARDS);
    }
    append(&db.pool, &order("o-1"), Expected::New, &[event("order.created")]).await.unwrap();
}

async fn the_printed_script_installs_the_schema_through_psql_and_migrate_goes_on_from_there(server: Server) {
    let printed = server.empty().await;
    psql(&printed.url, &schema::script(4)).await;
    let mut connection = printed.connect().await;
    let installed = Installed { version: schema::VERSION, shards: 4 };
    assert_eq!(schema::check(&mut connection).await.unwrap(), installed);
    assert_eq!(schema::migrate(&mut connection, None).await.unwrap(), installed);
    append(&printed.pool, &order("o-1"), Expected::New, &[event("order.created")]).await.unwrap();

    let migrated = server.empty().await;
    schema::migrate(&mut migrated.connect().await, Some(4)).await.unwrap();
    let columns = "SELECT count(*) FROM information_schema.columns WHERE table_schema = 'tracium'";
    assert_eq!(printed.count(columns).await, migrated.count(columns).await);
    connection.close().await.unwrap();
}

async fn psql(url: &str, script: &str) {
    use tokio::io::AsyncWriteExt;
    let mut child = tokio::process::Command::new("psql")
        .args(["--no-psqlrc", "--quiet", "--file=-", url])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("psql, of the package postgresql-client");
    let mut input = child.stdin.take().unwrap();
    input.write_all(script.as_bytes()).await.unwrap();
    drop(input);
    let output = child.wait_with_output().await.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}
