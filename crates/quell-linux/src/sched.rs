//! CPU affinity and scheduling policy of threads, including threads of other processes and kernel threads
//! (`napi/veth-1`). It reads everything that is needed to restore them exactly.

use std::io;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{CPU_LIMIT, CpuList, Pid};

/// A scheduling policy with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Policy {
    /// `SCHED_OTHER`, the default.
    Other {
        /// Nice value from -20 (highest CPU share) to 19.
        nice: i32,
    },
    /// `SCHED_BATCH`.
    Batch {
        /// Nice value from -20 (highest CPU share) to 19.
        nice: i32,
    },
    /// `SCHED_IDLE`.
    Idle {
        /// Nice value from -20 to 19. It takes effect again under another policy.
        nice: i32,
    },
    /// `SCHED_FIFO`: runs until the thread waits, or a thread of higher priority preempts it.
    Fifo {
        /// Priority from 1 to 99 (highest).
        priority: u32,
    },
    /// `SCHED_RR`: like `SCHED_FIFO`, with time slices among threads of the same priority.
    RoundRobin {
        /// Priority from 1 to 99 (highest).
        priority: u32,
    },
    /// `SCHED_DEADLINE`, which Quell can read but not set.
    Deadline {
        /// CPU time per period, in ns.
        runtime_ns: u64,
        /// Deadline within the period, in ns.
        deadline_ns: u64,
        period_ns: u64,
    },
    /// Another policy, for example `SCHED_EXT` (7). Quell can read it but not set it.
    Unknown {
        /// Number of the policy in the kernel.
        number: u32,
    },
}

