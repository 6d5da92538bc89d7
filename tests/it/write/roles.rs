//! What each role may do: everything that is not listed is refused with 42501.

use std::collections::BTreeMap;

use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions, Connection, PgConnection};
use tracium_core::{AppendError, Class, Classify, EventStore, Expected, Message, Outbox, Version};
use tracium_testkit::TestDatabase;

use super::{event, order};

const ROLES: [&str; 4] = ["app_writer", "tracium_relay", "tracium_consumer", "tracium_viewer"];

/// Table, then the rights of each of `ROLES`: Select, Insert, Update, Delete; nobody may truncate.
const TABLES: [(&str, [&str; 4]); 18] = [
    ("dead_letter", ["", "", "SIUD", "S"]),
    ("event_store", ["S", "", "", "S"]),
    ("held_key", ["", "SIUD", "", "S"]),
    ("key_head", ["", "", "", "S"]),
    ("last_seen", ["", "", "SIUD", "S"]),
    ("outbox", ["", "S", "", "S"]),
    ("outbox_0", ["", "SUD", "", "S"]),
    ("outbox_7", ["", "SUD", "", "S"]),
    ("processed_events", ["", "", "SIUD", "S"]),
    ("projection", ["", "", "SIUD", "S"]),
    ("projection_progress", ["", "", "SIUD", "S"]),
    ("quarantine", ["", "", "SIUD", "S"]),
    ("relay_lease", ["", "SU", "", "S"]),
    ("relay_member", ["", "SIUD", "", "S"]),
    ("route", ["S", "", "", "S"]),
    ("setting", ["S", "S", "S", "S"]),
    ("stream", ["S", "", "", "S"]),
    ("topic", ["", "", "", "S"]),
];

/// Every function with a call of it, and the roles that may make it.
const FUNCTIONS: [(&str, &str, &[&str]); 16] = [
    ("allow_messages", "allow_messages('x')", &[]),
    ("append", "append('order', 'o', NULL, '[]')", &["app_writer"]),
    ("check_event", "check_event('x', 1, NULL, NULL, NULL)", &[]),
    ("check_fresh_snapshot", "check_fresh_snapshot('x')", &[]),
    ("check_headers", "check_headers('{}')", &[]),
    ("check_name", "check_name('x', 'y', NULL)", &[]),
    ("check_topic", "check_topic('x')", &[]),
    ("create_shards", "create_shards(8)", &[]),
    ("fail", "fail('TR003', 'x', '{}')", &[]),
    ("lock_key", "lock_key('x', 'y')", &[]),
    ("publish", "publish('mails', 'k', gen_random_uuid(), 'x')", &["app_writer"]),
    ("route_of", "route_of('order')", &[]),
    ("set_route", "set_route('order', 'x')", &[]),
    ("shard_count", "shard_count()", &[]),
    ("shard_of", "shard_of('x', 8)", &[]),
    ("topic_of", "topic_of('x')", &[]),
];

/// Runs a statement as a role, in a transaction that is rolled back. Whether it was allowed.
async fn allowed(connection: &mut PgConnection, role: &str, sql: &str) -> bool {
    let mut tx = connection.begin().await.unwrap();
    sqlx::query(AssertSqlSafe(format!("SET LOCAL ROLE {role}"))).execute(&mut *tx).await.unwrap();
    let result = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut *tx).await;
    tx.rollback().await.unwrap();
    match result {
        Ok(_) => true,
        // What fails for another reason passed the check of rights.
        Err(error) => {
            let database = error.as_database_error().unwrap_or_else(|| panic!("{sql}: {error}"));
            assert_ne!(database.code().as_deref(), Some("42P01"), "{sql}: {error}");
            database.code().as_deref() != Some("42501")
        }
    }
}

async fn names(db: &TestDatabase, sql: &'static str) -> Vec<String> {
    sqlx::query_scalar(sql).fetch_all(&db.pool).await.unwrap()
}

