//! Subjects and what is asked of them. [`Question`]: which of some modes is best, or which mode is best for a goal. Each
//! subject opens, shows its plan to the [`Operator`], answers the question, and restores what it changed.

pub mod command;
mod helper_command;
mod load_source;
pub mod metrics;
pub mod programs;
mod search;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use quell_change::journal::{Journal, JournalError, Keeper};
use quell_change::transaction::ChangeError;
use quell_experiment::{DesignError, SliceStage, Switchback};
use quell_host::findings::Finding;
use quell_host::snapshot::{Snapshot, TakeError};
use quell_host::switching::SwitchError;
use quell_linux::Pid;
use quell_linux::process::ProcessError;
use quell_load::OfferedLoad;
use quell_mode::DeliveryMode;
use quell_result::experiment::{EndOfExperiment, ExperimentResult, SubjectFacts};
use quell_tune::{RefusedMode, TunePlan, TunePlanError, TuneResult, TuneSpace, Tuner};

pub use helper_command::HelperCommand;
pub use load_source::LoadSource;
pub use search::{GuardError, guarded_run_max, refused_kinds};

use crate::experiment::clients::ClientsError;
use crate::experiment::command::CommandSubjectError;
use crate::experiment::judge::JudgeError;
use crate::experiment::program::SubjectError;
use crate::experiment::{ComparisonError, Timing};
use metrics::MetricError;

/// What is asked of a subject.
#[derive(Debug, Clone)]
pub enum Question {
    /// Which of these modes is best.
    Compare(Comparison),
    /// Which mode is best for a goal.
    Search(Box<TunePlan>),
}

/// Modes to compare.
#[derive(Debug, Clone)]
pub struct Comparison {
    /// Delivery modes. The first one is the reference.
    pub modes: Vec<DeliveryMode>,
    pub timing: Timing,
    /// Up to where the budget grows, in ms, if the commands that measure slices take longer than these.
    pub budget_max_ms: u64,
}

impl Question {
    /// Modes that can be set.
    #[must_use]
    pub fn modes(&self) -> Vec<DeliveryMode> {
        match self {
            Self::Compare(comparison) => comparison.modes.clone(),
            Self::Search(_) => TuneSpace::default().all(),
        }
    }

    fn slice_ms(&self) -> u32 {
        match self {
            Self::Compare(comparison) => comparison.timing.slice_ms,
            Self::Search(plan) => plan.slice_ms,
        }
    }
}

/// A search on a subject.
#[derive(Debug)]
pub struct Searched {
    /// Subject whose mode was switched.
    pub subject: SubjectFacts,
    /// The search and its answer.
    pub result: TuneResult,
    /// Reason why the result is not a measurement.
    pub not_a_measurement: Option<String>,
    /// Settings that another program changed, and that were therefore not restored.
    pub left_alone: Vec<String>,
}

/// Answer to a question, with the slices from which it follows.
#[derive(Debug)]
pub enum Answer {
    /// To [`Question::Compare`].
    Compared(Box<ExperimentResult>),
    /// To [`Question::Search`].
    Searched(Box<Searched>),
}

impl Answer {
    /// Replaces an interruption by its cause.
    fn interrupted_because(&mut self, why: String) {
        match self {
            Self::Compared(result) => {
                let last = result.experiments.last_mut().filter(|last| last.end == EndOfExperiment::Interrupted);
                if let Some(last) = last {
                    last.end = EndOfExperiment::Failed(why);
                }
            }
            Self::Searched(searched) => search::interrupted_because(&mut searched.result, why),
        }
    }
}

/// What a subject will do, before it changes anything.
#[derive(Debug)]
pub struct Planned<'a> {
    /// The question. The plan of a search is complete: it has the present setting and the modes that are possible.
    pub question: &'a Question,
    pub subject: &'a SubjectFacts,
    /// Other programs whose packets are affected, by PID.
    pub affected: BTreeMap<Pid, String>,
}

