//! Integration tests, on the real services that `dev/stack` starts.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

mod cli;
mod consumer;
mod examples;
mod relay;
mod secure;
mod write;
