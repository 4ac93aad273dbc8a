//! `/proc/PID/task/TID/syscall`: which system call a thread is in, with its arguments (`proc_pid_syscall` in
//! `fs/proc/base.c`). It tells which epoll a sleeping thread waits on. Only x86-64 and the architectures of the generic
//! table are known by number; elsewhere nothing is recognised.

use super::text::{Malformed, first_line};
use super::{ProcDir, ProcError};

/// What a thread was doing when the file was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CurrentSyscall {
    /// It runs, so the kernel does not look.
    Running,
    /// It sleeps outside of any system call.
    None,
    /// It sleeps in a system call.
    Blocked {
        /// The number of the call on this architecture.
        number: u64,
        /// What is in the registers of its arguments, whether it takes that many or not.
        arguments: [u64; 6],
    },
}

/// A call of `epoll_wait`, `epoll_pwait` or `epoll_pwait2` that a thread sleeps in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EpollWaitCall {
    /// The epoll, by its number in the process.
    pub epoll_fd: i32,
    /// The most events that it takes at once.
    pub max_events: i32,
    /// How long it waits at most.
    pub timeout: EpollTimeout,
}

/// How long a wait on an epoll lasts at most.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EpollTimeout {
    /// Until there are events.
    Forever,
    /// So many milliseconds.
    Milliseconds(u32),
    /// A `timespec` in the thread's memory, which is not looked into.
    InMemory,
}

impl CurrentSyscall {
    /// Parses the file.
    ///
    /// # Errors
    /// When it is neither `running` nor begins with a number and, for a system call, six arguments.
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

    /// The wait on an epoll that the thread sleeps in; absent when it does something else.
    #[must_use]
    pub fn epoll_wait(self) -> Option<EpollWaitCall> {
        let Self::Blocked { number, arguments: [epoll, _, max_events, timeout, ..] } = self else { return None };
        let number = libc::c_long::try_from(number).ok()?;
        if !WAITS_FOR_EPOLL.contains(&number) {
            return None;
        }
        let timeout = if number == libc::SYS_epoll_pwait2 { by_pointer(timeout) } else { by_value(timeout) };
        // An `int` in a register: what is above 32 bits is not part of it.
        Some(EpollWaitCall { epoll_fd: epoll as i32, max_events: max_events as i32, timeout })
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
    /// Reads which system call this thread is in.
    ///
    /// # Errors
    /// When the file cannot be read (it needs ptrace access) or parsed.
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
    fn a_thread_that_waits_on_an_epoll_is_told_by_its_number() {
        let wait = call(libc::SYS_epoll_pwait, "0x1f 0x7f5 0x20 0xffffffff 0x0 0x8").unwrap();
        assert_eq!(wait, EpollWaitCall { epoll_fd: 31, max_events: 32, timeout: EpollTimeout::Forever });
        let wait = call(libc::SYS_epoll_pwait, "0x1f 0x7f5 0x400 0x3e8 0x0 0x8").unwrap();
        assert_eq!((wait.max_events, wait.timeout), (1_024, EpollTimeout::Milliseconds(1_000)));
    }

    #[test]
    fn a_timeout_in_memory_is_not_taken_for_a_number() {
        let timeout =
            |register| call(libc::SYS_epoll_pwait2, &format!("0x4 0x7f5 0x20 {register} 0x0 0x8")).unwrap().timeout;
        assert_eq!(timeout("0x7ffd12345678"), EpollTimeout::InMemory);
        assert_eq!(timeout("0x0"), EpollTimeout::Forever);
    }

    #[test]
    fn other_calls_and_running_threads_wait_on_no_epoll() {
        for text in ["running\n", "-1 0x7ffd 0x7f57\n", "0 0x3 0x0 0x0 0x0 0x0 0x0 0x7ffd 0x7f57\n"] {
            assert_eq!(CurrentSyscall::parse(text.as_bytes()).unwrap().epoll_wait(), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_read_but_never_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = CurrentSyscall::parse(&bytes);
        }
    }
}
