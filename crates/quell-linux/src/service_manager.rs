//! Telling the service manager that started this program how it fares (`sd_notify(3)`): by datagrams to the socket that
//! `NOTIFY_SOCKET` names. Without that variable there is nobody to tell, which is no error.

use std::io;

use sd_notify::NotifyState;

/// Says that everything is in place, with a sentence for `systemctl status`.
///
/// # Errors
/// When the socket cannot be written to.
pub fn ready(status: &str) -> io::Result<()> {
    sd_notify::notify(&[NotifyState::Ready, NotifyState::Status(status)])
}

/// Says how things are now, in a sentence for `systemctl status`.
///
/// # Errors
/// When the socket cannot be written to.
pub fn status(status: &str) -> io::Result<()> {
    sd_notify::notify(&[NotifyState::Status(status)])
}

/// Says that this program is about to end.
///
/// # Errors
/// When the socket cannot be written to.
pub fn stopping() -> io::Result<()> {
    sd_notify::notify(&[NotifyState::Stopping])
}
