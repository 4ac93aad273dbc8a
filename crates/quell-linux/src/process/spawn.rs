//! Prepares a child before it executes its program: network namespace, CPUs, session, files, and a signal for the case
//! that this program dies. Between `fork` and `exec` the child makes only system calls and allocates nothing, because
//! other threads of this program may hold locks.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal, setsid};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use super::output_tail::OutputTail;
use super::{Child, CpuList, Pid, PidFd, ProcRoot, ProcessError, ProcessIdentity};
use crate::sched::CpuMask;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[non_exhaustive]
pub enum SpawnStep {
    /// Creating the process, or executing the program. The program may be missing or not executable.
    Exec = 0,
    Session = 1,
    NetworkNamespace = 2,
    Affinity = 3,
    DeathSignal = 4,
    CloseFiles = 5,
}

impl SpawnStep {
    fn from_report(byte: u8) -> Self {
        let steps = [Self::Session, Self::NetworkNamespace, Self::Affinity, Self::DeathSignal, Self::CloseFiles];
        let step = steps.into_iter().find(|&step| step as u8 == byte);
        step.unwrap_or(Self::Exec)
    }
}

impl fmt::Display for SpawnStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exec => "executing it",
            Self::Session => "creating a session for it",
            Self::NetworkNamespace => "moving it into its network namespace",
            Self::Affinity => "binding it to its CPUs",
            Self::DeathSignal => "setting its parent-death signal",
            Self::CloseFiles => "closing inherited files",
        })
    }
}

#[derive(Debug, Default)]
pub enum Output {
    #[default]
    Null,
    /// Written to the same destination as this program's output with the same number.
    Inherit,
    File(File),
    /// Written to a pipe that another process or thread reads.
    Pipe(io::PipeWriter),
    /// Kept in memory, up to this number of the last bytes.
    Tail(usize),
}

/// A program to start, with its settings. Its stdin is `/dev/null` unless it is set. Of this process's open files, it
/// inherits only its input and output.
#[derive(Debug)]
pub struct Spawn<'a> {
    program: OsString,
    args: Vec<OsString>,
    env: Vec<(OsString, OsString)>,
    netns: Option<BorrowedFd<'a>>,
    cpus: Option<CpuList>,
    stdin: Option<io::PipeReader>,
    stdout: Output,
    stderr: Output,
    death_signal: Option<Signal>,
}

impl<'a> Spawn<'a> {
    /// Creates a command for a path, or for a name that is searched in `PATH`.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            program: program.as_ref().into(),
            args: Vec::new(),
            env: Vec::new(),
            netns: None,
            cpus: None,
            stdin: None,
            stdout: Output::Null,
            stderr: Output::Null,
            death_signal: None,
        }
    }

    #[must_use]
    pub fn args(mut self, args: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.args.extend(args.into_iter().map(|arg| arg.as_ref().into()));
        self
    }

    /// Sets an environment variable. The child inherits the other variables from this program.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.env.push((name.as_ref().into(), value.as_ref().into()));
        self
    }

    #[must_use]
    pub fn netns(mut self, netns: &'a impl AsFd) -> Self {
        self.netns = Some(netns.as_fd());
        self
    }

    /// Sets the CPU affinity before the program starts, so that all threads of the program inherit it.
    #[must_use]
    pub fn cpus(mut self, cpus: CpuList) -> Self {
        self.cpus = Some(cpus);
        self
    }

    #[must_use]
    pub fn stdin(mut self, pipe: io::PipeReader) -> Self {
        self.stdin = Some(pipe);
        self
    }

    #[must_use]
    pub fn stdout(mut self, output: Output) -> Self {
        self.stdout = output;
        self
    }

    #[must_use]
    pub fn stderr(mut self, output: Output) -> Self {
        self.stderr = output;
        self
    }

    /// Kills the child when the **thread** that started it exits (`PR_SET_PDEATHSIG`). This includes the death of this
    /// program. Call [`Self::start`] from a thread that outlives the child. The setting does not apply to the child's
    /// children, and a set-user-id program clears it.
    #[must_use]
    pub fn dies_with_this_thread(mut self) -> Self {
        self.death_signal.get_or_insert(Signal::KILL);
        self
    }

    /// As [`Self::dies_with_this_thread`], with SIGTERM: for a child that has to end children of its own before it
    /// exits.
    #[must_use]
    pub fn is_terminated_with_this_thread(mut self) -> Self {
        self.death_signal = Some(Signal::TERM);
        self
    }

    /// Starts the program. On an error, the child is killed and reaped.
    pub fn start(self) -> Result<Child, ProcessError> {
        let program = self.program.to_string_lossy().into_owned();
        if self.cpus.as_ref().is_some_and(CpuList::is_empty) {
            return Err(ProcessError::NoCpu { program });
        }
        let failed = |step, source| ProcessError::Spawn { program: program.clone(), step, source };
        let early = |source| failed(SpawnStep::Exec, source);

        let (report, reporter) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| early(e.into()))?;
        let (stdout, stdout_tail) = redirect(self.stdout).map_err(early)?;
        let (stderr, stderr_tail) = redirect(self.stderr).map_err(early)?;
        let mut command = Command::new(&self.program);
        command.args(&self.args).envs(self.env);
        command.stdin(self.stdin.map_or_else(Stdio::null, Stdio::from)).stdout(stdout).stderr(stderr);
        // Everything that allocates happens here. After `fork`, another thread of this process can hold the lock of the
        // allocator forever, so the child makes only system calls on plain values.
        let preparation = Preparation {
            netns: self.netns.map(|netns| netns.as_raw_fd()),
            mask: self.cpus.as_ref().map(CpuMask::new),
            parent: self.death_signal.map(|signal| (getpid(), signal)),
            reporter: reporter.as_raw_fd(),
        };
        // SAFETY: `in_child` makes only system calls. Its two file descriptors stay open until `spawn` returns.
        unsafe { command.pre_exec(move || preparation.in_child()) };
        let spawned = command.spawn();
        // This also closes this process's write ends of the outputs. Otherwise the readers would never see the end of
        // the output.
        drop((command, reporter));
        let process = spawned.map_err(|source| failed(reported_step(report), source))?;
        adopt(process, stdout_tail, stderr_tail)
    }
}

