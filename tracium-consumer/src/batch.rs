//! A batch: one transaction for the effect, what is seen, what is put aside and the progress.

mod plan;
#[cfg(test)]
mod tests;
mod transaction;

pub(crate) use plan::{Entry, Fate, Item, Plan, Progress, Summary};
pub(crate) use transaction::{Mode, Scope, apply};
