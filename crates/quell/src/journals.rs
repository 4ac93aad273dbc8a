//! The journal directory, and messages about the recovery of journals. `quell-host` reads and writes the journals.

use std::path::Path;

use quell_change::journal::Journal;
use quell_change::recovery::{Found, recover};
use quell_change::transaction::ChangeError;
use quell_linux::proc::ProcRoot;
use quell_linux::visible;

use crate::exit::Failure;
use crate::output;
use crate::render::progress::Progress;
use crate::render::reverted::waits;

/// Default journal directory. It is on disk, because journals must survive a crash.
const JOURNAL_DIR: &str = "/var/lib/quell/journal";

/// The journals in `QUELL_JOURNAL_DIR` if it is set, otherwise in [`JOURNAL_DIR`].
#[must_use]
pub(crate) fn journal() -> Journal {
    let set = std::env::var_os("QUELL_JOURNAL_DIR").filter(|dir| !dir.is_empty());
    let dir = set.unwrap_or_else(|| JOURNAL_DIR.into());
    Journal::in_dir(dir)
}

/// Name of a journal, by which `quell revert` selects it.
#[must_use]
pub(crate) fn name_of(journal: &Path) -> String {
    journal.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

pub(crate) fn boot_id() -> Result<String, Failure> {
    Ok(ProcRoot::default().boot_id().map_err(Failure::refused)?.to_string())
}

/// Reverts changes left by killed runs, which would otherwise be recorded as the host's own values. Prints errors.
pub(crate) fn revert_killed_runs(journal: &Journal) -> Result<(), ChangeError> {
    for found in recover(journal)? {
        match found {
            Found::Recovered { reverted, .. } => {
                reverted.failed.iter().for_each(|(_, error)| output::say(&format!("left by an earlier run: {error}")));
            }
            Found::Unusable(unusable) => output::say(&unusable.to_string()),
            Found::Failed(error) => output::say(&error.to_string()),
            Found::Running { .. } | Found::Kept { .. } => {}
        }
    }
    Ok(())
}

/// Prints the result of recovering a journal that was found before the lab of this run was created.
pub(crate) fn report_recovery(progress: &Progress, found: &Found) {
    match found {
        Found::Running { history: Some(history), .. } if history.begin.purpose.is_of_programs() => {}
        Found::Running { path, .. } => progress
            .say(&format!("another lab is running ({}): both disturb each other's measurements", visible::path(path))),
        // These are host settings, not a lab.
        Found::Kept { .. } => {}
        Found::Recovered { path, reverted, .. } if reverted.restored() == 0 && !reverted.waiting.is_empty() => {
            progress.say(&format!(
                "left by an earlier run: {} ({})",
                waits(reverted.waiting.len()),
                visible::path(path)
            ));
        }
        Found::Recovered { path, reverted, .. } => {
            progress.say(&format!(
                "removed leftovers of an earlier run ({}, {})",
                visible::counted(reverted.restored(), "object"),
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
