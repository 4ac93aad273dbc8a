//! Conditions of the modes of programs. Parts of a mode that are not applied are those that a plan of the attachment would
//! set now, and those that it cannot set.

use std::collections::{BTreeMap, BTreeSet};

use quell_change::change::Change;
use quell_change::drift::{Condition, condition};
use quell_change::journal::{Journal, TargetProgram};
use quell_change::missing_queue::MissingQueue;
use quell_host::attach::attached::{Attached, attachments, root, started_since};
use quell_host::attach::effect::ModeVerdict;
use quell_host::attach::plan::{AttachRequest, AttachStep, EpollsSetBy, Limitation, plan};
use quell_host::snapshot::Snapshot;
use quell_linux::Pid;
use quell_linux::proc::ProcRoot;
use quell_mode::DeliveryMode;

use crate::observer::ProgramKey;
use quell_result::top::{SkipReason, SkippedPart};

#[derive(Debug, Clone)]
pub(crate) struct ModeCondition {
    /// Number of drifted settings of its attachment, those of missing queues included. Absent if they cannot be read.
    pub(crate) drifted: Option<usize>,
    pub(crate) queues: QueuesInForce,
    pub(crate) skipped: Vec<SkippedPart>,
    /// The attached process that it descends from, or itself.
    pub(crate) root: TargetProgram,
    /// Whether the process was started after the attachment, which does not follow it.
    pub(crate) started_since: bool,
}

/// Whether the settings of the queues of an attachment are in force.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) enum QueuesInForce {
    #[default]
    Set,
    /// Another program has changed settings.
    Changed,
    /// None of the queues exists, for this reason.
    Missing(MissingQueue),
    /// The driver has reset settings, and the follower sets them again.
    BeingSetAgain,
}

impl From<&Condition> for QueuesInForce {
    fn from(condition: &Condition) -> Self {
        match &condition.without_queues {
            Some(why) => Self::Missing(why.clone()),
            None if condition.changed() > 0 => Self::Changed,
            None if !condition.being_set_again.is_empty() => Self::BeingSetAgain,
            None => Self::Set,
        }
    }
}

impl ModeCondition {
    pub(crate) fn root_key(&self) -> ProgramKey {
        (self.root.pid, self.root.start_time_ticks)
    }

    /// Whether it is a process that a reload or restart started, without the mode.
    pub(crate) fn lacks_mode(&self) -> bool {
        self.started_since && self.skipped.iter().any(|part| part.reason.is_unset())
    }

    /// Verdict on the process with that on its queues. These may be idle, polled by others, or missing.
    pub(crate) fn effect(&self, on_queues: Option<ModeVerdict>) -> Option<ModeVerdict> {
        match (&self.queues, &on_queues) {
            (QueuesInForce::Missing(why), _) => {
                Some(ModeVerdict::NotInEffect(format!("none of its queues exists at present: {why}")))
            }
            (QueuesInForce::BeingSetAgain, Some(ModeVerdict::NotInEffect(_)) | None) => Some(ModeVerdict::CannotTell(
                "the driver has reset its queues, and the follower sets them again".to_owned(),
            )),
            (_, Some(ModeVerdict::NotInEffect(_))) => on_queues,
            (_, None) if self.skipped.iter().any(|part| part.reason == SkipReason::QueueNotSet) => {
                Some(ModeVerdict::NotInEffect("none of the queues from which it receives has the mode".to_owned()))
            }
            _ if !self.lacks_mode() => on_queues,
            _ => Some(ModeVerdict::NotInEffect("started after the attachment, without the mode".to_owned())),
        }
    }
}

/// Conditions of attached programs, and of the processes that these have started since.
pub(crate) fn conditions(journal: &Journal, snapshot: &Snapshot) -> BTreeMap<ProgramKey, ModeCondition> {
    let attached = attachments(journal).unwrap_or_default();
    attached.iter().flat_map(|one| conditions_of(one, snapshot, &started_since(&one.history.targets))).collect()
}

