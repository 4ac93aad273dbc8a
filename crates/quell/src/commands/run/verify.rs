//! Checks whether the mode has reached the command, process by process, and prints each conclusive result once.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::time::{Duration, Instant};

use quell_host::attach::no_queue::final_cause;
use quell_host::attach::{Selection, Targets, why_sockets_do_not_poll};
use quell_host::snapshot::{Process, Snapshot, SnapshotScope, take};
use quell_launch::library_report::Library;
use quell_launch::library_settings::library_settings;
use quell_launch::preload_settings::PreloadSettings;
use quell_launch::program::{LaunchProgram, NotPreloaded, Reach};
use quell_launch::reached::{Needs, ReachTracker, Reached};
use quell_linux::Pid;
use quell_linux::proc::ProcRoot;
use quell_mode::{DeliveryMode, Requirement};

use crate::output;
use crate::render::launch as render;

/// Reason why a mode has no effect on any of the processes `pids` of a snapshot, which run `command`. `None` if it has an
/// effect on at least one, or if that is unknown.
pub(crate) fn why_without_effect(
    mode: &DeliveryMode,
    command: &str,
    snapshot: &Snapshot,
    pids: &BTreeSet<Pid>,
) -> Option<String> {
    why_not_reached(mode, command, snapshot, pids).or_else(|| why_unpolled(mode, snapshot, pids))
}

/// Why a mode of sockets has no effect on processes that wait elsewhere.
fn why_unpolled(mode: &DeliveryMode, snapshot: &Snapshot, pids: &BTreeSet<Pid>) -> Option<String> {
    mode.socket_busy_poll().and_then(|_| why_sockets_do_not_poll(snapshot, pids))
}

fn why_not_reached(mode: &DeliveryMode, command: &str, snapshot: &Snapshot, pids: &BTreeSet<Pid>) -> Option<String> {
    let settings = library_settings(mode, None).ok()?;
    let search = std::env::var_os("PATH").unwrap_or_default();
    let by_library = LaunchProgram::find(OsStr::new(command), &search).ok()?.reach == Reach::Preload;
    let needs = Needs::of(&settings, by_library);
    if needs.is_nothing() {
        return None;
    }
    let proc = ProcRoot::default();
    let processes = snapshot.processes.iter().filter(|process| pids.contains(&process.pid));
    let look = |process: &Process| needs.look(snapshot, process, Library::of(&proc.process(process.pid)));
    let looked: Vec<Reached> = processes.filter_map(look).collect();
    if looked.iter().any(|reached| !reached.is_without_effect()) {
        return None;
    }
    looked.first().map(|reached| render::reached(mode, &settings, reached, None))
}

/// Time after which the sockets of a command are taken for those that it serves.
const SETTLED: Duration = Duration::from_secs(1);

/// Whether a mode has no effect on a command, for longer than its start takes.
#[derive(Debug, Default)]
struct EffectWatch {
    since: Option<Instant>,
    is_reported: bool,
}

impl EffectWatch {
    /// Returns the cause once.
    fn look(&mut self, cause: Option<String>, now: Instant) -> Option<String> {
        let Some(cause) = cause else {
            self.since = None;
            return None;
        };
        let since = *self.since.get_or_insert(now);
        let is_new = !self.is_reported && now.duration_since(since) >= SETTLED;
        self.is_reported |= is_new;
        is_new.then_some(cause)
    }
}

pub(super) struct Verifier {
    mode: DeliveryMode,
    settings: PreloadSettings,
    needs: Needs,
    proc: ProcRoot,
    /// The command and its descendants; absent if the attachment finds them.
    targets: Option<Targets>,
    tracker: ReachTracker,
    without_effect: EffectWatch,
}

impl Verifier {
    /// Prepares the check of a command whose preload library should get the settings `wanted`. `reach` tells whether
    /// the library can be preloaded into it.
    pub(super) fn new(mode: DeliveryMode, wanted: PreloadSettings, reach: &Reach) -> Self {
        Self {
            mode,
            settings: wanted,
            needs: Needs::of(&wanted, *reach == Reach::Preload),
            proc: ProcRoot::default(),
            targets: None,
            tracker: ReachTracker::default(),
            without_effect: EffectWatch::default(),
        }
    }

