//! Busy polling of an io_uring in another process. It is set through a duplicate, and unset if nobody has changed it
//! since. A ring that already busy polls is left alone, because setting it again would overwrite the program's
//! settings.

use std::fmt;

use quell_linux::Pid;
use quell_linux::io_uring_polling::{RingPolling, RingPollingInfo, clear, may_configure, set};
use quell_linux::pidfd::DuplicatedFd;
use quell_linux::proc::{ProcError, ProcRoot, ProcessIdentity};
use serde::{Deserialize, Serialize};

use super::{SettingsError, handle_of};
use crate::change::{Kind, Undo, UndoOutcome, identity};
use crate::undo::UndoError;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RingPollingChange {
    pub pid: Pid,
    pub start_time_ticks: u64,
    /// File descriptor in that process. Descriptors are reused, so undo checks the setting of the ring too.
    pub fd: i32,
    pub new: RingPolling,
}

impl fmt::Display for RingPollingChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "io_uring {} of process {}: busy poll {} µs", self.fd, self.pid, self.new.busy_poll_us)
    }
}

impl Kind for RingPollingChange {
    fn undo(&self, undo: &mut Undo<'_>) -> Result<UndoOutcome, UndoError> {
        let process = identity(self.pid, self.start_time_ticks, undo.boot_id);
        Ok(restore(undo.proc, process, self)?)
    }
}

#[derive(Debug)]
pub(crate) enum Ring {
    CanBeSet(RingPollingChange),
    LeftAlone(String),
}

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
            return Ok(Ring::LeftAlone(format!("it already busy polls, for {busy_poll_us} µs")));
        }
        RingPollingInfo::Unreported => {
            return Ok(Ring::LeftAlone(
                "the kernel does not report its current setting, which therefore could not be restored".to_owned(),
            ));
        }
    }
    if let Err(error) = may_configure(&ring) {
        return Ok(Ring::LeftAlone(error.to_string()));
    }
    let (pid, start_time_ticks) = (process.pid, process.starttime.0);
    Ok(Ring::CanBeSet(RingPollingChange { pid, start_time_ticks, fd, new }))
}

/// Reads the setting through the duplicate, because the process may reuse the descriptor.
fn polling_of(proc: &ProcRoot, ring: &DuplicatedFd) -> Result<RingPollingInfo, ProcError> {
    proc.process(Pid::of_this_process()).ring_polling(ring.number())
}

pub(crate) fn make(proc: &ProcRoot, process: ProcessIdentity, change: &RingPollingChange) -> Result<(), SettingsError> {
    let ring = handle_of(proc, process)?.duplicate_briefly(change.fd)?;
    match polling_of(proc, &ring)? {
        RingPollingInfo::Off => Ok(set(&ring, change.new)?),
        _ => Err(SettingsError::Gone { what: format!("the io_uring {} of process {}", change.fd, process.pid) }),
    }
}

/// Disables busy polling on a ring if the setting is unchanged since.
pub(crate) fn restore(
    proc: &ProcRoot,
    process: ProcessIdentity,
    change: &RingPollingChange,
) -> Result<UndoOutcome, SettingsError> {
    let duplicate = handle_of(proc, process).and_then(|handle| Ok(handle.duplicate_briefly(change.fd)?));
    let ring = match duplicate {
        Ok(ring) => ring,
        Err(error) if error.is_absent() => return Ok(UndoOutcome::AlreadyGone),
        Err(error) => return Err(error),
    };
    match polling_of(proc, &ring)? {
        RingPollingInfo::On(polling) if polling == change.new => {
            clear(&ring)?;
            Ok(UndoOutcome::Undone)
        }
        RingPollingInfo::On(_) => Ok(UndoOutcome::LeftAlone(format!(
            "another program has changed io_uring {} of process {}",
            change.fd, process.pid
        ))),
        // The ring was closed and its descriptor reused, or the program has disabled busy polling.
        RingPollingInfo::Off | RingPollingInfo::Unreported => Ok(UndoOutcome::AlreadyGone),
    }
}
