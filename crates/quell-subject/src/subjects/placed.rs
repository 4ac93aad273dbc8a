//! Steering of connections and pinning of workers during an experiment on running programs. It is the same under all
//! modes, so it is made before the first slice, in the journal of the experiment.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use quell_change::journal::Journal;
use quell_change::transaction::ChangeStage;
use quell_host::attach::AttachError;
use quell_host::attach::Targets;
use quell_host::attach::measured::MeasuredAttachments;
use quell_host::attach::placement::{Groups, Placement, PlacementResult, Wanted, decide, mark_attached_filters};
use quell_host::snapshot::{Files, Protocol, Snapshot, SnapshotSocket, SocketState};
use quell_host::steer::{Alignment, NothingSteered, Steering, alignment, mark_steered};
use quell_host::switching::{BegunSwitching, SwitchError};
use quell_linux::Pid;
use quell_result::facts::{PlacementFacts, SteeredFacts};

use super::Unanswered;
use super::preview::LOOK_AGAIN;
use crate::experiment::judge::{JudgeError, Judges};
use crate::experiment::server_side::sleep;

/// Time limit for new connections to arrive through the filters, and for workers to wait in epoll.
const PLACED_WITHIN: Duration = Duration::from_secs(10);

/// Time limit for connections from before the filters to be opened again, if others came through the filters.
const SORTED_WITHIN: Duration = Duration::from_secs(10);

/// Placement that is requested, without what an attachment of the programs has placed already.
pub(super) fn requested(wanted: &Wanted, attached: &MeasuredAttachments) -> Wanted {
    Wanted { steer: wanted.steer.clone().filter(|_| !attached.steers), pin: wanted.pin && !attached.pins }
}

/// Decides the filters, and marks the sockets that have or would get one in the snapshot.
///
/// # Errors
/// When filters are requested and no group can get one.
pub(super) fn decide_groups(
    wanted: &Wanted,
    attached: &MeasuredAttachments,
    journal: &Journal,
    targets: &Targets,
    snapshot: &mut Snapshot,
) -> Result<Groups, Unanswered> {
    if attached.steers {
        mark_attached_filters(snapshot, journal);
    }
    let Some(request) = &wanted.steer else { return Ok(Groups::default()) };
    let groups = decide(snapshot, &targets.pids(), request)?;
    if groups.steerings.is_empty() {
        return Err(NothingSteered(groups.refused).into());
    }
    mark_steered(snapshot, &queues_of_sockets(&groups));
    Ok(groups)
}

fn queues_of_sockets(groups: &Groups) -> BTreeMap<u64, u32> {
    groups.steerings.iter().flat_map(Steering::queues_of_sockets).collect()
}

/// Describes the placement before it is made; `snapshot` has the connections from before, if there are any. `None` if none
/// is requested, and no attachment has one.
pub(super) fn planned(
    (wanted, attached): (&Wanted, &MeasuredAttachments),
    groups: &Groups,
    snapshot: Option<&Snapshot>,
) -> Option<PlacementFacts> {
    let steered = |steering: &Steering| {
        let present = snapshot.map(|snapshot| alignment(steering, snapshot)).unwrap_or_default();
        SteeredFacts {
            group: steering.group.key.to_string(),
            sockets: steering.filter.sockets(),
            connections_before: present.connections,
            aligned_before: present.aligned,
            new_connections: None,
            unsorted: None,
        }
    };
    let mut options = wanted.options();
    if attached.steers && wanted.steer.is_none() {
        options.insert(0, "--steer".to_owned());
    }
    if attached.pins && !wanted.pin {
        options.push("--pin".to_owned());
    }
    let steered = groups.steerings.iter().map(steered).collect();
    (!options.is_empty()).then(|| PlacementFacts { options, steered, ..PlacementFacts::default() })
}

