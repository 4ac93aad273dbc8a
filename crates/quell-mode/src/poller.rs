//! Threads of Quell that busy poll queues from outside the program (`userbusy`): their CPUs and scheduling class.

use std::fmt;
use std::time::Duration;

/// Scheduling class of a polling thread, with its priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub enum PollerClass {
    /// `SCHED_OTHER`, the default.
    #[default]
    Other,
    /// `SCHED_BATCH`.
    Batch,
    /// `SCHED_IDLE`: polls only while no other thread wants the CPU.
    Idle,
    /// `SCHED_FIFO` with a priority from 1 to 99. No other thread of a lower class gets the CPU, except for the share
    /// that `kernel.sched_rt_runtime_us` leaves.
    Fifo(u8),
    /// `SCHED_RR` with a priority from 1 to 99.
    RoundRobin(u8),
}

const PRIORITY_MAX: u8 = 99;
const CALLS_PER_TIMEOUT: u32 = 4;
const CALL_MIN: Duration = Duration::from_micros(10);
const CALL_MAX: Duration = Duration::from_micros(250);

impl PollerClass {
    pub(crate) const EXPECTED: &'static str = "other, batch, idle, fifo:N or rr:N with a priority N from 1 to 99";

    pub(crate) fn parse(text: &str) -> Option<Self> {
        let priority = |digits: &str| {
            let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
            digits.parse().ok().filter(|priority| is_number && (1..=PRIORITY_MAX).contains(priority))
        };
        match text {
            "other" => Some(Self::Other),
            "batch" => Some(Self::Batch),
            "idle" => Some(Self::Idle),
            _ => match text.split_once(':')? {
                ("fifo", digits) => priority(digits).map(Self::Fifo),
                ("rr", digits) => priority(digits).map(Self::RoundRobin),
                _ => None,
            },
        }
    }
}

impl fmt::Display for PollerClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Other => f.write_str("other"),
            Self::Batch => f.write_str("batch"),
            Self::Idle => f.write_str("idle"),
            Self::Fifo(priority) => write!(f, "fifo:{priority}"),
            Self::RoundRobin(priority) => write!(f, "rr:{priority}"),
        }
    }
}

/// How the polling threads of a mode run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct PollerSettings {
    /// CPU of the thread of the first queue. The thread of each further queue runs on the next CPU. `None`: the scheduler
    /// chooses.
    pub cpu: Option<u32>,
    /// Scheduling class of all threads.
    pub class: PollerClass,
}

impl PollerSettings {
    /// Time of one call that polls. It is shorter than `gro-flush-timeout`, so that the queue's timer never polls
    /// beside the thread.
    #[must_use]
    pub fn call_time(gro_flush_timeout: Duration) -> Duration {
        (gro_flush_timeout / CALLS_PER_TIMEOUT).clamp(CALL_MIN, CALL_MAX)
    }

    pub(crate) fn cpu_text(self) -> String {
        self.cpu.map_or_else(|| "any".to_owned(), |cpu| cpu.to_string())
    }
}
