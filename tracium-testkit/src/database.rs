//! A database of its own for every test.

use std::time::{SystemTime, UNIX_EPOCH};

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, PgConnection, PgPool};
use tracium_core::schema;

/// A fresh database on the test server. Databases of runs more than an hour old are dropped on the way.
#[derive(Debug, Clone)]
pub struct TestDatabase {
    /// Its name.
    pub name: String,
    /// Its address.
    pub url: String,
    /// A pool of up to 20 connections as the server's superuser.
    pub pool: PgPool,
}

/// Serialises making the template among processes.
const TEMPLATE_LOCK: i64 = 0x7472_6163;

/// The address of the test server.
///
/// # Panics
/// If `TRACIUM_TEST_POSTGRES_URL` is not set.
#[must_use]
pub fn server_url() -> String {
    crate::variable("TRACIUM_TEST_POSTGRES_URL")
}

impl TestDatabase {
    /// A migrated database with 8 shards.
    pub async fn new() -> Self {
        Self::with_shards(schema::DEFAULT_SHARDS).await
    }

    /// A migrated database with that many shards.
    pub async fn with_shards(shards: u16) -> Self {
        let template = template(shards).await;
        Self::create(&server_url(), Some(&template)).await
    }

    /// A database without the schema.
    pub async fn empty() -> Self {
        Self::empty_at(&server_url()).await
    }

    /// A database without the schema on another server.
    ///
    /// # Panics
    /// If that is no PostgreSQL URL, or nothing answers there.
    pub async fn empty_at(server: &str) -> Self {
        Self::create(server, None).await
    }

    async fn create(server: &str, template: Option<&str>) -> Self {
        let name = format!("t_{}_{}", now(), uuid::Uuid::new_v4().simple());
        let options: PgConnectOptions = server.parse().expect("a PostgreSQL URL");
        let mut admin = PgConnection::connect_with(&options).await.expect("connect to the test server");
        let from = template.map(|t| format!(" TEMPLATE {t}")).unwrap_or_default();
        run(&mut admin, format!("CREATE DATABASE {name}{from}")).await;
        let options = options.database(&name);
        let url = with_database(server, &name);
        let pool = PgPoolOptions::new().max_connections(20).connect_with(options).await.expect("connect to the new database");
        Self { name, url, pool }
    }

    /// A connection outside the pool.
    pub async fn connect(&self) -> PgConnection {
        PgConnection::connect(&self.url).await.expect("connect to the test database")
    }

    /// Runs a statement of the test's own.
    pub async fn execute(&self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&self.pool).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
    }

    /// One number.
    pub async fn count(&self, sql: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&self.pool).await.unwrap_or_else(|e| panic!("{sql}: {e}"))
    }
}

async fn template(shards: u16) -> String {
    let mut hash = std::hash::DefaultHasher::new();
    std::hash::Hash::hash(&schema::script(shards), &mut hash);
    let name = format!("template_{:016x}", std::hash::Hasher::finish(&hash));
    let mut admin = admin().await;
    sqlx::query("SELECT pg_advisory_lock($1)").bind(TEMPLATE_LOCK).execute(&mut admin).await.expect("lock");
    let exists: bool = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM pg_database WHERE datname = $1)")
        .bind(&name)
        .fetch_one(&mut admin)
        .await
        .expect("look for the template");
    if !exists {
        drop_old(&mut admin).await;
        run(&mut admin, format!("CREATE DATABASE {name}_new")).await;
        let mut new = PgConnection::connect_with(&options().database(&format!("{name}_new"))).await.expect("connect");
        schema::migrate(&mut new, Some(shards)).await.expect("migrate the template");
        new.close().await.expect("close");
        run(&mut admin, format!("ALTER DATABASE {name}_new RENAME TO {name}")).await;
    }
    sqlx::query("SELECT pg_advisory_unlock($1)").bind(TEMPLATE_LOCK).execute(&mut admin).await.expect("unlock");
    name
}

async fn drop_old(admin: &mut PgConnection) {
    let names: Vec<String> =
        sqlx::query_scalar("SELECT datname FROM pg_database WHERE datname ~ '^(t_[0-9]+_|template_.*_new$)'")
            .fetch_all(&mut *admin)
            .await
            .expect("list the databases");
    for name in names {
        let made: u64 = name.split('_').nth(1).and_then(|t| t.parse().ok()).unwrap_or(0);
        if made + 3600 < now() {
            run(admin, format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)")).await;
        }
    }
}

/// The URL with another database. By hand: what sqlx writes has parameters that libpq's programs refuse.
#[must_use]
pub fn with_database(url: &str, database: &str) -> String {
    let (address, parameters) = url.split_once('?').map_or((url, None), |(address, parameters)| (address, Some(parameters)));
    let authority = address.find("://").map_or(0, |at| at + 3);
    let server = address[authority..].find('/').map_or(address, |at| &address[..authority + at]);
    format!("{server}/{database}{}", parameters.map(|p| format!("?{p}")).unwrap_or_default())
}

fn options() -> PgConnectOptions {
    server_url().parse().expect("TRACIUM_TEST_POSTGRES_URL is not a PostgreSQL URL")
}

async fn admin() -> PgConnection {
    PgConnection::connect_with(&options().database("postgres")).await.expect("connect to the test server")
}

async fn run(connection: &mut PgConnection, sql: String) {
    sqlx::raw_sql(AssertSqlSafe(sql.clone())).execute(connection).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

#[cfg(test)]
mod tests {
    use super::with_database;

    #[test]
    fn only_the_database_of_a_url_changes() {
        for (url, expected) in [
            ("postgres://u:p@h:1/a?sslmode=disable", "postgres://u:p@h:1/b?sslmode=disable"),
            ("postgres://u@h:1/", "postgres://u@h:1/b"),
            ("postgres://h?user=u", "postgres://h/b?user=u"),
            ("postgres://u:p%2F@h:1/a", "postgres://u:p%2F@h:1/b"),
            ("postgres://h:1", "postgres://h:1/b"),
            ("postgres:///a?host=/run/pg&sslmode=require", "postgres:///b?host=/run/pg&sslmode=require"),
        ] {
            assert_eq!(with_database(url, "b"), expected);
        }
    }
}
