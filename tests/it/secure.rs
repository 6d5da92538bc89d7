//! TLS and logins, on services that ask for them: what works, and what an error names when it does not.

mod canary;
mod chain;
mod kafka;
mod postgres;
