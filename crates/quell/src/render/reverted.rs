//! Output of `quell revert` and `quell confirm`, as text and as JSON, and outcomes of undoing changes.

use std::path::Path;

use quell_change::journal::{History, JournalError, Purpose, StallRecord, TargetProgram};
use quell_change::persistent::Salvaged;
use quell_change::recovery::Reverted;
use quell_host::attach::attached::Attached;
use quell_host::attach::keeper::Detached;
use quell_linux::visible::{self, counted};
use schemars::JsonSchema;
use serde::Serialize;

use super::attach::detached::{self, DetachedReport, RestoredReport};
use super::status::to_programs;
use crate::journals::name_of;
use crate::output::on_one_line;

/// Maximum number of changes that a dry run prints for each journal.
const CHANGES_SHOWN: usize = 20;

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
    let mut text = format!("{name}: {}", detached::restored(reverted.restored(), reverted.already_gone.len()));
    text.push_str(&detached::superseded(&reverted.superseded));
    text.push_str(&detached::unrecorded(&reverted.unrecorded));
    text.push('\n');
    text.push_str(&detached::left(&reverted.partial, &reverted.left_alone, &reverted.waiting));
    for (change, error) in &reverted.failed {
        text.push_str(&format!("  not restored: {}: {error}\n", change));
    }
    text
}

/// Stalls that are no longer reported.
pub(crate) fn forgotten(forgot: &str, stalls: &[StallRecord]) -> String {
    let line = |StallRecord { purpose, programs, journal_name, .. }: &StallRecord| {
        let what = on_one_line(&format!("{purpose}{} ({journal_name})", to_programs(programs)));
        format!("{forgot} the stalls of {what}\n")
    };
    stalls.iter().map(line).collect()
}

/// Output of `quell revert --dry-run`; empty if nothing would be undone.
pub(crate) fn planned(all: &[PlannedRevert]) -> String {
    all.iter().map(one_planned).collect()
}

fn one_planned(planned: &PlannedRevert) -> String {
    let PlannedRevert { journal_name, purpose, programs, changes, gone, kept_for } = planned;
    let purpose = purpose.as_ref().map_or_else(|| "damaged journal".to_owned(), ToString::to_string);
    let what = on_one_line(&format!("{purpose}{} ({journal_name})", to_programs(programs)));
    let kept = detached::kept_for(kept_for.iter().map(String::as_str));
    let left = counted(changes.len().saturating_sub(*gone + kept_for.len()), "change");
    let mut text = match (changes.len().saturating_sub(*gone), gone) {
        (0, 1..) => return format!("{what}: nothing is left to undo: its devices or network namespace are gone\n"),
        (_, 0) => format!("{what}: {left} to undo{kept}\n"),
        (_, gone) => format!("{what}: {left} to undo, {gone} gone with the device or network namespace{kept}\n"),
    };
    // Undone in this order.
    text.extend(changes.iter().rev().take(CHANGES_SHOWN).map(|change| format!("  {}\n", on_one_line(change))));
    if changes.len() > CHANGES_SHOWN {
        text.push_str(&format!("  and {} more; --json lists all\n", changes.len() - CHANGES_SHOWN));
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
        "{} that {wait} for {their_queue} (the lines `waits` have the reasons); `quell status` has the command that tries \
         again",
        counted(count, "setting")
    )
}

