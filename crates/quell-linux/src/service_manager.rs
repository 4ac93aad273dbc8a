//! Notifies the service manager of this program's state (`sd_notify(3)`), with datagrams to the socket in
//! `NOTIFY_SOCKET`. The module also detects whether stderr is connected to the service manager's journal.

use std::io;
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sd_notify::NotifyState;

/// Notifies the service manager that startup is complete, with a sentence for `systemctl status`.
pub fn ready(status: &str) -> io::Result<()> {
    sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(status)])
}

/// Notifies the service manager of the current state, as a sentence for `systemctl status`.
pub fn status(status: &str) -> io::Result<()> {
    sd_notify::notify(&[NotifyState::Status(status)])
}

/// Notifies the service manager that this program is about to exit.
pub fn stopping() -> io::Result<()> {
    sd_notify::notify(&[NotifyState::Stopping])
}

/// Whether `stderr` is connected to the journal. `JOURNAL_STREAM` contains the device and inode of the journal's stream
/// (`systemd.exec(5)`). The journal reads a priority `<N>` at the start of each line (`sd-daemon(3)`).
#[must_use]
pub fn is_the_journal(stderr: &impl AsFd) -> bool {
    let Ok(stat) = rustix::fs::fstat(stderr) else { return false };
    std::env::var("JOURNAL_STREAM").is_ok_and(|stream| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
}

/// Whether a write of a line to `stderr` would not block. It would block if `stderr` is a full pipe.
#[must_use]
pub fn takes_a_line(stderr: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(stderr, PollFlags::OUT)];
    poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0) && fds[0].revents().contains(PollFlags::OUT)
}
