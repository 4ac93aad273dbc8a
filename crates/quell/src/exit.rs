//! How the program ends: the exit codes that scripts rely on, and how an error reads.

use std::fmt;
use std::io;
use std::process::ExitCode;

use quell_host::journal::Untrusted;
use quell_linux::executable::effective_user;
use quell_linux::netns::NamespaceError;

/// The exit codes of every command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Exit {
    /// The command line was not understood, or names something that is not there.
    Usage = 1,
    /// The kernel refused.
    KernelRefused = 2,
    /// What was set did not read back, or a check before measuring did not hold.
    VerifyFailed = 3,
    /// Something failed on the way, and everything was restored.
    RolledBack = 4,
    /// It is not possible on this machine.
    NotSupported = 5,
    /// A command cannot be executed, as shells spell it.
    CannotExecute = 126,
    /// There is no such command, as shells spell it.
    CommandNotFound = 127,
    /// Ctrl-C, as shells spell it (128 + SIGINT).
    Interrupted = 130,
}

/// An error that ends the program.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit code.
    pub(crate) exit: Exit,
    /// What was tried, on what, what came back, what to do.
    pub(crate) text: String,
}

impl Exit {
    /// What an exit code of this program means, when it came from elsewhere; an unknown one is that something failed.
    pub(crate) fn from_code(code: i32) -> Self {
        let all = [
            Self::Usage,
            Self::KernelRefused,
            Self::VerifyFailed,
            Self::RolledBack,
            Self::NotSupported,
            Self::Interrupted,
        ];
        all.into_iter().find(|exit| *exit as i32 == code).unwrap_or(Self::RolledBack)
    }
}

impl Failure {
    /// A failure with this text.
    pub(crate) fn new(exit: Exit, text: impl fmt::Display) -> Self {
        Self { exit, text: text.to_string() }
    }

    /// The kernel refused, or, where it did so for a missing privilege, it is not possible for this user.
    pub(crate) fn refused(error: impl std::error::Error + 'static) -> Self {
        let text = error.to_string();
        match is_denied(&error) {
            true if text.contains("needs root") => Self::new(Exit::NotSupported, text),
            true => Self::new(Exit::NotSupported, format!("{text}; this needs root")),
            false => Self::new(Exit::KernelRefused, text),
        }
    }

    /// A wrong command line.
    pub(crate) fn usage(text: impl fmt::Display) -> Self {
        Self::new(Exit::Usage, text)
    }
}

/// Whether a missing privilege is what an error comes from.
fn is_denied(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(|cause| match (cause.downcast_ref::<io::Error>(), cause.downcast_ref::<NamespaceError>()) {
        (Some(error), _) => error.kind() == io::ErrorKind::PermissionDenied && !is_distrusted_by_root(error),
        (_, Some(error)) => error.is_denied(),
        (None, None) => false,
    })
}

/// A journal that is not root's own is refused to root as well: no privilege helps.
fn is_distrusted_by_root(error: &io::Error) -> bool {
    effective_user() == 0 && error.get_ref().is_some_and(|inner| inner.is::<Untrusted>())
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}
