//! CPU affinity and scheduling class of threads, of other processes and of the kernel's too
//! (`napi/veth-1`). Reads what is needed to put it back exactly; which CPU or class is right is
//! decided above.

use std::io;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::{CPU_LIMIT, CpuList, Pid};

/// A scheduling class with the values that belong to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub enum Policy {
    /// `SCHED_OTHER`, the default.
    Other {
        /// From -20 (most time) to 19.
        nice: i32,
    },
    /// `SCHED_BATCH`.
    Batch {
        /// From -20 (most time) to 19.
        nice: i32,
    },
    /// `SCHED_IDLE`.
    Idle {
        /// From -20 to 19; counts again when the class is left.
        nice: i32,
    },
    /// `SCHED_FIFO`: runs until it waits or a higher one wants to run.
    Fifo {
        /// From 1 to 99, the highest.
        priority: u32,
    },
    /// `SCHED_RR`: as FIFO, taking turns with its equals.
    RoundRobin {
        /// From 1 to 99, the highest.
        priority: u32,
    },
    /// `SCHED_DEADLINE`; is read, not set.
    Deadline {
        /// Time on a CPU per period, nanoseconds.
        runtime_ns: u64,
        /// By when in each period, nanoseconds.
        deadline_ns: u64,
        /// The period, nanoseconds.
        period_ns: u64,
    },
    /// Another class (`SCHED_EXT` is 7); is read, not set.
    Unknown {
        /// The kernel's number of it.
        number: u32,
    },
}

/// How a thread is scheduled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Scheduling {
    /// Its class.
    pub policy: Policy,
    /// Whether its children start in the default class (`SCHED_RESET_ON_FORK`).
    pub reset_on_fork: bool,
}

/// Why a thread's scheduling could not be read or set.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SchedError {
    /// The thread ended, or never was.
    #[error("{action} thread {tid}: it does not exist")]
    Gone {
        /// What was tried.
        action: &'static str,
        /// On which thread.
        tid: Pid,
    },
    /// The caller lacks the right.
    #[error("{action} thread {tid}: {source}; needs its user, or CAP_SYS_NICE")]
    Denied {
        /// What was tried.
        action: &'static str,
        /// On which thread.
        tid: Pid,
        /// The kernel's answer.
        source: io::Error,
    },
    /// An empty list of CPUs. Nothing was changed.
    #[error("thread {tid} cannot be bound to an empty list of CPUs")]
    NoCpu {
        /// The thread.
        tid: Pid,
    },
    /// A class that is only read. Nothing was changed.
    #[error("thread {tid}: {policy:?} is read, not set")]
    ReadOnly {
        /// The thread.
        tid: Pid,
        /// The class asked for.
        policy: Policy,
    },
    /// Another answer; `EINVAL` for CPUs that are offline or outside of the thread's cpuset, a value
    /// out of range, or a kernel thread that is bound for good.
    #[error("{action} thread {tid}{detail}: {source}")]
    Refused {
        /// What was tried.
        action: &'static str,
        /// On which thread.
        tid: Pid,
        /// The value.
        detail: String,
        /// The kernel's answer.
        source: io::Error,
    },
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

