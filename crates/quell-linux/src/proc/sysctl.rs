//! Network sysctls in `/proc/sys/net`: any of them by name, as text, and those of packet delivery with their types
//! (`net/core/sysctl_net_core.c`). Two of them enable busy polling for the whole machine, regardless of epoll and
//! socket settings. All sysctls belong to the calling thread's network namespace, and some exist only in the initial
//! one.

use std::fmt;
use std::io;
use std::str::FromStr;

use thiserror::Error;

use super::irq::ProcWriteError;
use super::text::{Malformed, first_line};
use super::{ProcError, ProcRoot};

/// Name of a network sysctl with dots, as in `sysctl(8)`, for example `net.core.busy_poll`. A dot within a component is
/// written as a slash (`net.ipv4.conf.eth0/100.rp_filter`). Sysctls outside `net` are rejected, because some of them
/// can run programs (`kernel.core_pattern`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SysctlName(String);

#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("invalid network sysctl {0:?}: expected net.* with parts of letters, digits, `_`, `-` and `/`")]
pub struct InvalidSysctlName(String);

impl SysctlName {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn file(&self) -> String {
        let swapped = self.0.chars().map(|letter| match letter {
            '.' => '/',
            '/' => '.',
            other => other,
        });
        format!("sys/{}", swapped.collect::<String>())
    }
}

impl FromStr for SysctlName {
    type Err = InvalidSysctlName;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let is_part = |part: &str| {
            let mut bytes = part.bytes();
            bytes.next().is_some_and(|first| first.is_ascii_alphanumeric() || first == b'_')
                && bytes.all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'/'))
        };
        let is_name = name.starts_with("net.") && name.split('.').all(is_part);
        if is_name { Ok(Self(name.to_owned())) } else { Err(InvalidSysctlName(name.to_owned())) }
    }
}

impl fmt::Display for SysctlName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Parses a value in the format of `sysctl(8)`: fields separated by one tab, without a line break.
pub(crate) fn parse_text(bytes: &[u8]) -> Result<String, Malformed> {
    let line = first_line(bytes);
    let text = std::str::from_utf8(line.bytes).map_err(|_| line.malformed("a text", line.bytes))?;
    Ok(text.trim().to_owned())
}

pub(crate) fn parse(bytes: &[u8]) -> Result<u32, Malformed> {
    let line = first_line(bytes);
    line.next_number(&mut line.fields(), "a number")
}

impl ProcRoot {
    /// Reads a sysctl as text; only the first line is used. The file does not exist if this kernel or namespace lacks
    /// the sysctl.
    pub fn sysctl(&self, name: &SysctlName) -> Result<String, ProcError> {
        self.read(&name.file(), parse_text)
    }

    pub fn set_sysctl(&self, name: &SysctlName, value: &str) -> Result<(), ProcWriteError> {
        self.write(&name.file(), value)
    }

    /// Checks whether the caller can set a sysctl, without setting it.
    pub fn check_sysctl_writable(&self, name: &SysctlName) -> io::Result<()> {
        self.check_writable(&name.file())
    }

    /// `net.core.busy_poll`: busy-poll time in µs of `poll`, `select`, and of `epoll_wait` on epolls without
    /// parameters. If it is not 0, an epoll with parameters 0/0/0 also busy polls (`ep_busy_loop_on` in
    /// `fs/eventpoll.c`). The file does not exist on kernels without busy polling and outside the initial network
    /// namespace.
    pub fn busy_poll_us(&self) -> Result<u32, ProcError> {
        self.read("sys/net/core/busy_poll", parse)
    }

    /// `net.core.busy_read`: the default of `SO_BUSY_POLL` for new sockets, in µs.
    pub fn busy_read_us(&self) -> Result<u32, ProcError> {
        self.read("sys/net/core/busy_read", parse)
    }

    /// Reads another numeric sysctl of `net.core` by name, for example `netdev_budget`, `dev_weight` or
    /// `netdev_max_backlog`.
    pub fn net_core(&self, name: &str) -> Result<u32, ProcError> {
        self.read(&format!("sys/net/core/{name}"), parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_number_is_parsed() {
        assert_eq!(parse(b"50\n"), Ok(50));
        for malformed in [&b""[..], b"-1\n", b"fifty\n", b"99999999999\n"] {
            assert!(parse(malformed).is_err());
        }
    }

    #[test]
    fn a_name_maps_to_a_file_below_proc_sys_only() {
        let file = |name: &str| name.parse::<SysctlName>().map(|name| name.file());
        assert_eq!(file("net.core.busy_poll").as_deref(), Ok("sys/net/core/busy_poll"));
        assert_eq!(file("net.ipv4.conf.eth0/100.rp_filter").as_deref(), Ok("sys/net/ipv4/conf/eth0.100/rp_filter"));
        for name in [
            "",
            "busy_poll",
            "net..core",
            ".net.core",
            "net.//.core",
            "net.core.",
            "net.co re",
            "net.-a",
            "kernel.core_pattern",
            "net",
            "network.x",
        ] {
            assert!(file(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_sysctl_is_read_and_written_as_text() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("sys/net/ipv4")).unwrap();
        std::fs::write(root.path().join("sys/net/ipv4/tcp_rmem"), "4096\t131072\t6291456\n").unwrap();
        let proc = ProcRoot::new(root.path());
        let name = "net.ipv4.tcp_rmem".parse().unwrap();
        assert_eq!(proc.sysctl(&name).unwrap(), "4096\t131072\t6291456");
        proc.set_sysctl(&name, "1 2 3").unwrap();
        assert_eq!(proc.sysctl(&name).unwrap(), "1 2 3");
        assert!(proc.set_sysctl(&"net.ipv4.none".parse().unwrap(), "1").unwrap_err().is_absent());
    }

    #[test]
    fn a_machine_without_the_file_has_no_value() {
        let empty = tempfile::tempdir().unwrap();
        assert!(ProcRoot::new(empty.path()).busy_poll_us().unwrap_err().is_absent());
    }
}
