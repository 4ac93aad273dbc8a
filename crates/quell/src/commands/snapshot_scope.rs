//! Options that limit a snapshot to processes, a device or a network namespace.

use clap::Args;
use quell_host::attach::views::with_attachments;
use quell_host::snapshot::{SnapshotScope, TakeError};
use quell_linux::Pid;

use crate::exit::{Exit, Failure};
use crate::journals::journal;

/// Scope of a snapshot.
#[derive(Debug, Args)]
pub(super) struct ScopeArgs {
    /// Only these processes, with the devices of their network namespaces [all processes with sockets]
    #[arg(value_name = "PID")]
    pids: Vec<Pid>,
    /// Only this device, and the processes that receive its packets.
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Network namespace, by its name in /run/netns; with PID, in addition to the process's own.
    #[arg(long, value_name = "NAME")]
    netns: Option<String>,
    /// Every network namespace of the host.
    #[arg(long, conflicts_with_all = ["netns", "pids"])]
    all: bool,
}

impl ScopeArgs {
    /// The scope, with the network namespaces into which attachments reach.
    pub(super) fn with_attachments(&self) -> SnapshotScope {
        with_attachments(self.scope(), &journal())
    }

    pub(super) fn scope(&self) -> SnapshotScope {
        let (netns, pids, device) = (self.netns.clone(), self.pids.clone(), self.device.clone());
        let configured_files = true;
        SnapshotScope { netns, whole_host: self.all, pids, device, configured_files, ..SnapshotScope::default() }
    }
}

/// Converts an error of taking a snapshot: the object does not exist, or the kernel refused.
pub(in crate::commands) fn not_taken(error: &TakeError) -> Failure {
    let exit = match error {
        TakeError::NoSuchProcess(_) | TakeError::NoSuchDevice { .. } => Exit::Usage,
        TakeError::Namespace(error) if error.is_absent() || error.is_of_name() => Exit::Usage,
        _ => Exit::KernelRefused,
    };
    Failure::new(exit, error)
}
