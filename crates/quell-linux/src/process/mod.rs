//! Starting programs in a network namespace and ending them for sure: each child leads a session of
//! its own, and what is left of a session can be found and killed after its leader died, or after
//! this program did. Which program to start, and when, is decided above.

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
pub use spawn::{Output, Spawn, Step};

/// Why a program could not be started, awaited or ended.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// The new process could not be prepared, or the program not executed.
    #[error("starting `{program}`: {step}: {source}")]
    Spawn {
        /// The program.
        program: String,
        /// What failed.
        step: Step,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A list of CPUs to bind the program to was empty.
    #[error("starting `{program}`: the list of CPUs to bind it to is empty")]
    NoCpu {
        /// The program.
        program: String,
    },
    /// Waiting for a child failed.
    #[error("waiting for process {pid}: {source}")]
    Wait {
        /// The child.
        pid: Pid,
        /// The kernel's answer.
        source: io::Error,
    },
    /// Processes of a session did not end although they were killed: they hang in the kernel, or
    /// start others faster than these can be killed.
    #[error("session {leader}: {pids} did not end within {within:?} of SIGKILL", pids = list(.left))]
    StillThere {
        /// The session's leader.
        leader: Pid,
        /// The processes.
        left: Vec<Pid>,
        /// How long they were given.
        within: Duration,
    },
    /// A process's handle could not be had or used.
    #[error(transparent)]
    PidFd(#[from] PidFdError),
    /// /proc could not be read.
    #[error(transparent)]
    Proc(#[from] ProcError),
}

fn list(pids: &[Pid]) -> String {
    let names: Vec<String> = pids.iter().map(|pid| format!("process {pid}")).collect();
    names.join(", ")
}

/// How long killed processes have until their end is taken for impossible.
const KILL_BOUND: Duration = Duration::from_secs(5);

/// A running child and its session. Dropped, it kills the whole session.
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
    /// Its number, which is that of its session too.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.identity.pid
    }

    /// What tells it from later processes with its number; enough to find its session after a crash.
    #[must_use]
    pub fn identity(&self) -> ProcessIdentity {
        self.identity
    }

    /// Its handle.
    #[must_use]
    pub fn pidfd(&self) -> &PidFd {
        &self.pidfd
    }

    /// What it wrote last to stdout, if that is kept ([`Output::Tail`]).
    #[must_use]
    pub fn stdout_tail(&self) -> Option<Vec<u8>> {
        self.stdout.as_ref().map(OutputTail::bytes)
    }

    /// What it wrote last to stderr, if that is kept ([`Output::Tail`]).
    #[must_use]
    pub fn stderr_tail(&self) -> Option<Vec<u8>> {
        self.stderr.as_ref().map(OutputTail::bytes)
    }

    /// Lets it outlive this value, and this program: from now on it is on its own.
    #[must_use]
    pub fn leave_running(self) -> ProcessIdentity {
        let identity = self.identity;
        // What dropping does, ending it, is all that is left out; its pipes end with this program.
        std::mem::forget(self);
        identity
    }

    /// Waits for at most this long; `None` when it still runs then. What it wrote is complete in the
    /// tails once it ended, unless others of its session hold its output open.
    ///
    /// # Errors
    /// When the kernel refuses to wait.
    pub fn wait(&mut self, timeout: Duration) -> Result<Option<ExitStatus>, ProcessError> {
        if self.exit.is_none() && self.pidfd.wait_for_exit(timeout)? {
            self.reap()?;
        }
        Ok(self.exit)
    }

    /// Ends it: SIGTERM, after `grace` SIGKILL, then SIGKILL to what is left of its session.
    ///
    /// # Errors
    /// When a process cannot be killed.
    pub fn terminate(&mut self, grace: Duration) -> Result<ExitStatus, ProcessError> {
        if let Some(exit) = self.exit {
            self.kill_session()?;
            return Ok(exit);
        }
        ignore_gone(self.pidfd.signal(Signal::TERM))?;
        self.pidfd.wait_for_exit(grace)?;
        // The leader is reaped last: until then its number, and the session's, cannot be reused.
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
        // Nobody is left to tell; a journal's clean-up finds what a failure leaves behind.
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
