//! `/proc/PID/task`: the threads of a process.

use super::{ProcDir, ProcError, numbered_entries};
use crate::Pid;

impl ProcDir {
    /// TIDs of the process's threads, in ascending order, which is usually the order of creation.
    ///
    /// # Errors
    /// When the directory cannot be listed.
    pub fn tids(&self) -> Result<Vec<Pid>, ProcError> {
        let mut tids = numbered_entries(&self.path().join("task"))?;
        tids.sort_unstable();
        Ok(tids)
    }

    /// Directory of a thread of this process.
    #[must_use]
    pub fn thread(&self, tid: Pid) -> Self {
        Self(self.path().join("task").join(tid.to_string()))
    }
}
