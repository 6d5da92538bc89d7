//! Where demo and bench play: a database and a broker of their own, made for the run and gone after it.

mod broker;
mod process;

use anyhow::anyhow;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tracium_core::schema;
use tracium_testkit::ThrowawayCluster;
use tracium_testkit::database::with_database;
use tracium_testkit::postgres::ClusterError;

pub(crate) use broker::Broker;
pub(crate) use process::{Process, Spec, log_tail};

use crate::config::Sourced;
use crate::connect;
use crate::failure::{Failure, Outcome};

/// A migrated database that nobody else uses.
#[derive(Debug)]
pub(crate) struct Database {
    /// Its address.
    pub(crate) url: Sourced<String>,
    /// What to say of it.
    pub(crate) description: String,
    home: Home,
}

#[derive(Debug)]
enum Home {
    /// Stops and removes itself.
    Cluster { _cluster: ThrowawayCluster },
    /// A server of the user's, where the database was made.
    Server { admin: Sourced<String>, name: String },
}

impl Database {
    /// On that server, or in a throw-away cluster.
    pub(crate) async fn make(server: Option<&Sourced<String>>, purpose: &str, shards: Option<u16>) -> Outcome<Self> {
        let database = match server {
            Some(server) => Self::on_server(server, purpose).await?,
            None => Self::in_cluster(purpose).await?,
        };
        let made = database.migrate(shards).await;
        if let Err(failure) = made {
            database.remove().await?;
            return Err(failure);
        }
        Ok(database)
    }

    async fn in_cluster(purpose: &str) -> Outcome<Self> {
        let cluster = ThrowawayCluster::start().await.map_err(|error| match error {
            error @ ClusterError::NotInstalled { .. } => Failure::usage(error)
                .way_out(format!("install it, or name a server: DATABASE_URL=postgres://… tracium {purpose}")),
            error => Failure::found(error).way_out(format!("name a server instead: DATABASE_URL=postgres://… tracium {purpose}")),
        })?;
        let url = Sourced { value: cluster.url("postgres"), origin: "the throw-away cluster".to_owned() };
        let description = format!("a throw-away PostgreSQL {}", cluster.version());
        Ok(Self { url, description, home: Home::Cluster { _cluster: cluster } })
    }

    async fn on_server(server: &Sourced<String>, purpose: &str) -> Outcome<Self> {
        let name = format!("tracium_{purpose}_{}", short_id());
        let mut connection = connect::database(server).await?;
        let create = format!("CREATE DATABASE {name}");
        sqlx::raw_sql(AssertSqlSafe(create)).execute(&mut connection).await.map_err(|error| {
            Failure::usage(
                anyhow!(error).context(format!("cannot make database {name} on the server that {} names", server.origin)),
            )
            .way_out("log in as a role with CREATEDB and CREATEROLE, or leave the URL out for a throw-away cluster")
        })?;
        let url = Sourced { value: with_database(&server.value, &name), origin: server.origin.clone() };
        let description = format!("database {name} on the server of {}", server.origin);
        Ok(Self { url, description, home: Home::Server { admin: server.clone(), name } })
    }

    async fn migrate(&self, shards: Option<u16>) -> Outcome {
        let mut connection = connect::database(&self.url).await?;
        schema::migrate(&mut connection, shards).await.map_err(|error| connect::schema_failure(error, &self.url))?;
        let _ = connection.close().await;
        Ok(())
    }

    /// A connection to it.
    pub(crate) async fn connect(&self) -> Outcome<PgConnection> {
        connect::database(&self.url).await
    }

    /// Drops it.
    pub(crate) async fn remove(self) -> Outcome {
        let Home::Server { admin, name } = &self.home else { return Ok(()) };
        let mut connection = connect::database(admin).await?;
        let drop = format!("DROP DATABASE IF EXISTS {name} WITH (FORCE)");
        sqlx::raw_sql(AssertSqlSafe(drop)).execute(&mut connection).await.map_err(|error| {
            Failure::found(anyhow!(error).context(format!("cannot drop database {name}")))
                .way_out(format!("DROP DATABASE {name}"))
        })?;
        Ok(())
    }
}

/// A name nobody else has, in a few letters.
pub(crate) fn short_id() -> String {
    let id = uuid::Uuid::new_v4().simple().to_string();
    id.get(..12).unwrap_or_default().to_owned()
}
