//! The relay on real PostgreSQL and Kafka.

mod delivery;
mod failure;
pub(crate) mod fixture;
mod leadership;
mod order;
