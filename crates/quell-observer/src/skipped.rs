//! Parts of a mode that are not applied to its programs: those that a plan of the attachment would set now, and those
//! that it cannot set.

use std::collections::BTreeSet;

use quell_change::change::Change;
use quell_host::attach::attached::Attached;
use quell_host::attach::plan::{AttachRequest, AttachStep, EpollsSetBy, Limitation, plan};
use quell_host::snapshot::Snapshot;
use quell_linux::Pid;
use quell_mode::DeliveryMode;

use quell_result::top::{SkipReason, SkippedPart};

/// Plans the mode of an attachment once more. Nothing is changed. Settings that the attachment has set and others have
/// changed are drifted, not skipped. A part without a process concerns all of them.
pub(crate) fn skipped(snapshot: &Snapshot, attached: &Attached, mode: DeliveryMode) -> Vec<(Option<Pid>, SkippedPart)> {
    let pids = attached.history.targets.iter().map(|target| target.pid);
    let pids: BTreeSet<Pid> = pids.collect();
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
    use quell_change::journal::{Journal, Purpose, TargetProgram};
    use quell_change::transaction::Transaction;
    use quell_host::attach::attached::attachments;
    use quell_host::snapshot::Reading;

    use super::*;

    #[test]
    fn a_process_without_an_epoll_lacks_one_and_its_siblings_do_not() {
        let mut snapshot = Snapshot::parse(include_bytes!("../../quell-host/tests/fixtures/healthy.json")).unwrap();
        let with_epolls = snapshot.processes[0].pid;
        let mut without = snapshot.processes[0].clone();
        without.pid = Pid::new(with_epolls.get() + 1).unwrap();
        let Reading::Known(files) = &mut without.files else { panic!("unknown") };
        files.epolls.clear();
        snapshot.processes.push(without);

        let dir = tempfile::tempdir().unwrap();
        let journal = Journal::in_dir(dir.path());
        let _transaction =
            Transaction::begin(&journal, "attach-1", Purpose::Attachment { mode: "suspend20".parse().unwrap() })
                .unwrap();
        let mut attached = attachments(&journal).unwrap().remove(0);
        let target = |process: &quell_host::snapshot::Process| TargetProgram {
            pid: process.pid,
            start_time_ticks: process.start_time_ticks,
            name: process.name.clone(),
        };
        attached.history.targets = snapshot.processes.iter().map(target).collect();
        let parts = skipped(&snapshot, &attached, "suspend20".parse().unwrap());
        let lack: Vec<_> = parts.iter().filter(|(_, part)| part.reason == SkipReason::NoEpoll).collect();
        assert!(matches!(lack[..], [(Some(pid), _)] if pid.get() == with_epolls.get() + 1), "{parts:?}");
    }
}
