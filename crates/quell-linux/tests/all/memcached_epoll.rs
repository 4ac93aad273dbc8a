//! Reads and sets the busy-poll parameters of an unmodified memcached from another process.

use std::time::{Duration, Instant};

use crate::common;
use quell_linux::epoll_params::{self, EpollParams, EpollParamsError};
use quell_linux::pidfd::PidFdError;
use quell_linux::proc::{FdKind, ProcRoot};
use quell_linux::process::{Child, Output, ProcessError, Spawn, SpawnStep};
use quell_linux::socket_options;
use quell_test_support::{Lacks, skip};

const LONG: Duration = Duration::from_secs(60);

/// Starts a memcached with two workers. Returns `None` and prints the reason to stderr if it is not installed.
fn memcached(netns: &common::LabNamespace) -> Option<Child> {
    let args = ["-u", "nobody", "-t", "2", "-U", "0", "-l", "127.0.0.1", "-p", "11211"];
    let spawn = Spawn::new("memcached").args(args).netns(&netns.namespace);
    match spawn.stderr(Output::Tail(2000)).start() {
        Err(error @ ProcessError::Spawn { step: SpawnStep::Exec, .. }) => {
            skip(Lacks::Server("memcached"), &error);
            None
        }
        child => Some(child.unwrap()),
    }
}

/// Waits until the child listens and its main thread and both workers have epolls. Returns the file descriptors of the
/// epolls.
fn epolls(child: &mut Child) -> Vec<i32> {
    let dir = ProcRoot::default().process(child.pid());
    let deadline = Instant::now() + LONG;
    loop {
        let fds = dir.fds().unwrap();
        let epolls: Vec<i32> = fds.iter().filter(|fd| fd.kind == FdKind::Epoll).map(|fd| fd.number).collect();
        if epolls.len() >= 3 && fds.iter().any(|fd| matches!(fd.kind, FdKind::Socket { .. })) {
            return epolls;
        }
        let ended = child.wait(Duration::from_millis(1)).unwrap();
        assert_eq!(ended, None, "{:?}", child.stderr_tail());
        assert!(Instant::now() < deadline, "memcached has only these epolls: {fds:?}");
    }
}

#[test]
fn parameters_of_an_unmodified_memcached_are_set_from_another_process() {
    if !common::can_make_namespaces() {
        return;
    }
    let netns = common::LabNamespace::create("memcached");
    let Some(mut child) = memcached(&netns) else { return };
    let wanted = EpollParams { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true };
    for number in epolls(&mut child) {
        let epoll = match child.pidfd().duplicate(number) {
            Err(error @ PidFdError::Denied { .. }) => {
                skip(Lacks::Root, &error);
                return;
            }
            epoll => epoll.unwrap(),
        };
        match epoll_params::set(&epoll, wanted) {
            Err(error @ EpollParamsError::Unsupported) => {
                skip(Lacks::KernelFeature, &error);
                return;
            }
            result => result.unwrap(),
        }
        drop(epoll);
        let again = child.pidfd().duplicate(number).unwrap();
        assert_eq!(epoll_params::get(&again).unwrap(), wanted);
    }
    child.terminate(LONG).unwrap();
}

#[test]
fn the_epolls_of_memcached_watch_its_files() {
    if !common::can_make_namespaces() {
        return;
    }
    let netns = common::LabNamespace::create("memcached");
    let Some(mut child) = memcached(&netns) else { return };
    let numbers = epolls(&mut child);
    let dir = ProcRoot::default().process(child.pid());
    let open = dir.fds().unwrap();
    for number in numbers {
        for target in dir.epoll(number).unwrap().targets {
            assert!(open.iter().any(|fd| fd.number == target.tfd), "{target:?} in {open:?}");
        }
    }
}

#[test]
fn a_socket_of_another_process_without_packets_has_no_napi() {
    if !common::can_make_namespaces() {
        return;
    }
    let netns = common::LabNamespace::create("memcached");
    let Some(mut child) = memcached(&netns) else { return };
    epolls(&mut child);
    let fds = ProcRoot::default().process(child.pid()).fds().unwrap();
    let socket = fds.iter().find(|fd| matches!(fd.kind, FdKind::Socket { .. })).unwrap();
    let duplicate = child.pidfd().duplicate(socket.number).unwrap();
    assert_eq!(socket_options::incoming_napi_id(&duplicate).unwrap(), None);
}
