//! Slices without the filters and pins of a measurement, before it and after it: what these change by themselves.

use std::collections::BTreeSet;
use std::time::Duration;

use quell_experiment::SliceObservation;
use quell_linux::NapiId;
use quell_result::UNPLACED_SLICES;

use super::command::{CommandSpec, Runner};
use super::{Answer, Tools, Unanswered};
use crate::counters::{Instruments, Watched};
use crate::experiment::command::StartedCommand;
use crate::experiment::judge::Judges;
use crate::experiment::server_side;
use crate::question::{Follow, Question, SubjectStep};

/// Number of slices before the others, and after them.
const HALF: usize = UNPLACED_SLICES / 2;
const DOING: SubjectStep<'_> = SubjectStep::Doing("measuring without filters and pins");

/// Running programs without filters and pins, under the settings that they have then. Only judges show these: connections of
/// other clients stay as they are, with filters or without.
pub(super) struct Unplaced<'a> {
    pub(super) judges: &'a Judges,
    pub(super) watched: Watched,
    pub(super) napis: BTreeSet<NapiId>,
    pub(super) slice_ms: u32,
    pub(super) settle_ms: u32,
    pub(super) stopped: &'a dyn Fn() -> bool,
}

impl Unplaced<'_> {
    /// Measures half of the slices.
    pub(super) fn measure(&self, follow: &mut Follow<'_>) -> Result<Vec<SliceObservation>, Unanswered> {
        let Self { judges, watched, napis, slice_ms, stopped, .. } = self;
        follow(DOING);
        let mut slices = Vec::new();
        let settle = Duration::from_millis(self.settle_ms.into());
        let mut instruments = Instruments::new(napis.clone(), &watched.server_cpus);
        while slices.len() < HALF && server_side::sleep(settle, stopped) {
            let observed = server_side::observe(watched, &mut instruments, judges, *slice_ms, stopped)?;
            slices.extend(observed.map(|(slice, _)| slice));
        }
        Ok(slices)
    }
}

/// Starts a command without filters and pins, and measures half of the slices if there are judges.
pub(super) fn of_command(
    spec: &CommandSpec,
    tools: &Tools<'_>,
    question: &Question,
    follow: &mut Follow<'_>,
    stopped: &dyn Fn() -> bool,
) -> Result<Vec<SliceObservation>, Unanswered> {
    let CommandSpec { command, load, judges, placement } = spec;
    if placement.is_nothing() || judges.is_empty() {
        return Ok(Vec::new());
    }
    follow(DOING);
    let mode = match question {
        Question::Compare(comparison) => comparison.modes.first().copied().unwrap_or_default(),
        Question::Search(plan) => plan.present,
    };
    let mut runner = Runner::new(tools, command, load.as_deref());
    let mut started = StartedCommand::new(&mut runner, judges.clone(), stopped);
    let slice = |_| Ok(started.unrecorded_slice(&mode, question.slice_ms(), question.settle_ms())?);
    (0..HALF).map(slice).collect()
}

/// Adds the slices to the result.
pub(super) fn add(answer: &mut Answer, slices: Vec<SliceObservation>) {
    match answer {
        Answer::Compared(result) => result.subject.add_unplaced(slices),
        Answer::Searched(file) => file.subject.add_unplaced(slices),
    }
}
