//! Testing Tracium and what is built on it, against real services.
//!
//! The services' addresses come from the environment (`TRACIUM_TEST_POSTGRES_URL`, `TRACIUM_TEST_KAFKA_URL`), as
//! `dev/stack env` prints them. Where one is missing the test fails and says so; nothing is skipped.

pub mod database;
pub mod history;
pub mod kafka;
pub mod postgres;
pub mod secure;
mod variable;
mod wait;

pub use database::TestDatabase;
pub use postgres::ThrowawayCluster;
pub use variable::variable;
pub use wait::eventually;
