//! CPU affinity of a thread of another process: set, verified, and restored unless another program has changed it
//! since. CPUs that went offline or left the thread's cpuset in the meantime are left out.

use std::{fmt, io};

use quell_linux::proc::{ProcRoot, ProcessIdentity, Ticks};
use quell_linux::sched::{self, SchedError};
use quell_linux::{CPU_LIMIT, CpuList, NapiId, Pid, kernel};
use serde::{Deserialize, Serialize};

use super::SettingsError;
use crate::change::{CompareError, Comparison, Drift, Kind, Present, Undo, UndoOutcome};
use crate::undo::UndoError;

/// A change of a thread's CPU affinity. Threads that it starts inherit the affinity and are not restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ThreadAffinity {
    pub pid: Pid,
    pub tid: Pid,
    pub thread_start_time_ticks: u64,
    pub old: CpuList,
    pub new: CpuList,
}

impl fmt::Display for ThreadAffinity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "thread {} of process {}: CPUs {}", self.tid, self.pid, self.new)
    }
}

impl Kind for ThreadAffinity {
    fn undo(&self, undo: &mut Undo<'_>) -> Result<UndoOutcome, UndoError> {
        Ok(restore(undo.proc, self)?)
    }

    fn compare(&self, present: &Present<'_>) -> Result<Comparison, CompareError> {
        let drift = |now: CpuList| Drift {
            device: None,
            queue: None,
            setting: format!("CPUs of thread {} of process {}", self.tid, self.pid),
            made: self.new.to_string(),
            now: Some(now.to_string()),
            missing: None,
        };
        let now = now(present.proc, self)?.filter(|now| *now != self.new);
        Ok(now.map_or(Comparison::Same, |now| Comparison::Differs(drift(now))))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pin {
    pub pid: Pid,
    pub start_time_ticks: u64,
    pub tid: Pid,
    pub thread: String,
    pub napi: NapiId,
    pub old: CpuList,
    pub new: CpuList,
}

pub(crate) fn plan(proc: &ProcRoot, pin: &Pin) -> Result<ThreadAffinity, SettingsError> {
    let pid = pin.pid;
    let process = ProcessIdentity { pid, starttime: Ticks(pin.start_time_ticks), boot_id: proc.boot_id()? };
    if !process.is_running(proc)? {
        return Err(SettingsError::ProcessGone { pid });
    }
    let thread_start_time_ticks = proc.process(pid).thread(pin.tid).stat()?.starttime.0;
    Ok(ThreadAffinity {
        pid,
        tid: pin.tid,
        thread_start_time_ticks,
        old: sched::affinity(pin.tid)?,
        new: pin.new.clone(),
    })
}

/// Sets the affinity and verifies it. Fails if the kernel refuses, or omits a CPU that is offline or outside the
/// thread's cpuset.
pub(crate) fn set(tid: Pid, cpus: &CpuList) -> Result<(), SettingsError> {
    sched::set_affinity(tid, cpus)?;
    let read = sched::affinity(tid)?;
    if read != *cpus {
        return Err(SettingsError::AffinityReadBack { tid, asked: cpus.clone(), read });
    }
    Ok(())
}

/// Current affinity of the thread; `None` if it has exited.
pub(crate) fn now(proc: &ProcRoot, change: &ThreadAffinity) -> Result<Option<CpuList>, SettingsError> {
    let (pid, tid) = (change.pid, change.tid);
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

pub(crate) fn restore(proc: &ProcRoot, change: &ThreadAffinity) -> Result<UndoOutcome, SettingsError> {
    let (pid, tid) = (change.pid, change.tid);
    let Some(current) = now(proc, change)? else { return Ok(UndoOutcome::AlreadyGone) };
    if current == change.old {
        return Ok(UndoOutcome::AlreadyGone);
    }
    if current != change.new && !are_all_offline(&change.new) {
        return Ok(UndoOutcome::LeftAlone(format!(
            "another program has bound thread {tid} of process {pid} to CPUs {current} (its CPUs before Quell were {})",
            change.old
        )));
    }
    match set_what_is_allowed(tid, &change.old) {
        Ok(now) if now == change.old => Ok(UndoOutcome::Undone),
        Ok(now) => Ok(UndoOutcome::Partial(format!(
            "thread {tid} of process {pid} is bound to CPUs {now}; its CPUs before Quell were {}, of which some are \
             offline or outside its cpuset now",
            change.old
        ))),
        Err(SchedError::Gone { .. }) => Ok(UndoOutcome::AlreadyGone),
        Err(error) => Err(error.into()),
    }
}

/// Binds the thread to those of the CPUs that are online and in its cpuset, or to its whole cpuset if none is. Returns its
/// affinity afterwards.
fn set_what_is_allowed(tid: Pid, cpus: &CpuList) -> Result<CpuList, SchedError> {
    match sched::set_affinity(tid, cpus) {
        Err(SchedError::Refused { source, .. }) if source.kind() == io::ErrorKind::InvalidInput => {
            sched::set_affinity(tid, &(0..CPU_LIMIT).collect())?;
        }
        set => set?,
    }
    sched::affinity(tid)
}

/// Whether the kernel has unbound a thread from these CPUs, because none of them is online.
fn are_all_offline(cpus: &CpuList) -> bool {
    CpuList::online(kernel::sysfs()).is_ok_and(|online| cpus.intersection(&online).is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No machine has this CPU, so the kernel treats it as offline.
    const ABSENT: u32 = CPU_LIMIT - 1;

    /// Undoes a change of a new thread that is bound to `now`. Returns the outcome, and its affinity before and after.
    fn restored(old: fn(&CpuList) -> CpuList, now: Option<CpuList>) -> (UndoOutcome, CpuList, CpuList) {
        let of_thread = move || {
            let (proc, pid) = (ProcRoot::default(), Pid::of_this_process());
            let tid = Pid::of_this_thread();
            let all = sched::affinity(tid).unwrap();
            let first: CpuList = all.iter().take(1).collect();
            sched::set_affinity(tid, &first).unwrap();
            let change = ThreadAffinity {
                pid,
                tid,
                thread_start_time_ticks: proc.process(pid).thread(tid).stat().unwrap().starttime.0,
                old: old(&all),
                new: now.unwrap_or(first),
            };
            (restore(&proc, &change).unwrap(), all, sched::affinity(tid).unwrap())
        };
        std::thread::scope(|scope| scope.spawn(of_thread).join().unwrap())
    }

    fn with_absent(cpus: &CpuList) -> CpuList {
        cpus.iter().chain([ABSENT]).collect()
    }

    #[test]
    fn cpus_that_went_offline_are_left_out_of_the_restored_affinity() {
        let (outcome, all, after) = restored(with_absent, None);
        assert!(matches!(&outcome, UndoOutcome::Partial(why) if why.contains("offline")), "{outcome:?}");
        assert_eq!(after, all);
    }

    #[test]
    fn without_any_of_its_cpus_a_thread_gets_all_that_are_allowed() {
        let (outcome, all, after) = restored(|_| [ABSENT].into_iter().collect(), None);
        assert!(matches!(&outcome, UndoOutcome::Partial(_)), "{outcome:?}");
        assert_eq!(after, all);
    }

    #[test]
    fn a_thread_whose_pinned_cpu_went_offline_is_restored() {
        let (outcome, all, after) = restored(CpuList::clone, Some([ABSENT].into_iter().collect()));
        if all.len() > 1 {
            assert_eq!(outcome, UndoOutcome::Undone);
        }
        assert_eq!(after, all);
    }
}
