//! Options of `quell tune`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, value_parser};
use quell_host::attach::{TargetError, Targets};
use quell_load::OfferedLoad;
use quell_tune::{TuneGoal, TuneGuard};
use quell_vm::KernelName;

use crate::commands::apply::duration;
use crate::commands::bench::args::{LabProtocol, Where};
use crate::commands::programs_args::ProgramsArgs;
use crate::commands::vm::NicName;
use crate::exit::Failure;

/// Options of `quell tune`.
#[derive(Debug, Args)]
#[command(after_help = GOALS_HELP)]
pub(crate) struct TuneArgs {
    #[command(flatten)]
    pub(crate) programs: ProgramsArgs,
    /// Search on a server in a private lab or in a guest, or on the model of a host.
    #[arg(long, value_enum, value_name = "WHERE", conflicts_with = "ProgramsArgs")]
    pub(crate) on: Option<Where>,
    /// Objective and limits, such as "p99<=300us, least cpu" or "most requests".
    #[arg(long, value_name = "GOAL")]
    pub(crate) goal: TuneGoal,
    /// Abandon a mode after the first slice that violates this, such as "p99>1ms", stalls or "drops>100" (packets per
    /// slice). Can be repeated.
    #[arg(long, value_name = "GUARD")]
    pub(crate) never: Vec<TuneGuard>,
    /// Generate the load on the programs with this command during the search [live traffic]
    #[arg(long, value_name = "COMMAND", conflicts_with = "on")]
    pub(crate) load: Option<String>,
    /// Load the programs from other machines, and measure latency there, as `quell bench --clients` does.
    #[arg(long, value_name = "COMMAND", conflicts_with_all = ["on", "load", "latency"])]
    pub(crate) clients: Option<String>,
    /// Run this command once per slice, and use the figures that it prints as `NAME VALUE` or as a line of JSON: p50-us,
    /// p99-us, requests, errors, or other names that the goal uses.
    #[arg(long, value_name = "COMMAND", conflicts_with = "on")]
    pub(crate) latency: Option<String>,
    /// Do not ask for confirmation before the programs are changed.
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Set modes with suspension even if they stall the programs: network events can be delayed forever.
    #[arg(long)]
    pub(crate) accept_stalls: bool,
    /// Leave the mode that was found applied to the programs, as `quell attach` does. `quell detach` undoes it.
    #[arg(long, conflicts_with_all = ["on", "advise", "dry_run"])]
    pub(crate) keep: bool,
    /// Comma-separated loads: percentages of base's maximum throughput, requests per second, or max. The answer is the
    /// best for the worst of them [50%,90%; on the model also 25%]
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    pub(crate) loads: Option<Vec<OfferedLoad>>,
    /// Host to model: a name from `quell sim hosts`, or the path of a .toml profile [epyc7662-cx5]
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) host: Option<String>,
    /// Number of receive queues of the server [1; on the model as many as its host has]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub(crate) queues: Option<u32>,
    /// Total number of connections of the server [128; on the model 560 per queue]
    #[arg(long, value_name = "N", value_parser = value_parser!(u32).range(1..))]
    pub(crate) connections: Option<u32>,
    /// In the lab: search on this server instead of memcached, as `quell bench --server` does.
    #[arg(long, value_name = "COMMAND")]
    pub(crate) server: Option<String>,
    /// With --server: request protocol [default: memcached]
    #[arg(long, value_enum, requires = "server")]
    pub(crate) protocol: Option<LabProtocol>,
    /// With --on vm: kernel of the guest, from `quell vm list` [the newest]
    #[arg(long, value_name = "KERNEL", requires = "on")]
    pub(crate) kernel: Option<KernelName>,
    /// With --on vm: NIC model of the guest; e1000e needs a -full kernel [default: virtio]
    #[arg(long, value_enum, requires = "on")]
    pub(crate) nic: Option<NicName>,
    /// In the lab: search even if there are too few CPUs or a lab check fails. The result is marked as not a measurement.
    #[arg(long)]
    pub(crate) insist: bool,
    /// Maximum duration of all slices; on the model, the time is virtual. A part of it is used to search, the rest to
    /// confirm [3m; 5m with -- COMMAND; in a guest 90s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) budget: Option<Duration>,
    /// Duration of a slice, in milliseconds [200; 500 with --latency, -- COMMAND, or in a guest; 100 on the model]
    #[arg(long, value_name = "MS", value_parser = value_parser!(u32).range(20..=60_000))]
    pub(crate) slice: Option<u32>,
    /// Settling time between setting a mode and measuring it, in milliseconds [10; 300 with -- COMMAND; 150 on the
    /// model, which starts idle; 200 in a guest]
    #[arg(long, value_name = "MS", value_parser = value_parser!(u32).range(0..=60_000))]
    pub(crate) settle: Option<u32>,
    /// Seed for the order of the modes and for the model. Equal seeds give equal results [from the clock]
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Print the plan and do nothing.
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Rank all modes by the model alone, and print how far to trust the ranking. Takes seconds. With --pid, --name,
    /// --unit or --cgroup, the model has the queues, connections and load of these programs; nothing is changed.
    #[arg(long, conflicts_with_all = ["dry_run", "never", "budget", "profile", "output"])]
    pub(crate) advise: bool,
    /// Write the mode that was found to this profile, with the evidence as comments.
    #[arg(long, value_name = "FILE")]
    pub(crate) profile: Option<PathBuf>,
    /// Write the result to this file [tune-TIME.json in /var/lib/quell/results, or in ~/.local/state/quell without
    /// root]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Print the result as JSON.
    #[arg(short, long)]
    pub(crate) json: bool,
    /// Start this command under each mode, and search on it. This also works for modes that need the preload library.
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["ProgramsArgs", "on", "clients", "keep", "advise"])]
    pub(crate) command: Vec<String>,
}

