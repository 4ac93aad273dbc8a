//! Subjects and what is asked of them. [`Question`]: which of some modes is best, or which mode is best for a goal.
//! [`SubjectSpec`] names a subject. It opens, shows its plan to the [`Operator`], answers the question, and restores what
//! it changed.

pub mod command;
mod guest;
mod helper_command;
mod judged;
mod lab;
mod load_source;
pub mod metrics;
mod model;
mod placed;
mod preview;
pub mod programs;
mod refused;
mod search;
mod unplaced;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use quell_change::journal::{Journal, JournalError, Keeper};
use quell_change::transaction::ChangeError;
use quell_host::attach::no_queue::NoQueueCause;
use quell_host::findings::{Finding, LackingCpus, StoppedServer};
use quell_host::snapshot::{Snapshot, TakeError};
use quell_host::steer::{LookError, NothingSteered};
use quell_host::switching::SwitchError;
use quell_linux::Pid;
use quell_linux::process::ProcessError;
use quell_linux::visible;
use quell_mode::DeliveryMode;
use quell_result::experiment::{EndOfExperiment, ExperimentResult};
use quell_result::facts::{CommandFacts, ProgramsFacts};
use quell_result::tune::TuneFile;
use quell_tune::{RefusedMode, TunePlan, TunePlanError};
use quell_vm::store::{StoreError, StoredKernel};

pub use guest::{GUEST_ARMS, GuestSpec, play_xdp_in_guest};
pub use helper_command::HelperCommand;
pub use load_source::LoadSource;
pub use refused::refused_here;
pub use search::{GuardError, guarded_run_max};

use crate::experiment::ComparisonError;
use crate::experiment::clients::ClientsError;
use crate::experiment::command::CommandSubjectError;
use crate::experiment::judge::JudgeError;
use crate::experiment::model::ModelSpec;
use crate::experiment::program::SubjectError;
use crate::other_programs::Contention;
use crate::question::{Question, SubjectStep};
use crate::run::{LabRequest, LabRunError};
use crate::vm::VmLabError;
use command::CommandSpec;
use metrics::MetricError;
use programs::ProgramsSpec;

/// A subject, and what loads and measures it.
#[derive(Debug, Clone)]
pub enum SubjectSpec {
    /// Running programs of this host.
    Programs(ProgramsSpec),
    /// A command that is started under each mode.
    Command(CommandSpec),
    /// A server in a private lab on this machine.
    Lab(LabRequest),
    /// A server in a guest with another kernel or NIC.
    Guest(GuestSpec),
    /// The model of a host.
    Model(Box<ModelSpec>),
}

impl SubjectSpec {
    /// Answers a question on this subject.
    pub fn answer(
        &self,
        question: Question,
        tools: &Tools<'_>,
        operator: &mut dyn Operator,
    ) -> Result<Answer, Unanswered> {
        match self {
            Self::Programs(spec) => programs::answer(spec, question, tools, operator),
            Self::Command(spec) => command::answer(spec, question, tools, operator),
            Self::Lab(request) => lab::answer(request, question, tools, operator),
            Self::Guest(spec) => guest::answer(spec, question, operator),
            Self::Model(spec) => model::answer(spec, question, operator),
        }
    }
}

/// Answer to a question, with the slices from which it follows.
#[derive(Debug)]
pub enum Answer {
    /// To [`Question::Compare`].
    Compared(Box<ExperimentResult>),
    /// To [`Question::Search`].
    Searched(Box<TuneFile>),
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
            Self::Searched(searched) => search::interrupted_because(&mut searched.search, why),
        }
    }
}

/// What a subject will do, before it changes anything.
#[derive(Debug)]
pub struct Planned<'a> {
    /// The question. The plan of a search is complete: it has the present setting and the modes that are possible.
    pub question: &'a Question,
    pub subject: PlannedSubject<'a>,
}

/// A subject before it is changed.
#[derive(Debug)]
pub enum PlannedSubject<'a> {
    Programs {
        facts: &'a ProgramsFacts,
        /// Modes of a comparison that are not possible here, or that nobody asked for and that would stall, with the reasons.
        left_out: Vec<(DeliveryMode, String)>,
        /// Other programs whose packets are affected, by PID.
        affected: BTreeMap<Pid, String>,
        /// Duration of the first run of the commands that measure, in ms. Absent without such commands, and in a dry run.
        judges_took_ms: Option<u64>,
        /// CPUs for polling threads, if a mode that is compared has some and these CPUs are too few.
        lacking_cpus: Option<LackingCpus>,
        contention: Contention,
    },
    Command(&'a CommandFacts),
    Lab(&'a LabRequest),
    Guest(&'a StoredKernel),
    Model(&'a ModelSpec),
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
    /// The programs have no traffic, and a dry run starts no judges, which would be their traffic.
    #[error(
        "nothing is planned yet: {0}. A dry run starts no command that measures; without --dry-run its requests show the \
         queues, and the plan is printed before anything is changed"
    )]
    JudgesAreTheTraffic(NoQueueCause),
    /// The connections of this judge came through no queue.
    #[error(
        "the connections that `{0}` opened to these programs come through no queue, as over loopback or from the same host, \
         so no mode changes what it measures: run it on another machine, or in a network namespace behind a device; nothing \
         was changed"
    )]
    JudgeWithoutQueue(String),
    /// A program is stopped.
    #[error("{0}; nothing was changed")]
    Stopped(#[from] StoppedServer),
    /// A mode would stall the programs.
    #[error("{}: {}; nothing was changed", .0.id, .0.observed)]
    Stalls(Box<Finding>),
    /// The reuseport groups of the programs could not be read.
    #[error(transparent)]
    Groups(#[from] LookError),
    /// Filters were requested, and no group can get one.
    #[error("{0}; nothing was changed")]
    NotSteered(#[from] NothingSteered),
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
    /// The lab could not be set up, or the measurement in it failed.
    #[error(transparent)]
    Lab(#[from] LabRunError),
    /// No kernel is stored.
    #[error(transparent)]
    KernelStore(#[from] StoreError),
    /// The guest failed.
    #[error(transparent)]
    Guest(#[from] VmLabError),
    /// The guest's kernel can set no mode.
    #[error("no mode can be set on Linux {}: {}", visible::name(kernel_release), visible::name(reason))]
    NothingSettable { kernel_release: String, reason: String },
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
