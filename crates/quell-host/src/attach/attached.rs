//! Attachments and experiments that journals record.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use quell_change::drift::{Condition, condition};
use quell_change::journal::{History, Journal, Keeper, ListedJournal, Persistence, Purpose, TargetProgram};
use quell_change::persistent::PersistError;
use quell_change::recovery::{is_running, left_behind};
use quell_change::target::Targets;
use quell_linux::Pid;
use quell_linux::proc::ProcRoot;
use quell_mode::DeliveryMode;
use schemars::JsonSchema;
use serde::Serialize;

use super::error::AttachError;
use super::owners::queues;
use super::placement::Wanted;
use crate::findings::{Finding, are_attached, are_owned, are_steered};
use crate::snapshot::Snapshot;
use crate::steer::SteerRequest;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attached {
    pub path: PathBuf,
    pub history: History,
    /// Keeper process; absent while the command that began the journal owns it.
    pub keeper: Option<Keeper>,
    /// Whether a process holds the journal's lock.
    pub is_locked: bool,
}

/// Mode of a program, and how it was applied.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct AttachedMode {
    pub mode: DeliveryMode,
    /// Whether `quell run` started the program with it.
    pub launched: bool,
    /// Whether filters steer its connections.
    pub steers: bool,
    /// Whether they steer its UDP datagrams, too.
    pub steers_udp: bool,
    /// Whether its workers are pinned.
    pub pins: bool,
    /// Whether predicted and observed stalls do not end it.
    pub accepts_stalls: bool,
    /// Whether `quell attach --follow` keeps it up.
    pub follows: bool,
}

impl Attached {
    #[must_use]
    pub fn purpose(&self) -> &Purpose {
        &self.history.begin.purpose
    }

    /// Whether `quell run` made the attachment. Such an attachment ends only when its program exits.
    #[must_use]
    pub fn is_launched(&self) -> bool {
        matches!(self.purpose(), Purpose::Launch { .. })
    }

    /// Absent for experiments.
    #[must_use]
    pub fn mode(&self) -> Option<AttachedMode> {
        AttachedMode::recorded(&self.history)
    }

    /// Process that undoes the changes on SIGTERM: the keeper, or the command that began the journal.
    #[must_use]
    pub fn owner(&self) -> Keeper {
        self.keeper.unwrap_or(self.history.begin.owner)
    }

    /// Whether the command that began the journal still makes or switches the changes.
    #[must_use]
    pub fn is_in_progress(&self) -> bool {
        self.is_locked && self.history.persistence == Persistence::WithOwner
    }

    /// Why another command cannot change `pid`, which is one of its programs.
    #[must_use]
    pub fn refuses(&self, pid: Pid) -> AttachError {
        let purpose = self.purpose().clone();
        match purpose {
            Purpose::Attachment { .. } if self.is_in_progress() => {
                AttachError::BeingAttached { pid, purpose, by: self.owner().pid }
            }
            _ => AttachError::AlreadyAttached { pid, purpose },
        }
    }

    /// Whether the owner runs, and is visible here.
    #[must_use]
    pub fn is_owner_visible(&self) -> bool {
        let proc = ProcRoot::default();
        let Keeper { pid, start_time_ticks } = self.owner();
        proc.boot_id().is_ok_and(|boot_id| is_running(pid, start_time_ticks, boot_id, &proc))
    }
}

impl AttachedMode {
    /// The same for commands: workers that can be pinned, but had no connection of one queue yet, are pinned later.
    #[must_use]
    pub fn where_pinning(self, is_possible: bool) -> Self {
        Self { pins: self.pins || self.steers && !self.steers_udp && is_possible, ..self }
    }

    /// Mode of a journal; absent if it is not that of an attachment.
    #[must_use]
    pub fn recorded(history: &History) -> Option<Self> {
        let purpose = &history.begin.purpose;
        let launched = matches!(purpose, Purpose::Launch { .. });
        let (steers, steers_udp) = (history.steers(), history.steers_udp());
        // A follower pins workers when they have the connections of one queue, which can be later; those of UDP never.
        let pins = history.pins() || steers && !steers_udp && history.is_followed();
        let (accepts_stalls, follows) = (history.accepts_stalls, history.maintained_by_follower);
        Some(Self { mode: purpose.mode()?, launched, steers, steers_udp, pins, accepts_stalls, follows })
    }

    /// Options of its placement, each after a space.
    #[must_use]
    pub fn placement_options(&self) -> String {
        let steer = self.steers.then(|| SteerRequest { udp: self.steers_udp, ..SteerRequest::default() });
        Wanted { steer, pin: self.pins }.options().iter().map(|option| format!(" {option}")).collect()
    }
}

/// Modes of the programs of these attachments.
#[must_use]
pub fn attached_modes(attached: &[Attached]) -> BTreeMap<Pid, AttachedMode> {
    let modes = attached.iter().filter_map(|one| Some((one, one.mode()?)));
    modes.flat_map(|(one, mode)| one.history.targets.iter().map(move |target| (target.pid, mode))).collect()
}