fn conditions_of(
    attached: &Attached,
    snapshot: &Snapshot,
    new: &[TargetProgram],
) -> BTreeMap<ProgramKey, ModeCondition> {
    let Some(mode) = attached.purpose().mode() else { return BTreeMap::new() };
    let targets = &attached.history.targets;
    let condition = condition(&attached.path, &attached.history).ok();
    let drifted = condition.as_ref().map(|condition| condition.drifted.len());
    let queues = condition.as_ref().map(QueuesInForce::from).unwrap_or_default();
    let parts = skipped(snapshot, attached, new, mode);
    let parent_of = |pid| ProcRoot::default().process(pid).stat().ok()?.ppid;
    let of = |program: &TargetProgram, started_since| {
        let its = parts.iter().filter(|(pid, _)| pid.is_none_or(|pid| pid == program.pid));
        let skipped = its.map(|(_, part)| part.clone()).collect();
        let root = root(program, targets, parent_of).clone();
        (
            (program.pid, program.start_time_ticks),
            ModeCondition { drifted, queues: queues.clone(), skipped, root, started_since },
        )
    };
    targets.iter().map(|target| of(target, false)).chain(new.iter().map(|program| of(program, true))).collect()
}

/// Plans the mode of an attachment once more. Nothing is changed. Settings that the attachment has set and others have
/// changed are drifted, not skipped. A part without a process concerns all of them.
fn skipped(
    snapshot: &Snapshot,
    attached: &Attached,
    new: &[TargetProgram],
    mode: DeliveryMode,
) -> Vec<(Option<Pid>, SkippedPart)> {
    let pids: BTreeSet<Pid> = attached.history.targets.iter().chain(new).map(|target| target.pid).collect();
    let plan = plan(snapshot, None, &pids, &AttachRequest { mode, epolls: EpollsSetBy::Attachment });
    let recorded: BTreeSet<u32> = (attached.history.pending())
        .filter_map(|(_, entry)| match &entry.change {
            Change::NapiSettings(change) => Some(change.napi_id),
            _ => None,
        })
        .collect();
    let part = |pid, reason| Some((pid, SkippedPart { napi: None, reason }));
    let of_queue = |napi, reason| (None, SkippedPart { napi: Some(napi), reason });
    let to_set = plan.steps.iter().filter(|step| !step.is_there()).filter_map(|step| match step {
        AttachStep::Queue(step) => {
            (!recorded.contains(&step.napi.get())).then_some(of_queue(step.napi, SkipReason::QueueNotSet))
        }
        AttachStep::Epoll(step) => part(Some(step.pid), SkipReason::EpollNotSet),
        AttachStep::Sockets(step) => part(Some(step.pid), SkipReason::PollingNotSet),
        // The kernel does not report the setting of a ring.
        AttachStep::Ring(_) => None,
    });
    let limited = plan.limitations.iter().filter_map(|limitation| match limitation {
        Limitation::UnknownQueue { napi } => Some(of_queue(*napi, SkipReason::UnknownQueue)),
        Limitation::NapiThreadRemains { napi } => Some(of_queue(*napi, SkipReason::NapiThreadRemains)),
        Limitation::NoEpoll { .. } => part(limitation.pid(), SkipReason::NoEpoll),
        Limitation::XdpCannotBusyPoll { .. } => part(limitation.pid(), SkipReason::CannotBusyPoll),
        Limitation::WatchedByEpoll { .. } => part(limitation.pid(), SkipReason::WatchedByEpoll),
        Limitation::NotSuspended { .. } | Limitation::UnknownRings { .. } | Limitation::UnknownXdpQueues { .. } => {
            part(limitation.pid(), SkipReason::NotSuspended)
        }
        // The mode is applied, and this is its price.
        Limitation::XdpFramesWait { .. } => None,
        // The preload library limits the waits of launched programs.
        Limitation::EpollWaitUnlimited { .. } if attached.is_launched() => None,
        Limitation::EpollWaitUnlimited { .. } => part(None, SkipReason::EpollWaitUnlimited),
        _ => part(limitation.pid(), SkipReason::Other),
    });
    to_set.chain(limited).collect()
}

#[cfg(test)]
mod tests {
    use quell_change::change::Drift;
    use quell_change::journal::Purpose;
    use quell_change::missing_queue::MissingCause;
    use quell_change::transaction::Transaction;
    use quell_host::snapshot::{Process, Reading, SnapshotEpoll};
    use quell_mode::EpollParams;

    use super::*;

    fn target(process: &Process) -> TargetProgram {
        TargetProgram { pid: process.pid, start_time_ticks: process.start_time_ticks, name: process.name.clone() }
    }

