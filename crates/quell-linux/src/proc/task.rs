//! `/proc/PID/task`: the threads of a process.

use super::text::{Malformed, lines};
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

    /// PIDs of the processes whose parent is this thread, zombies too (`CONFIG_PROC_CHILDREN`; only in the directory of a
    /// thread). Needs no ptrace access. A process that starts during the call may be missing.
    pub fn children(&self) -> Result<Vec<Pid>, ProcError> {
        self.read("children", parse_children)
    }

    #[must_use]
    pub fn thread(&self, tid: Pid) -> Self {
        Self(self.path().join("task").join(tid.to_string()))
    }
}

fn parse_children(bytes: &[u8]) -> Result<Vec<Pid>, Malformed> {
    lines(bytes).flat_map(|line| line.fields().map(move |field| line.number(field, "a PID"))).collect()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::proc::ProcRoot;

    #[test]
    fn children_are_on_one_line_or_there_are_none() {
        let pids = |bytes: &[u8]| parse_children(bytes).map(|pids| pids.into_iter().map(Pid::get).collect::<Vec<_>>());
        assert_eq!(pids(b"32679 32690 7 "), Ok(vec![32679, 32690, 7]));
        assert_eq!(pids(b""), Ok(vec![]));
        assert!(pids(b"7 x").is_err());
    }

    #[test]
    fn a_child_is_that_of_the_thread_that_started_it() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Pid::from_kernel(child.id()).unwrap();
        match ProcRoot::default().thread_self().children() {
            Ok(children) => assert!(children.contains(&pid), "{children:?}"),
            Err(error) => assert!(error.is_absent(), "without CONFIG_PROC_CHILDREN: {error}"),
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
