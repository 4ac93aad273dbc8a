//! Attaches a socket mode: the program's sockets busy poll, including those accepted later. Sockets in an epoll are
//! reported. Everything is restored. Needs root and Linux 6.13.

use std::collections::BTreeSet;

use crate::steered::{BOTH, Steered};
use crate::workers::open;
use quell_change::journal::Journal;
use quell_host::attach::plan::Limitation;
use quell_host::attach::{AttachPlan, AttachRequest, Attachment, EpollsSetBy, Selection, Targets, observe, plan};
use quell_host::snapshot::SnapshotSocket;
use quell_mode::DeliveryMode;
use quell_test_support::lab::{go_on, no_keeper};

fn request(mode: &str) -> AttachRequest {
    AttachRequest { mode: mode.parse::<DeliveryMode>().unwrap(), epolls: EpollsSetBy::Attachment }
}

fn plan_of(steered: &Steered, mode: &str) -> AttachPlan {
    plan(&observe().unwrap(), None, &[steered.server.pid()].into(), &request(mode))
}

/// The distinct busy-poll settings of the server's sockets: microseconds, and `prefer_busy_poll`.
fn polling(steered: &Steered) -> BTreeSet<(u32, bool)> {
    let snapshot = steered.look();
    let known =
        |socket: &SnapshotSocket| (*socket.busy_poll_us.known().unwrap(), *socket.prefer_busy_poll.known().unwrap());
    snapshot.sockets.iter().map(known).collect()
}

#[test]
fn every_socket_polls_and_a_program_that_waits_in_epoll_is_refused() {
    let Some(steered) = Steered::start("as-poll", 4) else { return };
    let _early = open(&steered.lab.client, &BOTH, 8);
    let planned = plan_of(&steered, "sockpoll57");
    let [refused] = &planned.impossible[..] else { panic!("{:?}", planned.impossible) };
    assert!(refused.reason.starts_with("it waits in epoll_wait(2)"), "{refused:?}");
    let [step] = planned.sockets().collect::<Vec<_>>()[..] else { panic!("one step") };
    assert_eq!((step.sockets.len(), step.xdp), (12, false), "4 listening and 8 connected sockets");
    assert!(planned.limitations.contains(&Limitation::WatchedByEpoll { pid: steered.server.pid(), sockets: 12 }));

    let journal = tempfile::tempdir().unwrap();
    let targets = Targets::find(Selection::Processes(vec![steered.server.pid()])).unwrap();
    let begun = Attachment::begin(&Journal::in_dir(journal.path()), targets, request("sockpoll57"), &mut no_keeper);
    let mut attachment = begun.unwrap();
    attachment.make(&planned, &mut go_on).unwrap();
    attachment.settle(&mut go_on).unwrap();
    let _late = open(&steered.lab.client, &BOTH, 8);
    assert_eq!(polling(&steered), [(57, true)].into());
    assert_eq!(plan_of(&steered, "sockpoll57").sockets().count(), 0, "no socket is left to set");

    let reverted = attachment.end().unwrap();
    assert_eq!((reverted.partial.len(), reverted.failed.len()), (0, 0), "{reverted:?}");
    assert_eq!(polling(&steered), [(0, false)].into());
}

#[test]
fn modes_that_do_not_poll_sockets_leave_them_unchanged() {
    let Some(steered) = Steered::start("as-cpu", 2) else { return };
    assert_eq!(plan_of(&steered, "suspend200").sockets().count(), 0);
}
