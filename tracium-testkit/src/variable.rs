//! Where the test services are.

/// A variable that `dev/stack env` sets.
///
/// # Panics
/// If it is not set.
#[must_use]
pub fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!(
            "{name} is not set: run `make test`, or `eval \"$(dev/stack env)\"` after `make up`; for services of your own see dev/README.md"
        )
    })
}
