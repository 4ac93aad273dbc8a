//! The vm lab: a server and a client in two namespaces of a QEMU guest, on two emulated NICs with real interrupts.
//! Emulation distorts times, so the lab only counts interrupts. The experiment or the search runs inside the guest
//! ([`guest`]). This module starts the guest; [`quell_result::guest_checks`] verifies the counts.

mod collect;
pub mod features;
pub mod guest;
mod nearest;
mod search;
pub mod xdp;

use quell_experiment::{ExperimentDesign, SliceObservation};
use quell_host::switching::ReportedSettings;
use quell_linux::proc::Schedstat;
use quell_mode::{DeliveryMode, Threaded};
use quell_result::experiment::{EndOfExperiment, ExperimentResult};
use quell_result::tune::TuneFile;
use quell_tune::{TunePlan, TuneResult};
use quell_vm::machine::{Machine, MachineError};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use self::collect::{Collected, take_line};
use self::search::FollowedSearch;
pub(crate) use self::xdp::SLOWED_BY;
use crate::experiment;
use crate::question::{Comparison, Follow, Question, SubjectStep};
use crate::replay::XdpReplay;

/// Subcommand of quell that runs in the guest. Its argument is a [`GuestTask`] as JSON.
pub const GUEST_COMMAND: &str = "vm-lab";

/// What a guest does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GuestTask {
    /// Answers a question; the events are [`GuestEvent`]s.
    Answer(Question),
    /// Plays the published AF_XDP experiment; the events are [`xdp::XdpGuestEvent`]s.
    Play(Box<XdpReplay>),
}

/// Reason why a result of a guest is not a measurement of time.
const EMULATED: &str = "the machine was emulated: interrupt counts are valid, times are not";
/// Reason why a search in a guest is not a measurement.
const SEARCH_EMULATED: &str = "times in an emulated guest mean nothing, and the answer holds for no real machine";

/// Modes that the guest sets for a question, with the reference or the present setting first.
pub(crate) fn set_modes(question: &Question) -> Vec<DeliveryMode> {
    match question {
        Question::Compare(comparison) => comparison.modes.clone(),
        Question::Search(plan) => searched_modes(plan),
    }
}

/// Modes of a search, with the present setting first.
fn searched_modes(plan: &TunePlan) -> Vec<DeliveryMode> {
    let mut modes = vec![plan.present];
    for mode in std::iter::once(DeliveryMode::default()).chain(plan.arms.iter().copied()) {
        if !modes.contains(&mode) {
            modes.push(mode);
        }
    }
    modes
}

/// Number of virtual CPUs of a guest that sets these modes: one for the server, one for the client, and one for a
/// thread that polls continuously, if a mode has one.
#[must_use]
pub(crate) fn cpus(modes: &[DeliveryMode]) -> u32 {
    let polls = modes.iter().any(|mode| mode.napi().threaded == Threaded::BusyPoll);
    2 + u32::from(polls)
}

/// The design of a comparison in a guest. The guest decides when to stop, but only the host can detect disturbed blocks.
pub(crate) fn design(comparison: &Comparison) -> ExperimentDesign<DeliveryMode> {
    let design = experiment::design(&comparison.modes, guest::criteria(), comparison.timing, 1);
    ExperimentDesign { foreign_cpu_range_max: 1.0, ..design }
}

/// Events that the guest prints as they happen, each as a line of JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum GuestEvent {
    /// The lab is set up. Contains a result with one experiment and no slices, or without experiments before a search.
    Up(Box<ExperimentResult>),
    /// A mode cannot be set.
    Dropped {
        /// Name of the mode.
        mode: String,
        /// Reason why the mode cannot be set.
        reason: String,
    },
    /// A slice begins.
    SliceBegins {
        /// Index of the block.
        block: u32,
        /// Index of the arm in the design.
        arm: usize,
        /// Name of the mode.
        mode: String,
        /// Share of the budget that is used, 0 to 1.
        spent: f64,
    },
    /// A slice of a search begins under this mode.
    SearchSliceBegins(DeliveryMode),
    /// The current slice has ended.
    SliceEnds(Box<SliceObservation>),
    /// Everything was restored. Contains the settings as the guest's kernel reported them.
    Restored(Box<ReportedSettings>),
    /// The experiment has ended.
    Ended(EndOfExperiment),
    /// The search has ended.
    Searched(Box<TuneResult>),
}

