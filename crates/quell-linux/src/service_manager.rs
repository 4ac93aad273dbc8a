//! Notifies the service manager of this program's state (`sd_notify(3)`), with datagrams to the socket in
//! `NOTIFY_SOCKET`. Without that variable nothing is sent, which is not an error.

use std::io;

use sd_notify::NotifyState;

/// Notifies that startup is complete, with a sentence for `systemctl status`.
///
/// # Errors
/// When the socket cannot be written to.
pub fn ready(status: &str) -> io::Result<()> {
    sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(status)])
}

/// Notifies of the current state, as a sentence for `systemctl status`.
///
/// # Errors
/// When the socket cannot be written to.
pub fn status(status: &str) -> io::Result<()> {
    sd_notify::notify(&[NotifyState::Status(status)])
}

/// Notifies that this program is about to exit.
///
/// # Errors
/// When the socket cannot be written to.
pub fn stopping() -> io::Result<()> {
    sd_notify::notify(&[NotifyState::Stopping])
}
