//! PostgreSQL: the effect is in the transaction of last_seen.

mod config;
mod sink;

pub(crate) use config::PostgresViewConfig;
pub(crate) use sink::PostgresViewSink;