/// Programs whose settings an experiment switches at present, with the PID of its command.
#[must_use]
pub fn experiments(attached: &[Attached]) -> BTreeMap<Pid, Pid> {
    let running = attached.iter().filter(|one| one.mode().is_none() && one.is_in_progress());
    running.flat_map(|one| one.history.targets.iter().map(|target| (target.pid, one.owner().pid))).collect()
}

/// An owner of settings, and their present state.
#[derive(Debug)]
pub struct OwnerCondition<'a> {
    pub owner: &'a Attached,
    pub condition: Condition,
}

/// Conditions of these owners, as far as they can be read.
#[must_use]
pub fn conditions(owners: &[Attached]) -> Vec<OwnerCondition<'_>> {
    let read = |owner| Some(OwnerCondition { owner, condition: condition(&owner.path, &owner.history).ok()? });
    owners.iter().filter_map(read).collect()
}

/// Programs of attachments whose settings another program, or a driver, has changed since.
#[must_use]
pub fn drifted(conditions: &[OwnerCondition<'_>]) -> BTreeSet<Pid> {
    let has_drifted = |one: &&OwnerCondition<'_>| one.owner.mode().is_some() && one.condition.changed() > 0;
    let drifted = conditions.iter().filter(has_drifted);
    drifted.flat_map(|one| one.owner.history.targets.iter().map(|target| target.pid)).collect()
}

/// Changes of a journal that no process undoes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unfinished {
    pub path: PathBuf,
    pub purpose: Purpose,
    /// Whether all of them waited for queues that were gone.
    pub waited: bool,
}

/// The first changes of this host that no process undoes. Those that waited for queues count only if a queue has settings
/// that nobody owns, which the kernel restores when a queue comes back. If programs are selected, those of programs count
/// only if `now`, which is about the selected ones, has one of the programs or of the queues.
#[must_use]
pub fn unfinished(journal: &Journal, now: &Snapshot, owners: &[Attached], is_selected: bool) -> Option<Unfinished> {
    let napis = now.devices.iter().flat_map(|device| device.napis.known_elements());
    let are_back = owners.is_empty() && napis.clone().any(|napi| napi.defers() || napi.suspends());
    let ids: BTreeSet<u32> = napis.map(|napi| napi.id.get()).collect();
    let is_here = |history: &History| {
        let has_program = |target: &TargetProgram| now.processes.iter().any(|process| process.pid == target.pid);
        history.targets.iter().any(has_program) || queues(history).any(|queue| ids.contains(&queue.napi_id))
    };
    let left = left_behind(journal).unwrap_or_default().into_iter();
    let left = left.filter(|(_, history)| !is_selected || !history.begin.purpose.is_of_programs() || is_here(history));
    let mut left = left.map(|(path, history)| {
        let waited = history.only_waits();
        Unfinished { path, purpose: history.begin.purpose, waited }
    });
    left.find(|left| are_back || !left.waited)
}

/// Those of `programs` that are not children of others, for commands.
#[must_use]
pub fn parents(programs: &[Pid], parent_of: impl Fn(Pid) -> Option<Pid>) -> Vec<Pid> {
    let is_child = |pid: &Pid| parent_of(*pid).is_some_and(|parent| programs.contains(&parent));
    programs.iter().copied().filter(|pid| !is_child(pid)).collect()
}

/// Attachments and experiments on programs that are not reverted, including those that are still being made.
pub fn attachments(journal: &Journal) -> Result<Vec<Attached>, PersistError> {
    Ok(in_use(journal)?.into_iter().filter(|attached| attached.purpose().is_of_programs()).collect())
}

/// Like [`attachments`], with the profiles that are being applied.
pub fn attachments_and_begun_profiles(journal: &Journal) -> Result<Vec<Attached>, PersistError> {
    let is_begun = |attached: &Attached| attached.purpose().profile().is_some() && attached.is_in_progress();
    let is_meant = |attached: &Attached| attached.purpose().is_of_programs() || is_begun(attached);
    Ok(in_use(journal)?.into_iter().filter(is_meant).collect())
}

/// Ended attachments with settings that wait for their queues.
pub fn waiting(journal: &Journal) -> Result<Vec<Attached>, PersistError> {
    let waits = |attached: &Attached| attached.purpose().is_of_programs() && attached.history.only_waits();
    Ok(recorded(journal)?.into_iter().filter(waits).collect())
}

/// Journals that are not reverted.
pub fn in_use(journal: &Journal) -> Result<Vec<Attached>, PersistError> {
    Ok(recorded(journal)?.into_iter().filter(|attached| !attached.history.only_waits()).collect())
}

