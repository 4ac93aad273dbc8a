//! `/proc/PID/task/TID/syscall`: which system call a thread is in, with its first arguments (`proc_pid_syscall` in
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
        /// Its first argument.
        first_argument: u64,
    },
}

impl CurrentSyscall {
    /// Parses the file.
    ///
    /// # Errors
    /// When it is neither `running` nor begins with a number and, for a system call, an argument.
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
        let argument = fields.next().and_then(|field| field.strip_prefix("0x"));
        let first_argument = argument.and_then(|digits| u64::from_str_radix(digits, 16).ok()).ok_or_else(malformed)?;
        Ok(Self::Blocked { number, first_argument })
    }

    /// The file descriptor of the epoll that the thread sleeps on; absent when it does something else.
    #[must_use]
    pub fn epoll_waited_on(self) -> Option<i32> {
        let Self::Blocked { number, first_argument } = self else { return None };
        let number = libc::c_long::try_from(number).ok()?;
        if !WAITS_FOR_EPOLL.contains(&number) {
            return None;
        }
        i32::try_from(first_argument).ok()
    }
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

    #[test]
    fn a_thread_that_waits_on_an_epoll_is_told_by_its_number() {
        let line = format!("{} 0x1f 0x7f5 0x20 0xffffffff 0x0 0x8 0x7ffd 0x7f57\n", WAITS_FOR_EPOLL[0]);
        let call = CurrentSyscall::parse(line.as_bytes()).unwrap();
        assert_eq!(call.epoll_waited_on(), Some(31));
    }

    #[test]
    fn other_calls_and_running_threads_wait_on_no_epoll() {
        for text in ["running\n", "-1 0x7ffd 0x7f57\n", "0 0x3 0x0 0x0 0x0 0x0 0x0 0x7ffd 0x7f57\n"] {
            assert_eq!(CurrentSyscall::parse(text.as_bytes()).unwrap().epoll_waited_on(), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_refused_or_read_but_never_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = CurrentSyscall::parse(&bytes);
        }
    }
}