impl TuneArgs {
    /// Finds the programs to search on, or returns `None` if the user selected none.
    pub(crate) fn programs(&self) -> Option<Result<Targets, TargetError>> {
        self.programs.find()
    }

    /// Refuses options that do not apply to the subject.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        if !self.programs.is_given() && self.command.is_empty() && self.on.is_none() && !self.advise {
            return Err(Failure::usage(
                "name what to search on: --pid, --name, --unit, --cgroup, --on lab, --on vm, --on sim, or -- COMMAND",
            ));
        }
        let of_lab = [(self.server.is_some(), "--server"), (self.insist, "--insist")];
        let of_model = [(self.host.is_some(), "--host")];
        let of_guest = [(self.kernel.is_some(), "--kernel"), (self.nic.is_some(), "--nic")];
        let of_both = [
            (self.queues.is_some(), "--queues"),
            (self.connections.is_some(), "--connections"),
            (self.loads.is_some(), "--loads"),
        ];
        let given = |options: &[(bool, &'static str)]| options.iter().find(|(given, _)| *given).map(|(_, name)| *name);
        let is_lab = self.on == Some(Where::Lab);
        let is_model = self.on == Some(Where::Sim) || self.advise;
        let ranks_without_model = self.advise && !matches!(self.on, None | Some(Where::Sim));
        let refused = [
            (given(&of_lab).filter(|_| !is_lab), "--on lab"),
            (given(&of_model).filter(|_| !is_model), "--on sim and --advise"),
            (given(&of_guest).filter(|_| self.on != Some(Where::Vm)), "--on vm"),
            (given(&of_both).filter(|_| !is_lab && !is_model), "--on lab, --on sim and --advise"),
            (ranks_without_model.then_some("--advise"), "the model: without --on, or with --on sim"),
        ];
        match refused.into_iter().find_map(|(option, applies)| Some((option?, applies))) {
            Some((option, applies)) => Err(Failure::usage(format!("{option} can only be used with {applies}"))),
            None => Ok(()),
        }
    }
}

const GOALS_HELP: &str = concat!(
    "A goal has one objective (least, lowest, most or highest, and a metric) and any number of limits (METRIC<=VALUE, or ",
    "METRIC<=Nx for N times the value under the present setting). ",
    "Metrics: p50, p99, p99.9 (us, ms, s), cpu (us per request), busy (share of CPU time), requests (per second), ",
    "wait-mean-us and wait-p99-us (bound of the wait in the ring). ",
    "Guards also know errors, saturated, drops (packets per slice) and stalls (queues that were not polled for 50 ms).",
);
