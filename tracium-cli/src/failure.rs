//! How a command fails: what failed, why, the way out, and the exit code.

use std::process::ExitCode;

/// A check failed or something was found. Also what nobody foresaw.
const FOUND: u8 = 1;
/// Usage or configuration.
const USAGE: u8 = 2;
/// A dependency is unreachable.
const UNREACHABLE: u8 = 3;

/// A failed command.
#[derive(Debug)]
pub(crate) struct Failure {
    code: u8,
    error: anyhow::Error,
    way_out: Option<String>,
}

pub(crate) type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    fn new(code: u8, error: impl Into<anyhow::Error>) -> Self {
        Self { code, error: error.into(), way_out: None }
    }

    /// Exit code 1: the check failed.
    pub(crate) fn found(error: impl Into<anyhow::Error>) -> Self {
        Self::new(FOUND, error)
    }

    /// Exit code 2: usage or configuration.
    pub(crate) fn usage(error: impl Into<anyhow::Error>) -> Self {
        Self::new(USAGE, error)
    }

    /// Exit code 3: a dependency does not answer.
    pub(crate) fn unreachable(error: impl Into<anyhow::Error>) -> Self {
        Self::new(UNREACHABLE, error)
    }

    /// What to do about it.
    pub(crate) fn way_out(mut self, way_out: impl Into<String>) -> Self {
        self.way_out = Some(way_out.into());
        self
    }

    /// The text for people: what failed, the chain of causes, the way out.
    pub(crate) fn render(&self) -> String {
        let mut text = format!("error: {}", self.error);
        let mut said = self.error.to_string();
        for cause in self.error.chain().skip(1) {
            let cause = cause.to_string();
            // Many errors repeat their source in their own text.
            if !said.contains(&cause) {
                text.push_str(&format!("\n  because: {cause}"));
                said.push_str(&cause);
            }
        }
        if let Some(way_out) = &self.way_out {
            text.push_str(&format!("\n  way out: {way_out}"));
        }
        text
    }

    pub(crate) fn exit_code(&self) -> ExitCode {
        ExitCode::from(self.code)
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Self {
        Self::found(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_why_and_the_way_out_and_repeats_nothing() {
        let error = anyhow::anyhow!("refused").context("connect: refused").context("cannot reach PostgreSQL");
        let text = Failure::unreachable(error).way_out("start it").render();
        assert_eq!(text, "error: cannot reach PostgreSQL\n  because: connect: refused\n  way out: start it");
    }
}
