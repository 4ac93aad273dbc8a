//! Starts a program in place of this one. The program gets this process's terminal, open files and process group. Keys,
//! job control and pipes therefore work as if the program had been started directly.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::process::{Command, ExitStatus};

use std::os::unix::process::CommandExt as _;

use rustix::process::{Resource, Rlimit, setrlimit};

use super::ProcessError;
use super::inherited::{Image, give_back, remember_children};
use super::spawn::{SpawnStep, handle};
use crate::Pid;
use crate::pidfd::PidFd;
use crate::proc::ProcessIdentity;
use crate::signal_queue::SignalQueue;

/// A running program that replaced this one. It continues to run after this value is dropped or this process exits.
#[derive(Debug)]
pub struct Foreground {
    process: std::process::Child,
    identity: ProcessIdentity,
    pidfd: PidFd,
}

impl Foreground {
    /// Starts the program at `path` with `words[0]` as `argv[0]`. The program inherits what this process inherited,
    /// with the variables of `environment` set. Signals that this process blocks for `signals` are not blocked in the
    /// program.
    ///
    /// From this call on, this process does not ignore SIGCHLD. Otherwise it could not read the program's exit status.
    pub fn start(
        path: &Path,
        words: &[OsString],
        environment: impl IntoIterator<Item = (impl AsRef<OsStr>, impl AsRef<OsStr>)>,
        signals: &SignalQueue,
    ) -> Result<Self, ProcessError> {
        let failed = |source| ProcessError::Spawn {
            program: path.to_string_lossy().into_owned(),
            step: SpawnStep::Exec,
            source,
        };
        let image = Image::new(path, words, environment)?;
        remember_children();
        let unblock = signals.mask_before();
        let mut command = Command::new(path);
        let in_child = move || {
            give_back()?;
            unblock()?;
            Err(image.execute())
        };
        // SAFETY: the child makes only system calls. All values that they use were created before the fork.
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

    #[must_use]
    pub fn pid(&self) -> Pid {
        self.identity.pid
    }

    /// Identity of the program, which is safe against PID reuse.
    #[must_use]
    pub fn identity(&self) -> ProcessIdentity {
        self.identity
    }

    /// Handle to the program; it becomes readable when the program exits.
    #[must_use]
    pub fn pidfd(&self) -> &PidFd {
        &self.pidfd
    }

    pub fn wait(&mut self) -> Result<ExitStatus, ProcessError> {
        let pid = self.pid();
        self.process.wait().map_err(|source| ProcessError::Wait { pid, source })
    }
}

/// Ends this process with the signal that ended the program, but without a core dump. The function returns only if the
/// signal does not end this process.
pub fn end_by(signal: i32) {
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the default action always exists, and `sigemptyset` initializes the set before it is used. If the signal
    // number is invalid, the calls fail without effect.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), std::ptr::null_mut());
        libc::raise(signal);
    }
}

/// Whether this process leads its session. When the terminal hangs up, the kernel sends SIGHUP only to the session
/// leader (`tty_signal_session_leader` in `drivers/tty/tty_jobctrl.c`).
#[must_use]
pub fn leads_its_session() -> bool {
    // rustix's `getsid` does not support the result 0. The kernel returns 0 if the leader is outside this PID
    // namespace, or no ancestor started a session (`setsid(2)`). SAFETY: the call takes a number and accesses no
    // memory.
    let session = unsafe { libc::getsid(0) };
    session == rustix::process::getpid().as_raw_pid()
}

/// Whether the error means that the program was not found, rather than not executable. Shells return exit status 127 or
/// 126 for these errors.
#[must_use]
pub fn is_not_found(error: &ProcessError) -> bool {
    matches!(error, ProcessError::Spawn { source, .. } if source.kind() == io::ErrorKind::NotFound)
}
