//! Holder of the integration tests; see `it/`.
