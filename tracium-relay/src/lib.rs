//! tracium-relay
