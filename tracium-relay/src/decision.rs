//! What a relay decides, as plain functions with the time passed in: what of a claim to send, what to hold and release,
//! which shards to take and give back. No IO, no clock.

mod batch;
mod hold;
mod share;

#[cfg(test)]
mod tests;

pub(crate) use batch::{Outcome, Plan, leave_unlocked_keys, plan, settle};
pub(crate) use hold::{Due, HeldKey, HeldKeys, STUCK_ATTEMPTS};
pub(crate) use share::{LeaseView, quota, shards_to_release, shards_to_take};
