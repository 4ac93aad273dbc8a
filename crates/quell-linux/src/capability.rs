//! Capabilities of this process that Quell needs, with their names for messages. Nothing here raises or drops a
//! capability.

use std::fmt;
use std::io;
use std::os::linux::fs::MetadataExt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::proc::{ProcError, ProcRoot};

/// A capability that Quell needs. The numbers are those of `linux/capability.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[repr(u8)]
#[non_exhaustive]
pub enum Capability {
    /// NAPI settings, links, busy-poll budgets above 64, `SO_PREFER_BUSY_POLL`.
    #[serde(rename = "CAP_NET_ADMIN")]
    NetAdmin = 12,
    /// `/proc` files and `pidfd_getfd` of other users' processes.
    #[serde(rename = "CAP_SYS_PTRACE")]
    SysPtrace = 19,
    /// Network namespaces.
    #[serde(rename = "CAP_SYS_ADMIN")]
    SysAdmin = 21,
    /// Real-time scheduling classes, CPU affinity of other users' threads.
    #[serde(rename = "CAP_SYS_NICE")]
    SysNice = 23,
    /// Tracepoint programs.
    #[serde(rename = "CAP_PERFMON")]
    Perfmon = 38,
    /// Loading BPF programs.
    #[serde(rename = "CAP_BPF")]
    Bpf = 39,
}

impl Capability {
    /// All capabilities of this enum.
    pub const ALL: [Self; 6] =
        [Self::NetAdmin, Self::SysPtrace, Self::SysAdmin, Self::SysNice, Self::Perfmon, Self::Bpf];

    /// Name, as in `capabilities(7)`.
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

/// A set of capabilities, as in `CapEff` of `/proc/PID/status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CapabilitySet(u64);

impl CapabilitySet {
    /// Creates a set from the kernel's bit mask.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Whether the set contains this capability.
    #[must_use]
    pub const fn has(self, capability: Capability) -> bool {
        self.0 & (1 << capability as u8) != 0
    }

    /// Capabilities of `needed` that the set lacks, in the same order.
    #[must_use]
    pub fn missing(self, needed: &[Capability]) -> Vec<Capability> {
        let lacking = needed.iter().filter(|&&capability| !self.has(capability));
        lacking.copied().collect()
    }
}

/// Effective capabilities of the calling thread; `None` if the kernel does not report them. They apply to this
/// thread's user namespace: see [`in_initial_user_namespace`].
///
/// # Errors
/// When `/proc/thread-self/status` cannot be read.
pub fn effective(proc: &ProcRoot) -> Result<Option<CapabilitySet>, ProcError> {
    Ok(proc.thread_self().status()?.cap_eff)
}

/// Whether this process is in the initial user namespace. `napi-set` and most of `bpf(2)` check capabilities
/// there; root of a container is normally elsewhere.
///
/// # Errors
/// When the namespace file cannot be examined.
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
