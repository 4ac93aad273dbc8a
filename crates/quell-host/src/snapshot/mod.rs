//! Snapshot of the packet path: device queues, NAPI instances, interrupts, CPUs, sockets, epolls, threads and
//! processes. Consists of plain values that can be saved and loaded. Nothing here judges or changes the host.
//!
//! ```text
//! device ── RX queue ── NAPI ── IRQ ── CPU            process ── thread ── epoll ── socket ── NAPI
//! ```
//!
//! Objects refer to each other by kernel keys: `(namespace, ifindex)` for a device, [`NapiId`] for a NAPI instance
//! (unique on the host), the number for an IRQ or CPU, the inode for a socket. [`Index`] finds them. An unknown value
//! is a [`Reading`] with the reason, never zero.

pub(crate) mod arrival;
mod cpu;
mod device;
mod host;
mod index;
mod process;
pub(crate) mod query;
mod queue;
pub(crate) mod read;
mod reading;
mod socket;

use std::collections::{BTreeSet, HashSet};

use quell_linux::Pid;
use quell_mode::Threaded;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use arrival::{napis_of_files, queues_of};
pub use cpu::{Cpu, CpuCounters, CpuidleState, Cpus};
pub use device::{Device, DeviceDefaults, Lower};
pub use host::{ConfiguredFile, NetworkNamespace, Privileges, Service, SnapshotKernel, SnapshotScope, Sysctls, Taken};
pub use index::{DeviceKey, Index};
pub use process::{
    BoundXdpQueue, EpollWait, FileWait, Files, HeldEpoll, HeldSocket, OtherSocket, Process, SnapshotEpoll,
    SnapshotXdpSocket, Thread, WatchedFile, WatchedKind, WatchedTarget,
};
pub use quell_change::reuseport_group::Protocol;
pub use queue::{Irq, Linked, Provenance, RxQueue, SnapshotNapi, TxQueue};
pub use read::{Cost, TakeError, take};
pub use reading::{Reading, Unknown, UnknownReading, UnknownReason};
pub use socket::{SnapshotSocket, SocketState};

#[cfg(doc)]
use quell_linux::NapiId;

pub const SCHEMA: &str = "quell-snapshot/1";

/// Snapshot of a network namespace or of the whole host. Every list is in ascending order of its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Snapshot {
    /// Always [`SCHEMA`].
    pub schema: String,
    /// Time of the snapshot.
    pub taken: Taken,
    /// Requested scope; objects outside it are not included.
    pub scope: SnapshotScope,
    /// The kernel.
    pub kernel: SnapshotKernel,
    /// Privileges of the process that took the snapshot.
    pub privileges: Privileges,
    /// Host-wide settings.
    pub sysctls: Sysctls,
    /// Running programs that override settings.
    pub services: Reading<Vec<Service>>,
    /// Files from which other programs set queues, interrupts or busy polling; `.link` files in the order in which
    /// systemd-udevd examines them.
    pub configured_files: Reading<Vec<ConfiguredFile>>,
    /// Network namespaces that were read, in ascending order of inode.
    pub namespaces: Vec<NetworkNamespace>,
    /// The CPUs.
    pub cpus: Cpus,
    /// Interrupts of the devices below.
    pub irqs: Reading<Vec<Irq>>,
    /// Network devices, by namespace and interface index.
    pub devices: Vec<Device>,
    /// Processes with TCP, UDP or AF_XDP sockets, and requested processes.
    pub processes: Vec<Process>,
    /// Processes whose files the reader may not access, so that it is unknown whether they have sockets.
    pub hidden_processes: Vec<Pid>,
    /// Sockets of these processes by inode, each listed once.
    pub sockets: Vec<SnapshotSocket>,
    /// Inodes of the connections of the SSH session that took the snapshot, in ascending order; empty for a local
    /// session.
    pub management_sockets: Reading<Vec<u64>>,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SnapshotError {
    #[error(
        "it has {}, but this version of Quell reads {SCHEMA:?}: take a new snapshot",
        found.as_ref().map_or_else(|| "no schema".to_owned(), |found| format!("the schema {found:?}"))
    )]
    Schema { found: Option<String> },
    #[error("invalid snapshot: {0}")]
    Malformed(#[from] serde_json::Error),
}