fn recorded(journal: &Journal) -> Result<Vec<Attached>, PersistError> {
    let attached = |listed| {
        let (path, history, is_locked) = match listed {
            ListedJournal::Running { path, history } => (path, history?, true),
            // Either the keeper is about to take it over, or the keeper is dead. In the second case, the next command
            // that recovers journals reverts it.
            ListedJournal::Abandoned { path, history } => (path, history, false),
            ListedJournal::Unusable(_) | ListedJournal::Unreadable(_) => return None,
        };
        let keeper = match history.persistence {
            Persistence::MaintainedBy(keeper) => Some(keeper),
            _ => None,
        };
        Some(Attached { path, history, keeper, is_locked })
    };
    Ok(journal.list()?.into_iter().filter_map(attached).collect())
}

/// Adapts the advice of findings about the present host to what is attached to the programs, and to the owners of
/// settings.
pub fn adapt(findings: &mut [Finding], now: &Snapshot, owners: &[Attached], attached: &BTreeMap<Pid, AttachedMode>) {
    are_attached(findings, attached);
    let steered: BTreeSet<Pid> = attached.iter().filter(|(_, mode)| mode.steers).map(|(pid, _)| *pid).collect();
    are_steered(findings, &steered);
    are_owned(findings, now, &owners.iter().map(|owner| &owner.history).collect::<Vec<_>>());
}

/// Processes that these programs have started since, such as the workers of a reload. Those with another name are other
/// programs.
#[must_use]
pub fn started_since(programs: &[TargetProgram]) -> Vec<TargetProgram> {
    new_ones(programs, Targets::still_living(programs.iter()).unwrap_or_default())
}

/// Those of `family`, which has the present names, that are not in `programs` but are called as one of these.
fn new_ones(programs: &[TargetProgram], family: Vec<TargetProgram>) -> Vec<TargetProgram> {
    let is_known = |one: &TargetProgram| programs.iter().any(|program| program.is_same_process(one));
    let (known, new): (Vec<_>, Vec<_>) = family.into_iter().partition(is_known);
    new.into_iter().filter(|one| known.iter().any(|program| program.name == one.name)).collect()
}

/// The farthest ancestor of a process among `programs`, or itself.
pub fn root<'a>(
    program: &'a TargetProgram,
    programs: &'a [TargetProgram],
    parent_of: impl Fn(Pid) -> Option<Pid>,
) -> &'a TargetProgram {
    // No chain of ancestors is longer than the number of processes; processes change during the walk.
    const ANCESTORS_MAX: usize = 1000;
    let ancestors = std::iter::successors(parent_of(program.pid), |pid| parent_of(*pid)).take(ANCESTORS_MAX);
    ancestors.filter_map(|pid| programs.iter().find(|other| other.pid == pid)).last().unwrap_or(program)
}

/// Attachments of these programs that nobody undoes, so that the next command that changes something does.
pub fn orphans(journal: &Journal, targets: &Targets) -> Result<Vec<Attached>, AttachError> {
    let is_living = |target: &TargetProgram| targets.living().any(|living| living.is_same_process(target));
    let is_orphan = |attached: &Attached| {
        let is_meant = attached.mode().is_some() && attached.history.targets.iter().any(is_living);
        is_meant && !attached.is_locked && !attached.is_owner_visible()
    };
    Ok(in_use(journal)?.into_iter().filter(is_orphan).collect())
}

/// Checks that none of the programs is attached, takes part in an experiment, or belongs to a lab that measures it.
pub fn refuse_what_is_attached(journal: &Journal, targets: &Targets) -> Result<(), AttachError> {
    for attached in in_use(journal)? {
        let is_living = |target: &&TargetProgram| targets.living().any(|living| living.is_same_process(target));
        if let Some(target) = attached.history.targets.iter().find(is_living) {
            return Err(attached.refuses(target.pid));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(pid: i32, name: &str) -> TargetProgram {
        TargetProgram { pid: Pid::new(pid).unwrap(), start_time_ticks: 7, name: name.to_owned() }
    }

    #[test]
    fn new_processes_have_the_present_name_of_an_attached_one() {
        let attached = [program(42, "nginx"), program(43, "starts")];
        let family = ["nginx", "serves", "nginx", "serves", "logger"].into_iter().zip(42..);
        let family: Vec<_> = family.map(|(name, pid)| program(pid, name)).collect();
        assert_eq!(new_ones(&attached, family.clone()), [program(44, "nginx"), program(45, "serves")]);
        let replaced = [TargetProgram { start_time_ticks: 1, ..program(44, "nginx") }, program(42, "nginx")];
        assert_eq!(new_ones(&replaced, family), [program(44, "nginx")], "another process had its PID");
    }

    #[test]
    fn the_root_of_a_worker_is_the_farthest_attached_ancestor() {
        let attached = [program(42, "nginx"), program(44, "nginx")];
        let parent_of = |pid: Pid| Pid::new(pid.get() - 1);
        assert_eq!(root(&program(46, "nginx"), &attached, parent_of).pid.get(), 42);
        assert_eq!(root(&attached[0], &attached, parent_of).pid.get(), 42);
        assert_eq!(root(&program(9, "redis"), &attached, parent_of).pid.get(), 9);
    }
}
