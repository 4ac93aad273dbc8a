//! Options of `quell attach` that select processes.

use clap::Args;
use quell_host::attach::{Selection, TargetError, Targets};
use quell_linux::Pid;
use quell_linux::cgroup::Cgroup;

/// Selection of processes.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(super) struct ProgramsArgs {
    /// Processes to attach to, with their descendants.
    #[arg(value_name = "PID")]
    pids: Vec<Pid>,
    /// Attach to the processes of this systemd unit, such as nginx.service.
    #[arg(long, value_name = "NAME")]
    unit: Option<String>,
    /// Attach to the processes of this cgroup, given by its path below /sys/fs/cgroup.
    #[arg(long, value_name = "PATH")]
    cgroup: Option<String>,
}

impl ProgramsArgs {
    pub(super) fn find(&self) -> Result<Targets, TargetError> {
        let selection = match (&self.unit, &self.cgroup) {
            (Some(unit), _) => Selection::Cgroup(Cgroup::of_unit(unit)?),
            (None, Some(path)) => Selection::Cgroup(Cgroup::at(path)?),
            (None, None) => Selection::Processes(self.pids.clone()),
        };
        Targets::find(selection)
    }
}