impl Snapshot {
    pub fn parse(json: &[u8]) -> Result<Self, SnapshotError> {
        #[derive(Deserialize)]
        struct Head {
            schema: Option<String>,
        }
        let head: Head = serde_json::from_slice(json)?;
        if head.schema.as_deref() != Some(SCHEMA) {
            return Err(SnapshotError::Schema { found: head.schema });
        }
        Ok(serde_json::from_slice(json)?)
    }

    #[must_use]
    pub fn namespace(&self, inode: u64) -> Option<&NetworkNamespace> {
        self.namespaces.iter().find(|namespace| namespace.inode == inode)
    }

    /// Network namespace of this command.
    #[must_use]
    pub fn own_namespace(&self) -> Option<&NetworkNamespace> {
        self.namespaces.iter().find(|namespace| namespace.is_current)
    }

    /// Name, or inode, of a network namespace that is not the one of this command.
    pub(crate) fn other_netns(&self, inode: u64) -> Option<String> {
        Some(self.namespace(inode).filter(|one| !one.is_current)?.label())
    }

    /// Name of the network namespace of these programs; absent without one.
    #[must_use]
    pub fn named_netns_of(&self, programs: &BTreeSet<Pid>) -> Option<&str> {
        let its = self.processes.iter().filter(|process| programs.contains(&process.pid));
        let inode = its.filter_map(|process| process.namespace.known()).next()?;
        self.namespace(*inode)?.name()
    }

    /// The process of another snapshot in this one; `None` if it is gone, also if another has its PID now.
    #[must_use]
    pub fn same_process(&self, process: &Process) -> Option<&Process> {
        let is_it = |other: &&Process| (other.pid, other.start_time_ticks) == (process.pid, process.start_time_ticks);
        self.processes.iter().find(is_it)
    }

    /// Known TCP and UDP sockets that one of these programs has open, each once.
    pub fn sockets_of(&self, programs: &BTreeSet<Pid>) -> impl Iterator<Item = &SnapshotSocket> {
        let its = self.processes.iter().filter(|process| programs.contains(&process.pid));
        let held = its.filter_map(|process| process.files.known()).flat_map(|files| &files.sockets);
        let inodes: HashSet<u64> = held.map(|held| held.inode).collect();
        self.sockets.iter().filter(move |socket| inodes.contains(&socket.inode))
    }

    #[must_use]
    pub fn index(&self) -> Index<'_> {
        Index::new(self)
    }

    /// Reason why the queues of this kernel do not support this kind of threading. `None` if they do, or if it is
    /// unknown.
    pub(crate) fn refuses_threading(&self, wanted: Threaded) -> Option<&'static str> {
        let lacks = wanted == Threaded::BusyPoll && self.kernel.threaded_busy_poll.known() == Some(&false);
        lacks
            .then_some("threaded busy polling (threaded=2) needs Linux 6.19: this kernel's napi-set does not accept it")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_snapshot_of_another_version_is_refused_by_its_name() {
        let error = Snapshot::parse(br#"{"schema": "quell-snapshot/99", "cpus": 7}"#).unwrap_err();
        assert!(error.to_string().contains(r#""quell-snapshot/99""#), "{error}");
        assert!(matches!(Snapshot::parse(b"{}"), Err(SnapshotError::Schema { found: None })));
    }

    #[test]
    fn a_misspelt_field_is_an_error_with_its_position() {
        let text = format!("{{\"schema\": \"{SCHEMA}\",\n \"divices\": []}}");
        let error = Snapshot::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("divices") && error.contains("line 2"), "{error}");
    }
}
