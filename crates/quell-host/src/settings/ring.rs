//! Busy polling of an io_uring of another process, told through a duplicate and taken back if it still polls so. A ring
//! that polls already is left alone: telling it anew would lose what its program told it.

use quell_linux::io_uring_polling::{RingPolling, RingPollingInfo, clear, may_tell};
use quell_linux::pidfd::{DuplicatedFd, PidFd};
use quell_linux::proc::{ProcRoot, ProcessIdentity};

use super::SettingsError;
use crate::journal::{RingPollingChange, Undoing};

/// What came of looking at a ring.
#[derive(Debug)]
pub(crate) enum Ring {
    /// It does not poll, and may be told to.
    CanBeTold(DuplicatedFd, RingPollingChange),
    /// It is left alone, for this reason.
    LeftAlone(String),
}

/// Looks at a ring; nothing is changed.
///
/// # Errors
/// When the process is gone or may not be looked into.
pub(crate) fn look(
    proc: &ProcRoot,
    process: ProcessIdentity,
    fd: i32,
    new: RingPolling,
) -> Result<Ring, SettingsError> {
    let ring = duplicate(proc, process, fd)?;
    match proc.process(process.pid).ring_polling(fd)? {
        RingPollingInfo::Off => {}
        RingPollingInfo::On(polling) => {
            let RingPolling { busy_poll_us, .. } = polling;
            return Ok(Ring::LeftAlone(format!("it busy polls already, for {busy_poll_us} µs")));
        }
        RingPollingInfo::Untold => {
            return Ok(Ring::LeftAlone(
                "the kernel does not tell how it polls now, so it could not be put back".to_owned(),
            ));
        }
    }
    if let Err(error) = may_tell(&ring) {
        return Ok(Ring::LeftAlone(error.to_string()));
    }
    let (pid, start_time_ticks) = (process.pid.get().unsigned_abs(), process.starttime.0);
    Ok(Ring::CanBeTold(ring, RingPollingChange { pid, start_time_ticks, fd, new }))
}

fn duplicate(proc: &ProcRoot, process: ProcessIdentity, fd: i32) -> Result<DuplicatedFd, SettingsError> {
    let handle = PidFd::open(process.pid)?;
    if !process.is_running(proc)? {
        return Err(SettingsError::ProcessGone { pid: process.pid.get() });
    }
    Ok(handle.duplicate(fd)?)
}

/// Has a ring poll no more, if it still polls as it was told.
///
/// # Errors
/// When the process may not be looked into, or the kernel refuses.
pub(crate) fn put_back(
    proc: &ProcRoot,
    process: ProcessIdentity,
    change: &RingPollingChange,
) -> Result<Undoing, SettingsError> {
    let ring = match duplicate(proc, process, change.fd) {
        Ok(ring) => ring,
        Err(error) if error.is_absent() => return Ok(Undoing::AlreadyGone),
        Err(error) => return Err(error),
    };
    let told = match proc.process(process.pid).ring_polling(change.fd) {
        Err(error) if error.is_absent() => return Ok(Undoing::AlreadyGone),
        told => told?,
    };
    match told {
        RingPollingInfo::On(polling) if polling == change.new => {
            clear(&ring)?;
            Ok(Undoing::Undone)
        }
        RingPollingInfo::On(_) => Ok(Undoing::InPart(format!(
            "io_uring {} of process {} was told otherwise by somebody else since, and was left alone",
            change.fd, process.pid
        ))),
        // It was closed, and the number is another file's now, or the program took it back.
        RingPollingInfo::Off | RingPollingInfo::Untold => Ok(Undoing::AlreadyGone),
    }
}
