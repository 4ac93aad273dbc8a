//! Common parts of the counting programs: a per-CPU map with counters for selected keys, a program attached to a
//! tracepoint, and the error type. Each program defines its own counters.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use thiserror::Error;

use super::assembler::Instruction;
use super::btf::BtfError;
use super::syscall::{self, LoadError, PerCpuHash};

/// Why counting at a tracepoint failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CounterError {
    /// The list of keys is empty.
    #[error("counting at a tracepoint: nothing to watch")]
    NothingToWatch,
    /// The kernel has no BTF or lacks the tracepoint.
    #[error("counting at a tracepoint: {0}")]
    Unsupported(#[source] BtfError),
    /// BPF programs see PIDs of the initial PID namespace. They differ from the PIDs that this process sees.
    #[error("counting at a tracepoint, by process: PIDs of this PID namespace differ from the kernel's")]
    InContainer,
    /// The kernel's BTF is unreadable or malformed.
    #[error("counting at a tracepoint: {0}")]
    Types(#[source] BtfError),
    /// The kernel has no `bpf(2)`.
    #[error("counting at a tracepoint: {action}: this kernel is built without CONFIG_BPF_SYSCALL")]
    NoBpf {
        /// Step that failed.
        action: &'static str,
    },
    /// The caller lacks permission.
    #[error(
        "counting at a tracepoint: {action}: {source}; needs CAP_BPF and CAP_PERFMON in the initial user \
         namespace, and a kernel that is not locked down"
    )]
    Denied {
        /// Step that failed.
        action: &'static str,
        /// Error returned by the system call.
        source: io::Error,
    },
    /// The verifier rejected the program.
    #[error("counting at a tracepoint: the kernel rejected the program: {source}; verifier log: {log}")]
    Rejected {
        /// Error returned by the system call.
        source: io::Error,
        /// The verifier's log.
        log: String,
    },
    /// The kernel returned another error.
    #[error("counting at a tracepoint: {action}: {source}")]
    Refused {
        /// Step that failed.
        action: &'static str,
        /// Error returned by the system call.
        source: io::Error,
    },
}

impl CounterError {
    fn new(action: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::ENOSYS) => Self::NoBpf { action },
            Some(libc::EPERM | libc::EACCES) => Self::Denied { action, source },
            _ => Self::Refused { action, source },
        }
    }
}

impl From<BtfError> for CounterError {
    fn from(error: BtfError) -> Self {
        match error {
            BtfError::Absent { .. } | BtfError::NotFound { .. } => Self::Unsupported(error),
            other => Self::Types(other),
        }
    }
}

impl From<LoadError> for CounterError {
    fn from(LoadError { source, log }: LoadError) -> Self {
        // EACCES with a verifier log means a rejected program, not a lack of permission.
        if log.is_empty() { Self::new("loading the program", source) } else { Self::Rejected { source, log } }
    }
}

/// A program at a tracepoint and its counters. Each watched key has `N` counters.
#[derive(Debug)]
pub(super) struct TracepointCounter<const N: usize> {
    counters: PerCpuHash<N>,
    watched: Vec<u32>,
    /// The program stays loaded and attached while this file descriptor is open.
    _attachment: OwnedFd,
}

impl<const N: usize> TracepointCounter<N> {
    /// Loads a BPF program and attaches it to the tracepoint whose typedef has this BTF ID. `assemble` creates the
    /// program for a map's file descriptor. All counters start at zero.
    pub(super) fn attach(
        name: &str,
        tracepoint_typedef: u32,
        watched: Vec<u32>,
        assemble: impl FnOnce(i32) -> Vec<Instruction>,
    ) -> Result<Self, CounterError> {
        let entries = u32::try_from(watched.len()).unwrap_or(u32::MAX);
        if entries == 0 {
            return Err(CounterError::NothingToWatch);
        }
        let counters = PerCpuHash::create(entries).map_err(|source| CounterError::new("creating a map", source))?;
        for &key in &watched {
            counters.insert_zero(key).map_err(|source| CounterError::new("adding to the map", source))?;
        }
        let program = assemble(counters.as_fd().as_raw_fd());
        let program = syscall::load_tracepoint_program(name, &program, tracepoint_typedef)?;
        let attachment = syscall::attach_tracepoint(program.as_fd())
            .map_err(|source| CounterError::new("attaching the program", source))?;
        Ok(Self { counters, watched, _attachment: attachment })
    }

    /// Reads the counters of all watched keys, with one system call each.
    pub(super) fn read(&self) -> Result<BTreeMap<u32, [u64; N]>, CounterError> {
        let mut all = BTreeMap::new();
        for &key in &self.watched {
            let sum = self.counters.sum(key).map_err(|source| CounterError::new("reading the map", source))?;
            all.extend(sum.map(|sum| (key, sum)));
        }
        Ok(all)
    }
}
