//! A PostgreSQL cluster that lives as long as the value: for demonstrations and benches without a server.
//!
//! The binaries are looked for in `PATH`, where packages put them, and where `pg_config` says. The cluster listens on
//! 127.0.0.1 at a free port, takes its superuser `postgres` without a password, keeps `fsync` on, and is stopped and
//! removed on drop. A shell stands between this process and the server and reads from a pipe that only this process
//! holds: when the process goes, by whatever signal, the pipe closes and the shell does the same clean-up.
//!
//! `initdb` refuses root, so under root the cluster belongs to user `postgres`, or `nobody` where there is none.

mod binaries;
mod owner;

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};
use tempfile::TempDir;

pub use binaries::Binaries;
use owner::Owner;

/// How long `initdb` and the first start may take together.
const START_DEADLINE: Duration = Duration::from_secs(60);
/// How long an immediate stop may take before the server is killed.
const STOP_DEADLINE: Duration = Duration::from_secs(10);

/// A running cluster. Stopped (immediately, without a checkpoint) and removed on drop.
#[derive(Debug)]
pub struct ThrowawayCluster {
    directory: TempDir,
    guard: Child,
    port: u16,
    version: u32,
}

/// A cluster that did not come up. Nothing of it is left.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// No binaries.
    #[error("PostgreSQL {needed} or newer is not installed{}; install it with `{install}`", found.map(|v| format!(" (found {v})")).unwrap_or_default())]
    NotInstalled {
        /// The oldest major version that will do.
        needed: u32,
        /// An older version that is there.
        found: Option<u32>,
        /// The line that installs it on this system.
        install: &'static str,
    },
    /// A file or process of the cluster could not be made.
    #[error("{what}")]
    Io {
        /// What was tried.
        what: String,
        /// The system's reason.
        #[source]
        source: std::io::Error,
    },
    /// There is nobody to run the server as.
    #[error("PostgreSQL refuses to run as root, and there is no user `postgres` or `nobody` to run it as")]
    NoUnprivilegedUser,
    /// `initdb` refused.
    #[error("initdb failed: {output}")]
    Initdb {
        /// What it said.
        output: String,
    },
    /// The server stopped, or did not answer in time.
    #[error("the throw-away PostgreSQL did not start: {reason}; its log ends with: {log}")]
    Start {
        /// Exit or deadline.
        reason: String,
        /// The end of its log.
        log: String,
    },
}

fn io(what: impl Into<String>) -> impl FnOnce(std::io::Error) -> ClusterError {
    let what = what.into();
    move |source| ClusterError::Io { what, source }
}

impl ThrowawayCluster {
    /// Makes and starts a cluster, and waits until it answers.
    ///
    /// Cancel safety: dropping the future removes what there is.
    ///
    /// # Errors
    /// [`ClusterError`], with the line that installs PostgreSQL if it is missing.
    pub async fn start() -> Result<Self, ClusterError> {
        let binaries = Binaries::find()?;
        let owner = Owner::of_this_process()?;
        let mut attempts = 3_u32;
        loop {
            attempts -= 1;
            match Self::start_once(&binaries, owner).await {
                // Another process took the port between our look and the server's bind: then the next one.
                Err(ClusterError::Start { log, .. }) if attempts > 0 && log.contains("Address already in use") => {}
                done => return done,
            }
        }
    }

    async fn start_once(binaries: &Binaries, owner: Owner) -> Result<Self, ClusterError> {
        let deadline = Instant::now() + START_DEADLINE;
        let directory = tempfile::Builder::new().prefix("tracium-pg-").tempdir().map_err(io("make a temporary directory"))?;
        owner.give(directory.path())?;
        initdb(binaries, owner, directory.path()).await?;
        let port = free_port()?;
        let guard = spawn(binaries, owner, directory.path(), port)?;
        let mut cluster = Self { directory, guard, port, version: binaries.version };
        cluster.wait_ready(deadline).await?;
        Ok(cluster)
    }

    /// The address of a database of it.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// The server's major version.
    #[must_use]
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Where its files are.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// The last lines of the server's log.
    #[must_use]
    pub fn log_tail(&self) -> String {
        log_tail(self.directory.path())
    }

