//! The relay on real PostgreSQL and Kafka.

mod delivery;
mod failure;
mod fixture;
mod leadership;
mod order;
