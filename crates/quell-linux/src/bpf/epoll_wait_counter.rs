//! Counts the epoll waits of selected processes by their result, at the tracepoint `raw_syscalls:sys_exit`. While the
//! program is attached, every system call on the machine takes the kernel's slow exit path. Use it for short samples,
//! not during a measurement.

use std::collections::BTreeMap;
use std::path::Path;

use super::assembler::Register::{R0, R1, R2, R6, R7, R10};
use super::assembler::{Assembler, Condition, Helper, Instruction, Width};
use super::btf::{Btf, BtfError};
use super::counter::{CounterError, TracepointCounter};
use crate::proc::ProcRoot;
use crate::{Pid, kernel};

/// Results of all `epoll_wait`, `epoll_pwait` and `epoll_pwait2` calls of a process, over all its threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpollWaits {
    /// Number of waits that returned at least one event.
    pub successful: u64,
    /// Number of events that the successful waits returned.
    pub events: u64,
}

/// Counts epoll waits at the tracepoint until it is dropped.
#[derive(Debug)]
pub struct EpollWaitCounter(TracepointCounter<COUNTERS>);

const COUNTERS: usize = 2;
const SUCCESSFUL: i16 = 0;
const EVENTS: i16 = 8;

/// Member of `struct pt_regs` that contains the system call number.
#[cfg(target_arch = "x86_64")]
const SYSCALL_NUMBER: &str = "orig_ax";
#[cfg(not(target_arch = "x86_64"))]
const SYSCALL_NUMBER: &str = "syscallno";

#[cfg(target_arch = "x86_64")]
const WAITS: &[libc::c_long] = &[libc::SYS_epoll_wait, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2];
#[cfg(not(target_arch = "x86_64"))]
const WAITS: &[libc::c_long] = &[libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2];

impl EpollWaitCounter {
    /// Loads and attaches the counting program for these processes. All counters start at zero. The kernel's BTF is
    /// read below `sys`, normally `/sys`.
    ///
    /// # Errors
    /// [`CounterError`] distinguishes an unsupported kernel from a missing capability.
    pub fn attach(sys: &Path, watched: &[Pid]) -> Result<Self, CounterError> {
        let watched: Vec<u32> = watched.iter().map(|pid| pid.get().unsigned_abs()).collect();
        if watched.is_empty() {
            return Err(CounterError::NothingToWatch);
        }
        if !kernel::threads_are_in_sight(&ProcRoot::default()) {
            return Err(CounterError::InContainer);
        }
        let btf = Btf::of_kernel(sys)?;
        let tracepoint = btf.typedef_id("btf_trace_sys_exit")?;
        let offset = btf.member_offset("pt_regs", SYSCALL_NUMBER)?;
        let offset = i16::try_from(offset).map_err(|_| BtfError::NotFound {
            what: format!("`{SYSCALL_NUMBER}` near the start of `struct pt_regs`"),
        })?;
        TracepointCounter::attach("quell_epoll", tracepoint, watched, |map| assemble(offset, map)).map(Self)
    }

    /// Reads the counters of all watched processes, with one system call each.
    ///
    /// # Errors
    /// When the kernel refuses to read the map.
    pub fn read(&self) -> Result<BTreeMap<Pid, EpollWaits>, CounterError> {
        let counters = self.0.read()?.into_iter();
        let named = |(pid, [successful, events]): (u32, [u64; COUNTERS])| {
            Some((Pid::from_kernel(pid)?, EpollWaits { successful, events }))
        };
        Ok(counters.filter_map(named).collect())
    }
}

/// Assembles the program. It increments counters without locking. A thread that migrates between the load and the store
/// loses one count, which is negligible in a sample of thousands.
fn assemble(syscall_number: i16, map_fd: i32) -> Vec<Instruction> {
    const KEY: i16 = -4;
    const RETURNED: super::assembler::Register = R6;
    const NUMBER: super::assembler::Register = R7;
    let mut asm = Assembler::default();

    // The tracepoint has two arguments of eight bytes each: `struct pt_regs *regs, long ret`.
    asm.load(Width::Double, RETURNED, R1, 8);
    let failed = asm.jump_if(Condition::NotPositive, RETURNED, 0);
    asm.load(Width::Double, R2, R1, 0);
    asm.load(Width::Double, NUMBER, R2, syscall_number);
    asm.truncate(NUMBER);
    let (last, others) = WAITS.split_last().unwrap_or((&0, &[]));
    let waits: Vec<_> = others.iter().map(|&wait| asm.jump_if(Condition::Equal, NUMBER, wait as i32)).collect();
    let not_a_wait = asm.jump_if(Condition::NotEqual, NUMBER, *last as i32);
    for wait in waits {
        asm.land(wait);
    }

    asm.call(Helper::GetCurrentPidTgid);
    asm.shift_right(R0, 32);
    asm.store(Width::Word, R10, KEY, R0);
    asm.load_map(R1, map_fd);
    asm.copy(R2, R10);
    asm.add(R2, KEY.into());
    asm.call(Helper::MapLookupElem);
    let not_watched = asm.jump_if(Condition::Equal, R0, 0);
    asm.load(Width::Double, R1, R0, SUCCESSFUL);
    asm.add(R1, 1);
    asm.store(Width::Double, R0, SUCCESSFUL, R1);
    asm.load(Width::Double, R1, R0, EVENTS);
    asm.add_register(R1, RETURNED);
    asm.store(Width::Double, R0, EVENTS, R1);

    for jump in [failed, not_a_wait, not_watched] {
        asm.land(jump);
    }
    asm.set(R0, 0);
    asm.exit();
    asm.finish()
}