    /// Whether the mode needs any setting in the processes of the command.
    pub(super) fn is_needed(&self) -> bool {
        !self.needs.is_nothing()
    }

    /// Checks the command and its descendants. A process that exits during the check may remain unchecked.
    pub(super) fn look_at(&mut self, command: Pid) {
        if self.targets.is_none() {
            self.targets = Targets::find(Selection::Processes(vec![command])).ok();
        }
        let Some(targets) = &mut self.targets else { return };
        if targets.refresh().is_err() {
            return;
        }
        let pids = targets.pids();
        let scope = SnapshotScope { pids: pids.iter().copied().collect(), ..SnapshotScope::default() };
        if let Ok((snapshot, _)) = take(&scope)
            && !pids.is_empty()
        {
            self.look(&snapshot, &pids);
        }
    }

    /// Judges processes of a snapshot. Reads the reports of their libraries after the snapshot, so that a report covers
    /// every call in it.
    pub(super) fn look(&mut self, snapshot: &Snapshot, pids: &BTreeSet<Pid>) {
        self.look_for_effect(snapshot, pids);
        if !self.is_needed() {
            return;
        }
        let processes = snapshot.processes.iter().filter(|process| pids.contains(&process.pid));
        let look = |process| {
            let library = |pid| Library::of(&self.proc.process(pid));
            self.needs.look(snapshot, process, library(process.pid))
        };
        let looked = processes.filter_map(look).collect();
        for reached in self.tracker.certain(looked) {
            let why = (reached.library == Library::Absent).then(|| self.why_without_library(&reached)).flatten();
            let line = render::reached(&self.mode, &self.settings, &reached, why.as_ref());
            output::say(&format!("quell: {line}"));
        }
    }

    fn look_for_effect(&mut self, snapshot: &Snapshot, pids: &BTreeSet<Pid>) {
        let mode = &self.mode;
        // A program that spins before it sleeps does so for events of every kind.
        let needs_queue =
            *mode != DeliveryMode::default() && !mode.requirements().contains(&Requirement::SpinBeforeSleep);
        let queueless = needs_queue.then(|| final_cause(snapshot, pids)).flatten();
        let queueless = queueless.map(|cause| render::queueless(mode, &cause));
        let unpolled = || Some(format!("{mode} has no effect on {}", why_unpolled(mode, snapshot, pids)?));
        if let Some(line) = self.without_effect.look(queueless.or_else(unpolled), Instant::now()) {
            output::say(&format!("quell: {line}"));
        }
    }

    /// Reports processes without a result after the command has exited.
    pub(super) fn end(&self) {
        if self.is_needed() && self.tracker.is_empty() && !self.without_effect.is_reported {
            let mode = &self.mode;
            output::say(&format!(
                "quell: whether {mode} reached the command is unknown: no sockets of it were observed"
            ));
        }
    }

    fn why_without_library(&self, reached: &Reached) -> Option<NotPreloaded> {
        let executable = self.proc.path().join(reached.pid.to_string()).join("exe");
        match LaunchProgram::find(executable.as_os_str(), OsStr::new("")).ok()?.reach {
            Reach::FromOutside(why) => Some(why),
            Reach::Preload => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_whose_data_passes_no_queue_is_reported_once_and_not_while_it_starts() {
        let (mut watch, began) = (EffectWatch::default(), Instant::now());
        let local = || Some("over loopback".to_owned());
        let mut at = |ms, cause| watch.look(cause, began + Duration::from_millis(ms));
        assert_eq!((at(0, local()), at(900, local())), (None, None), "it may open other sockets");
        assert_eq!((at(950, None), at(1_000, local()), at(1_950, local())), (None, None, None), "it had others");
        assert_eq!((at(2_000, local()), at(4_000, local())), (local(), None));
        assert_eq!((at(4_100, None), at(5_000, local()), at(7_000, local())), (None, None, None), "once");
    }
}
