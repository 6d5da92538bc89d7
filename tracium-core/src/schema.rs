//! Schema `tracium`: installed by an explicit command, checked by every service, never changed by a constructor.

use sqlx::migrate::{MigrateError, Migrator};
use sqlx::{Connection, PgConnection};

use crate::{Class, Classify, class_of_database_error, sql};

static MIGRATOR: Migrator = sqlx::migrate!("../migrations");

/// The schema version this binary is built for: the last migration's number.
pub const VERSION: i32 = 3;

/// Shards that `migrate` makes where the database has none and the caller names no number.
pub const DEFAULT_SHARDS: u16 = 8;

/// What the database has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Installed {
    /// The last migration that ran.
    pub version: i32,
    /// The number of shards.
    pub shards: u16,
}

/// A schema that this binary cannot use or make.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SchemaError {
    /// There is none.
    #[error("the database has no tracium schema; run `tracium migrate --database-url …` on it")]
    Missing,
    /// It lacks migrations.
    #[error("the tracium schema is at version {found}, this binary needs {needed}; run `tracium migrate`")]
    Older {
        /// The database's version.
        found: i32,
        /// This binary's version.
        needed: i32,
    },
    /// It no longer serves this binary.
    #[error(
        "the tracium schema is at version {found} and serves binaries from version {oldest_binary} on, this one is {binary}; install a newer tracium"
    )]
    Newer {
        /// The database's version.
        found: i32,
        /// The oldest binary it serves.
        oldest_binary: i32,
        /// This binary's version.
        binary: i32,
    },
    /// PostgreSQL is too old.
    #[error("the server is PostgreSQL {found}, tracium needs 15 or newer")]
    ServerTooOld {
        /// The server's major version.
        found: u32,
    },
    /// The database has no shards, or another number of them than was asked for.
    #[error("{0}")]
    Shards(String),
    /// A migration failed. Nothing of it stays.
    #[error("migration failed; nothing of it was kept")]
    Migrate(#[source] MigrateError),
    /// The database refused or could not be reached.
    #[error("the database could not be asked about its schema")]
    Database(#[source] sqlx::Error),
}

impl Classify for SchemaError {
    fn class(&self) -> Class {
        match self {
            Self::Database(error) => class_of_database_error(error),
            _ => Class::Fatal,
        }
    }
}

/// Runs the migrations that are missing, then makes the shards. Safe to run again and from several places at once.
/// `shards`: `None` takes what is there, or [`DEFAULT_SHARDS`].
///
/// # Errors
/// [`SchemaError`]; a failed migration leaves nothing behind.
pub async fn migrate(connection: &mut PgConnection, shards: Option<u16>) -> Result<Installed, SchemaError> {
    let server: String =
        sqlx::query_scalar("SHOW server_version_num").fetch_one(&mut *connection).await.map_err(SchemaError::Database)?;
    let found = server.parse::<u32>().unwrap_or(0) / 10_000;
    if found < 15 {
        return Err(SchemaError::ServerTooOld { found });
    }
    if let Ok(installed) | Err(SchemaError::Newer { found: installed, .. }) = check(connection).await.map(|i| i.version)
        && installed > VERSION
    {
        return Err(SchemaError::Newer { found: installed, oldest_binary: installed, binary: VERSION });
    }
    let mut migrator = Migrator { migrations: MIGRATOR.migrations.clone(), ..Migrator::DEFAULT };
    migrator.create_schema("tracium");
    migrator.dangerous_set_table_name("tracium.schema_migration");
    migrator.run_direct(None, connection, false).await.map_err(SchemaError::Migrate)?;

    let wanted = match shards {
        Some(n) => Some(n),
        None => settings(connection).await?.2.is_none().then_some(DEFAULT_SHARDS),
    };
    if let Some(n) = wanted {
        let mut tx = connection.begin().await.map_err(SchemaError::Database)?;
        sqlx::query(sql::CREATE_SHARDS).bind(i32::from(n)).execute(&mut *tx).await.map_err(|error| {
            match error.as_database_error().filter(|e| e.code().as_deref() == Some("TR003")) {
                Some(refused) => SchemaError::Shards(refused.message().to_owned()),
                None => SchemaError::Database(error),
            }
        })?;
        tx.commit().await.map_err(SchemaError::Database)?;
    }
    check(connection).await
}

/// Everything `migrate` would run on an empty database, as one script for `psql`. It also records the migrations, so that
/// a later `migrate` goes on from there.
#[must_use]
pub fn script(shards: u16) -> String {
    let mut script = String::from("\\set ON_ERROR_STOP on\nBEGIN;\nCREATE SCHEMA IF NOT EXISTS tracium;\n");
    script.push_str(sql::CREATE_SCHEMA_MIGRATION);
    for migration in MIGRATOR.iter() {
        script.push_str(&format!("\n-- {:04} {}\n", migration.version, migration.description));
        script.push_str(migration.sql.as_str());
        let checksum: String = migration.checksum.iter().map(|byte| format!("{byte:02x}")).collect();
        script.push_str(&format!(
            "\nINSERT INTO tracium.schema_migration (version, description, success, checksum, execution_time)
    VALUES ({}, '{}', true, '\\x{checksum}', -1);\n",
            migration.version,
            migration.description.replace('\'', "''"),
        ));
    }
    script.push_str(&format!("\nSELECT tracium.create_shards({shards});\nCOMMIT;\n"));
    script
}

/// Whether the database's schema serves this binary.
///
/// # Errors
/// [`SchemaError`] with the way out.
pub async fn check(connection: &mut PgConnection) -> Result<Installed, SchemaError> {
    let (found, oldest_binary, shards) = settings(connection).await?;
    if oldest_binary > VERSION {
        return Err(SchemaError::Newer { found, oldest_binary, binary: VERSION });
    }
    if found < VERSION {
        return Err(SchemaError::Older { found, needed: VERSION });
    }
    match shards.and_then(|n| u16::try_from(n).ok()) {
        Some(shards) => Ok(Installed { version: found, shards }),
        None => Err(SchemaError::Shards("the outbox has no shards; run `tracium migrate`".to_owned())),
    }
}

async fn settings(connection: &mut PgConnection) -> Result<(i32, i32, Option<i32>), SchemaError> {
    let exists: bool =
        sqlx::query_scalar(sql::SETTINGS_EXIST).fetch_one(&mut *connection).await.map_err(SchemaError::Database)?;
    if !exists {
        return Err(SchemaError::Missing);
    }
    sqlx::query_as(sql::SCHEMA_VERSION).fetch_one(connection).await.map_err(SchemaError::Database)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_the_last_migrations_number() {
        assert_eq!(MIGRATOR.iter().map(|m| m.version).max(), Some(i64::from(VERSION)));
    }

    #[test]
    fn the_printed_script_has_every_migration_and_the_shards() {
        let script = script(4);
        assert!(
            script.contains("CREATE TABLE tracium.outbox") && script.ends_with("SELECT tracium.create_shards(4);\nCOMMIT;\n")
        );
    }
}
