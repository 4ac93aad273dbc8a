//! Attaches to programs that exit or close objects between planning and setting. Missing objects are skipped, and their
//! successors get the mode. Needs root and Linux 6.13.

use std::net::UdpSocket;
use std::os::fd::{AsFd as _, AsRawFd as _};

use crate::steered::{BOTH, Steered};
use crate::workers::open;
use quell_change::journal::Journal;
use quell_host::attach::{
    AttachPlan, AttachRequest, AttachStep, Attachment, EpollsSetBy, Selection, Targets, observe, plan,
};
use quell_linux::Pid;
use quell_linux::epoll_params::{self, EpollParams};
use quell_linux::event::{Epoll, Trigger};
use quell_test_support::lab::{TestLab, go_on, no_keeper};

const CONNECTIONS: usize = 16;
/// Larger than the number of open files of this process.
const FILES_MAX: usize = 1_000;

/// The plan for a process, and an attachment that has not applied it yet.
fn about_to_make(dir: &tempfile::TempDir, pid: Pid) -> (AttachPlan, Attachment) {
    let targets = Targets::find(Selection::Processes(vec![pid])).unwrap();
    let request = AttachRequest { mode: "suspend200".parse().unwrap(), epolls: EpollsSetBy::Attachment };
    let planned = plan(&observe().unwrap(), None, &targets.pids(), &request);
    let attachment = Attachment::begin(&Journal::in_dir(dir.path()), targets, request, &mut no_keeper).unwrap();
    (planned, attachment)
}

/// Creates an epoll with this free file descriptor.
fn epoll_under(number: i32) -> Epoll {
    let epolls: Vec<Epoll> = (0..FILES_MAX).map_while(|_| Epoll::new(8).ok()).collect();
    epolls.into_iter().find(|epoll| epoll.as_fd().as_raw_fd() == number).unwrap()
}

#[test]
fn a_process_that_exits_during_an_attach_is_skipped() {
    let Some(mut steered) = Steered::start("ends-a", 2) else { return };
    let connections = open(&steered.lab.client, &BOTH, CONNECTIONS);
    let dir = tempfile::tempdir().unwrap();
    let (planned, mut attachment) = about_to_make(&dir, steered.server.pid());
    assert!(planned.epolls().count() == 2 && planned.queues().count() > 0, "{planned:?}");
    steered.end_server();
    drop(connections);
    attachment.make(&planned, &mut go_on).unwrap();
    assert_eq!((attachment.queues().count(), attachment.epolls()), (planned.queues().count(), 0));
    assert!(attachment.keep_up(&mut go_on).unwrap().over);
    let refused = attachment.check_programs_run().unwrap_err();
    assert_eq!(refused.to_string(), "the programs exited before the mode was applied");
    assert!(attachment.end().unwrap().failed.is_empty());
}

#[test]
fn an_epoll_closed_after_planning_is_skipped_and_its_successor_gets_the_mode() {
    let Some(_alone) = TestLab::raise("closes-a", 1) else { return };
    let (socket, epoll) = (UdpSocket::bind("0.0.0.0:0").unwrap(), Epoll::new(8).unwrap());
    epoll.add(&socket, 1, Trigger::Level).unwrap();
    let number = epoll.as_fd().as_raw_fd();
    let dir = tempfile::tempdir().unwrap();
    let (planned, mut attachment) = about_to_make(&dir, Pid::of_this_process());
    assert!(planned.epolls().any(|step| step.fd == number), "{planned:?}");
    drop(epoll);
    attachment.make(&planned, &mut go_on).unwrap();

    let next = epoll_under(number);
    next.add(&socket, 1, Trigger::Level).unwrap();
    let of_its_own = EpollParams { busy_poll_usecs: 7, ..EpollParams::default() };
    epoll_params::set(&next, of_its_own).unwrap();
    let pass = attachment.keep_up(&mut go_on).unwrap();
    let is_next = |step: &AttachStep| matches!(step, AttachStep::Epoll(epoll) if epoll.fd == number);
    assert!(pass.made.iter().any(is_next), "{:?} {:?}", pass.changed_by_others, pass.failed);
    assert_ne!(epoll_params::get(&next).unwrap(), of_its_own);
    let reverted = attachment.end().unwrap();
    assert!(reverted.failed.is_empty() && reverted.partial.is_empty(), "{reverted:?}");
    assert_eq!(epoll_params::get(&next).unwrap(), of_its_own);
}
