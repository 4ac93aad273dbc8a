//! Options that limit a snapshot to programs, a device or a network namespace.

use clap::Args;
use quell_host::attach::Targets;
use quell_host::attach::views::{with_attachments, with_devices};
use quell_host::snapshot::{self, SnapshotScope, TakeError};

use super::programs_args::{ProgramWord, ProgramsArgs};
use crate::exit::{Exit, Failure};
use crate::journals::journal;
use crate::render::servers::Examined;

/// Scope of a snapshot.
#[derive(Debug, Args)]
pub(super) struct ScopeArgs {
    /// Only these programs with their children, by PID or name, and the devices of their network namespaces [all
    /// processes with sockets]
    #[arg(value_name = "PID|NAME")]
    pids: Vec<ProgramWord>,
    #[command(flatten)]
    programs: ProgramsArgs,
    /// Only this device, and the processes that receive its packets.
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Network namespace, by its name in /run/netns, instead of those of the programs.
    #[arg(long, value_name = "NAME")]
    netns: Option<String>,
    /// Every network namespace of the host.
    #[arg(long, conflicts_with_all = ["netns", "pids", "ProgramsArgs"])]
    all: bool,
}

impl ScopeArgs {
    /// The scope, without network namespaces that attachments or devices of its programs add.
    pub(super) fn alone(&self) -> Result<SnapshotScope, Failure> {
        let (mut scope, programs) = self.scope()?;
        scope.pids = programs.iter().flat_map(Targets::pids).collect();
        Ok(scope)
    }

    /// The scope, with the network namespaces into which attachments reach, and those of the devices of its programs.
    pub(super) fn with_attachments(&self) -> Result<SnapshotScope, Failure> {
        let mut scope = self.alone()?;
        if !scope.whole_host
            && scope.device.is_none()
            && let Ok((seen, _)) = snapshot::take(&scope)
        {
            scope = with_devices(scope, &seen);
        }
        Ok(with_attachments(scope, &journal()))
    }

    /// The scope in words.
    pub(super) fn examined(&self) -> Examined {
        match (&self.netns, &self.device) {
            _ if self.programs.is_given() || !self.pids.is_empty() => Examined::Programs,
            (_, Some(device)) => Examined::Device(device.clone()),
            _ if self.all => Examined::Host,
            (netns, None) => Examined::Namespace(netns.clone()),
        }
    }

    /// The scope without its programs, and these.
    pub(super) fn scope(&self) -> Result<(SnapshotScope, Option<Targets>), Failure> {
        let programs = self.programs.find_with(&self.pids)?;
        let (netns, device) = (self.netns.clone(), self.device.clone());
        let scope =
            SnapshotScope { netns, whole_host: self.all, device, configured_files: true, ..SnapshotScope::default() };
        Ok((scope, programs))
    }
}

/// Converts an error of taking a snapshot: the object does not exist, or the kernel refused.
pub(in crate::commands) fn not_taken(error: &TakeError) -> Failure {
    Failure::new(if is_missing(error) { Exit::Usage } else { Exit::KernelRefused }, error)
}

/// Whether the command line names an object that does not exist.
pub(in crate::commands) fn is_missing(error: &TakeError) -> bool {
    match error {
        TakeError::NoSuchProcess(_) | TakeError::NoSuchDevice { .. } => true,
        TakeError::Namespace(error) => error.is_absent() || error.is_of_name(),
        _ => false,
    }
}