/// A CPU mask as the kernel takes it: bit *n* of the whole is CPU *n*. Made before a `fork`, it can
/// be applied after it.
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

    /// Binds a thread, 0 being the calling one. Async-signal-safe: one system call.
    pub(crate) fn apply(&self, tid: libc::pid_t) -> io::Result<()> {
        let bytes = size_of_val(self.0.as_slice());
        // SAFETY: the kernel reads `bytes` bytes from the pointer, which is what the vector holds.
        let result = unsafe { libc::syscall(libc::SYS_sched_setaffinity, tid, bytes, self.0.as_ptr()) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    fn to_list(&self) -> CpuList {
        let bits = (0..WORD_BITS * self.0.len() as u32)
            .filter(|cpu| self.0[(cpu / WORD_BITS) as usize] >> (cpu % WORD_BITS) & 1 == 1);
        bits.collect()
    }
}

/// The CPUs that a thread may run on.
///
/// # Errors
/// When the thread does not exist.
pub fn affinity(tid: Pid) -> Result<CpuList, SchedError> {
    let mut mask = CpuMask(vec![0; (CPU_LIMIT / WORD_BITS) as usize]);
    let bytes = size_of_val(mask.0.as_slice());
    // SAFETY: the kernel writes at most `bytes` bytes to the pointer, which is what the vector holds.
    let result = unsafe { libc::syscall(libc::SYS_sched_getaffinity, tid.get(), bytes, mask.0.as_mut_ptr()) };
    if result < 0 {
        let source = io::Error::last_os_error();
        return Err(SchedError::new("reading the affinity of", tid, String::new(), source));
    }
    Ok(mask.to_list())
}

/// Binds a thread to CPUs. The kernel drops those that are offline or outside of its cpuset, and
/// refuses when none is left: compare with [`affinity`] afterwards.
///
/// # Errors
/// When the thread does not exist or may not be bound, or none of the CPUs can be had.
pub fn set_affinity(tid: Pid, cpus: &CpuList) -> Result<(), SchedError> {
    if cpus.is_empty() {
        return Err(SchedError::NoCpu { tid });
    }
    CpuMask::new(cpus)
        .apply(tid.get())
        .map_err(|source| SchedError::new("binding", tid, format!(" to CPUs {cpus}"), source))
}

/// How a thread is scheduled.
///
/// # Errors
/// When the thread does not exist.
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

/// Sets how a thread is scheduled. A custom time slice (`sched_runtime` of a thread that is in no
/// real-time class, Linux 6.12) goes back to the default.
///
/// # Errors
/// When the thread does not exist, the caller lacks CAP_SYS_NICE for the class or priority, or a
/// value is out of range.
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
    // SAFETY: the kernel reads the structure, whose size is in it.
    let result = unsafe { libc::syscall(libc::SYS_sched_setattr, tid.get(), &raw const raw, 0) };
    if result < 0 {
        let source = io::Error::last_os_error();
        let detail = format!(" to {:?}", scheduling.policy);
        return Err(SchedError::new("setting the scheduling class of", tid, detail, source));
    }
    Ok(())
}

const RESET_ON_FORK: u64 = libc::SCHED_FLAG_RESET_ON_FORK as u64;

/// A `struct sched_attr` of the first size, `SCHED_ATTR_SIZE_VER0`, which is all that is used.
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
    fn a_bound_thread_reads_back_its_cpu() {
        in_a_thread(|tid| {
            let before = affinity(tid).unwrap();
            let one: CpuList = before.iter().take(1).collect();
            set_affinity(tid, &one).unwrap();
            assert_eq!(affinity(tid).unwrap(), one);
        });
    }

    #[test]
    fn no_cpu_is_refused_before_the_kernel_is_asked() {
        let tid = Pid::of_this_thread();
        let error = set_affinity(tid, &CpuList::default()).unwrap_err();
        assert!(matches!(error, SchedError::NoCpu { .. }));
    }

    #[test]
    fn a_cpu_that_is_not_there_is_refused_with_its_number() {
        let error = set_affinity(Pid::of_this_thread(), &"60000".parse().unwrap()).unwrap_err();
        assert!(error.to_string().contains("to CPUs 60000: "), "{error}");
    }

    #[test]
    fn a_scheduling_class_is_put_back_exactly() {
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
    fn a_real_time_class_reads_back_its_priority() {
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
        fn a_mask_names_the_cpus_it_was_made_of(
            cpus in prop::collection::btree_set(0..CPU_LIMIT, 0..20),
        ) {
            let list: CpuList = cpus.into_iter().collect();
            prop_assert_eq!(CpuMask::new(&list).to_list(), list);
        }
    }
}