/// Reason why the vm lab has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VmLabError {
    /// The emulator or the guest failed.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The guest's command exited with an error.
    #[error("the lab in the guest failed with {}: {said}", code.map_or("a signal".to_owned(), |code| format!("code {code}")))]
    InGuest {
        /// Exit code of the command. Absent if a signal killed it.
        code: Option<i32>,
        /// Output of the command.
        said: String,
    },
    /// The guest's output could not be parsed.
    #[error("cannot parse the output of the guest: {0}")]
    Unreadable(#[from] serde_json::Error),
    /// The guest exited before the lab was set up.
    #[error("the guest exited before its lab was set up")]
    NeverUp,
}

/// Compares modes in a guest. Calls `stopped` and ends early when it returns true; the result then contains the slices
/// measured so far.
///
/// # Errors
/// See [`VmLabError`].
pub(crate) fn run_guest(
    machine: &Machine,
    question: &Question,
    follow: &mut Follow<'_>,
    stopped: &dyn Fn() -> bool,
) -> Result<ExperimentResult, VmLabError> {
    let mut collected = Collected::default();
    let mut take = |event: GuestEvent, host| {
        match &event {
            GuestEvent::SliceBegins { block, mode, spent, .. } => {
                follow(SubjectStep::Slice { load: None, spent: *spent, block: *block, mode });
            }
            GuestEvent::Dropped { mode, reason } => follow(SubjectStep::NotSettable { mode, reason }),
            _ => {}
        }
        collected.take(event, host);
    };
    let ended = run_task(machine, &GuestTask::Answer(question.clone()), &mut take, stopped);
    outcome(ended, collected.into_result())
}

/// Searches in a guest. Calls `stopped` and ends early when it returns true; the result then contains the slices observed
/// so far.
///
/// # Errors
/// See [`VmLabError`].
pub(crate) fn search_in_guest(
    machine: &Machine,
    plan: &TunePlan,
    follow: &mut Follow<'_>,
    stopped: &dyn Fn() -> bool,
) -> Result<TuneFile, VmLabError> {
    let mut search = FollowedSearch::new(plan);
    let mut take = |event, _| search.take(event, &mut |tuner| follow(SubjectStep::Searching(tuner)));
    let task = GuestTask::Answer(Question::Search(Box::new(plan.clone())));
    let ended = run_task(machine, &task, &mut take, stopped);
    outcome(ended, search.into_result())
}

/// Runs a task in a guest and passes each event to `take`, with the emulator's scheduling statistics.
fn run_task<E: DeserializeOwned>(
    machine: &Machine,
    task: &GuestTask,
    take: &mut dyn FnMut(E, Option<Schedstat>),
    stopped: &dyn Fn() -> bool,
) -> Result<(), VmLabError> {
    let arguments = [GUEST_COMMAND.to_owned(), serde_json::to_string(task)?];
    let mut unreadable = None;
    let mut line = |line: &str, host| take_line(line, host, &mut unreadable, take);
    let ended = machine.run(&arguments, &mut line, stopped)?;
    match (unreadable, ended) {
        (Some(error), _) => Err(error.into()),
        (None, Some(ended)) if ended.code != Some(0) => {
            Err(VmLabError::InGuest { code: ended.code, said: ended.diagnostics.trim().to_owned() })
        }
        (None, _) => Ok(()),
    }
}

/// The result of a task. If the user interrupted it, the result so far.
fn outcome<T>(ended: Result<(), VmLabError>, so_far: Option<T>) -> Result<T, VmLabError> {
    match (ended, so_far) {
        (Ok(()) | Err(VmLabError::Machine(MachineError::Interrupted)), Some(result)) => Ok(result),
        (Ok(()), None) => Err(VmLabError::NeverUp),
        (Err(error), _) => Err(error),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Result of a guest.
    pub(crate) fn recorded() -> ExperimentResult {
        serde_json::from_str(include_str!("../../../quell/tests/fixtures/interrupts.json")).unwrap()
    }

    #[test]
    fn an_interrupted_task_has_the_result_so_far_if_its_lab_was_set_up() {
        let interrupted = || Err(VmLabError::Machine(MachineError::Interrupted));
        assert!(matches!(outcome(interrupted(), Some(3)), Ok(3)));
        assert!(matches!(outcome(interrupted(), None::<()>), Err(VmLabError::Machine(MachineError::Interrupted))));
        let failed = || Err(VmLabError::InGuest { code: Some(2), said: String::new() });
        assert!(matches!(outcome(failed(), Some(3)), Err(VmLabError::InGuest { .. })));
        assert!(matches!(outcome(Ok(()), None::<()>), Err(VmLabError::NeverUp)));
    }

    #[test]
    fn only_a_thread_that_polls_continuously_needs_a_third_cpu() {
        let modes = |text: &str| DeliveryMode::parse_list(text).unwrap();
        assert_eq!([cpus(&modes("base,suspend20,threaded")), cpus(&modes("base,threadedbusy"))], [2, 3]);
    }
}
