//! `/proc/PID/task/TID/syscall`: the system call in which a thread sleeps, with its arguments (`proc_pid_syscall` in
//! `fs/proc/base.c`). It identifies the epoll on which a thread waits. Quell knows the call numbers of x86-64 and of
//! the generic table. On other architectures it recognizes no call.

use super::text::{Malformed, first_line};
use super::{ProcDir, ProcError};

/// What a thread was doing when the file was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CurrentSyscall {
    /// The thread was running; the kernel does not report its call.
    Running,
    /// The thread slept outside a system call.
    None,
    /// The thread slept in a system call.
    Blocked {
        number: u64,
        /// Argument registers, including those that the call does not use.
        arguments: [u64; 6],
    },
}

/// A call of `epoll_wait`, `epoll_pwait` or `epoll_pwait2` in which a thread sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpollWaitCall {
    /// File descriptor of the epoll in the thread's process.
    pub epoll_fd: i32,
    pub max_events: i32,
    pub timeout: EpollTimeout,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpollTimeout {
    /// The call waits without a time limit.
    Forever,
    Milliseconds(u32),
    /// The timeout is a `timespec` in the thread's memory, which Quell does not read.
    InMemory,
}

/// A call other than `epoll_wait` in which a thread waits for a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketWaitCall {
    /// `poll` or `ppoll`. The files are in the thread's memory, which Quell does not read.
    Poll,
    /// `select` or `pselect6`.
    Select,
    /// `read`, `recvfrom` or a similar call on this file descriptor, which may be another file than a socket.
    Receive(i32),
    /// `accept` or `accept4` on this file descriptor.
    Accept(i32),
}

impl CurrentSyscall {
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        const EXPECTED: &str = "`running`, or the number of a system call and its arguments";
        let line = first_line(bytes);
        let malformed = || line.malformed(EXPECTED, line.bytes);
        let text = std::str::from_utf8(line.bytes).map_err(|_| malformed())?.trim_end();
        if text == "running" {
            return Ok(Self::Running);
        }
        let mut fields = text.split(' ');
        let number: i64 = fields.next().and_then(|field| field.parse().ok()).ok_or_else(malformed)?;
        let Ok(number) = u64::try_from(number) else { return Ok(Self::None) };
        let mut arguments = [0; 6];
        for argument in &mut arguments {
            let digits = fields.next().and_then(|field| field.strip_prefix("0x"));
            *argument = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok()).ok_or_else(malformed)?;
        }
        Ok(Self::Blocked { number, arguments })
    }

    /// The epoll wait in which the thread sleeps; `None` if it does not wait on an epoll.
    #[must_use]
    pub fn epoll_wait(self) -> Option<EpollWaitCall> {
        let Self::Blocked { number, arguments: [epoll, _, max_events, timeout, ..] } = self else { return None };
        let number = libc::c_long::try_from(number).ok()?;
        if !WAITS_FOR_EPOLL.contains(&number) {
            return None;
        }
        let timeout = if number == libc::SYS_epoll_pwait2 { by_pointer(timeout) } else { by_value(timeout) };
        // An `int` argument uses the lower 32 bits of its register. The upper bits are undefined.
        Some(EpollWaitCall { epoll_fd: epoll as i32, max_events: max_events as i32, timeout })
    }

    /// The call in which the thread waits for a socket without an epoll; `None` if it does something else.
    #[must_use]
    pub fn socket_wait(self) -> Option<SocketWaitCall> {
        let Self::Blocked { number, arguments: [first, ..] } = self else { return None };
        let number = libc::c_long::try_from(number).ok()?;
        match number {
            libc::SYS_ppoll => Some(SocketWaitCall::Poll),
            libc::SYS_pselect6 => Some(SocketWaitCall::Select),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_poll => Some(SocketWaitCall::Poll),
            #[cfg(target_arch = "x86_64")]
            libc::SYS_select => Some(SocketWaitCall::Select),
            libc::SYS_recvfrom | libc::SYS_recvmsg | libc::SYS_recvmmsg | libc::SYS_read | libc::SYS_readv => {
                Some(SocketWaitCall::Receive(first as i32))
            }
            libc::SYS_accept | libc::SYS_accept4 => Some(SocketWaitCall::Accept(first as i32)),
            _ => None,
        }
    }
}

