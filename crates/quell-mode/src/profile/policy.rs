//! Rules that select CPUs for interrupts and threads, so that one profile fits machines of different sizes.

use super::queue_set::parse_numbers;

/// Rule that assigns CPUs to queues.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum CpuPolicy {
    /// These CPUs in turn; after the last one it starts again.
    These(Vec<u32>),
    /// CPUs of the device's NUMA node in turn; all CPUs if the node is unknown.
    NumaLocal,
    /// First hardware thread of each core in turn, starting with the device's NUMA node.
    OnePerCore,
    /// All CPUs of the kernel's default affinity (`/proc/irq/default_smp_affinity`).
    Default,
}

impl CpuPolicy {
    /// Description of valid values.
    pub(super) const EXPECTED: &str = "\"numa-local\", \"one-per-core\", \"default\", or CPUs such as \"2-5,8\"";

    pub(super) fn parse(text: &str) -> Option<Self> {
        match text {
            "numa-local" => Some(Self::NumaLocal),
            "one-per-core" => Some(Self::OnePerCore),
            "default" => Some(Self::Default),
            list => parse_numbers(list).map(Self::These),
        }
    }
}

/// Rule that selects the transmit queue of a sender (XPS).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum XpsPolicy {
    /// XPS is off.
    Off,
    /// The queue whose interrupt goes to the sender's CPU. Also clears `xps_rxqs`, which the kernel prefers to
    /// `xps_cpus`.
    IrqCpu,
    /// The queue with the same number as the socket's receive queue.
    RxQueue,
}

impl XpsPolicy {
    pub(super) const EXPECTED: &str = "\"off\", \"irq-cpu\" or \"rx-queue\"";

    pub(super) fn parse(text: &str) -> Option<Self> {
        match text {
            "off" => Some(Self::Off),
            "irq-cpu" => Some(Self::IrqCpu),
            "rx-queue" => Some(Self::RxQueue),
            _ => None,
        }
    }
}

/// Scheduling policy of a NAPI thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ThreadScheduling {
    /// `SCHED_OTHER` with a nice value from -20 to 19.
    Other {
        /// Nice value, from -20 to 19.
        nice: i32,
    },
    /// `SCHED_FIFO` with a priority from 1 to 99.
    Fifo {
        /// Real-time priority, from 1 to 99.
        priority: u32,
    },
}

impl ThreadScheduling {
    pub(super) const EXPECTED: &str =
        "\"other\", \"other:NICE\" with NICE from -20 to 19, or \"fifo:PRIORITY\" from 1 to 99";

    pub(super) fn parse(text: &str) -> Option<Self> {
        let (class, value) = text.split_once(':').unwrap_or((text, ""));
        match class {
            "other" if value.is_empty() => Some(Self::Other { nice: 0 }),
            "other" => value.parse().ok().filter(|nice| (-20..=19).contains(nice)).map(|nice| Self::Other { nice }),
            "fifo" => {
                let priority = value.parse().ok().filter(|priority| (1..=99).contains(priority));
                priority.map(|priority| Self::Fifo { priority })
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_words_or_lists() {
        assert_eq!(CpuPolicy::parse("one-per-core"), Some(CpuPolicy::OnePerCore));
        assert_eq!(CpuPolicy::parse("3,0-1"), Some(CpuPolicy::These(vec![3, 0, 1])));
        assert_eq!(CpuPolicy::parse("everywhere"), None);
    }

    #[test]
    fn a_priority_is_within_its_class() {
        assert_eq!(ThreadScheduling::parse("fifo:50"), Some(ThreadScheduling::Fifo { priority: 50 }));
        assert_eq!(ThreadScheduling::parse("other:-5"), Some(ThreadScheduling::Other { nice: -5 }));
        for text in ["fifo", "fifo:0", "fifo:100", "other:20", "deadline", ""] {
            assert_eq!(ThreadScheduling::parse(text), None, "{text:?}");
        }
    }
}
