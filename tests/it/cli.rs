//! `tracium` from outside: what a person at a terminal, a script or an orchestrator gets.

mod bench;
mod demo;
mod failures;
mod help;
mod relay_run;
mod schema;
mod status;
pub(crate) mod support;
