//! `/proc/PID/task`: the threads of a process.

use super::{ProcDir, ProcError, numbered_entries};
use crate::Pid;

impl ProcDir {
    /// TIDs of the process's threads in ascending order, which is usually the order of their creation.
    pub fn tids(&self) -> Result<Vec<Pid>, ProcError> {
        let mut tids = numbered_entries(&self.path().join("task"))?;
        tids.sort_unstable();
        Ok(tids)
    }

    /// TID of a thread through which the kernel shows the files of this process. This is the main thread, or a running
    /// thread if the main thread has exited.
    pub fn thread_with_files(&self, pid: Pid) -> Result<Pid, ProcError> {
        if !self.stat()?.runs_without_main_thread() {
            return Ok(pid);
        }
        let runs = |tid: &Pid| *tid != pid && self.thread(*tid).stat().is_ok_and(|stat| !stat.thread_has_ended());
        Ok(self.tids()?.into_iter().find(runs).unwrap_or(pid))
    }

    #[must_use]
    pub fn thread(&self, tid: Pid) -> Self {
        Self(self.path().join("task").join(tid.to_string()))
    }
}
