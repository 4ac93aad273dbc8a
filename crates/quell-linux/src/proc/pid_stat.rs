//! `/proc/PID/stat`: name, parent, session, start time, last CPU and scheduling policy of a process or thread. The name
//! belongs to the thread and may contain any bytes, including parentheses and line breaks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::stat::Ticks;
use super::text::{Line, Malformed};
use super::{ProcDir, ProcError};
use crate::Pid;

/// State of a task (`task_state_array` in `fs/proc/array.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum ProcessState {
    /// `R`: running or runnable.
    Running,
    /// `S`: interruptible wait.
    Sleeping,
    /// `D`: uninterruptible wait.
    DiskSleep,
    /// `T`, `t`: stopped by a signal or a tracer.
    Stopped,
    /// `Z`: exited, not yet reaped.
    Zombie,
    /// `X`: dead, about to disappear.
    Dead,
    /// `I`: idle kernel thread.
    Idle,
    /// `P`: parked kernel thread.
    Parked,
    /// A state letter that Quell does not know.
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

/// Fields of `/proc/PID/stat` that Quell uses, named as in `proc_pid_stat(5)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PidStat {
    pub pid: Pid,
    /// Name as raw bytes: at most 15 bytes, or 63 for kernel threads.
    pub comm: Vec<u8>,
    pub state: ProcessState,
    /// PID of the parent; `None` for a process that the kernel started.
    pub ppid: Option<Pid>,
    /// PID of the session leader; `None` for kernel threads.
    pub session: Option<Pid>,
    pub utime: Ticks,
    pub stime: Ticks,
    /// User and kernel time of children that have ended and were waited for, with theirs.
    pub children_time: Ticks,
    pub num_threads: u64,
    /// Start time since boot.
    pub starttime: Ticks,
    /// CPU on which the task last ran; `None` if the kernel does not report it.
    pub processor: Option<u32>,
    pub policy: Option<u32>,
}

impl PidStat {
    /// Name in the format of the field `Name:` in `/proc/PID/status`. A line break becomes a backslash and `n`, and a
    /// backslash is doubled (`proc_task_name` in `fs/proc/array.c`). The result fits on one line.
    #[must_use]
    pub fn name(&self) -> String {
        String::from_utf8_lossy(&self.comm).replace('\\', r"\\").replace('\n', r"\n")
    }

    /// Whether the whole process has exited and waits to be reaped. A main thread that exits first is also a zombie,
    /// but its process continues.
    #[must_use]
    pub fn process_has_ended(&self) -> bool {
        self.thread_has_ended() && self.num_threads <= 1
    }

    /// Whether the main thread has exited while other threads run. The kernel shows a process's files through its main
    /// thread. After the exit, `/proc/PID/fd` is empty, and no descriptor can be duplicated (`fs/proc/fd.c`,
    /// `kernel/pid.c`).
    #[must_use]
    pub fn runs_without_main_thread(&self) -> bool {
        self.thread_has_ended() && self.num_threads > 1
    }

    /// Whether the thread has exited. For a process, this is its main thread.
    #[must_use]
    pub fn thread_has_ended(&self) -> bool {
        matches!(self.state, ProcessState::Zombie | ProcessState::Dead)
    }

    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        // Treat the whole file as one record, because the name may contain line breaks.
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
        // Use the field numbers of `proc_pid_stat(5)`, in which the state is field 3.
        let field = |number: usize| fields.get(number - 3).copied();
        let required = |number, expected| {
            let found = field(number).unwrap_or_default();
            line.number::<u64>(found, expected)
        };
        let &[letter] = field(3).unwrap_or_default() else {
            let found = field(3).unwrap_or_default();
            return Err(line.malformed("a one-letter state", found));
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
            children_time: Ticks(
                required(16, "user time of children in ticks")?
                    .saturating_add(required(17, "kernel time of children in ticks")?),
            ),
            num_threads: required(20, "a thread count")?,
            starttime: Ticks(required(22, "a start time in ticks")?),
            processor: optional(39, "a CPU number")?,
            policy: optional(41, "a scheduling policy")?,
        })
    }
}

impl ProcDir {
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
    fn the_times_of_children_are_added_without_overflow() {
        let of = |times: &str| {
            let tail = TAIL.replace(" 3 4 0 0 20 ", &format!(" 3 4 {times} 20 "));
            PidStat::parse(format!("42 (cat){tail}").as_bytes()).unwrap().children_time
        };
        assert_eq!(of("5 6"), Ticks(11));
        assert_eq!(of("18446744073709551615 1"), Ticks(u64::MAX));
    }

    #[test]
    fn a_name_may_contain_parentheses_spaces_and_line_breaks() {
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
