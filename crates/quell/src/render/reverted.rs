//! Output of `quell revert` and `quell confirm`, as text and as JSON, and outcomes of undoing changes.

use quell_change::journal::JournalError;
use quell_change::persistent::Salvaged;
use quell_change::recovery::Reverted;
use quell_host::attach::attached::Attached;
use quell_host::attach::keeper::Detached;
use quell_linux::visible::{self, counted};
use schemars::JsonSchema;
use serde::Serialize;

use super::attach::detached::{self, DetachedReport, RestoredReport};

/// Outcome of `quell revert` as text; empty if nothing was found.
pub(crate) fn reverted(detached: &[(Attached, Detached)], all: &[(String, Reverted)], damaged: &[Salvaged]) -> String {
    let mut text = detached::text(detached);
    for (name, reverted) in all {
        text.push_str(&one_reverted(name, reverted));
    }
    for salvaged in damaged {
        text.push_str(&one_salvaged(salvaged));
    }
    text
}

fn one_reverted(name: &str, reverted: &Reverted) -> String {
    let mut text = format!("{name}: {} restored", counted(reverted.restored(), "setting"));
    if !reverted.already_gone.is_empty() {
        text.push_str(&format!(", {} already restored or gone", reverted.already_gone.len()));
    }
    text.push_str(&detached::superseded(&reverted.superseded));
    text.push_str(&detached::unrecorded(&reverted.unrecorded));
    text.push('\n');
    text.push_str(&detached::left(&reverted.partial, &reverted.left_alone, &reverted.waiting));
    for (change, error) in &reverted.failed {
        text.push_str(&format!("  not restored: {}: {error}\n", change));
    }
    text
}

fn one_salvaged(salvaged: &Salvaged) -> String {
    let name = format!("damaged journal {}", visible::path(&salvaged.path));
    let mut text = one_reverted(&name, &salvaged.reverted);
    for unreadable in &salvaged.unreadable {
        text.push_str(&format!("  unreadable: {unreadable}\n"));
    }
    text.push_str(if salvaged.removed {
        "  file removed; changes on these lines, if any, stay until the next boot\n"
    } else {
        "  file kept; changes on these lines, if any, may still be set; \
         `quell revert --remove-damaged` removes it\n"
    });
    text
}

pub(crate) fn waits(count: usize) -> String {
    let (wait, their_queue) = if count == 1 { ("waits", "its queue") } else { ("wait", "their queues") };
    format!(
        "{} that {wait} for {their_queue}: the link is down, the queue is unused, or its network namespace cannot be \
         opened; `quell revert` tries again",
        counted(count, "setting")
    )
}

pub(crate) fn undo_outcome(reverted: &Result<Reverted, JournalError>) -> String {
    match reverted {
        Ok(reverted) if reverted.failed.is_empty() && reverted.waiting.is_empty() => {
            "everything was restored".to_owned()
        }
        Ok(reverted) if reverted.failed.is_empty() => {
            let waiting = reverted.waiting.iter().map(|(_, why)| format!("\n  waits: {why}"));
            format!("everything was restored except {}", waits(reverted.waiting.len())) + &waiting.collect::<String>()
        }
        Ok(reverted) => {
            let failed = reverted.failed.iter().map(|(_, error)| format!("\n  not restored: {error}"));
            format!("some changes could not be undone (`quell revert` retries):{}", failed.collect::<String>())
        }
        Err(error) => error.to_string(),
    }
}

/// Output of `quell confirm`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct ConfirmReport {
    schema: &'static str,
    /// What was confirmed, as `quell status` names it.
    confirmed: Vec<String>,
}

impl ConfirmReport {
    pub(crate) const SCHEMA: &str = "quell-confirm/1";

    pub(crate) fn new(confirmed: Vec<String>) -> Self {
        Self { schema: Self::SCHEMA, confirmed }
    }
}

/// Output of `quell revert`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct RevertReport {
    schema: &'static str,
    detached: Vec<DetachedReport>,
    reverted: Vec<RevertedReport>,
    damaged: Vec<DamagedReport>,
}

/// Outcome for an applied profile, or for the changes of a run that was killed.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
struct RevertedReport {
    name: String,
    #[serde(flatten)]
    restored: RestoredReport,
}

/// Outcome for a damaged journal.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
struct DamagedReport {
    /// Path of the journal.
    name: String,
    #[serde(flatten)]
    restored: RestoredReport,
    /// Lines that could not be read. Their changes may still be set.
    not_read: Vec<String>,
    /// Whether the journal was removed.
    removed: bool,
}

impl RevertReport {
    pub(crate) const SCHEMA: &str = "quell-revert/2";

    pub(crate) fn new(detached: &[(Attached, Detached)], all: &[(String, Reverted)], damaged: &[Salvaged]) -> Self {
        let reverted = |(name, reverted): &(String, Reverted)| RevertedReport {
            name: name.clone(),
            restored: RestoredReport::of_reverted(reverted),
        };
        let damaged_journal = |salvaged: &Salvaged| DamagedReport {
            name: visible::path(&salvaged.path),
            restored: RestoredReport::of_reverted(&salvaged.reverted),
            not_read: salvaged.unreadable.iter().map(ToString::to_string).collect(),
            removed: salvaged.removed,
        };
        Self {
            schema: Self::SCHEMA,
            detached: detached.iter().map(DetachedReport::of).collect(),
            reverted: all.iter().map(reverted).collect(),
            damaged: damaged.iter().map(damaged_journal).collect(),
        }
    }
}