/// What a subject does.
#[derive(Debug)]
pub enum SubjectStep<'a> {
    /// Something that takes a while.
    Doing(&'static str),
    /// What the user should know before the first slice.
    Note(&'a str),
    /// Before and after a slice of a comparison.
    Comparing {
        /// Offered load. `None` if Quell does not generate it.
        load: Option<OfferedLoad>,
        experiment: &'a Switchback<DeliveryMode>,
        /// What happens to its next slice.
        stage: SliceStage<'a>,
    },
    /// A slice of a search was recorded.
    Searching(&'a Tuner),
}

/// Whoever asks.
pub trait Operator {
    /// Shows what will be done. Returns false if it must not be done.
    fn agrees(&mut self, planned: &Planned<'_>) -> bool;

    /// Shows what is done.
    fn follow(&mut self, step: SubjectStep<'_>);
}

/// What subjects need of the program that asks.
#[derive(Clone, Copy)]
pub struct Tools<'a> {
    pub journal: &'a Journal,
    /// Starts the process that undoes the changes in a journal if this process is killed.
    pub start_keeper: fn(&Path) -> Result<Keeper, String>,
    /// Path of the program with the command `run`, which starts commands under a mode.
    pub quell: &'a str,
    /// Why its command `run` cannot start a command under a mode. Starts nothing.
    pub check_launch: fn(&DeliveryMode, &[String]) -> Result<(), String>,
    /// Why a mode has no effect on processes of a snapshot that run a program, if this is known.
    pub why_without_effect: fn(&DeliveryMode, &str, &Snapshot, &BTreeSet<Pid>) -> Option<String>,
}

/// Why a question has no answer. All changes were undone, unless the text reports otherwise.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unanswered {
    /// The operator does not agree.
    #[error("nothing was changed")]
    Declined,
    /// A signal arrived before the first slice.
    #[error("interrupted; nothing was changed")]
    Interrupted,
    #[error(transparent)]
    Comparison(#[from] ComparisonError),
    /// The host could not be observed.
    #[error(transparent)]
    Snapshot(#[from] TakeError),
    /// The programs cannot be switched between modes.
    #[error(transparent)]
    Switch(#[from] SwitchError),
    /// A mode would stall the programs.
    #[error("{}: {}; nothing was changed", .0.id, .0.observed)]
    Stalls(Box<Finding>),
    /// The plan of the search is invalid.
    #[error("{error}")]
    Plan { error: TunePlanError, plan: Box<TunePlan> },
    /// The goal or a guard needs what is not measured here.
    #[error(transparent)]
    Metric(#[from] MetricError),
    /// The command that measures latency failed.
    #[error(transparent)]
    Judge(#[from] JudgeError),
    /// The clients on other machines are not under load.
    #[error(transparent)]
    Clients(#[from] ClientsError),
    /// A search needs one present setting.
    #[error(
        "the present settings differ between the queues or epolls of these programs, so no mode equals them, and a search \
         has nothing to compare with (`quell show` lists them). Set one mode for all, for example with `quell apply`; \
         nothing was changed"
    )]
    PresentDiffers,
    /// No mode can be searched.
    #[error("no mode can be set on these programs; nothing was changed:\n{}", reasons(.0))]
    NothingToTry(Vec<RefusedMode>),
    /// A command of the experiment could not be started or ended.
    #[error(transparent)]
    Helper(#[from] HelperError),
    /// The load ended before the first slice.
    #[error("{0}")]
    LoadEnded(String),
    /// A setting could not be restored.
    #[error(transparent)]
    Subject(#[from] SubjectError),
    /// The command could not be ended, or a setting could not be restored.
    #[error(transparent)]
    Command(#[from] CommandSubjectError),
    /// The journal cannot be written.
    #[error(transparent)]
    Journal(#[from] JournalError),
    #[error("cannot receive signals: {0}")]
    Signals(#[source] io::Error),
}

fn reasons(refused: &[RefusedMode]) -> String {
    refused.iter().map(|one| format!("{}: {}", one.kind, one.reason)).collect::<Vec<_>>().join("\n")
}

impl From<DesignError> for Unanswered {
    fn from(error: DesignError) -> Self {
        Self::Comparison(error.into())
    }
}

/// Why a command of an experiment could not be started or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HelperError {
    /// The journal could not be written.
    #[error(transparent)]
    Journal(#[from] ChangeError),
    /// The keeper could not be started.
    #[error("{0}")]
    Keeper(String),
    /// A pipe could not be made.
    #[error("cannot make a pipe: {0}")]
    Pipe(#[source] io::Error),
    /// The command could not be started.
    #[error(transparent)]
    Start(ChangeError),
    /// A process could not be killed.
    #[error(transparent)]
    End(ProcessError),
    /// The journal could not be removed.
    #[error(transparent)]
    Revert(JournalError),
}
