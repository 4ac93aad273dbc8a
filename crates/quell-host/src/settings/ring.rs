//! Busy polling of an io_uring of another process, told through a duplicate and taken back if it still polls so. A ring
//! that polls already is left alone: telling it anew would lose what its program told it.

use quell_linux::Pid;
use quell_linux::io_uring_polling::{RingPolling, RingPollingInfo, clear, may_tell, set};
use quell_linux::pidfd::DuplicatedFd;
use quell_linux::proc::{ProcError, ProcRoot, ProcessIdentity};

use super::{SettingsError, handle_of};
use crate::journal::{RingPollingChange, Undoing};

/// What came of looking at a ring.
#[derive(Debug)]
pub(crate) enum Ring {
    /// It does not poll, and may be told to.
    CanBeTold(RingPollingChange),
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
    let ring = handle_of(proc, process)?.duplicate_briefly(fd)?;
    match polling_of(proc, &ring)? {
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
    Ok(Ring::CanBeTold(RingPollingChange { pid, start_time_ticks, fd, new }))
}

/// How the ring polls, by its duplicate: its number in the process may be another file's by now.
fn polling_of(proc: &ProcRoot, ring: &DuplicatedFd) -> Result<RingPollingInfo, ProcError> {
    proc.process(Pid::of_this_process()).ring_polling(ring.number())
}

/// Has a ring poll that [`look`] found not to.
///
/// # Errors
/// When it is closed, polls by now, or the kernel refuses.
pub(crate) fn make(proc: &ProcRoot, process: ProcessIdentity, change: &RingPollingChange) -> Result<(), SettingsError> {
    let ring = handle_of(proc, process)?.duplicate_briefly(change.fd)?;
    match polling_of(proc, &ring)? {
        RingPollingInfo::Off => Ok(set(&ring, change.new)?),
        _ => Err(SettingsError::Gone { what: format!("the io_uring {} of process {}", change.fd, process.pid) }),
    }
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
    let duplicate = handle_of(proc, process).and_then(|handle| Ok(handle.duplicate_briefly(change.fd)?));
    let ring = match duplicate {
        Ok(ring) => ring,
        Err(error) if error.is_absent() => return Ok(Undoing::AlreadyGone),
        Err(error) => return Err(error),
    };
    match polling_of(proc, &ring)? {
        RingPollingInfo::On(polling) if polling == change.new => {
            clear(&ring)?;
            Ok(Undoing::Undone)
        }
        RingPollingInfo::On(_) => Ok(Undoing::LeftAlone(format!(
            "io_uring {} of process {} was told otherwise by somebody else since, and was left alone",
            change.fd, process.pid
        ))),
        // It was closed, and the number is another file's now, or the program took it back.
        RingPollingInfo::Off | RingPollingInfo::Untold => Ok(Undoing::AlreadyGone),
    }
}
