//! Detects files that stay ready in an epoll that suspends interrupts. Each `epoll_wait` returns such a file, re-arms
//! the suspension and polls no queue. Two snapshots cannot distinguish it from a file that the program reads often, so
//! Quell samples its readiness between them.

use std::thread;
use std::time::{Duration, Instant};

use quell_linux::Pid;
use quell_linux::pidfd::PidFd;

use crate::findings::{Finding, Node, READY_FILE_HOLDS_SUSPENSION, Severity};
use crate::snapshot::{Snapshot, WatchedTarget};

/// Sampling interval. A file that its program reads is unready in at least one sample.
const ASKED_EVERY: Duration = Duration::from_millis(10);

/// A file that was ready when the snapshot was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReadyFile {
    pid: Pid,
    fd: i32,
    events: u32,
}

impl ReadyFile {
    fn is_ready(self) -> bool {
        let file = PidFd::open(self.pid).and_then(|process| process.duplicate_briefly(self.fd));
        file.is_ok_and(|file| file.is_ready(self.events).unwrap_or(false))
    }

    fn is_in(self, finding: &Finding) -> bool {
        finding.nodes.contains(&Node::File { pid: self.pid, fd: self.fd })
    }
}

/// Files in the findings about ready files.
#[must_use]
pub fn suspects(snapshot: &Snapshot, findings: &[Finding]) -> Vec<ReadyFile> {
    let findings: Vec<&Finding> = findings.iter().filter(|finding| finding.id == READY_FILE_HOLDS_SUSPENSION).collect();
    let mut suspects: Vec<ReadyFile> = Vec::new();
    for process in &snapshot.processes {
        let epolls = process.files.known().into_iter().flat_map(|files| &files.epolls);
        let file = |target: &WatchedTarget| ReadyFile { pid: process.pid, fd: target.fd, events: target.events };
        let files = epolls.flat_map(|epoll| epoll.targets.known_elements()).map(file);
        suspects.extend(files.filter(|file| findings.iter().any(|finding| file.is_in(finding))));
    }
    suspects
}

/// Files that are ready in every sample during this time.
#[must_use]
pub fn stay_ready(mut files: Vec<ReadyFile>, time: Duration) -> Vec<ReadyFile> {
    let began = Instant::now();
    loop {
        files.retain(|file| file.is_ready());
        if files.is_empty() || began.elapsed() >= time {
            return files;
        }
        thread::sleep(ASKED_EVERY);
    }
}

/// Raises a finding to serious if its file stayed ready. Otherwise lowers it to a warning.
pub fn judge(findings: &mut [Finding], stayed_ready: &[ReadyFile]) {
    for finding in findings.iter_mut().filter(|finding| finding.id == READY_FILE_HOLDS_SUSPENSION) {
        let stayed = stayed_ready.iter().any(|file| file.is_in(finding));
        finding.severity = if stayed { Severity::Serious } else { finding.severity.min(Severity::Warning) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsFd as _, AsRawFd as _};

    use quell_linux::event::WakeEvent;

    use super::*;

    const EPOLLIN: u32 = 1;

    #[test]
    fn an_unread_file_stays_ready_and_an_idle_one_does_not() {
        let (raised, idle) = (WakeEvent::new().unwrap(), WakeEvent::new().unwrap());
        raised.raise().unwrap();
        let file = |event: &WakeEvent| ReadyFile {
            pid: Pid::of_this_process(),
            fd: event.as_fd().as_raw_fd(),
            events: EPOLLIN,
        };
        let files = [file(&raised), file(&idle)];
        assert_eq!(stay_ready(files.to_vec(), ASKED_EVERY * 2), [files[0]]);
    }
}