pub(crate) fn undo_outcome(reverted: &Result<Reverted, JournalError>) -> String {
    match reverted {
        Ok(reverted) if reverted.failed.is_empty() => {
            let Reverted { partial, left_alone, superseded, waiting, .. } = reverted;
            let of_others = (!partial.is_empty() || !left_alone.is_empty())
                .then(|| "what another program has changed since".to_owned());
            let waits = (!waiting.is_empty()).then(|| waits(waiting.len()));
            let except = [of_others, waits].into_iter().flatten().collect::<Vec<_>>().join(", and ");
            let except = if except.is_empty() { except } else { format!(" except {except}") };
            let text = format!(
                "everything was restored{except}{}\n{}",
                detached::superseded(superseded),
                detached::left(partial, left_alone, waiting)
            );
            text.trim_end().to_owned()
        }
        Ok(reverted) => {
            let failed = reverted.failed.iter().map(|(_, error)| format!("\n  not restored: {error}"));
            format!(
                "some changes could not be undone (`quell status` has the command that retries):{}",
                failed.collect::<String>()
            )
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

/// A journal that `quell revert` would undo.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct PlannedRevert {
    /// Name of the journal, by which `quell revert` selects it.
    journal_name: String,
    /// Null if the journal is damaged.
    purpose: Option<Purpose>,
    programs: Vec<TargetProgram>,
    /// Changes to undo, in the order in which they were made.
    changes: Vec<String>,
    /// Number of changes that vanished with their device or network namespace.
    gone: usize,
    /// Owners that have set the values of a change since, and keep them: one for each such change.
    kept_for: Vec<String>,
}

impl PlannedRevert {
    pub(crate) fn new(journal: &Path, history: Option<&History>, gone: usize, kept_for: Vec<String>) -> Self {
        Self {
            journal_name: name_of(journal),
            purpose: history.map(|history| history.begin.purpose.clone()),
            programs: history.map(|history| history.targets.clone()).unwrap_or_default(),
            changes: history
                .into_iter()
                .flat_map(History::pending)
                .map(|(_, entry)| entry.change.to_string())
                .collect(),
            gone,
            kept_for,
        }
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
    /// What would be undone. Only with `--dry-run`.
    #[serde(skip_serializing_if = "Option::is_none")]
    planned: Option<Vec<PlannedRevert>>,
    /// Names of the journals whose stalls are no longer reported, or, with `--dry-run`, would not be.
    forgotten_stalls: Vec<String>,
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
            planned: None,
            forgotten_stalls: Vec::new(),
        }
    }

    pub(crate) fn forgetting(self, stalls: &[StallRecord]) -> Self {
        let forgotten_stalls = stalls.iter().map(|record| record.journal_name.clone()).collect();
        Self { forgotten_stalls, ..self }
    }

    pub(crate) fn planned(planned: Vec<PlannedRevert>) -> Self {
        Self { planned: Some(planned), ..Self::new(&[], &[], &[]) }
    }
}

#[cfg(test)]
mod tests {
    use quell_change::change::{Change, CreatedNamespace};

    use super::*;

    #[test]
    fn what_others_changed_since_is_not_said_to_be_restored() {
        let change = Change::NetworkNamespace(CreatedNamespace { name: "lab".to_owned() });
        let foreign = (change.clone(), "another program has changed NAPI 8193".to_owned());
        let said =
            |left_alone, superseded| undo_outcome(&Ok(Reverted { left_alone, superseded, ..Reverted::default() }));
        assert_eq!(said(Vec::new(), Vec::new()), "everything was restored");
        assert_eq!(
            said(vec![foreign.clone(), foreign], Vec::new()),
            "everything was restored except what another program has changed since\n  left alone: another program has \
             changed NAPI 8193"
        );
        let owner = (change, "attach base".to_owned());
        assert_eq!(said(Vec::new(), vec![owner]), "everything was restored, 1 kept for attach base");
    }

    #[test]
    fn a_dry_run_says_what_is_left_and_what_is_gone() {
        let planned_beside = |gone, kept_for: &[&str]| {
            let kept_for = kept_for.iter().map(|&owner| owner.to_owned()).collect();
            let changes = vec!["first".to_owned(), "second".to_owned()];
            let purpose = Some(Purpose::Attachment { mode: "suspend20".parse().unwrap() });
            let journal_name = "attach-7".to_owned();
            planned(&[PlannedRevert { journal_name, purpose, programs: Vec::new(), changes, gone, kept_for }])
        };
        let planned = |gone| planned_beside(gone, &[]);
        assert_eq!(planned(0), "attach suspend20 (attach-7): 2 changes to undo\n  second\n  first\n");
        assert!(planned(1).starts_with("attach suspend20 (attach-7): 1 change to undo, 1 gone with the device"));
        let gone = "nothing is left to undo: its devices or network namespace are gone\n";
        assert_eq!(planned(2), format!("attach suspend20 (attach-7): {gone}"));
        let kept = planned_beside(0, &["attach defer20"]);
        assert!(
            kept.starts_with("attach suspend20 (attach-7): 1 change to undo, 1 kept for attach defer20\n"),
            "{kept}"
        );
    }
}