fn by_value(register: u64) -> EpollTimeout {
    u32::try_from(register as i32).map_or(EpollTimeout::Forever, EpollTimeout::Milliseconds)
}

fn by_pointer(register: u64) -> EpollTimeout {
    if register == 0 { EpollTimeout::Forever } else { EpollTimeout::InMemory }
}

#[cfg(target_arch = "x86_64")]
const WAITS_FOR_EPOLL: &[libc::c_long] = &[libc::SYS_epoll_wait, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2];
#[cfg(not(target_arch = "x86_64"))]
const WAITS_FOR_EPOLL: &[libc::c_long] = &[libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2];

impl ProcDir {
    /// Reads the system call of this thread. Needs ptrace access.
    pub fn syscall(&self) -> Result<CurrentSyscall, ProcError> {
        self.read("syscall", CurrentSyscall::parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn call(number: libc::c_long, arguments: &str) -> Option<EpollWaitCall> {
        let line = format!("{number} {arguments} 0x7ffd 0x7f57\n");
        CurrentSyscall::parse(line.as_bytes()).unwrap().epoll_wait()
    }

    #[test]
    fn a_thread_that_waits_on_an_epoll_is_recognized_by_the_call_number() {
        let wait = call(libc::SYS_epoll_pwait, "0x1f 0x7f5 0x20 0xffffffff 0x0 0x8").unwrap();
        assert_eq!(wait, EpollWaitCall { epoll_fd: 31, max_events: 32, timeout: EpollTimeout::Forever });
        let wait = call(libc::SYS_epoll_pwait, "0x1f 0x7f5 0x400 0x3e8 0x0 0x8").unwrap();
        assert_eq!((wait.max_events, wait.timeout), (1_024, EpollTimeout::Milliseconds(1_000)));
    }

    #[test]
    fn a_timeout_in_memory_is_not_a_number() {
        let timeout =
            |register| call(libc::SYS_epoll_pwait2, &format!("0x4 0x7f5 0x20 {register} 0x0 0x8")).unwrap().timeout;
        assert_eq!(timeout("0x7ffd12345678"), EpollTimeout::InMemory);
        assert_eq!(timeout("0x0"), EpollTimeout::Forever);
    }

    #[test]
    fn other_calls_and_running_threads_do_not_wait_on_an_epoll() {
        for text in ["running\n", "-1 0x7ffd 0x7f57\n", "0 0x3 0x0 0x0 0x0 0x0 0x0 0x7ffd 0x7f57\n"] {
            assert_eq!(CurrentSyscall::parse(text.as_bytes()).unwrap().epoll_wait(), None, "{text}");
        }
    }

    #[test]
    fn waits_for_sockets_without_an_epoll_are_told_apart() {
        let wait = |number: libc::c_long| {
            let line = format!("{number} 0x5 0x7f5 0x20 0x0 0x0 0x8 0x7ffd 0x7f57\n");
            CurrentSyscall::parse(line.as_bytes()).unwrap().socket_wait()
        };
        assert_eq!(wait(libc::SYS_ppoll), Some(SocketWaitCall::Poll));
        assert_eq!(wait(libc::SYS_pselect6), Some(SocketWaitCall::Select));
        assert_eq!(wait(libc::SYS_recvfrom), Some(SocketWaitCall::Receive(5)));
        assert_eq!(wait(libc::SYS_accept4), Some(SocketWaitCall::Accept(5)));
        for number in [libc::SYS_epoll_pwait, libc::SYS_futex, libc::SYS_nanosleep] {
            assert_eq!(wait(number), None);
        }
        assert_eq!(CurrentSyscall::Running.socket_wait(), None);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = CurrentSyscall::parse(&bytes);
        }
    }
}
