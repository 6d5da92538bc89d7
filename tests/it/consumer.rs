//! Consumer and projections, against a real broker and a real database.

mod bad_input;
mod crash;
mod dedup;
mod load;
mod offsets;
mod order;
mod start;
pub(crate) mod support;
