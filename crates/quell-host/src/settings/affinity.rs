//! CPU affinity of a thread of another process: set, verified, and restored unless another program has changed it
//! since.

use quell_linux::proc::{ProcRoot, ProcessIdentity, Ticks};
use quell_linux::sched::{self, SchedError};
use quell_linux::{CpuList, Pid};

use super::SettingsError;
use crate::journal::{ThreadAffinity, UndoOutcome};
use crate::steer::Pin;

/// Plans the affinity change as a journal record.
///
/// # Errors
/// When the thread has exited, its ID was reused, or it cannot be inspected.
pub(crate) fn plan(proc: &ProcRoot, pin: &Pin) -> Result<ThreadAffinity, SettingsError> {
    let pid = pin.pid;
    let process = ProcessIdentity { pid, starttime: Ticks(pin.start_time_ticks), boot_id: proc.boot_id()? };
    if !process.is_running(proc)? {
        return Err(SettingsError::ProcessGone { pid: pid.get() });
    }
    let thread_start_time_ticks = proc.process(pid).thread(pin.tid).stat()?.starttime.0;
    Ok(ThreadAffinity {
        pid: pid.get().unsigned_abs(),
        tid: pin.tid.get().unsigned_abs(),
        thread_start_time_ticks,
        old: sched::affinity(pin.tid)?,
        new: pin.new.clone(),
    })
}

/// Sets the affinity and verifies it.
///
/// # Errors
/// When the kernel refuses, or omits a CPU that is offline or outside the thread's cpuset.
pub(crate) fn set(tid: Pid, cpus: &CpuList) -> Result<(), SettingsError> {
    sched::set_affinity(tid, cpus)?;
    let read = sched::affinity(tid)?;
    if read != *cpus {
        return Err(SettingsError::AffinityReadBack { tid: tid.get(), asked: cpus.clone(), read });
    }
    Ok(())
}

/// Current affinity of the thread; `None` if it has exited.
///
/// # Errors
/// When the thread cannot be inspected.
pub(crate) fn now(proc: &ProcRoot, change: &ThreadAffinity) -> Result<Option<CpuList>, SettingsError> {
    let (Some(pid), Some(tid)) = (Pid::from_kernel(change.pid), Pid::from_kernel(change.tid)) else { return Ok(None) };
    match proc.process(pid).thread(tid).stat() {
        Ok(stat) if stat.starttime.0 == change.thread_start_time_ticks => {}
        Ok(_) => return Ok(None),
        Err(error) if error.is_absent() => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    match sched::affinity(tid) {
        Ok(current) => Ok(Some(current)),
        Err(SchedError::Gone { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Restores the affinity of a thread if it is unchanged since it was set.
///
/// # Errors
/// When the thread cannot be inspected, or the kernel refuses.
pub(crate) fn restore(
    proc: &ProcRoot,
    pid: Pid,
    tid: Pid,
    change: &ThreadAffinity,
) -> Result<UndoOutcome, SettingsError> {
    let Some(current) = now(proc, change)? else { return Ok(UndoOutcome::AlreadyGone) };
    if current == change.old {
        return Ok(UndoOutcome::AlreadyGone);
    }
    if current != change.new {
        return Ok(UndoOutcome::LeftAlone(format!(
            "another program has bound thread {tid} of process {pid} to CPUs {current}; it was left alone (its CPUs \
             before Quell were {})",
            change.old
        )));
    }
    match set(tid, &change.old) {
        Ok(()) => Ok(UndoOutcome::Undone),
        Err(error) if error.is_absent() => Ok(UndoOutcome::AlreadyGone),
        Err(error) => Err(error),
    }
}