/// Attaches the filters, lets the load connect again, and pins workers whose queue the new connections show. A judge
/// runs meanwhile, because its connections can be the only ones.
pub(super) fn place(
    wanted: Wanted,
    groups: &Groups,
    begun: &mut BegunSwitching,
    (judges, slice_ms): (&Judges, u32),
    reconnect: &dyn Fn() -> Result<(), Unanswered>,
    stopped: &dyn Fn() -> bool,
) -> Result<PlacementResult, Unanswered> {
    let failed = |error: AttachError| match error.is_stopped() {
        true => Unanswered::Interrupted,
        false => SwitchError::from(error).into(),
    };
    let mut observer = |_: usize, _: ChangeStage| match stopped() {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    let mut placement = Placement::new(wanted);
    placement.steer(groups, &mut *begun, &mut observer).map_err(failed)?;
    reconnect()?;
    // Their runs can be shorter than the time until their connections are seen.
    let judge_until = |is_over: &AtomicBool| -> Result<(), JudgeError> {
        while !is_over.load(Ordering::Relaxed) {
            judges.run(slice_ms, &|| is_over.load(Ordering::Relaxed))?;
        }
        Ok(())
    };
    let (is_over, within) = (AtomicBool::new(false), PLACED_WITHIN.max(Duration::from_millis(slice_ms.into())));
    thread::scope(|scope| {
        let judging = (!judges.is_empty()).then(|| scope.spawn(|| judge_until(&is_over)));
        let placed = placement.watch(&mut *begun, within, &mut observer).map_err(failed);
        is_over.store(true, Ordering::Relaxed);
        let judged = judging.map_or(Ok(Ok(())), thread::ScopedJoinHandle::join);
        judged.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        placed
    })
}

/// Adds what was observed after the placement. The datagrams of all clients of a UDP group pass its filter.
pub(super) fn add_result(facts: &mut PlacementFacts, groups: &Groups, placed: &PlacementResult) {
    let steered = facts.steered.iter_mut().zip(&groups.steerings).zip(&placed.verifications);
    for ((steered, _), verification) in steered.filter(|((_, by), _)| by.group.key.protocol == Protocol::Tcp) {
        let connections = verification.workers.iter().flat_map(|worker| worker.connections.values());
        steered.new_connections = Some(connections.sum());
    }
    facts.pinned = placed.pinned.len() + placed.in_place.len();
    facts.not_pinned = placed.not_pinned.iter().map(ToString::to_string).collect();
}

/// Waits while connections from before the filters are open although others came through these: many clients reconnect
/// after some requests or seconds. `look` takes a snapshot.
pub(super) fn wait_until_sorted(
    facts: &PlacementFacts,
    groups: &Groups,
    look: &dyn Fn() -> Result<Snapshot, Unanswered>,
    stopped: &dyn Fn() -> bool,
) -> Result<(), Unanswered> {
    let has_new = facts.steered.iter().any(|steered| steered.new_connections.is_some_and(|count| count > 0));
    let until = Instant::now() + SORTED_WITHIN;
    while has_new && Instant::now() < until {
        let now = look()?;
        let is_sorted = groups.steerings.iter().all(|steering| unsorted(steering, &now) == 0);
        if is_sorted || !sleep(LOOK_AGAIN, stopped) {
            break;
        }
    }
    Ok(())
}

/// Number of connections that do not share the queue of their worker.
fn unsorted(steering: &Steering, snapshot: &Snapshot) -> usize {
    let Alignment { connections, aligned } = alignment(steering, snapshot);
    connections - aligned
}

/// Adds how many connections do not share the queue of their worker when the first slice begins.
pub(super) fn add_unsorted(facts: &mut PlacementFacts, groups: &Groups, snapshot: &Snapshot) {
    for (steered, steering) in facts.steered.iter_mut().zip(&groups.steerings) {
        steered.unsorted = Some(unsorted(steering, snapshot));
    }
}

/// Whether no connection stays open although requests arrive, so that none can be there to be counted.
pub(super) fn no_connection_stays(snapshot: &Snapshot, programs: &BTreeSet<Pid>) -> bool {
    let its = snapshot.processes.iter().filter(|process| programs.contains(&process.pid));
    let files: Vec<&Files> = its.filter_map(|process| process.files.known()).collect();
    let held: BTreeSet<u64> = files.iter().flat_map(|files| &files.sockets).map(|held| held.inode).collect();
    let is_open = |socket: &SnapshotSocket| held.contains(&socket.inode) && socket.state == SocketState::Established;
    files.iter().any(|files| !files.read_queues.is_empty()) && !snapshot.sockets.iter().any(is_open)
}

/// Forgets that no connection arrived, which is unknown of short ones. A number that was counted remains: a judge that
/// has ended leaves no connection open either.
pub(super) fn forget_that_none_arrived(facts: &mut PlacementFacts) {
    for steered in &mut facts.steered {
        steered.new_connections = steered.new_connections.filter(|count| *count > 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_were_counted_have_arrived_although_none_stays_open() {
        let of_group = |new_connections| SteeredFacts {
            group: "TCP 192.0.2.1:80".to_owned(),
            sockets: 2,
            connections_before: 0,
            aligned_before: 0,
            new_connections,
            unsorted: None,
        };
        let steered = vec![of_group(Some(16)), of_group(Some(0)), of_group(None)];
        let mut facts = PlacementFacts { steered, ..PlacementFacts::default() };
        forget_that_none_arrived(&mut facts);
        let arrived: Vec<Option<usize>> = facts.steered.iter().map(|steered| steered.new_connections).collect();
        assert_eq!(arrived, [Some(16), None, None]);
    }
}
