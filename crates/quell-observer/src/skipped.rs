//! Parts of a mode that are not applied to its programs: those that a plan of the attachment would set now, and those
//! that it cannot set.

use std::collections::BTreeSet;

use quell_host::attach::attachment::Attached;
use quell_host::attach::plan::{AttachRequest, AttachStep, EpollsSetBy, Limitation, plan};
use quell_host::journal::RecordedChange;
use quell_host::snapshot::Snapshot;
use quell_linux::Pid;
use quell_mode::DeliveryMode;

use crate::report::{SkipReason, SkippedPart};

/// Plans the mode of an attachment once more. Nothing is changed. Settings that the attachment has set and others have
/// changed are drifted, not skipped.
pub(crate) fn skipped(snapshot: &Snapshot, attached: &Attached, mode: DeliveryMode) -> Vec<SkippedPart> {
    let pids = attached.history.targets.iter().filter_map(|target| Pid::from_kernel(target.pid));
    let pids: BTreeSet<Pid> = pids.collect();
    let plan = plan(snapshot, None, &pids, &AttachRequest { mode, epolls: EpollsSetBy::Attachment });
    let recorded: BTreeSet<u32> = (attached.history.pending())
        .filter_map(|(_, entry)| match &entry.change {
            RecordedChange::NapiSettings(change) => Some(change.napi_id),
            _ => None,
        })
        .collect();
    let part = |reason| Some(SkippedPart { napi: None, reason });
    let to_set = plan.steps.iter().filter(|step| !step.is_there()).filter_map(|step| match step {
        AttachStep::Queue(step) => (!recorded.contains(&step.napi.get()))
            .then_some(SkippedPart { napi: Some(step.napi), reason: SkipReason::QueueNotSet }),
        AttachStep::Epoll(_) => part(SkipReason::EpollNotSet),
        AttachStep::Sockets(_) => part(SkipReason::PollingNotSet),
        // The kernel does not report the setting of a ring.
        AttachStep::Ring(_) => None,
    });
    let limited = plan.partly.iter().filter_map(|limitation| match limitation {
        Limitation::UnknownQueue { napi } => Some(SkippedPart { napi: Some(*napi), reason: SkipReason::UnknownQueue }),
        Limitation::ThreadStays { napi } => Some(SkippedPart { napi: Some(*napi), reason: SkipReason::ThreadStays }),
        Limitation::NoEpoll { .. } => part(SkipReason::NoEpoll),
        Limitation::WatchedByEpoll { .. } => part(SkipReason::WatchedByEpoll),
        Limitation::OtherWays { .. } | Limitation::UnknownRings { .. } | Limitation::UnknownXdpQueues { .. } => {
            part(SkipReason::OtherWays)
        }
        // The preload library limits the waits of launched programs.
        Limitation::WaitsAsWritten { .. } if attached.is_launched() => None,
        Limitation::WaitsAsWritten { .. } => part(SkipReason::WaitsAsWritten),
        _ => part(SkipReason::Other),
    });
    to_set.chain(limited).collect()
}
