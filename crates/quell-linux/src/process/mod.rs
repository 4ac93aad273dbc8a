//! Starts programs in a network namespace and ends them reliably. Each child leads its own session. Quell can find and
//! kill the processes of a session even if their leader, or the instance of Quell that started them, has exited.

mod foreground;
mod inherited;
mod open_files;
mod output_tail;
mod session;
mod spawn;

use std::io;
use std::process::ExitStatus;
use std::time::Duration;

use thiserror::Error;

use crate::pidfd::{PidFd, PidFdError, Signal};
use crate::proc::{ProcError, ProcRoot, ProcessIdentity};
use crate::{CpuList, Pid};

pub use foreground::{Foreground, end_by, is_not_found, leads_its_session};
pub use inherited::stdout_was_closed;
pub use open_files::raise_open_files_limit;
use output_tail::OutputTail;
pub use session::{SessionMember, kill_session, session_members};
pub use spawn::{Output, Spawn, SpawnStep};

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProcessError {
    #[error("starting `{program}`: {step}: {source}")]
    Spawn { program: String, step: SpawnStep, source: io::Error },
    #[error("starting `{program}`: the list of CPUs to bind it to is empty")]
    NoCpu { program: String },
    #[error("waiting for process {pid}: {source}")]
    Wait { pid: Pid, source: io::Error },
    /// Processes of a session did not exit after SIGKILL. They hang in the kernel, or fork faster than Quell can kill
    /// them.
    #[error("session {leader}: {pids} did not exit within {within:?} after SIGKILL", pids = list(.left))]
    StillThere { leader: Pid, left: Vec<Pid>, within: Duration },
    #[error(transparent)]
    PidFd(#[from] PidFdError),
    #[error(transparent)]
    Proc(#[from] ProcError),
}

fn list(pids: &[Pid]) -> String {
    let names: Vec<String> = pids.iter().map(|pid| format!("process {pid}")).collect();
    names.join(", ")
}

const KILL_BOUND: Duration = Duration::from_secs(5);

/// Whether this process is root in its user namespace.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// A running child and its session. Dropping this value kills the whole session.
#[derive(Debug)]
pub struct Child {
    process: std::process::Child,
    identity: ProcessIdentity,
    pidfd: PidFd,
    exit: Option<ExitStatus>,
    stdout: Option<OutputTail>,
    stderr: Option<OutputTail>,
}

impl Child {
    /// PID of the child, which is also its session id.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.identity.pid
    }

    /// Identity of the child, which is safe against PID reuse. It is sufficient to find the session after a crash.
    #[must_use]
    pub fn identity(&self) -> ProcessIdentity {
        self.identity
    }

    #[must_use]
    pub fn pidfd(&self) -> &PidFd {
        &self.pidfd
    }

    #[must_use]
    pub fn stdout_tail(&self) -> Option<Vec<u8>> {
        self.stdout.as_ref().map(OutputTail::bytes)
    }

    #[must_use]
    pub fn stderr_tail(&self) -> Option<Vec<u8>> {
        self.stderr.as_ref().map(OutputTail::bytes)
    }

    /// Leaves the child running. It continues after this value is dropped and after this program exits.
    #[must_use]
    pub fn leave_running(self) -> ProcessIdentity {
        let identity = self.identity;
        // Skip the destructor, which would kill the child. The child's pipes close when this program exits.
        std::mem::forget(self);
        identity
    }

    /// Waits up to `timeout` for the child's exit; `None` if it is still running. After the exit the tails are
    /// complete, unless other processes of its session hold its output open.
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<ExitStatus>, ProcessError> {
        if self.exit.is_none() && self.pidfd.wait_for_exit(timeout)? {
            self.reap()?;
        }
        Ok(self.exit)
    }

    /// Ends the child with SIGTERM, or with SIGKILL after `grace`. Then kills the rest of its session.
    pub fn terminate(&mut self, grace: Duration) -> Result<ExitStatus, ProcessError> {
        if let Some(exit) = self.exit {
            self.kill_session()?;
            return Ok(exit);
        }
        ignore_gone(self.pidfd.signal(Signal::TERM))?;
        self.pidfd.wait_for_exit(grace)?;
        // Reap the leader last. The kernel cannot reuse its PID, which is also the session id, before that.
        self.kill_session()?;
        self.reap()
    }

    fn kill_session(&self) -> Result<usize, ProcessError> {
        kill_session(&ProcRoot::default(), &self.identity, KILL_BOUND)
    }

    fn reap(&mut self) -> Result<ExitStatus, ProcessError> {
        let pid = self.pid();
        let exit = self.process.wait().map_err(|source| ProcessError::Wait { pid, source })?;
        self.exit = Some(exit);
        for tail in [&mut self.stdout, &mut self.stderr].into_iter().flatten() {
            tail.settle();
        }
        Ok(exit)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // A destructor cannot report an error. The clean-up of a journal finds the remaining processes.
        if self.kill_session().is_ok() && self.exit.is_none() {
            let _ = self.reap();
        }
    }
}

fn ignore_gone(result: Result<(), PidFdError>) -> Result<(), PidFdError> {
    match result {
        Err(error) if error.is_gone() => Ok(()),
        other => other,
    }
}