    async fn wait_ready(&mut self, deadline: Instant) -> Result<(), ClusterError> {
        let options: PgConnectOptions = self.url("postgres").parse().expect("BUG: the cluster's URL is well-formed");
        loop {
            let failed = |reason: String, log| Err(ClusterError::Start { reason, log });
            if let Some(status) = self.guard.try_wait().map_err(io("look after the server"))? {
                return failed(format!("it ended with {status}"), self.log_tail());
            }
            let last = match tokio::time::timeout(Duration::from_secs(5), PgConnection::connect_with(&options)).await {
                Ok(Ok(connection)) => {
                    let _ = connection.close().await;
                    return Ok(());
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => "no answer within 5 s".to_owned(),
            };
            if Instant::now() > deadline {
                return failed(format!("no connection within {START_DEADLINE:?}, last: {last}"), self.log_tail());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for ThrowawayCluster {
    fn drop(&mut self) {
        // The guard's pipe closes; it stops the server and removes the directory.
        drop(self.guard.stdin.take());
        let deadline = Instant::now() + STOP_DEADLINE;
        while let Ok(None) = self.guard.try_wait() {
            if Instant::now() > deadline {
                let _ = self.guard.kill();
                let _ = self.guard.wait();
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

async fn initdb(binaries: &Binaries, owner: Owner, directory: &Path) -> Result<(), ClusterError> {
    let mut command = Command::new(binaries.directory.join("initdb"));
    command
        .args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions", "-D"])
        .arg(directory.join("data"))
        .current_dir(directory)
        .stdin(Stdio::null());
    owner.run_as(&mut command);
    let output = tokio::task::spawn_blocking(move || command.output()).await.expect("BUG: initdb's task panicked");
    let output = output.map_err(io(format!("run {}", binaries.directory.join("initdb").display())))?;
    if output.status.success() {
        return Ok(());
    }
    Err(ClusterError::Initdb { output: String::from_utf8_lossy(&output.stderr).trim().to_owned() })
}

/// The shell between us and the server: stops it when the pipe to us closes, ends when the server does.
const GUARD: &str = r#"
dir=$1; shift
exec 3<&0
"$@" >"$dir/postgres.log" 2>&1 </dev/null 3<&- &
server=$!
{ read -r _ <&3; : >"$dir/stopping"; kill -QUIT $server; } 2>/dev/null &
waiter=$!
wait $server
status=$?
[ -e "$dir/stopping" ] && rm -rf "$dir"
kill $waiter 2>/dev/null
exit $status
"#;

fn spawn(binaries: &Binaries, owner: Owner, directory: &Path, port: u16) -> Result<Child, ClusterError> {
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", GUARD, "tracium-pg"])
        .arg(directory)
        .arg(binaries.directory.join("postgres"))
        .arg("-D")
        .arg(directory.join("data"))
        .args(["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", "-c", "fsync=on"])
        .args(["-c", "max_connections=100", "-c", "max_wal_size=2GB"])
        .arg("-c")
        .arg(format!("port={port}"))
        .current_dir(directory)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        // Ctrl-C on the terminal is ours to handle, in our order.
        .process_group(0);
    owner.run_as(&mut command);
    command.spawn().map_err(io("start the server"))
}

fn free_port() -> Result<u16, ClusterError> {
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).map_err(io("find a free port on 127.0.0.1"))?;
    Ok(listener.local_addr().map_err(io("find a free port on 127.0.0.1"))?.port())
}

fn log_tail(directory: &Path) -> String {
    let mut log = String::new();
    let read = std::fs::File::open(directory.join("postgres.log")).and_then(|mut f| f.read_to_string(&mut log));
    if read.is_err() {
        return "(no log)".to_owned();
    }
    let lines: Vec<&str> = log.lines().rev().take(10).collect();
    lines.into_iter().rev().collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_cluster_answers_with_fsync_on_and_leaves_nothing_behind() {
        let cluster = ThrowawayCluster::start().await.expect("start");
        let directory = cluster.directory().to_owned();
        let mut connection = PgConnection::connect(&cluster.url("postgres")).await.expect("connect");
        let (user, fsync): (String, String) =
            sqlx::query_as("SELECT current_user::text, current_setting('fsync')").fetch_one(&mut connection).await.expect("ask");
        assert_eq!((user.as_str(), fsync.as_str()), ("postgres", "on"));
        let port = cluster.port;
        drop(cluster);
        assert!(!directory.exists(), "{} is still there", directory.display());
        assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err(), "the server still listens");
    }

    #[tokio::test]
    async fn a_cluster_goes_with_the_pipe_as_when_its_process_is_killed() {
        let mut cluster = ThrowawayCluster::start().await.expect("start");
        drop(cluster.guard.stdin.take());
        let end = Instant::now() + STOP_DEADLINE;
        while cluster.directory().exists() {
            assert!(Instant::now() < end, "the directory is still there");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}
