//! Counts what the waits for events of chosen processes returned, at the tracepoint `raw_syscalls:sys_exit`, from
//! attaching to dropping. While it is attached every system call of the machine takes the kernel's slow way out, so it
//! is meant for short samples, not for while something is measured.

use std::collections::BTreeMap;
use std::path::Path;

use super::assembler::Register::{R0, R1, R2, R6, R7, R10};
use super::assembler::{Assembler, Condition, Helper, Instruction, Width};
use super::btf::{Btf, BtfError};
use super::counter::{CounterError, TracepointCounter};
use crate::proc::ProcRoot;
use crate::{Pid, kernel};

/// What the waits of one process returned: `epoll_wait`, `epoll_pwait` and `epoll_pwait2`, of all its threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EpollWaits {
    /// Waits that returned at least one event.
    pub successful: u64,
    /// The events that they returned.
    pub events: u64,
}

/// A program that counts at the tracepoint, until it is dropped.
#[derive(Debug)]
pub struct EpollWaitCounter(TracepointCounter<COUNTERS>);

const COUNTERS: usize = 2;
const SUCCESSFUL: i16 = 0;
const EVENTS: i16 = 8;

/// The member of `struct pt_regs` that holds the number of the system call.
#[cfg(target_arch = "x86_64")]
const SYSCALL_NUMBER: &str = "orig_ax";
#[cfg(not(target_arch = "x86_64"))]
const SYSCALL_NUMBER: &str = "syscallno";

#[cfg(target_arch = "x86_64")]
const WAITS: &[libc::c_long] = &[libc::SYS_epoll_wait, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2];
#[cfg(not(target_arch = "x86_64"))]
const WAITS: &[libc::c_long] = &[libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2];

impl EpollWaitCounter {
    /// Loads and attaches the counting program for these processes, all starting from zero. `sys` is mostly `/sys`; the
    /// kernel's types are read from there.
    ///
    /// # Errors
    /// When the kernel cannot count or the caller may not, told apart; see [`CounterError`].
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

    /// Reads the counters of all watched processes; one system call each.
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

/// Assembles the program. Counters are added to without locking: a thread that is moved to another CPU between reading
/// and writing one loses a count, which a sample of thousands does not notice.
fn assemble(syscall_number: i16, map_fd: i32) -> Vec<Instruction> {
    const KEY: i16 = -4;
    const RETURNED: super::assembler::Register = R6;
    const NUMBER: super::assembler::Register = R7;
    let mut asm = Assembler::default();

    // The arguments: `struct pt_regs *regs, long ret`, eight bytes each.
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
