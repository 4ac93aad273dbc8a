//! Steers the connections of an attached server and binds its workers: verified with new connections, updated after
//! changes, and restored at the end. Needs root, Linux 6.13 and two CPUs.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::steered::{BOTH, QUEUES, Steered};
use crate::workers::{add_worker, most_napis_of_a_worker, open};
use quell_change::journal::Journal;
use quell_host::attach::placement::{Groups, Placement, PlacementPass, PlacementResult, Wanted, decide};
use quell_host::attach::{AttachError, AttachRequest, Attachment, EpollsSetBy, Selection, Targets, observe, plan};
use quell_host::steer::{CannotSteer, SteerRequest, SteerVerdict};
use quell_linux::reuseport::{self, Detachment, QueueSteering, SeenQueues};
use quell_linux::{Pid, sched};
use quell_test_support::lab::{ARRIVES_WITHIN, SERVER, go_on, no_keeper};
use quell_test_support::{Lacks, kernel_threads_are_out_of_sight, skip};

const AT_ONCE: usize = 40;

/// An attached server and its reuseport groups.
struct Placing {
    steered: Steered,
    attachment: Attachment,
    groups: Groups,
    placement: Placement,
    _journal: tempfile::TempDir,
}

impl Placing {
    fn start(test: &str, workers: u32, pin: bool) -> Option<Self> {
        let steered = Steered::start(test, workers)?;
        let journal = tempfile::tempdir().unwrap();
        let targets = Targets::find(Selection::Processes(vec![steered.server.pid()])).unwrap();
        let request = AttachRequest { mode: "suspend200".parse().unwrap(), epolls: EpollsSetBy::Attachment };
        let snapshot = observe().unwrap();
        let groups = decide(&snapshot, &targets.pids(), &SteerRequest::default()).unwrap();
        let planned = plan(&snapshot, None, &targets.pids(), &request);
        let mut attachment =
            Attachment::begin(&Journal::in_dir(journal.path()), targets, request, &mut no_keeper).unwrap();
        attachment.make(&planned, &mut go_on).unwrap();
        let placement = Placement::new(Wanted { steer: Some(SteerRequest::default()), pin });
        Some(Self { steered, attachment, groups, placement, _journal: journal })
    }

    /// One pass of a process that maintains the attachment.
    fn keep_up(&mut self) -> PlacementPass {
        let snapshot = self.attachment.keep_up(&mut go_on).unwrap().snapshot.unwrap();
        self.placement.keep_up(&mut self.attachment, &snapshot, &mut go_on)
    }

    /// The pass that acts on the change seen by the pass before it.
    fn after_a_change(&mut self) -> PlacementPass {
        let first = self.keep_up();
        assert!(first.is_changing && first.steered.is_empty() && first.refused.is_empty(), "{first:?}");
        self.keep_up()
    }

    /// Ends the attachment; the server runs as long as the returned value exists.
    fn end(self) -> Steered {
        let reverted = self.attachment.end().unwrap();
        assert_eq!((reverted.partial.len(), reverted.failed.len()), (0, 0), "{reverted:?}");
        assert_eq!(reuseport::detach(self.steered.socket()).unwrap(), Detachment::WasAbsent);
        self.steered
    }

    fn place(&mut self) -> Result<PlacementResult, AttachError> {
        self.placement.steer(&self.groups, &mut self.attachment, &mut go_on)?;
        self.watch()
    }

    /// Observes while some connections stay, and others are opened and closed.
    fn watch(&mut self) -> Result<PlacementResult, AttachError> {
        let (done, client) = (AtomicBool::new(false), &self.steered.lab.client);
        let _staying = open(client, &BOTH, AT_ONCE);
        std::thread::scope(|scope| {
            let clients = scope.spawn(|| {
                // The last connections stay open until the next ones exist.
                let mut _connections = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    _connections = open(client, &BOTH, AT_ONCE);
                }
            });
            let placed = self.placement.watch(&mut self.attachment, ARRIVES_WITHIN, &mut go_on);
            done.store(true, Ordering::Relaxed);
            clients.join().unwrap();
            placed
        })
    }
}

#[test]
fn filters_are_verified_workers_are_bound_and_both_are_restored() {
    if kernel_threads_are_out_of_sight() {
        return;
    }
    let Some(mut placing) = Placing::start("place", 4, true) else { return };
    let everywhere = sched::affinity(Pid::of_this_process()).unwrap();
    if everywhere.len() < 2 {
        return skip(Lacks::Machine, "needs two CPUs");
    }
    placing.steered.thread_queues();
    placing.steered.bind_queues(&everywhere);
    let placed = placing.place().unwrap();
    assert_eq!(placed.verifications[0].verdict, SteerVerdict::Holds);
    assert_eq!((placed.verifications[0].workers.len(), placed.pinned.len()), (4, 4), "{placed:?}");
    let _steered = placing.end();
    for pin in &placed.pinned {
        assert_eq!(sched::affinity(pin.tid).unwrap(), pin.old);
    }
}

