//! tracium-testkit
