//! Reads one thread, of a process or of the kernel.

use quell_linux::proc::{EpollTimeout, EpollWaitCall, PidStat, ProcDir, SocketWaitCall};
use quell_linux::{Pid, sched};

use super::super::{EpollWait, FileWait, Reading, Thread, UnknownReason};
use super::outcome::Outcome as _;

pub(super) fn read(tid: Pid, directory: &ProcDir) -> Option<Thread> {
    let stat = match directory.stat() {
        Ok(stat) => stat,
        Err(error) if error.is_absent() => return None,
        Err(error) => return Some(unreadable(tid, &Err::<PidStat, _>(error).outcome())),
    };
    let schedstat = directory.schedstat().outcome();
    let syscall = directory.syscall().outcome();
    let last_cpu = match stat.processor {
        Some(cpu) => Reading::Known(cpu),
        None => Reading::unknown(
            UnknownReason::UnsupportedByKernel,
            format!("read stat of thread {tid}: it has no processor field"),
        ),
    };
    Some(Thread {
        tid,
        name: stat.name(),
        state: Reading::Known(stat.state),
        affinity: sched::affinity(tid).outcome(),
        scheduling: sched::scheduling(tid).outcome(),
        last_cpu,
        run_ns: schedstat.clone().map(|stat| stat.run_ns),
        wait_ns: schedstat.map(|stat| stat.wait_ns),
        file_wait: syscall.known().and_then(|call| call.socket_wait()).map(file_wait),
        epoll_wait: syscall.map(|call| call.epoll_wait().map(wait)),
    })
}

/// Adds the call in which it waits now, if it does.
pub(super) fn look_again(thread: &mut Thread, directory: &ProcDir) {
    if let Ok(syscall) = directory.syscall() {
        thread.file_wait = syscall.socket_wait().map(file_wait);
        thread.epoll_wait = Reading::Known(syscall.epoll_wait().map(wait));
    }
}

fn file_wait(call: SocketWaitCall) -> FileWait {
    match call {
        SocketWaitCall::Poll => FileWait::Poll,
        SocketWaitCall::Select => FileWait::Select,
        SocketWaitCall::Receive(fd) => FileWait::Receive { fd },
        SocketWaitCall::Accept(fd) => FileWait::Accept { fd },
    }
}

fn wait(call: EpollWaitCall) -> EpollWait {
    let timeout_ms = match call.timeout {
        EpollTimeout::Forever => Some(-1),
        EpollTimeout::Milliseconds(ms) => i32::try_from(ms).ok(),
        EpollTimeout::InMemory => None,
    };
    EpollWait { epoll_fd: call.epoll_fd, max_events: call.max_events, timeout_ms }
}

/// A thread whose `stat` file cannot be read, for example because /proc hides processes of other users.
fn unreadable(tid: Pid, stat: &Reading<PidStat>) -> Thread {
    fn same<T>(stat: &Reading<PidStat>) -> Reading<T> {
        match stat.why_unknown() {
            Some(unknown) => Reading::unknown(unknown.reason, unknown.message.clone()),
            None => Reading::unknown(UnknownReason::Failed, "read stat"),
        }
    }
    Thread {
        tid,
        name: String::new(),
        state: same(stat),
        affinity: sched::affinity(tid).outcome(),
        scheduling: sched::scheduling(tid).outcome(),
        last_cpu: same(stat),
        run_ns: same(stat),
        wait_ns: same(stat),
        epoll_wait: same(stat),
        file_wait: None,
    }
}
