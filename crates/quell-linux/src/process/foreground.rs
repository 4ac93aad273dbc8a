//! A program in the place of this one: it has this program's terminal, open files and process group, so that keys, job
//! control and pipes reach it as if it had been started directly. What it is given and what is done meanwhile is decided
//! above.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::process::{Command, ExitStatus};

use std::os::unix::process::CommandExt as _;

use rustix::process::{Resource, Rlimit, setrlimit};

use super::ProcessError;
use super::inherited::{Image, give_back, remember_children};
use super::spawn::{Step, handle};
use crate::Pid;
use crate::pidfd::PidFd;
use crate::proc::ProcessIdentity;
use crate::signal_queue::SignalQueue;

/// A running program that has this program's place. It outlives this value, and this program.
#[derive(Debug)]
pub struct Foreground {
    process: std::process::Child,
    identity: ProcessIdentity,
    pidfd: PidFd,
}

impl Foreground {
    /// Starts the program at `path` with `words[0]` as `argv[0]`. It has everything that this process inherited as this
    /// process inherited it, `environment` apart: also the signals that this process has blocked for `signals`.
    ///
    /// This process no longer ignores SIGCHLD afterwards, or it would not learn how the program ends.
    ///
    /// # Errors
    /// When it cannot be executed; [`ProcessError::Spawn`] has the kernel's answer.
    pub fn start(
        path: &Path,
        words: &[OsString],
        environment: impl IntoIterator<Item = (impl AsRef<OsStr>, impl AsRef<OsStr>)>,
        signals: &SignalQueue,
    ) -> Result<Self, ProcessError> {
        let failed =
            |source| ProcessError::Spawn { program: path.to_string_lossy().into_owned(), step: Step::Exec, source };
        let image = Image::new(path, words, environment)?;
        remember_children();
        let unblock = signals.mask_before();
        let mut command = Command::new(path);
        let in_child = move || {
            give_back()?;
            unblock()?;
            Err(image.execute())
        };
        // SAFETY: in the child only system calls are made, on values that were there before.
        unsafe { command.pre_exec(in_child) };
        let mut process = command.spawn().map_err(failed)?;
        match handle(&process) {
            Ok((identity, pidfd)) => Ok(Self { process, identity, pidfd }),
            Err(error) => {
                let _ = process.kill();
                let _ = process.wait();
                Err(error)
            }
        }
    }

    /// Its number.
    #[must_use]
    pub fn pid(&self) -> Pid {
        self.identity.pid
    }

    /// What tells it from later processes with its number.
    #[must_use]
    pub fn identity(&self) -> ProcessIdentity {
        self.identity
    }

    /// Its handle, readable once it ended.
    #[must_use]
    pub fn pidfd(&self) -> &PidFd {
        &self.pidfd
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When the kernel refuses to wait.
    pub fn wait(&mut self) -> Result<ExitStatus, ProcessError> {
        let pid = self.pid();
        self.process.wait().map_err(|source| ProcessError::Wait { pid, source })
    }
}

/// Ends this process by a signal, as the program ended that it stood for, but without a core file of its own. Returns
/// only when the signal does not end it.
pub fn end_by(signal: i32) {
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the action is one that is always there, and `sigemptyset` initialises the set before it is used. A number
    // that is no signal makes the calls fail, which is as good.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), std::ptr::null_mut());
        libc::raise(signal);
    }
}

/// Whether this process leads its session. When the terminal hangs up, the kernel sends SIGHUP to the leader of its
/// session alone (`tty_signal_session_leader` in `drivers/tty/tty_jobctrl.c`).
#[must_use]
pub fn leads_its_session() -> bool {
    // Not rustix's `getsid`, whose answer cannot be 0: where the leader is outside this PID namespace, or no ancestor has
    // ever begun a session (`setsid(2)`).
    // SAFETY: the call takes a number, and touches no memory.
    let session = unsafe { libc::getsid(0) };
    session == rustix::process::getpid().as_raw_pid()
}

/// Whether a program could not be executed because there is none at that path, as a shell tells it from one that may
/// not be executed (127 and 126).
#[must_use]
pub fn is_not_found(error: &ProcessError) -> bool {
    matches!(error, ProcessError::Spawn { source, .. } if source.kind() == io::ErrorKind::NotFound)
}