#[test]
fn a_filter_that_mixes_queues_is_reported() {
    let Some(mut placing) = Placing::start("place-mixed", 4, false) else { return };
    let of_device = |ifindex| SeenQueues { ifindex, first: 0, queues: QUEUES };
    let devices = [placing.steered.lab.server_index, placing.steered.second].map(of_device);
    placing.groups.steerings[0].filter = QueueSteering::new(devices.to_vec(), 4).unwrap();
    // The first snapshot may contain too few new connections to show the mix. The second one contains more.
    let error = placing.place().err().or_else(|| placing.watch().err()).unwrap();
    assert!(matches!(error, AttachError::Mixed { .. }), "{error}");
    assert!(placing.attachment.end().unwrap().failed.is_empty());
}

#[test]
fn without_connections_there_is_no_verdict_yet() {
    let Some(mut placing) = Placing::start("place-none", 4, true) else { return };
    placing.placement.steer(&placing.groups, &mut placing.attachment, &mut go_on).unwrap();
    let placed = placing.placement.watch(&mut placing.attachment, Duration::ZERO, &mut go_on).unwrap();
    assert_eq!((placed.verifications[0].verdict, placed.pinned.len()), (SteerVerdict::NotYet, 0));
}

#[test]
fn a_group_that_appears_later_is_steered_once_it_is_stable() {
    let Some(mut placing) = Placing::start("place-later", 1, false) else { return };
    let alone = placing.after_a_change();
    assert!(matches!(alone.refused[..], [CannotSteer::OneSocket { .. }]), "{alone:?}");
    for _ in 1..4 {
        add_worker(&placing.steered.lab.client, SERVER);
    }
    let whole = placing.after_a_change();
    assert!(matches!(&whole.steered[..], [steered] if !steered.is_replacement), "{whole:?}");
    assert_eq!(most_napis_of_a_worker(&placing.steered.count(AT_ONCE)), 1);

    let connections = open(&placing.steered.lab.client, &BOTH, AT_ONCE);
    let seen = placing.keep_up().verifications;
    assert!(
        matches!(&seen[..], [(_, seen)] if seen.verdict == SteerVerdict::Holds && seen.workers.len() == 4),
        "{seen:?}"
    );
    drop(connections);
    placing.end();
}

#[test]
fn a_changed_group_is_steered_again_and_an_unchanged_one_is_not() {
    let Some(mut placing) = Placing::start("place-anew", 2, false) else { return };
    placing.placement.steer(&placing.groups, &mut placing.attachment, &mut go_on).unwrap();
    let unchanged = placing.after_a_change();
    assert!(unchanged.steered.is_empty(), "the filter is attached already: {unchanged:?}");
    for _ in 2..4 {
        add_worker(&placing.steered.lab.client, SERVER);
    }
    let changed = placing.after_a_change();
    assert!(matches!(&changed.steered[..], [steered] if steered.is_replacement), "{changed:?}");
    assert_eq!(most_napis_of_a_worker(&placing.steered.count(AT_ONCE)), 1);
    let later = placing.keep_up();
    assert!(later.steered.is_empty() && !later.is_changing, "{later:?}");
    placing.end();
}

#[test]
fn a_worker_that_starts_later_is_bound_to_the_cpu_of_its_queue() {
    if kernel_threads_are_out_of_sight() {
        return;
    }
    let Some(mut placing) = Placing::start("place-pin", 3, true) else { return };
    let everywhere = sched::affinity(Pid::of_this_process()).unwrap();
    if everywhere.len() < 2 {
        return skip(Lacks::Machine, "needs two CPUs");
    }
    placing.steered.thread_queues();
    placing.steered.bind_queues(&everywhere);
    placing.placement.steer(&placing.groups, &mut placing.attachment, &mut go_on).unwrap();
    placing.after_a_change();
    add_worker(&placing.steered.lab.client, SERVER);
    placing.after_a_change();
    let _connections = open(&placing.steered.lab.client, &BOTH, AT_ONCE);
    let (mut bound, give_up) = (Vec::new(), Instant::now() + ARRIVES_WITHIN);
    // A thread that is not waiting at the moment is bound in a later pass.
    while bound.len() < 4 {
        bound.extend(placing.keep_up().pinned);
        assert!(Instant::now() < give_up, "{bound:?}");
    }
    assert!(bound.iter().all(|pin| sched::affinity(pin.tid).unwrap() == pin.new), "{bound:?}");
    let _steered = placing.end();
    assert!(bound.iter().all(|pin| sched::affinity(pin.tid).unwrap() == pin.old), "{bound:?}");
}
