//! Who the server runs as.

use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use super::{ClusterError, io};

/// The user that owns a cluster: this process's own, or an unprivileged one if that is root.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owner(Option<(u32, u32)>);

impl Owner {
    pub(super) fn of_this_process() -> Result<Self, ClusterError> {
        let probe = tempfile::NamedTempFile::new().map_err(io("make a temporary file"))?;
        if probe.as_file().metadata().map_err(io("look at a temporary file"))?.uid() != 0 {
            return Ok(Self(None));
        }
        let passwd = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let ids = ids_of(&passwd, "postgres").or_else(|| ids_of(&passwd, "nobody"));
        ids.map(|ids| Self(Some(ids))).ok_or(ClusterError::NoUnprivilegedUser)
    }

    pub(super) fn give(self, path: &Path) -> Result<(), ClusterError> {
        let Some((uid, gid)) = self.0 else { return Ok(()) };
        chown(path, Some(uid), Some(gid)).map_err(io(format!("give {} to user {uid}", path.display())))
    }

    pub(super) fn run_as(self, command: &mut Command) {
        if let Some((uid, gid)) = self.0 {
            command.uid(uid).gid(gid);
        }
    }
}

/// User and group id of a name in the form of `/etc/passwd`.
fn ids_of(passwd: &str, name: &str) -> Option<(u32, u32)> {
    let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut fields = line.split(':').skip(2);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_its_whole_name() {
        let passwd = "postgres2:x:9:9::/:\nroot:x:0:0::/root:/bin/sh\npostgres:x:101:103:a:b:c\n";
        assert_eq!(ids_of(passwd, "postgres"), Some((101, 103)));
        assert_eq!(ids_of(passwd, "nobody"), None);
    }
}
