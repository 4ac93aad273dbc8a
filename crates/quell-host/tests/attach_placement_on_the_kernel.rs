//! An attachment that steers the connections of a server and binds its workers: verified while connections come, and put
//! back with the rest. Needs root, Linux 6.13 and two CPUs.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests fail by panicking")]

mod common;
mod steered;
mod workers;

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{ARRIVES_WITHIN, Program};
use quell_host::attach::placement::{Groups, Placed, decide};
use quell_host::attach::{AttachError, Attachment, EpollsSetBy, Request, Selection, Targets, observe, plan};
use quell_host::journal::{Journal, Keeper};
use quell_host::steer::Verdict;
use quell_host::transaction::Moment;
use quell_linux::reuseport::{self, Detachment, QueueSteering, SeenQueues};
use quell_linux::{Pid, sched};
use steered::{BOTH, QUEUES, Steered};
use workers::open;

const AT_ONCE: usize = 40;

#[test]
fn the_server_that_is_steered() {
    workers::serve_if_asked();
}

/// This process, which undoes everything itself.
fn keeper(_: &Path) -> Result<Keeper, String> {
    let identity = Program::process();
    Ok(Keeper { pid: identity.pid.get().unsigned_abs(), start_time_ticks: identity.starttime.0 })
}

fn go_on(_: usize, _: Moment) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// A server that is attached to, and what can be steered of it.
struct Placing {
    steered: Steered,
    attachment: Attachment,
    groups: Groups,
    _journal: tempfile::TempDir,
}

impl Placing {
    fn start(test: &str) -> Option<Self> {
        let steered = Steered::start(test, 4)?;
        let journal = tempfile::tempdir().unwrap();
        let targets = Targets::find(Selection::Processes(vec![steered.server.pid()])).unwrap();
        let request = Request { mode: "suspend200".parse().unwrap(), epolls: EpollsSetBy::Attachment };
        let picture = observe().unwrap();
        let groups = decide(&picture, &targets.pids(), &[]).unwrap();
        let planned = plan(&picture, None, &targets.pids(), &request);
        let mut attachment =
            Attachment::begin(&Journal::in_dir(journal.path()), targets, request, &mut keeper).unwrap();
        attachment.make(&planned, &mut go_on).unwrap();
        Some(Self { steered, attachment, groups, _journal: journal })
    }

    /// Steers and looks on while connections come and go.
    fn place(&mut self, pin: bool) -> Result<Placed, AttachError> {
        self.attachment.steer(&self.groups.steerings, &mut go_on)?;
        let (done, client) = (AtomicBool::new(false), &self.steered.lab.client);
        std::thread::scope(|scope| {
            let clients = scope.spawn(|| {
                // The last ones stay open until the next are there.
                let mut _connections = Vec::new();
                while !done.load(Ordering::Relaxed) {
                    _connections = open(client, &BOTH, AT_ONCE);
                }
            });
            let attachment = &mut self.attachment;
            let placed = attachment.watch_placement(&self.groups.steerings, pin, ARRIVES_WITHIN, &mut go_on);
            done.store(true, Ordering::Relaxed);
            clients.join().unwrap();
            placed
        })
    }
}

#[test]
fn filters_are_verified_workers_are_bound_and_all_of_it_goes_back() {
    let Some(mut placing) = Placing::start("place") else { return };
    if sched::affinity(Pid::of_this_process()).unwrap().len() < 2 {
        return eprintln!("skipped: one CPU");
    }
    placing.steered.thread_queues();
    placing.steered.bind_queues();
    let placed = placing.place(true).unwrap();
    assert_eq!(placed.verifications[0].verdict, Verdict::Holds);
    assert_eq!((placed.verifications[0].workers.len(), placed.pinned.len()), (4, 4), "{placed:?}");
    let reverted = placing.attachment.end().unwrap();
    assert_eq!((reverted.in_part.len(), reverted.failed.len()), (0, 0), "{reverted:?}");
    for pin in &placed.pinned {
        assert_eq!(sched::affinity(pin.tid).unwrap(), pin.old);
    }
    assert_eq!(reuseport::detach(placing.steered.socket()).unwrap(), Detachment::WasAbsent);
}

#[test]
fn a_filter_that_does_not_hold_is_told() {
    let Some(mut placing) = Placing::start("place-mixed") else { return };
    let of_device = |ifindex| SeenQueues { ifindex, first: 0, queues: QUEUES };
    let devices = [placing.steered.lab.server_index, placing.steered.second].map(of_device);
    placing.groups.steerings[0].filter = QueueSteering::new(devices.to_vec(), 4).unwrap();
    let error = placing.place(false).unwrap_err();
    assert!(matches!(error, AttachError::Mixed { .. }), "{error}");
    assert!(placing.attachment.end().unwrap().failed.is_empty());
}

#[test]
fn without_connections_it_cannot_be_told_yet() {
    let Some(mut placing) = Placing::start("place-none") else { return };
    placing.attachment.steer(&placing.groups.steerings, &mut go_on).unwrap();
    let steerings = &placing.groups.steerings;
    let placed = placing.attachment.watch_placement(steerings, true, Duration::ZERO, &mut go_on).unwrap();
    assert_eq!((placed.verifications[0].verdict, placed.pinned.len()), (Verdict::NotYet, 0));
}
