//! Finding PostgreSQL's server binaries, which packages keep out of `PATH`.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::ClusterError;

/// The oldest major version that will do: `UNIQUE NULLS NOT DISTINCT` came with it.
const NEEDED: u32 = 15;

/// A directory with `initdb` and `postgres` of one version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binaries {
    /// Where they are.
    pub directory: PathBuf,
    /// Their major version.
    pub version: u32,
}

impl Binaries {
    /// The newest version that is installed: in `PATH`, in the directories that packages use, or where `pg_config` says.
    ///
    /// # Errors
    /// [`ClusterError::NotInstalled`] with the line that installs it.
    pub fn find() -> Result<Self, ClusterError> {
        newest(candidates())
    }
}

fn candidates() -> Vec<PathBuf> {
    let mut directories: Vec<PathBuf> =
        std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default();
    for (parent, prefix) in [
        ("/usr/lib/postgresql", ""),
        ("/usr", "pgsql-"),
        ("/usr/local/opt", "postgresql"),
        ("/opt/homebrew/opt", "postgresql"),
        ("/usr/lib", "postgresql"),
    ] {
        let Ok(entries) = std::fs::read_dir(parent) else { continue };
        let named = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
        directories.extend(named.map(|entry| entry.path().join("bin")));
    }
    if let Ok(output) = Command::new("pg_config").arg("--bindir").output() {
        directories.push(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    }
    directories
}

fn newest(directories: Vec<PathBuf>) -> Result<Binaries, ClusterError> {
    let found = directories
        .into_iter()
        .filter(|directory| directory.join("initdb").is_file() && directory.join("postgres").is_file())
        .filter_map(|directory| Some(Binaries { version: version_of(&directory)?, directory }))
        .max_by_key(|binaries| binaries.version);
    match found {
        Some(binaries) if binaries.version >= NEEDED => Ok(binaries),
        older => Err(ClusterError::NotInstalled { needed: NEEDED, found: older.map(|b| b.version), install: install_line() }),
    }
}

/// The major version out of `postgres (PostgreSQL) 15.18 (Debian …)`.
fn version_of(directory: &Path) -> Option<u32> {
    let output = Command::new(directory.join("postgres")).arg("--version").output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let number = text.split("PostgreSQL)").nth(1)?.trim_start();
    number.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

fn install_line() -> &'static str {
    if cfg!(target_os = "macos") {
        return "brew install postgresql@15";
    }
    let has = |path: &str| Path::new(path).exists();
    if has("/usr/bin/dnf") {
        "dnf install postgresql-server"
    } else if has("/usr/bin/pacman") {
        "pacman -S postgresql"
    } else if has("/sbin/apk") {
        "apk add postgresql"
    } else {
        "apt-get install postgresql"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_postgresql_is_named_with_the_line_that_installs_it() {
        let error = newest(vec![PathBuf::from("/nowhere")]).expect_err("nothing is there").to_string();
        assert!(error.contains("PostgreSQL 15 or newer is not installed"), "{error}");
        assert!(error.contains("install it with `") && error.contains("postgresql"), "{error}");
    }

    #[test]
    fn an_older_one_is_refused_by_its_version() {
        let directory = tempfile::tempdir().expect("directory");
        for name in ["initdb", "postgres"] {
            let path = directory.path().join(name);
            std::fs::write(&path, "#!/bin/sh\necho 'postgres (PostgreSQL) 14.9'\n").expect("write");
            std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("chmod");
        }
        let error = newest(vec![directory.path().to_owned()]).expect_err("too old").to_string();
        assert!(error.contains("(found 14)"), "{error}");
    }
}
