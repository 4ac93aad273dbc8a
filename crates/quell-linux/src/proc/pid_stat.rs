//! `/proc/PID/stat`: name, parent, session, start time, last CPU and scheduling policy of a process
//! or thread. The name is the thread's own and may hold any bytes, parentheses and line ends too.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::stat::Ticks;
use super::text::{Line, Malformed};
use super::{ProcDir, ProcError};
use crate::Pid;

/// What a task is doing (`fs/proc/array.c`, `task_state_array`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ProcessState {
    /// `R`: on a CPU or waiting for one.
    Running,
    /// `S`: waiting, interruptible.
    Sleeping,
    /// `D`: waiting, not interruptible.
    DiskSleep,
    /// `T`, `t`: stopped by a signal or a tracer.
    Stopped,
    /// `Z`: ended, not yet waited for.
    Zombie,
    /// `X`: ended, about to vanish.
    Dead,
    /// `I`: an idle kernel thread.
    Idle,
    /// `P`: a parked kernel thread.
    Parked,
    /// Another letter.
    Other(u8),
}

impl ProcessState {
    fn from_letter(letter: u8) -> Self {
        match letter {
            b'R' => Self::Running,
            b'S' => Self::Sleeping,
            b'D' => Self::DiskSleep,
            b'T' | b't' => Self::Stopped,
            b'Z' => Self::Zombie,
            b'X' => Self::Dead,
            b'I' => Self::Idle,
            b'P' => Self::Parked,
            other => Self::Other(other),
        }
    }
}

/// The fields of `/proc/PID/stat` that Quell uses, by the names of `proc_pid_stat(5)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PidStat {
    /// Its id.
    pub pid: Pid,
    /// Its name, raw: at most 15 bytes, 63 for kernel threads.
    pub comm: Vec<u8>,
    /// What it is doing.
    pub state: ProcessState,
    /// Its parent; `None` for those that the kernel started.
    pub ppid: Option<Pid>,
    /// The leader of its session; `None` for kernel threads.
    pub session: Option<Pid>,
    /// User time.
    pub utime: Ticks,
    /// Kernel time.
    pub stime: Ticks,
    /// How many threads its process has.
    pub num_threads: u64,
    /// When it started, since boot.
    pub starttime: Ticks,
    /// The CPU that it ran on last.
    pub processor: Option<u32>,
    /// Its scheduling policy: the number of `SCHED_OTHER` and its like.
    pub policy: Option<u32>,
}

impl PidStat {
    /// The name as `Name:` of `/proc/PID/status` has it: a line end in it is a backslash and an `n`, a backslash is two
    /// (`proc_task_name` in `fs/proc/array.c`). So it is on one line wherever it is printed.
    #[must_use]
    pub fn name(&self) -> String {
        String::from_utf8_lossy(&self.comm).replace('\\', r"\\").replace('\n', r"\n")
    }

    /// Whether the whole process has ended and only waits to be reaped. A main thread that ended
    /// before the others is a zombie too, but its process runs on.
    #[must_use]
    pub fn process_has_ended(&self) -> bool {
        self.thread_has_ended() && self.num_threads <= 1
    }

    /// Whether the main thread has ended and others run on. The kernel shows the files of a process through its main
    /// thread, which has none any more: `/proc/PID/fd` is empty, and nothing can be duplicated (`fs/proc/fd.c`,
    /// `kernel/pid.c`).
    #[must_use]
    pub fn runs_without_main_thread(&self) -> bool {
        self.thread_has_ended() && self.num_threads > 1
    }

    /// Whether the thread, of a process its main thread, has ended.
    #[must_use]
    pub fn thread_has_ended(&self) -> bool {
        matches!(self.state, ProcessState::Zombie | ProcessState::Dead)
    }

    /// Parses the file.
    ///
    /// # Errors
    /// When the name is not in parentheses, or a field up to the start time is missing or odd.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        // The name may hold line ends: the whole file is one record.
        let record = Line { number: 1, bytes };
        let open = bytes.iter().position(|&byte| byte == b'(');
        let close = bytes.iter().rposition(|&byte| byte == b')');
        let (Some(open), Some(close)) = (open, close) else {
            return Err(record.malformed("a name in parentheses", bytes));
        };
        let Some(comm) = bytes.get(open + 1..close) else {
            return Err(record.malformed("a name in parentheses", bytes));
        };
        let pid: i32 = record.number(bytes[..open].trim_ascii(), "a process id")?;
        let pid = Pid::new(pid).ok_or_else(|| record.malformed("a positive process id", &bytes[..open]))?;
        let after = Line { number: 1, bytes: &bytes[close + 1..] };
        Self::parse_after_name(pid, comm, after)
    }

    fn parse_after_name(pid: Pid, comm: &[u8], line: Line<'_>) -> Result<Self, Malformed> {
        let fields: Vec<&[u8]> = line.fields().collect();
        // Counted as in the manual page, where the state is field 3.
        let field = |number: usize| fields.get(number - 3).copied();
        let required = |number, expected| {
            let found = field(number).unwrap_or_default();
            line.number::<u64>(found, expected)
        };
        let &[letter] = field(3).unwrap_or_default() else {
            let found = field(3).unwrap_or_default();
            return Err(line.malformed("a state of one letter", found));
        };
        let task = |number, expected| {
            let found = field(number).unwrap_or_default();
            line.number::<i32>(found, expected).map(Pid::new)
        };
        let optional = |number, expected| {
            let found: Option<&[u8]> = field(number);
            found.map(|found| line.number::<u32>(found, expected)).transpose()
        };
        Ok(Self {
            pid,
            comm: comm.to_vec(),
            state: ProcessState::from_letter(letter),
            ppid: task(4, "the parent's id")?,
            session: task(6, "a session id")?,
            utime: Ticks(required(14, "user time in ticks")?),
            stime: Ticks(required(15, "kernel time in ticks")?),
            num_threads: required(20, "a thread count")?,
            starttime: Ticks(required(22, "a start time in ticks")?),
            processor: optional(39, "a CPU number")?,
            policy: optional(41, "a scheduling policy")?,
        })
    }
}

impl ProcDir {
    /// Reads `stat` of this process or thread.
    ///
    /// # Errors
    /// When it cannot be read or parsed.
    pub fn stat(&self) -> Result<PidStat, ProcError> {
        self.read("stat", PidStat::parse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TAIL: &str = " S 1 42 42 0 -1 4194304 98 0 0 0 3 4 0 0 20 0 1 0 79997 3133440 414 \
        18446744073709551615 1 1 1 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 1 1 1 1 1 1 1 0\n";

    fn parse(name: &str) -> PidStat {
        PidStat::parse(format!("42 ({name}){TAIL}").as_bytes()).unwrap()
    }

    #[test]
    fn fields_are_counted_after_the_name() {
        let stat = parse("cat");
        assert_eq!(stat.session, Pid::new(42));
        assert_eq!((stat.utime, stat.starttime), (Ticks(3), Ticks(79_997)));
        assert_eq!((stat.processor, stat.policy), (Some(1), Some(0)));
    }

    #[test]
    fn a_name_may_hold_parentheses_spaces_and_line_ends() {
        for name in ["a) R 1 (b", "x y\nz", "((", "))", ""] {
            assert_eq!(parse(name).comm, name.as_bytes());
        }
    }

    #[test]
    fn a_name_that_closes_before_it_opens_is_an_error() {
        assert!(PidStat::parse(b"42 )(").is_err());
        assert!(PidStat::parse(b"").is_err());
    }
}