/// Scheduling parameters of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Scheduling {
    /// Scheduling policy of the thread.
    pub policy: Policy,
    /// Whether child threads and processes start with the default policy (`SCHED_RESET_ON_FORK`).
    pub reset_on_fork: bool,
}

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SchedError {
    #[error("{action} thread {tid}: it does not exist")]
    Gone { action: &'static str, tid: Pid },
    #[error("{action} thread {tid}: {source}; needs its user, or CAP_SYS_NICE")]
    Denied { action: &'static str, tid: Pid, source: io::Error },
    #[error("thread {tid} cannot be pinned to an empty list of CPUs")]
    NoCpu { tid: Pid },
    #[error("thread {tid}: setting {policy:?} is not supported")]
    ReadOnly { tid: Pid, policy: Policy },
    /// The kernel returned another error. `EINVAL`: the CPUs are offline or outside the thread's cpuset, a value is out
    /// of range, or the affinity of a kernel thread is fixed.
    #[error("{action} thread {tid}{detail}: {source}")]
    Refused { action: &'static str, tid: Pid, detail: String, source: io::Error },
}

impl SchedError {
    fn new(action: &'static str, tid: Pid, detail: String, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ESRCH) => Self::Gone { action, tid },
            Some(libc::EPERM | libc::EACCES) => Self::Denied { action, tid, source },
            _ => Self::Refused { action, tid, detail, source },
        }
    }
}

/// A CPU mask in the kernel's format, in which bit *n* is CPU *n*. It is created before a `fork` and can be applied
/// after it.
#[derive(Clone, Debug)]
pub(crate) struct CpuMask(Vec<libc::c_ulong>);

const WORD_BITS: u32 = libc::c_ulong::BITS;

impl CpuMask {
    pub(crate) fn new(cpus: &CpuList) -> Self {
        let words = cpus.iter().last().map_or(0, |last| last / WORD_BITS + 1);
        let mut mask = vec![0; words as usize];
        for cpu in cpus.iter() {
            mask[(cpu / WORD_BITS) as usize] |= 1 << (cpu % WORD_BITS);
        }
        Self(mask)
    }

    /// Sets the affinity of a thread; 0 is the calling thread. One system call: async-signal-safe.
    pub(crate) fn apply(&self, tid: libc::pid_t) -> io::Result<()> {
        let bytes = size_of_val(self.0.as_slice());
        // SAFETY: the kernel reads `bytes` bytes from the pointer, which is the size of the vector.
        let result = unsafe { libc::syscall(libc::SYS_sched_setaffinity, tid, bytes, self.0.as_ptr()) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn to_list(&self) -> CpuList {
        let bits = (0..WORD_BITS * self.0.len() as u32)
            .filter(|cpu| self.0[(cpu / WORD_BITS) as usize] >> (cpu % WORD_BITS) & 1 == 1);
        bits.collect()
    }
}

pub fn affinity(tid: Pid) -> Result<CpuList, SchedError> {
    let mut mask = CpuMask(vec![0; (CPU_LIMIT / WORD_BITS) as usize]);
    let bytes = size_of_val(mask.0.as_slice());
    // SAFETY: the kernel writes at most `bytes` bytes to the pointer, which is the size of the vector.
    let result = unsafe { libc::syscall(libc::SYS_sched_getaffinity, tid.get(), bytes, mask.0.as_mut_ptr()) };
    if result < 0 {
        let source = io::Error::last_os_error();
        return Err(SchedError::new("reading the affinity of", tid, String::new(), source));
    }
    Ok(mask.to_list())
}

/// Sets the CPU affinity of a thread. The kernel drops CPUs that are offline or outside the thread's cpuset, and fails
/// if no CPU remains. Compare the result with [`affinity`] afterwards.
pub fn set_affinity(tid: Pid, cpus: &CpuList) -> Result<(), SchedError> {
    if cpus.is_empty() {
        return Err(SchedError::NoCpu { tid });
    }
    CpuMask::new(cpus)
        .apply(tid.get())
        .map_err(|source| SchedError::new("binding", tid, format!(" to CPUs {cpus}"), source))
}

pub fn scheduling(tid: Pid) -> Result<Scheduling, SchedError> {
    let mut raw = empty_attr();
    // SAFETY: the kernel writes at most `size` bytes to the structure, which has that size.
    let result = unsafe { libc::syscall(libc::SYS_sched_getattr, tid.get(), &raw mut raw, raw.size, 0) };
    if result < 0 {
        let source = io::Error::last_os_error();
        return Err(SchedError::new("reading the scheduling class of", tid, String::new(), source));
    }
    let (nice, priority) = (raw.sched_nice, raw.sched_priority);
    let policy = match raw.sched_policy as i32 {
        libc::SCHED_OTHER => Policy::Other { nice },
        libc::SCHED_BATCH => Policy::Batch { nice },
        libc::SCHED_IDLE => Policy::Idle { nice },
        libc::SCHED_FIFO => Policy::Fifo { priority },
        libc::SCHED_RR => Policy::RoundRobin { priority },
        libc::SCHED_DEADLINE => Policy::Deadline {
            runtime_ns: raw.sched_runtime,
            deadline_ns: raw.sched_deadline,
            period_ns: raw.sched_period,
        },
        _ => Policy::Unknown { number: raw.sched_policy },
    };
    let reset_on_fork = raw.sched_flags & RESET_ON_FORK != 0;
    Ok(Scheduling { policy, reset_on_fork })
}

/// Sets the scheduling parameters of a thread. A custom time slice (`sched_runtime` under a non-real-time policy, Linux
/// 6.12) is reset to the default. Fails if the thread does not exist, the caller lacks CAP_SYS_NICE for the policy or
/// priority, or a value is out of range.
pub fn set_scheduling(tid: Pid, scheduling: Scheduling) -> Result<(), SchedError> {
    let mut raw = empty_attr();
    let (policy, nice, priority) = match scheduling.policy {
        Policy::Other { nice } => (libc::SCHED_OTHER, nice, 0),
        Policy::Batch { nice } => (libc::SCHED_BATCH, nice, 0),
        Policy::Idle { nice } => (libc::SCHED_IDLE, nice, 0),
        Policy::Fifo { priority } => (libc::SCHED_FIFO, 0, priority),
        Policy::RoundRobin { priority } => (libc::SCHED_RR, 0, priority),
        policy @ (Policy::Deadline { .. } | Policy::Unknown { .. }) => {
            return Err(SchedError::ReadOnly { tid, policy });
        }
    };
    raw.sched_policy = policy as u32;
    raw.sched_nice = nice;
    raw.sched_priority = priority;
    raw.sched_flags = if scheduling.reset_on_fork { RESET_ON_FORK } else { 0 };
    // SAFETY: the kernel reads the structure, whose size is a field of the structure.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, tid.get(), &raw const raw, 0) };
    if result < 0 {
        let source = io::Error::last_os_error();
        let detail = format!(" to {:?}", scheduling.policy);
        return Err(SchedError::new("setting the scheduling class of", tid, detail, source));
    }
    Ok(())
}

const RESET_ON_FORK: u64 = libc::SCHED_FLAG_RESET_ON_FORK as u64;

/// Creates a `struct sched_attr` of size `SCHED_ATTR_SIZE_VER0`, which has all fields that Quell needs.
fn empty_attr() -> libc::sched_attr {
    libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use quell_test_support::{Lacks, skip};

    use super::*;

    fn in_a_thread<T: Send + 'static>(test: impl FnOnce(Pid) -> T + Send + 'static) -> T {
        std::thread::spawn(|| test(Pid::of_this_thread())).join().unwrap()
    }

    #[test]
    fn affinity_reads_back_as_set() {
        in_a_thread(|tid| {
            let before = affinity(tid).unwrap();
            let one: CpuList = before.iter().take(1).collect();
            set_affinity(tid, &one).unwrap();
            assert_eq!(affinity(tid).unwrap(), one);
        });
    }

    #[test]
    fn an_empty_cpu_list_is_refused_without_a_system_call() {
        let tid = Pid::of_this_thread();
        let error = set_affinity(tid, &CpuList::default()).unwrap_err();
        assert!(matches!(error, SchedError::NoCpu { .. }));
    }

    #[test]
    fn a_missing_cpu_is_refused_with_its_number() {
        let error = set_affinity(Pid::of_this_thread(), &"60000".parse().unwrap()).unwrap_err();
        assert!(error.to_string().contains("to CPUs 60000: "), "{error}");
    }

    #[test]
    fn a_scheduling_policy_is_restored_exactly() {
        in_a_thread(|tid| {
            let before = scheduling(tid).unwrap();
            let batch = Scheduling { policy: Policy::Batch { nice: 19 }, reset_on_fork: true };
            set_scheduling(tid, batch).unwrap();
            assert_eq!(scheduling(tid).unwrap(), batch);
            let restored = set_scheduling(tid, before);
            if let Err(SchedError::Denied { .. }) = restored {
                skip(Lacks::Root, "raising the priority again needs CAP_SYS_NICE");
                return;
            }
            assert_eq!(scheduling(tid).unwrap(), before);
        });
    }

    #[test]
    fn a_real_time_priority_reads_back_as_set() {
        in_a_thread(|tid| {
            let fifo = Scheduling { policy: Policy::Fifo { priority: 7 }, reset_on_fork: false };
            match set_scheduling(tid, fifo) {
                Err(SchedError::Denied { .. }) => skip(Lacks::Root, "needs CAP_SYS_NICE"),
                result => {
                    result.unwrap();
                    assert_eq!(scheduling(tid).unwrap(), fifo);
                }
            }
        });
    }

    #[test]
    fn a_priority_out_of_range_is_an_error() {
        let policy = Policy::Fifo { priority: 100 };
        let result = in_a_thread(move |tid| set_scheduling(tid, Scheduling { policy, reset_on_fork: false }));
        assert!(result.is_err());
    }

    proptest! {
        #[test]
        fn a_mask_contains_the_cpus_it_was_created_from(
            cpus in prop::collection::btree_set(0..CPU_LIMIT, 0..20),
        ) {
            let list: CpuList = cpus.into_iter().collect();
            prop_assert_eq!(CpuMask::new(&list).to_list(), list);
        }
    }
}
