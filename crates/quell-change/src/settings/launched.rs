//! Busy polling of all epolls of a launched program, which its preload library sets.

use std::fmt;

use quell_linux::Pid;
use quell_linux::proc::FdKind;
use quell_mode::EpollParams;
use serde::{Deserialize, Serialize};

use super::epoll::{self, EpollParameters, EpollToEnd};
use crate::change::{Kind, Undo, UndoOutcome, identity};
use crate::journal::TargetProgram;
use crate::target::Targets;
use crate::undo::UndoError;

/// All epolls of a launched program, including future ones. The kernel creates epolls without busy polling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LaunchedEpolls {
    pub pid: Pid,
    pub start_time_ticks: u64,
    pub new: EpollParams,
}

impl fmt::Display for LaunchedEpolls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epolls of the launched process {}: {}", self.pid, self.new)
    }
}

impl Kind for LaunchedEpolls {
    /// Disables busy polling on the epolls of a launched program, its descendants and the other targets.
    fn undo(&self, undo: &mut Undo<'_>) -> Result<UndoOutcome, UndoError> {
        let program = TargetProgram { pid: self.pid, start_time_ticks: self.start_time_ticks, name: String::new() };
        let mut undoing = UndoOutcome::AlreadyGone;
        for target in Targets::still_living(undo.history.targets.iter().chain([&program]))? {
            let process = identity(target.pid, target.start_time_ticks, undo.boot_id);
            // The process may have exited.
            let Ok(tid) = undo.proc.process(process.pid).thread_with_files(process.pid) else { continue };
            let Ok(fds) = undo.proc.process(tid).fds() else { continue };
            let epolls = fds.iter().filter(|fd| fd.kind == FdKind::Epoll).map(|fd| EpollParameters {
                pid: target.pid,
                start_time_ticks: target.start_time_ticks,
                fd: fd.number,
                duplicates: Vec::new(),
                old: EpollParams::default(),
                new: self.new,
                alternatives: Vec::new(),
                set_at_boot_ns: 0,
                since_boot_ns: 0,
            });
            let epolls: Vec<EpollParameters> = epolls.collect();
            let to_end: Vec<EpollToEnd<'_>> = epolls.iter().map(|change| EpollToEnd::new(change, true, &[])).collect();
            for outcome in epoll::restore(undo.proc, process, &to_end) {
                // The program itself has set an epoll that has other parameters.
                if outcome? == UndoOutcome::Undone {
                    undoing = UndoOutcome::Undone;
                }
            }
        }
        Ok(undoing)
    }
}
