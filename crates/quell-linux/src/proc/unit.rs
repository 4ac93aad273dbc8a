//! `/proc/PID/cgroup`: the systemd unit of a process.

use std::fs;

use super::{ProcDir, ProcError};

impl ProcDir {
    /// Name of the service or scope that contains the process, for example `memcached.service`. `None` if none does. The
    /// name is as long as the file name of a control group at most, and can contain any byte but `/`.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn unit(&self) -> Result<Option<String>, ProcError> {
        let path = self.path().join("cgroup");
        fs::read(&path).map(|bytes| parse_unit(&bytes)).map_err(|source| ProcError::refused(&path, source))
    }
}

/// Innermost service or scope in the path of the unified hierarchy (`0::`), or else of systemd's own (`name=systemd`).
#[must_use]
pub fn parse_unit(bytes: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(bytes);
    let path_in = |hierarchy: &str| text.lines().find_map(|line| line.split_once(hierarchy).map(|(_, path)| path));
    let path = path_in("0::").or_else(|| path_in("name=systemd:"))?;
    let is_unit = |name: &&str| name.ends_with(".service") || name.ends_with(".scope");
    path.rsplit('/').find(is_unit).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Pid;
    use crate::proc::ProcRoot;

    #[test]
    fn the_innermost_service_or_scope_is_the_unit() {
        let unit = |text: &str| parse_unit(text.as_bytes());
        assert_eq!(unit("0::/system.slice/memcached.service\n").as_deref(), Some("memcached.service"));
        let container = "0::/system.slice/docker-1f.scope/init.scope/app\n";
        assert_eq!(unit(container).as_deref(), Some("init.scope"));
        assert_eq!(unit("4:cpu:/a.service\n1:name=systemd:/b.service\n0::/\n"), None);
        assert_eq!(unit("4:cpu:/a.service\n1:name=systemd:/b.service\n").as_deref(), Some("b.service"));
        assert_eq!(unit("0::/user.slice\n"), None);
        assert_eq!(unit(""), None);
    }

    #[test]
    fn the_file_of_this_process_is_read() {
        ProcRoot::default().process(Pid::of_this_process()).unit().unwrap();
    }
}
