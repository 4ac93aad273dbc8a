//! The capabilities that Quell needs, with their names for messages.

use std::fmt;
use std::io;
use std::os::linux::fs::MetadataExt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::proc::{ProcError, ProcRoot};

/// A capability that Quell needs, with its number in `linux/capability.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[repr(u8)]
#[non_exhaustive]
pub enum Capability {
    /// `CAP_NET_ADMIN`: NAPI settings, links, busy-poll budgets above 64 and `SO_PREFER_BUSY_POLL`.
    #[serde(rename = "CAP_NET_ADMIN")]
    NetAdmin = 12,
    /// `CAP_SYS_PTRACE`: `/proc` files and `pidfd_getfd(2)` of other users' processes.
    #[serde(rename = "CAP_SYS_PTRACE")]
    SysPtrace = 19,
    /// `CAP_SYS_ADMIN`: creating and entering network namespaces.
    #[serde(rename = "CAP_SYS_ADMIN")]
    SysAdmin = 21,
    /// `CAP_SYS_NICE`: real-time scheduling classes, and the CPU affinity of other users' threads.
    #[serde(rename = "CAP_SYS_NICE")]
    SysNice = 23,
    /// `CAP_PERFMON`: attaching BPF programs to tracepoints.
    #[serde(rename = "CAP_PERFMON")]
    Perfmon = 38,
    /// `CAP_BPF`: loading BPF programs.
    #[serde(rename = "CAP_BPF")]
    Bpf = 39,
}

impl Capability {
    pub const ALL: [Self; 6] =
        [Self::NetAdmin, Self::SysPtrace, Self::SysAdmin, Self::SysNice, Self::Perfmon, Self::Bpf];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::SysPtrace => "CAP_SYS_PTRACE",
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::SysNice => "CAP_SYS_NICE",
            Self::Perfmon => "CAP_PERFMON",
            Self::Bpf => "CAP_BPF",
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A set of capabilities, as `CapEff` of `/proc/PID/status` shows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CapabilitySet(u64);

impl CapabilitySet {
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    #[must_use]
    pub const fn has(self, capability: Capability) -> bool {
        self.0 & (1 << capability as u8) != 0
    }

    /// Capabilities of `needed` that the set lacks, in the order of `needed`.
    #[must_use]
    pub fn missing(self, needed: &[Capability]) -> Vec<Capability> {
        let lacking = needed.iter().filter(|&&capability| !self.has(capability));
        lacking.copied().collect()
    }
}

/// Effective capabilities of the calling thread; `None` if the kernel does not report them. They apply to this thread's
/// user namespace; see [`in_initial_user_namespace`].
pub fn effective(proc: &ProcRoot) -> Result<Option<CapabilitySet>, ProcError> {
    Ok(proc.thread_self().status()?.cap_eff)
}

/// Whether this process is in the initial user namespace. The kernel checks the capabilities for `napi-set` and for
/// most of `bpf(2)` in that namespace. The root user of a container usually runs in another one.
pub fn in_initial_user_namespace(proc: &ProcRoot) -> io::Result<bool> {
    /// Inode of the initial user namespace (`include/linux/proc_ns.h`, `PROC_USER_INIT_INO`).
    const PROC_USER_INIT_INO: u64 = 0xEFFF_FFFD;
    let namespace = std::fs::metadata(proc.path().join("self/ns/user"))?;
    Ok(namespace.st_ino() == PROC_USER_INIT_INO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_capabilities_are_returned() {
        let set = CapabilitySet::from_bits(1 << 12);
        let missing = set.missing(&[Capability::NetAdmin, Capability::Bpf]);
        assert_eq!(missing, [Capability::Bpf]);
        assert_eq!(missing[0].to_string(), "CAP_BPF");
    }

    #[test]
    fn this_process_has_a_capability_set() {
        assert!(effective(&ProcRoot::default()).unwrap().is_some());
    }
}
