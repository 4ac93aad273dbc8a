//! Which programs `quell attach` means, and where their workers are to get their connections and run.

use clap::Args;
use quell_host::attach::placement::{Groups, decide};
use quell_host::attach::{Selection, TargetError, Targets};
use quell_host::picture::Picture;
use quell_linux::Pid;
use quell_linux::cgroup::Cgroup;

use crate::exit::{Exit, Failure};
use crate::render::attach as render;

/// Where the workers get their connections and run.
#[derive(Debug, Args)]
pub(super) struct PlacementArgs {
    /// Give each worker the connections of its own queue, by a filter on the reuseport groups of the programs; of these
    /// devices' queues [default: all that lead there]
    #[arg(long, value_name = "DEVICE,…", num_args = 0..=1, require_equals = true, value_delimiter = ',')]
    steer: Option<Vec<String>>,
    /// Bind each worker to the CPUs of the queue by which its connections come.
    #[arg(long)]
    pub(super) pin: bool,
}

impl PlacementArgs {
    pub(super) fn is_asked_for(&self) -> bool {
        self.steer.is_some() || self.pin
    }

    /// The filters that are to be put on; none unless that was asked for.
    pub(super) fn decide(&self, picture: &Picture, targets: &Targets) -> Result<Groups, Failure> {
        let Some(devices) = &self.steer else { return Ok(Groups::default()) };
        let refused = |error| Failure::new(Exit::KernelRefused, format!("{error}; nothing was changed"));
        let groups = decide(picture, &targets.pids(), devices).map_err(refused)?;
        if groups.steerings.is_empty() {
            let text =
                format!("nothing can be steered, so nothing was changed:\n{}", render::placement::groups(&groups));
            return Err(Failure::new(Exit::NotSupported, text.trim_end()));
        }
        Ok(groups)
    }
}

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
