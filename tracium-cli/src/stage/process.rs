//! Child processes of this same binary: started, killed, started again, stopped.

use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use anyhow::anyhow;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use crate::failure::{Failure, Outcome};

/// What to run.
#[derive(Debug, Clone)]
pub(crate) struct Spec {
    /// What to call it.
    pub(crate) name: String,
    /// Arguments of `tracium`.
    pub(crate) args: Vec<String>,
    /// What it is told of the database and the broker.
    pub(crate) env: Vec<(String, String)>,
    /// Whether it reads the other settings of our environment too, or only TRACIUM_LOG.
    pub(crate) keeps_settings: bool,
    /// Where its output goes, appended.
    pub(crate) log: PathBuf,
}

/// A running child. Killed on drop, and by itself when this process is gone: its standard input closes.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) spec: Spec,
    child: Child,
}

impl Process {
    pub(crate) fn spawn(spec: Spec) -> Outcome<Self> {
        let failed = |error: std::io::Error| Failure::found(anyhow!(error).context(format!("cannot start {}", spec.name)));
        let log = std::fs::OpenOptions::new().create(true).append(true).open(&spec.log).map_err(failed)?;
        let mut command = Command::new(this_binary().map_err(failed)?);
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            let database = text.starts_with("DATABASE_URL") || text.starts_with("TRACIUM_DATABASE_URL");
            let other = text.starts_with("TRACIUM_") && text != "TRACIUM_LOG" && !spec.keeps_settings;
            if database || other {
                command.env_remove(&name);
            }
        }
        command
            .arg0("tracium")
            .args(&spec.args)
            .envs(spec.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(log.try_clone().map_err(failed)?)
            .stderr(log)
            // Ctrl-C on the terminal is ours to handle, in our order.
            .process_group(0)
            .kill_on_drop(true);
        let child = command.spawn().map_err(failed)?;
        Ok(Self { spec, child })
    }

    /// Its process id, while it runs.
    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// How it ended, if it has.
    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// SIGKILL, then the same again.
    pub(crate) async fn kill_and_restart(&mut self) -> Outcome {
        let failed = |error: std::io::Error| Failure::found(anyhow!(error).context(format!("cannot kill {}", self.spec.name)));
        self.child.kill().await.map_err(failed)?;
        *self = Self::spawn(self.spec.clone())?;
        Ok(())
    }

    /// SIGTERM; it must end with exit code 0 within the deadline.
    pub(crate) async fn stop(mut self, deadline: Duration) -> Result<(), String> {
        let name = &self.spec.name;
        if let Some(pid) = self.child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw) {
            kill_process(pid, Signal::TERM).map_err(|error| format!("{name} could not be signalled: {error}"))?;
        }
        match tokio::time::timeout(deadline, self.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(format!("{name} ended with {status} after SIGTERM: {}", log_tail(&self.spec.log))),
            Ok(Err(error)) => Err(format!("{name} could not be waited for: {error}")),
            Err(_) => Err(format!("{name} did not end within {deadline:?} of SIGTERM: {}", log_tail(&self.spec.log))),
        }
    }
}

/// This binary, even if the file has been replaced since it started.
fn this_binary() -> std::io::Result<PathBuf> {
    let running = Path::new("/proc/self/exe");
    if running.exists() { Ok(running.to_owned()) } else { std::env::current_exe() }
}

/// The last lines of a log.
pub(crate) fn log_tail(path: &Path) -> String {
    let log = std::fs::read(path).unwrap_or_default();
    let log = String::from_utf8_lossy(&log);
    let lines: Vec<&str> = log.lines().rev().take(8).collect();
    lines.into_iter().rev().map(|line| format!("\n    {line}")).collect()
}