/// Takes ownership of a new process, or kills it on an error.
fn adopt(
    mut process: std::process::Child,
    stdout: Option<OutputTail>,
    stderr: Option<OutputTail>,
) -> Result<Child, ProcessError> {
    match handle(&process) {
        Ok((identity, pidfd)) => Ok(Child { process, identity, pidfd, exit: None, stdout, stderr }),
        Err(error) => {
            let _ = process.kill();
            let _ = process.wait();
            Err(error)
        }
    }
}

/// Opens a handle to a child. The child keeps its PID until it is reaped, so both values refer to the same process.
pub(super) fn handle(process: &std::process::Child) -> Result<(ProcessIdentity, PidFd), ProcessError> {
    let pid = Pid::from_kernel(process.id()).ok_or_else(|| ProcessError::Wait {
        pid: Pid::of_this_process(),
        source: io::Error::other(format!("the child has the invalid PID {}", process.id())),
    })?;
    let identity = ProcessIdentity::of(&ProcRoot::default(), pid)?;
    Ok((identity, PidFd::open(pid)?))
}

fn redirect(output: Output) -> io::Result<(Stdio, Option<OutputTail>)> {
    match output {
        Output::Null => Ok((Stdio::null(), None)),
        Output::Inherit => Ok((Stdio::inherit(), None)),
        Output::File(file) => Ok((file.into(), None)),
        Output::Pipe(writer) => Ok((writer.into(), None)),
        Output::Tail(limit) => {
            let (reader, writer) = io::pipe()?;
            Ok((writer.into(), Some(OutputTail::follow(reader, limit))))
        }
    }
}

fn reported_step(report: OwnedFd) -> SpawnStep {
    let mut step = [0];
    match File::from(report).read(&mut step) {
        Ok(1) => SpawnStep::from_report(step[0]),
        _ => SpawnStep::Exec,
    }
}

/// Settings that the child applies between `fork` and `exec`, as plain values.
struct Preparation {
    netns: Option<RawFd>,
    mask: Option<CpuMask>,
    parent: Option<(rustix::process::Pid, Signal)>,
    reporter: RawFd,
}

impl Preparation {
    fn in_child(&self) -> io::Result<()> {
        // The session first: a child that hangs in a later step is then reached by `kill_session`. The report pipe must
        // be open until the last step.
        self.step(SpawnStep::Session, || Ok(setsid().map(drop)?))?;
        self.step(SpawnStep::NetworkNamespace, || self.enter_netns())?;
        self.step(SpawnStep::Affinity, || match &self.mask {
            Some(mask) => mask.apply(0),
            None => Ok(()),
        })?;
        self.step(SpawnStep::DeathSignal, || self.die_with_parent())?;
        self.step(SpawnStep::CloseFiles, close_files_at_exec)
    }

    fn step(&self, step: SpawnStep, action: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        let result = action();
        if result.is_err() {
            let report = [step as u8];
            // SAFETY: the kernel reads one byte from the array. If the write fails, the parent gets the error without
            // the step.
            unsafe { libc::write(self.reporter, report.as_ptr().cast(), 1) };
        }
        result
    }

    fn enter_netns(&self) -> io::Result<()> {
        let Some(netns) = self.netns else {
            return Ok(());
        };
        // SAFETY: the caller of `start` keeps this file descriptor open until it returns.
        let netns = unsafe { BorrowedFd::borrow_raw(netns) };
        Ok(move_into_link_name_space(netns, Some(LinkNameSpaceType::Network))?)
    }

    fn die_with_parent(&self) -> io::Result<()> {
        let Some((parent, signal)) = self.parent else {
            return Ok(());
        };
        set_parent_process_death_signal(Some(signal))?;
        if getppid() != Some(parent) {
            // The parent died before the child set the signal, so the signal will never arrive.
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        Ok(())
    }
}

/// Marks all files except the standard files as close-on-exec. They stay open until `exec`, so that the child can still
/// report a failure.
fn close_files_at_exec() -> io::Result<()> {
    const FIRST_INHERITED: libc::c_uint = 3;
    let flags = libc::CLOSE_RANGE_CLOEXEC;
    // SAFETY: the call changes file descriptors of the child, in which no other code runs.
    let result = unsafe { libc::syscall(libc::SYS_close_range, FIRST_INHERITED, libc::c_uint::MAX, flags) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
