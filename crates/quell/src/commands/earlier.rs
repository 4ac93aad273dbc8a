//! Answers of stored measurements about running programs.

use std::cell::LazyCell;
use std::collections::BTreeSet;

use quell_host::attach::attached::{attached_modes, in_use};
use quell_host::attach::measured::settings_below;
use quell_host::attach::owners::{CoveredOwner, covered_by};
use quell_host::attach::{Attached, AttachedMode, Targets};
use quell_host::findings::workers_can_be_pinned;
use quell_host::servers::{EarlierAnswers, JudgedMode, MeasuredStep, NamedProcess, NextStep, measured_step};
use quell_host::snapshot::Snapshot;
use quell_linux::proc::ProcRoot;
use quell_linux::{NapiId, Pid};
use quell_mode::{DeliveryMode, PartialNapiSettings};
use quell_report::words;
use quell_result::facts::CommandFacts;
use quell_result::store::ResultStore;

use crate::journals::journal;

/// Number of stored results that are searched for answers.
const RESULTS_READ: usize = 20;

/// Answers of the newest measurements on processes of this host, or on commands that they run.
pub(super) fn earlier_answers() -> EarlierAnswers {
    let mut stored = ResultStore::of_user().list().unwrap_or_default();
    stored.sort_by_key(|one| std::cmp::Reverse(one.changed_unix_s()));
    let running = LazyCell::new(running_commands);
    let mut answers = EarlierAnswers::new();
    for (result, document) in stored.iter().take(RESULTS_READ).filter_map(|one| Some((one, one.read().ok()?))) {
        let mut processes = document.measured_processes();
        processes.retain(runs);
        processes.extend(document.measured_command().into_iter().flat_map(|command| which_run(command, &running)));
        // The analysis takes much longer than the reading.
        if processes.is_empty() {
            continue;
        }
        // The attachment of that time may have ended since.
        let advice = words::advice_of(&document).filter(|advice| !advice.undoes);
        let advice = advice.and_then(|advice| Some((advice.text, advice.command?)));
        let of_result = document.answers_for_programs(&result.id, advice, words::reservation_of(&document));
        for process in processes {
            answers.entry(process).or_default().extend(of_result.iter().flatten().cloned());
        }
    }
    answers
}

/// Whether the process runs, or another one with its PID and name.
fn runs((pid, name): &NamedProcess) -> bool {
    ProcRoot::default().process(*pid).stat().is_ok_and(|stat| stat.name() == *name)
}

/// Arguments of each process of this host.
fn running_commands() -> Vec<(Pid, Vec<String>)> {
    let pids = ProcRoot::default().pids().unwrap_or_default();
    let arguments = |pid: Pid| Some((pid, ProcRoot::default().process(pid).arguments().ok()?));
    pids.into_iter().filter_map(arguments).collect()
}

/// Processes that run this command.
fn which_run(command: &CommandFacts, running: &[(Pid, Vec<String>)]) -> Vec<NamedProcess> {
    let dir = |pid: Pid| ProcRoot::default().process(pid);
    let runs = |(pid, arguments): &&(Pid, Vec<String>)| {
        dir(*pid).working_directory().is_ok_and(|directory| command.is_run_as(arguments, &directory))
    };
    running.iter().filter(runs).filter_map(|(pid, _)| Some((*pid, dir(*pid).stat().ok()?.name()))).collect()
}

/// What they say about a mode of these programs. Attachments are those in force.
pub(super) fn measured(
    now: &Snapshot,
    programs: &BTreeSet<Pid>,
    answers: &EarlierAnswers,
    judged: &JudgedMode<'_>,
) -> Option<MeasuredStep> {
    let below = below(now, programs, &in_use(&journal()).unwrap_or_default());
    measured_step(now, programs, answers, &JudgedMode { below, ..*judged })
}

/// The owners that these values of queues, set for `programs`, cover.
pub(super) fn covers(planned: &[(NapiId, PartialNapiSettings)], programs: &BTreeSet<Pid>) -> Vec<CoveredOwner> {
    covered_by(planned, programs, &in_use(&journal()).unwrap_or_default())
}

/// The mode that journals record for programs, as commands about them have it.
pub(super) fn recorded(now: &Snapshot, targets: &Targets) -> Option<AttachedMode> {
    let (modes, pids) = (attached_modes(&in_use(&journal()).unwrap_or_default()), targets.pids());
    let mode = pids.iter().find_map(|pid| modes.get(pid))?;
    Some(mode.where_pinning(workers_can_be_pinned(now, &pids)))
}

/// Settings of programs without their attachments; absent if they are unknown, or not attached.
pub(super) fn below(now: &Snapshot, programs: &BTreeSet<Pid>, owners: &[Attached]) -> Option<DeliveryMode> {
    let below = settings_below(&journal(), owners, now);
    programs.iter().find_map(|pid| below.get(pid)).copied()
}

/// By what the measurement of this step found a mode worse; absent if it does not say.
pub(super) fn cost_of(mode: &DeliveryMode, step: &NextStep) -> Option<String> {
    let (NextStep::Attach { measured, .. } | NextStep::Return { measured, .. }) = step else { return None };
    let document = ResultStore::of_user().find(&measured.result).ok()?.read().ok()?;
    words::cost_of(&document, mode)
}