    /// A host with a copy of its program, and an attachment to nobody.
    fn host() -> (Snapshot, Attached) {
        let mut snapshot = Snapshot::parse(include_bytes!("../../quell-host/tests/fixtures/healthy.json")).unwrap();
        let mut copy = snapshot.processes[0].clone();
        copy.pid = Pid::new(copy.pid.get() + 1).unwrap();
        snapshot.processes.push(copy);
        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        let purpose = Purpose::Attachment { mode: "suspend20".parse().unwrap() };
        let _transaction = Transaction::begin(&journal, "attach-1", purpose).unwrap();
        (snapshot, attachments(&journal).unwrap().remove(0))
    }

    fn epolls(process: &mut Process) -> &mut Vec<SnapshotEpoll> {
        let Reading::Known(files) = &mut process.files else { panic!("unknown") };
        &mut files.epolls
    }

    #[test]
    fn a_process_without_an_epoll_lacks_one_and_its_siblings_do_not() {
        let (mut snapshot, mut attached) = host();
        epolls(&mut snapshot.processes[1]).clear();
        attached.history.targets = snapshot.processes.iter().map(target).collect();
        let parts = skipped(&snapshot, &attached, &[], "suspend20".parse().unwrap());
        let lack: Vec<_> = parts.iter().filter(|(_, part)| part.reason == SkipReason::NoEpoll).collect();
        assert!(matches!(lack[..], [(Some(pid), _)] if *pid == snapshot.processes[1].pid), "{parts:?}");
    }

    #[test]
    fn a_mode_without_any_queue_is_not_in_effect_and_one_that_is_being_set_again_has_no_verdict() {
        let drift = |now: Option<&str>| Drift {
            device: Some("eth0".to_owned()),
            queue: Some(0),
            setting: "napi".to_owned(),
            made: "defer-hard-irqs 100".to_owned(),
            now: now.map(ToOwned::to_owned),
            missing: None,
        };
        let effect = |condition: &Condition, on_queues: Option<ModeVerdict>| {
            let root = TargetProgram { pid: Pid::new(1).unwrap(), start_time_ticks: 1, name: "nginx".to_owned() };
            let queues = QueuesInForce::from(condition);
            let drifted = Some(condition.drifted.len());
            ModeCondition { drifted, queues, skipped: Vec::new(), root, started_since: false }.effect(on_queues)
        };
        let (cause, device) = (MissingCause::GroOff, "eth0".to_owned());
        let missing = MissingQueue { cause, device, command: Some("ethtool -K eth0 gro on".to_owned()) };
        let without = Condition { without_queues: Some(missing), ..Condition::default() };
        let Some(ModeVerdict::NotInEffect(why)) = effect(&without, None) else { panic!("absent") };
        assert!(
            why.ends_with("GRO is off on eth0, and a veth has no NAPI instance without it: `ethtool -K eth0 gro on`")
        );
        let again = Condition { being_set_again: vec![drift(Some("0"))], ..Condition::default() };
        let not = || Some(ModeVerdict::NotInEffect("polled by interrupts".to_owned()));
        assert!(matches!(effect(&again, not()), Some(ModeVerdict::CannotTell(_))));
        let changed = Condition { drifted: vec![drift(Some("0"))], ..again };
        assert_eq!(effect(&changed, not()), not(), "nobody sets it again");
        assert_eq!(effect(&Condition::default(), None), None);
    }

    #[test]
    fn a_process_that_was_started_since_is_without_the_mode_if_its_epolls_are() {
        let (mut snapshot, mut attached) = host();
        attached.history.targets = vec![target(&snapshot.processes[0])];
        let new = target(&snapshot.processes[1]);
        let key = (new.pid, new.start_time_ticks);
        let effect = |snapshot: &Snapshot, by_queues| {
            let conditions = conditions_of(&attached, snapshot, std::slice::from_ref(&new));
            assert!(conditions.values().filter(|of| !of.started_since).all(|of| !of.lacks_mode()), "{conditions:?}");
            conditions[&key].effect(by_queues)
        };
        for epoll in epolls(&mut snapshot.processes[1]) {
            epoll.params = Reading::Known(EpollParams::default());
        }
        let is_without = |effect| matches!(effect, Some(ModeVerdict::NotInEffect(_)));
        assert!(is_without(effect(&snapshot, None)), "without traffic, too");
        assert!(is_without(effect(&snapshot, Some(ModeVerdict::InEffect("polls of others".to_owned())))));
        let set = "suspend20".parse::<DeliveryMode>().unwrap().epoll().unwrap();
        for epoll in epolls(&mut snapshot.processes[1]) {
            epoll.params = Reading::Known(set);
        }
        assert_eq!(effect(&snapshot, None), None, "it shares the epolls of its parent");
    }
}
