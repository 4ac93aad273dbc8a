//! Busy-poll parameters of one epoll of another process: changed in the order that leaves no suspended queue stalled,
//! read back, put back.

use quell_linux::epoll_params::{self, EpollParams};
use quell_linux::netlink::Failure;
use quell_linux::netns::Namespace;
use quell_linux::pidfd::{DuplicatedFd, PidFd};
use quell_linux::proc::{ProcRoot, ProcessIdentity};

use super::SettingsError;
use super::napi::suspending;
use super::values::EpollValues;
use crate::journal::{EpollParameters, Undoing};
use crate::resume::Resumer;

/// An epoll of a process, by a duplicate that is closed as soon as possible: while it is open, the program's own close
/// is not the last.
#[derive(Debug)]
pub(crate) struct ForeignEpoll<'a> {
    proc: &'a ProcRoot,
    process: ProcessIdentity,
    fd: i32,
    epoll: DuplicatedFd,
}

impl<'a> ForeignEpoll<'a> {
    /// Duplicates it.
    ///
    /// # Errors
    /// When the process is gone or may not be looked into, or has no such file.
    pub(crate) fn open(proc: &'a ProcRoot, process: ProcessIdentity, fd: i32) -> Result<Self, SettingsError> {
        let handle = PidFd::open(process.pid)?;
        // Looked at while the handle is open: what is seen now is the process that the handle names.
        if !process.is_running(proc)? {
            return Err(SettingsError::ProcessGone { pid: process.pid.get() });
        }
        Ok(Self { proc, process, fd, epoll: handle.duplicate(fd)? })
    }

    /// Its parameters.
    ///
    /// # Errors
    /// When it is no epoll, or the kernel has no parameters of one.
    pub(crate) fn get(&self) -> Result<EpollValues, SettingsError> {
        Ok(epoll_params::get(&self.epoll)?.into())
    }

    /// Sets its parameters, frees the queues that it could leave stalled, and reads back.
    ///
    /// # Errors
    /// When the kernel refuses, reads something else back, or a queue cannot be freed.
    pub(crate) fn set(&self, values: EpollValues) -> Result<(), SettingsError> {
        let before = self.get()?;
        let stalls = before.prefer_busy_poll && !values.prefer_busy_poll;
        let resumers = if stalls { self.resumers()? } else { Vec::new() };
        for resumer in &resumers {
            // What cannot be polled is waited out, which is worth it only when it cannot be suspended again.
            let _ = resumer.poll();
        }
        epoll_params::set(&self.epoll, EpollParams::from(values))?;
        for resumer in &resumers {
            resumer.poll_or_wait_out()?;
        }
        let read = self.get()?;
        if read != values {
            let (pid, fd) = (self.process.pid.get(), self.fd);
            return Err(SettingsError::EpollReadBack { pid, fd, asked: values, read });
        }
        Ok(())
    }

    /// What frees every queue that the process can have suspended: the sockets that told the epoll of a queue may be
    /// closed by now. A queue that is freed needlessly is polled once more than it would have been.
    fn resumers(&self) -> Result<Vec<Resumer>, SettingsError> {
        let pid = self.process.pid;
        let namespace = match Namespace::open_pid(self.proc.path(), pid) {
            Err(error) if error.is_absent() => return Err(SettingsError::ProcessGone { pid: pid.get() }),
            namespace => namespace?,
        };
        let others = match suspending(&namespace) {
            Ok(napis) => napis,
            // A kernel without these settings does not suspend.
            Err(error) if error.failure() == Failure::Unsupported => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        Ok(Resumer::of_program(self.proc, pid, &others))
    }

    /// Puts `old` back. A process that ends meanwhile takes its epoll with it, which frees the queues.
    fn put_back(&self, old: EpollValues) -> Result<Undoing, SettingsError> {
        match self.set(old) {
            Ok(()) => Ok(Undoing::Undone),
            Err(error) if error.is_absent() || !self.process.is_running(self.proc)? => Ok(Undoing::AlreadyGone),
            Err(error) => Err(error),
        }
    }
}

/// Puts an epoll's parameters back where they are still those that were set.
///
/// # Errors
/// When the process may not be looked into, the kernel refuses, or a queue cannot be freed.
pub(crate) fn put_back(
    proc: &ProcRoot,
    process: ProcessIdentity,
    change: &EpollParameters,
) -> Result<Undoing, SettingsError> {
    let EpollParameters { fd, old, new, .. } = *change;
    let read = ForeignEpoll::open(proc, process, fd).and_then(|epoll| Ok((epoll.get()?, epoll)));
    let (current, epoll) = match read {
        Ok(read) => read,
        Err(error) if error.is_absent() => return Ok(Undoing::AlreadyGone),
        Err(error) => return Err(error),
    };
    if current == old {
        return Ok(Undoing::AlreadyGone);
    }
    if current != new {
        let pid = process.pid;
        return Ok(Undoing::InPart(format!(
            "epoll {fd} of process {pid} is not as Quell set it ({new}) but {current}: it was changed since, or is \
             another epoll under that number, and was left alone; before Quell it was {old}"
        )));
    }
    epoll.put_back(old)
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd as _, AsRawFd as _};
    use std::process::Command;

    use quell_linux::Pid;
    use quell_linux::event::Epoll;

    use super::*;

    #[test]
    fn a_process_that_ends_while_its_epoll_is_put_back_leaves_nothing_to_be_undone() {
        let (proc, own) = (ProcRoot::default(), Epoll::new(1).unwrap());
        let prefers = EpollParams { prefer_busy_poll: true, ..EpollParams::default() };
        if let Err(error) = epoll_params::set(&own, prefers) {
            return eprintln!("skipped: {error}");
        }
        let fd = own.as_fd().as_raw_fd();
        let epoll = PidFd::open(Pid::of_this_process()).unwrap().duplicate(fd).unwrap();
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let process = ProcessIdentity::of(&proc, Pid::from_kernel(child.id()).unwrap()).unwrap();
        let epoll = ForeignEpoll { proc: &proc, process, fd, epoll };
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(epoll.put_back(EpollParams::default().into()).unwrap(), Undoing::AlreadyGone);
    }
}
