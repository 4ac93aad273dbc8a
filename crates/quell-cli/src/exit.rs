//! Exit codes and fatal errors.

use std::fmt;
use std::io;
use std::process::ExitCode;

use quell_linux::executable::effective_user;
use quell_linux::netns::NamespaceError;

/// Exit codes of all commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Exit {
    /// The command line is invalid, or names something that does not exist.
    Usage = 1,
    KernelRefused = 2,
    /// A setting has another value than the one that was set, or a check failed.
    VerifyFailed = 3,
    /// The operation failed, and everything was restored.
    RolledBack = 4,
    /// The operation is not possible on this machine.
    NotSupported = 5,
    /// The command cannot be executed (126, as in shells).
    CannotExecute = 126,
    /// The command does not exist (127, as in shells).
    CommandNotFound = 127,
    /// Interrupted by Ctrl-C (128 + SIGINT, as in shells).
    Interrupted = 130,
}

/// An error that ends the program.
#[derive(Debug)]
pub struct ProgramFailure {
    pub exit: Exit,
    /// What failed, on which object, the kernel's error, and what to do next.
    pub text: String,
}

impl Exit {
    /// Maps the exit code of another instance of this program; unknown codes mean failure.
    pub fn from_code(code: i32) -> Self {
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

impl ProgramFailure {
    pub fn new(exit: Exit, text: impl fmt::Display) -> Self {
        Self { exit, text: text.to_string() }
    }

    /// A kernel error; `NotSupported` if it is caused by a missing privilege.
    pub fn refused(error: impl std::error::Error + 'static) -> Self {
        let text = error.to_string();
        match is_denied(&error) {
            // Transparent errors hide the cause that says so.
            _ if text.contains("needs root") || text.contains("as root") => Self::new(Exit::NotSupported, text),
            true => Self::new(Exit::NotSupported, format!("{text}; this needs root")),
            false => Self::new(Exit::KernelRefused, text),
        }
    }

    /// Adds that nothing was changed, unless the text says so already.
    pub fn unchanged(self) -> Self {
        const UNCHANGED: &str = "nothing was changed";
        match self.text.contains(UNCHANGED) {
            true => self,
            false => Self { text: format!("{}; {UNCHANGED}", self.text), ..self },
        }
    }

    pub fn usage(text: impl fmt::Display) -> Self {
        Self::new(Exit::Usage, text)
    }
}

/// Whether the error is caused by a missing privilege.
fn is_denied(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut causes = std::iter::successors(Some(error), |error| error.source());
    causes.any(|cause| match (cause.downcast_ref::<io::Error>(), cause.downcast_ref::<NamespaceError>()) {
        (Some(error), _) => error.kind() == io::ErrorKind::PermissionDenied && !is_distrusted_by_root(error),
        (_, Some(error)) => error.is_denied(),
        (None, None) => false,
    })
}

/// Whether the error is not the kernel's answer but a refusal of Quell, as of a journal that others can write. Root
/// privileges would not help.
fn is_distrusted_by_root(error: &io::Error) -> bool {
    effective_user() == 0 && error.raw_os_error().is_none()
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_nothing_was_changed_is_said_once() {
        let said = |text: &str| ProgramFailure::usage(text).unchanged().text;
        assert_eq!(said("no such unit"), "no such unit; nothing was changed");
        assert_eq!(
            said("not recorded, so nothing was changed; this needs root"),
            "not recorded, so nothing was changed; this needs root"
        );
        let twice = ProgramFailure::usage("no such unit").unchanged().unchanged();
        assert_eq!(twice.text.matches("nothing was changed").count(), 1);
    }
}
