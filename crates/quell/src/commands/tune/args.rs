//! Options of `quell tune`.

use std::path::PathBuf;

use clap::Args;
use quell_tune::{TuneGoal, TuneGuard};

use crate::commands::subject::Place;
use crate::commands::subject::args::{Applies, SubjectArgs};
use crate::exit::Failure;

/// Options of `quell tune`.
#[derive(Debug, Args)]
#[command(after_help = GOALS_HELP)]
pub(crate) struct TuneArgs {
    /// Objective and limits, such as "p99<=300us, least cpu" or "most requests".
    #[arg(long, value_name = "GOAL")]
    pub(super) goal: TuneGoal,
    /// Abandon a mode after the first slice that violates this, such as "p99>1ms", "p99>2x" (twice the present value),
    /// stalls or "drops>100" (packets per slice). Can be repeated.
    #[arg(long, value_name = "GUARD")]
    pub(super) never: Vec<TuneGuard>,
    /// Leave the mode that was found applied to the programs, as `quell attach` does. `quell detach` undoes it.
    #[arg(long, conflicts_with = "advise")]
    pub(super) keep: bool,
    #[command(flatten)]
    pub(super) subject: SubjectArgs,
    /// Print the plan and do nothing.
    #[arg(long, conflicts_with = "json")]
    pub(super) dry_run: bool,
    /// Rank all modes by the model alone, and print how far to trust the ranking. With --pid, --name,
    /// --unit or --cgroup, the model has the queues, connections and load of these programs; nothing is changed.
    #[arg(long, conflicts_with_all = ["never", "budget", "profile", "output"])]
    pub(super) advise: bool,
    /// Write the mode that was found to this profile, with the evidence as comments.
    #[arg(long, value_name = "FILE")]
    pub(super) profile: Option<PathBuf>,
}

impl TuneArgs {
    /// Where the search takes place, or whose set-up the model gets for `--advise`. Refuses options that do not apply
    /// there.
    ///
    /// # Errors
    /// When no subject is named, or an option does not apply to it.
    pub(super) fn place(&self) -> Result<Place, Failure> {
        let place = match self.subject.place() {
            None if self.advise => Place::Sim,
            Some(Place::Lab | Place::Vm | Place::Command) if self.advise => {
                return Err(Failure::usage(
                    "--advise asks the model: use it with --pid, --name, --unit, --cgroup, --on sim or alone",
                ));
            }
            place => place.ok_or_else(|| {
                Failure::usage(
                    "name what to search on: --pid, --name, --unit, --cgroup, --on lab, --on vm, --on sim, or -- COMMAND",
                )
            })?,
        };
        match (self.advise, place) {
            (true, Place::Programs) => self.subject.check_advised()?,
            (true, _) => self.subject.check_applies(Place::Sim, &self.applies())?,
            (false, _) => self.subject.check_applies(place, &self.applies())?,
        }
        Ok(place)
    }

    fn applies(&self) -> [Applies; 1] {
        [(self.keep, "--keep", &[Place::Programs])]
    }
}

const GOALS_HELP: &str = concat!(
    "A goal has one objective (least, lowest, most or highest, and a metric) and any number of limits (METRIC<=VALUE, or ",
    "METRIC<=Nx for N times the value under the present setting). ",
    "Metrics: p50, p99, p99.9 (us, ms, s), cpu (us per request), busy (share of CPU time), requests (per second), ",
    "wait-mean-us and wait-p99-us (bound of the wait in the ring). ",
    "Guards also know errors, saturated, drops (packets per slice) and stalls (queues that were not polled for 50 ms).",
);
