//! Options of `quell attach` that select the mode and the processes.

use std::str::FromStr;

use clap::Args;
use quell_host::attach::{AttachError, Selection, TargetError, Targets};
use quell_linux::Pid;
use quell_linux::cgroup::Cgroup;
use quell_mode::DeliveryMode;

use crate::commands::program_profiles;
use crate::exit::Failure;
use crate::output;

/// First positional argument: the mode, or with `--profile` the first process.
#[derive(Debug, Clone, Copy)]
pub(super) enum ModeOrPid {
    Mode(DeliveryMode),
    Pid(Pid),
}

impl FromStr for ModeOrPid {
    type Err = Box<dyn std::error::Error + Send + Sync>;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.bytes().all(|byte| byte.is_ascii_digit()) && !text.is_empty() {
            true => Ok(Self::Pid(text.parse()?)),
            false => Ok(Self::Mode(text.parse()?)),
        }
    }
}

/// Selection of the mode and the processes.
#[derive(Debug, Args)]
pub(super) struct ProgramsArgs {
    /// Delivery mode: base, deferN, napibusy, fullbusy, suspendN, threaded, threadedbusy, sockpollN (N in µs).
    #[arg(value_name = "MODE", required_unless_present = "profile")]
    first: Option<ModeOrPid>,
    /// Processes to attach to, with their descendants.
    #[arg(value_name = "PID", conflicts_with_all = ["unit", "cgroup"])]
    pids: Vec<Pid>,
    /// Take the mode from the `[program]` table of a profile: haproxy, memcached, nginx, redis, or a file.
    #[arg(long, value_name = "NAME|FILE")]
    profile: Option<String>,
    /// Attach to the processes of this systemd unit, such as nginx.service.
    #[arg(long, value_name = "NAME", conflicts_with = "cgroup")]
    unit: Option<String>,
    /// Attach to the processes of this cgroup, given by its path below /sys/fs/cgroup.
    #[arg(long, value_name = "PATH")]
    cgroup: Option<String>,
}

impl ProgramsArgs {
    /// Returns the mode and the processes that the command line selects.
    pub(super) fn find(&self) -> Result<(DeliveryMode, Targets), Failure> {
        let (mode, first) = match (&self.profile, self.first) {
            (None, Some(ModeOrPid::Mode(mode))) => (mode, None),
            (None, _) => return Err(Failure::usage("specify a mode before the processes, or --profile")),
            (Some(_), Some(ModeOrPid::Mode(mode))) => {
                return Err(Failure::usage(format!("--profile selects the mode, so {mode} cannot be specified too")));
            }
            (Some(named), Some(ModeOrPid::Pid(pid))) => (of_profile(named)?, Some(pid)),
            (Some(named), None) => (of_profile(named)?, None),
        };
        let pids: Vec<Pid> = first.into_iter().chain(self.pids.iter().copied()).collect();
        let target = |error: TargetError| super::failure(AttachError::Target(error));
        let cgroup =
            |found: Result<Cgroup, _>| found.map(Selection::Cgroup).map_err(|error| target(TargetError::from(error)));
        let selection = match (&self.unit, &self.cgroup) {
            (None, None) if pids.is_empty() => {
                return Err(Failure::usage("specify the programs: PID…, --unit NAME or --cgroup PATH"));
            }
            (None, None) => Selection::Processes(pids),
            (_, _) if !pids.is_empty() => {
                return Err(Failure::usage("specify either processes, or --unit or --cgroup"));
            }
            (Some(unit), _) => cgroup(Cgroup::of_unit(unit))?,
            (None, Some(path)) => cgroup(Cgroup::at(path))?,
        };
        Ok((mode, Targets::find(selection).map_err(target)?))
    }
}

/// Reads the mode of a profile. The rest of its program table needs a program that Quell starts.
fn of_profile(named: &str) -> Result<DeliveryMode, Failure> {
    let program = program_profiles::read(named)?;
    if program.max_events.is_some() {
        output::say("max-events of the profile is left out: it needs a program that `quell run` starts");
    }
    let missing = || Failure::usage(format!("the [program] table of profile {named} has no mode"));
    Ok(program.mode.ok_or_else(missing)?.value)
}
