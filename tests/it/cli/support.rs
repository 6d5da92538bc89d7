//! Running the `tracium` that was built beside these tests.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, ChildStderr, Command};
use tokio::task::JoinHandle;

/// How long any command may take on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// The binary: `TRACIUM_BIN` (`make test` sets it), or `tracium` in this test's own target directory.
fn binary() -> PathBuf {
    if let Some(named) = std::env::var_os("TRACIUM_BIN") {
        return named.into();
    }
    // …/target/debug/deps/it-0123 → …/target/debug/tracium
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().join("tracium")
}

/// A command to run, with nothing of our settings in its environment.
pub(crate) struct Tracium {
    command: Command,
    what: String,
}

/// How a command ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

/// A command that runs until it is told to stop.
pub(crate) struct Running {
    child: Child,
    what: String,
    stdout: JoinHandle<String>,
    stderr: BufReader<ChildStderr>,
    said: String,
}

pub(crate) fn tracium(args: &[&str]) -> Tracium {
    let binary = binary();
    assert!(binary.is_file(), "{} is not built: cargo build -p tracium-cli, or run `make test`", binary.display());
    let mut command = Command::new(binary);
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        if text.starts_with("TRACIUM_") || text.starts_with("DATABASE_URL") || text.starts_with("PG") || text == "COLUMNS" {
            command.env_remove(&name);
        }
    }
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    Tracium { command, what: format!("tracium {}", args.join(" ")) }
}

impl Tracium {
    pub(crate) fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn start(mut self) -> Running {
        let mut child = self.command.spawn().unwrap();
        let mut stdout = child.stdout.take().unwrap();
        let stdout = tokio::spawn(async move {
            let mut text = String::new();
            stdout.read_to_string(&mut text).await.unwrap();
            text
        });
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Running { child, what: self.what, stdout, stderr, said: String::new() }
    }

    pub(crate) async fn run(self) -> Ended {
        self.start().ended(PATIENCE).await
    }
}

impl Running {
    /// Reads stderr up to the first line that has that text, and returns the line.
    pub(crate) async fn says(&mut self, text: &str) -> String {
        let reading = async {
            loop {
                let mut line = String::new();
                let read = self.stderr.read_line(&mut line).await.unwrap();
                self.said.push_str(&line);
                assert!(read > 0, "{} ended without saying {text:?}:\n{}", self.what, self.said);
                if line.contains(text) {
                    return line;
                }
            }
        };
        match tokio::time::timeout(PATIENCE, reading).await {
            Ok(line) => line,
            Err(_) => panic!("{} did not say {text:?} within {PATIENCE:?}:\n{}", self.what, self.said),
        }
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().unwrap().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    pub(crate) async fn ended(mut self, within: Duration) -> Ended {
        let ending = async {
            self.stderr.read_to_string(&mut self.said).await.unwrap();
            let status = self.child.wait().await.unwrap();
            (status.code(), self.stdout.await.unwrap())
        };
        match tokio::time::timeout(within, ending).await {
            Ok((code, stdout)) => Ended { code, stdout, stderr: self.said },
            Err(_) => panic!("{} did not end within {within:?}", self.what),
        }
    }
}

impl Ended {
    #[track_caller]
    pub(crate) fn exits(&self, code: i32) -> &Self {
        assert_eq!(self.code, Some(code), "{self:#?}");
        self
    }

    #[track_caller]
    pub(crate) fn says(&self, text: &str) -> &Self {
        assert!(self.stderr.contains(text), "{text:?} is not in {self:#?}");
        self
    }

    #[track_caller]
    pub(crate) fn never_says(&self, text: &str) -> &Self {
        assert!(!self.stderr.contains(text) && !self.stdout.contains(text), "{text:?} is in {self:#?}");
        self
    }

    /// The one JSON object, on the last line of stdout.
    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        let line = self.stdout.lines().last().unwrap_or_default();
        match serde_json::from_str::<Value>(line) {
            Ok(value) if value.is_object() => value,
            _ => panic!("no JSON object on the last line: {self:#?}"),
        }
    }
}

/// All of these fields are there.
#[track_caller]
pub(crate) fn has_fields(value: &Value, fields: &[&str]) {
    for field in fields {
        assert!(value.get(field).is_some(), "{field} is missing in {value:#}");
    }
}

/// An address where nothing listens.
pub(crate) fn dead_address() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// Processes whose environment names the folder: all that a command with `TMPDIR` there has started, whoever they
/// belong to now.
pub(crate) fn processes_of(folder: &Path) -> Vec<String> {
    let needle = folder.to_str().unwrap().as_bytes();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        if environment.windows(needle.len()).any(|part| part == needle) {
            let command = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            found.push(format!("{} {command}", entry.file_name().display()));
        }
    }
    found
}

/// A folder for temporary files, like /tmp: the throw-away PostgreSQL's user must get in, and remove what is its own.
pub(crate) fn open_folder() -> tempfile::TempDir {
    let folder = tempfile::Builder::new().prefix("tracium-test-").tempdir().unwrap();
    std::fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o1777)).unwrap();
    folder
}
