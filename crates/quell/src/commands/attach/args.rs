//! Which programs `quell attach` means.

use clap::Args;
use quell_host::attach::{Selection, TargetError, Targets};
use quell_linux::Pid;
use quell_linux::cgroup::Cgroup;

/// Which programs.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub(super) struct ProgramsArgs {
    /// These processes, and their children.
    #[arg(value_name = "PID")]
    pids: Vec<Pid>,
    /// The processes of a unit of the service manager, like nginx.service.
    #[arg(long, value_name = "NAME")]
    unit: Option<String>,
    /// The processes of a control group, by its path below /sys/fs/cgroup.
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