#[tokio::test]
async fn each_role_may_do_what_the_table_says_and_nothing_else() {
    let db = TestDatabase::new().await;
    let listed: Vec<_> = TABLES.iter().map(|(table, _)| (*table).to_owned()).collect();
    let present = names(
        &db,
        "SELECT relname::text FROM pg_class WHERE relnamespace = 'tracium'::regnamespace AND relkind IN ('r', 'p')
         AND relname !~ '^outbox_[1-6]$' AND relname <> 'schema_migration' ORDER BY relname",
    )
    .await;
    assert_eq!(present, listed, "a new table needs a line in this test");
    let columns: BTreeMap<String, String> = sqlx::query_as::<_, (String, String)>(
        "SELECT relname::text, max(quote_ident(attname)) FROM pg_attribute a JOIN pg_class c ON c.oid = attrelid
         WHERE relnamespace = 'tracium'::regnamespace AND attnum > 0 AND attidentity = '' AND attgenerated = '' GROUP BY 1",
    )
    .fetch_all(&db.pool)
    .await
    .unwrap()
    .into_iter()
    .collect();

    let mut connection = db.connect().await;
    let mut wrong = Vec::new();
    for (table, rights) in TABLES {
        let column = &columns[table];
        for (role, rights) in ROLES.iter().zip(rights) {
            for (letter, sql) in [
                ('S', format!("SELECT * FROM tracium.{table} LIMIT 1")),
                ('I', format!("INSERT INTO tracium.{table} DEFAULT VALUES")),
                ('U', format!("UPDATE tracium.{table} SET {column} = {column} WHERE false")),
                ('D', format!("DELETE FROM tracium.{table} WHERE false")),
                ('T', format!("TRUNCATE tracium.{table}")),
            ] {
                let got = allowed(&mut connection, role, &sql).await;
                if got != rights.contains(letter) {
                    wrong.push(format!("{role}: {sql}: {}", if got { "allowed" } else { "refused" }));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn only_a_writer_may_call_append_and_publish_and_no_role_the_rest() {
    let db = TestDatabase::new().await;
    let listed: Vec<_> = FUNCTIONS.iter().map(|(name, ..)| (*name).to_owned()).collect();
    let present =
        names(&db, "SELECT proname::text FROM pg_proc WHERE pronamespace = 'tracium'::regnamespace ORDER BY proname").await;
    assert_eq!(present, listed, "a new function needs a line in this test");

    let outsider = format!("outsider_{}", uuid::Uuid::new_v4().simple());
    db.execute(&format!("CREATE ROLE {outsider}")).await;
    let mut connection = db.connect().await;
    for (name, call, callers) in FUNCTIONS {
        for role in ROLES.iter().copied().chain([outsider.as_str()]) {
            let got = allowed(&mut connection, role, &format!("SELECT tracium.{call}")).await;
            assert_eq!(got, callers.contains(&role), "{role}: {name}");
        }
    }
    assert!(!allowed(&mut connection, &outsider, "SELECT * FROM tracium.setting").await);
    db.execute(&format!("DROP ROLE {outsider}")).await;
}

#[tokio::test]
async fn the_outbox_sequence_is_read_by_the_relay_and_drawn_by_nobody() {
    let db = TestDatabase::new().await;
    let mut connection = db.connect().await;
    for role in ROLES {
        let reads = allowed(&mut connection, role, "SELECT last_value FROM tracium.outbox_id_seq").await;
        assert_eq!(reads, role == "tracium_relay", "{role}");
        assert!(!allowed(&mut connection, role, "SELECT nextval('tracium.outbox_id_seq')").await, "{role}");
    }
}

#[tokio::test]
async fn a_login_that_was_granted_app_writer_appends_publishes_and_loads() {
    let db = TestDatabase::new().await;
    let (service, stranger) =
        (format!("svc_{}", uuid::Uuid::new_v4().simple()), format!("svc_{}", uuid::Uuid::new_v4().simple()));
    db.execute(&format!("CREATE ROLE {service} LOGIN; GRANT app_writer TO {service}; CREATE ROLE {stranger} LOGIN")).await;
    let login = |user: &str| db.url.parse::<PgConnectOptions>().unwrap().username(user);

    let mut connection = login(&service).connect().await.unwrap();
    let mut tx = connection.begin().await.unwrap();
    EventStore::append(&mut tx, &order("o-1"), Expected::New, &[event("order.created")]).await.unwrap();
    Outbox::publish(&mut tx, &Message::json("mails", "k", "mail.sent", &1).unwrap()).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(EventStore::load(&mut connection, &order("o-1"), Version::ZERO).await.unwrap().len(), 1);
    connection.close().await.unwrap();

    let mut connection = login(&stranger).connect().await.unwrap();
    let mut tx = connection.begin().await.unwrap();
    let error = EventStore::append(&mut tx, &order("o-2"), Expected::New, &[event("order.created")]).await.unwrap_err();
    assert!(matches!(error, AppendError::Denied(_)) && error.class() == Class::Fatal, "{error}");
    assert_eq!(error.to_string(), "this role may not append; `GRANT app_writer TO` it");
    drop(tx);
    connection.close().await.unwrap();
    db.execute(&format!("DROP ROLE {service}; DROP ROLE {stranger}")).await;
}
