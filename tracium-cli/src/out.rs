//! The only place that writes to the terminal. Standard output belongs to results, standard error to everything else,
//! and every line goes through [`redact`].
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "the one module that prints")]

use std::io::Write;

use serde::Serialize;

use crate::redact::redact;

/// A line of the result.
pub(crate) fn line(text: impl AsRef<str>) {
    // A reader that went away (`| head`) is no failure of ours.
    let _ = writeln!(std::io::stdout(), "{}", redact(text.as_ref()));
}

/// The result as one JSON object on one line: the last line of stdout.
pub(crate) fn json(value: &impl Serialize) {
    line(serde_json::to_string(value).expect("BUG: a result that is not JSON"));
}

/// Progress, or what a person should know.
pub(crate) fn note(text: impl AsRef<str>) {
    let _ = writeln!(std::io::stderr(), "{}", redact(text.as_ref()));
}

/// Raw text to standard error: redraws of a live picture.
pub(crate) fn raw(text: &str) {
    let mut stderr = std::io::stderr().lock();
    let _ = stderr.write_all(redact(text).as_bytes());
    let _ = stderr.flush();
}

/// Where log lines go: standard error, redacted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogWriter;

impl Write for LogWriter {
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        std::io::stderr().write_all(redact(&String::from_utf8_lossy(line)).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        std::io::stderr().flush()
    }
}
