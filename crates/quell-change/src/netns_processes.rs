//! Kills all processes in a network namespace, whatever their session: a daemon has left its original session, but not
//! its namespace. The caller checks that the namespace belongs to Quell.

use std::time::{Duration, Instant};

use quell_linux::Pid;
use quell_linux::netns::{Namespace, NamespaceError};
use quell_linux::pidfd::{PidFd, PidFdError, Signal};
use quell_linux::proc::ProcRoot;
use quell_linux::process::ProcessError;

use crate::undo::UndoError;

/// Kills all processes in `namespace` with SIGKILL and waits for their exit, at most until `bound`. Includes processes
/// that are started in the meantime. Spares this process. Ignores processes that it may not inspect.
pub(crate) fn end_processes(namespace: &Namespace, proc: &ProcRoot, bound: Duration) -> Result<(), UndoError> {
    let started = Instant::now();
    loop {
        let inside = others_inside(namespace, proc)?;
        if inside.is_empty() {
            return Ok(());
        }
        if started.elapsed() > bound {
            return Err(still_inside(namespace, &inside, bound));
        }
        let mut killed = Vec::new();
        for pid in inside {
            killed.extend(kill(namespace, proc, pid)?);
        }
        let mut left = Vec::new();
        for handle in &killed {
            if !handle.wait_for_exit(bound.saturating_sub(started.elapsed())).map_err(ProcessError::from)? {
                left.push(handle.pid());
            }
        }
        if !left.is_empty() {
            return Err(still_inside(namespace, &left, bound));
        }
    }
}

fn others_inside(namespace: &Namespace, proc: &ProcRoot) -> Result<Vec<Pid>, NamespaceError> {
    let mut inside = namespace.processes(proc.path())?.pids;
    inside.retain(|&pid| pid != Pid::of_this_process());
    Ok(inside)
}

fn still_inside(namespace: &Namespace, left: &[Pid], within: Duration) -> UndoError {
    UndoError::StillInside {
        namespace: namespace.to_string(),
        left: left.iter().map(|pid| pid.get()).collect(),
        within,
    }
}

fn kill(namespace: &Namespace, proc: &ProcRoot, pid: Pid) -> Result<Option<PidFd>, UndoError> {
    let Some(handle) = unless_gone(PidFd::open(pid))? else { return Ok(None) };
    // Check while the pidfd is open, so that both refer to the same process.
    match Namespace::open_pid(proc.path(), pid) {
        Ok(lives_in) if lives_in == *namespace => {}
        Ok(_) => return Ok(None),
        Err(error) if error.is_absent() => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    Ok(unless_gone(handle.signal(Signal::KILL))?.map(|()| handle))
}

fn unless_gone<T>(result: Result<T, PidFdError>) -> Result<Option<T>, ProcessError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.is_gone() => Ok(None),
        Err(error) => Err(error.into()),
    }
}
