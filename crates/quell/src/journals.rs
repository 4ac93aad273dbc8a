//! Where the journals of this machine are, for all commands, and what is said of those that killed runs left. What is
//! in them is `quell-host`'s.

use quell_host::attach::attachment::mode_of;
use quell_host::journal::Journal;
use quell_host::recovery::{Found, recover};
use quell_host::transaction::ChangeError;
use quell_linux::visible;

use crate::output;
use crate::render::progress::Progress;
use crate::render::status::waits;

/// Where the journals of this machine are kept: on disk, for a journal is to outlive a crash.
const JOURNAL_DIR: &str = "/var/lib/quell/journal";

/// The journals of this machine, or those in `QUELL_JOURNAL_DIR` for tests and for users who want them elsewhere.
#[must_use]
pub(crate) fn journal() -> Journal {
    let set = std::env::var_os("QUELL_JOURNAL_DIR").filter(|dir| !dir.is_empty());
    let dir = set.unwrap_or_else(|| JOURNAL_DIR.into());
    Journal::in_dir(dir)
}

/// Undoes what killed runs left, for it would be taken for the host's own, and says what of it could not be undone.
///
/// # Errors
/// When the journals cannot be listed.
pub(crate) fn undo_what_killed_runs_left(journal: &Journal) -> Result<(), ChangeError> {
    for found in recover(journal)? {
        match found {
            Found::Recovered { reverted, .. } => {
                reverted.failed.iter().for_each(|(_, error)| output::say(&format!("left by a killed run: {error}")));
            }
            Found::Unusable(unusable) => output::say(&unusable.to_string()),
            Found::Failed(error) => output::say(&error.to_string()),
            Found::Running { .. } | Found::Kept { .. } => {}
        }
    }
    Ok(())
}

/// Says what became of a journal that was there before the lab of this run.
pub(crate) fn tell_of_recovery(progress: &Progress, found: &Found) {
    match found {
        Found::Running { history: Some(history), .. } if mode_of(history).is_some() => {}
        Found::Running { path, .. } => progress
            .say(&format!("another lab is running ({}): the two disturb each other's figures", visible::path(path))),
        // Settings of this host, which no lab shares.
        Found::Kept { .. } => {}
        Found::Recovered { path, reverted } if reverted.restored() == 0 && !reverted.waiting.is_empty() => {
            progress.say(&format!("left behind: {} ({})", waits(reverted.waiting.len()), visible::path(path)));
        }
        Found::Recovered { path, reverted } => {
            progress.say(&format!(
                "removed what a killed run left behind ({} things, {})",
                reverted.restored(),
                visible::path(path)
            ));
            for (_, error) in &reverted.failed {
                progress.say(&format!("  not removed: {error}"));
            }
        }
        Found::Unusable(unusable) => progress.say(&unusable.to_string()),
        Found::Failed(error) => progress.say(&error.to_string()),
    }
}
