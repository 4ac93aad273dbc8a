//! Outcome of detaching, as text and as JSON.

use std::collections::{BTreeMap, BTreeSet};

use quell_change::change::Change;
use quell_change::journal::{Purpose, TargetProgram};
use quell_change::recovery::Reverted;
use quell_host::attach::attached::Attached;
use quell_host::attach::keeper::Detached;
use quell_linux::visible::counted;
use schemars::JsonSchema;
use serde::Serialize;

pub(crate) fn text(all: &[(Attached, Detached)]) -> String {
    all.iter().map(|(attached, detached)| one(attached, detached)).collect()
}

fn one(attached: &Attached, detached: &Detached) -> String {
    let done = if attached.purpose().mode().is_some() { "detached" } else { "ended" };
    let mut text = format!("{done} {}: {}", name(attached), restored(detached.restored(), detached.already_gone.len()));
    text.push_str(&superseded(&detached.superseded));
    text.push_str(&unrecorded(&detached.unrecorded));
    text.push('\n');
    text.push_str(&left(&detached.partial, &detached.left_alone, &detached.waiting));
    for change in &detached.failed {
        text.push_str(&format!("  not restored: {}\n", change));
    }
    text
}

/// How many settings were restored, and how many were gone.
pub(crate) fn restored(restored: usize, gone: usize) -> String {
    let settings = counted(restored, "setting");
    match (restored, gone) {
        (0, 1..) => format!("nothing was left to undo: {} already restored or gone", counted(gone, "setting")),
        (_, 0) => format!("{settings} restored"),
        (_, gone) => format!("{settings} restored, {gone} already restored or gone"),
    }
}

pub(crate) fn left(
    partial: &[(Change, String)],
    left_alone: &[(Change, String)],
    waiting: &[(Change, String)],
) -> String {
    let left_alone = partial.iter().chain(left_alone).map(|(_, why)| format!("  left alone: {why}\n"));
    let lines = left_alone.chain(waiting.iter().map(|(_, why)| format!("  waits: {why}\n")));
    // A journal lists an object twice if it was set twice.
    let mut said = BTreeSet::new();
    lines.filter(|line| said.insert(line.clone())).collect()
}

pub(crate) fn superseded(changes: &[(Change, String)]) -> String {
    kept_for(changes.iter().map(|(_, owner)| owner.as_str()))
}

/// `, 2 kept for attach suspend20`, by the owners of changes that stay.
pub(crate) fn kept_for<'a>(owners_of_changes: impl Iterator<Item = &'a str>) -> String {
    let mut owners: BTreeMap<&str, usize> = BTreeMap::new();
    owners_of_changes.for_each(|owner| *owners.entry(owner).or_default() += 1);
    owners.iter().map(|(owner, count)| format!(", {count} kept for {owner}")).collect()
}

/// Note about changes whose undo could not be recorded because the disk was full.
pub(crate) fn unrecorded(changes: &[Change]) -> String {
    match changes.len() {
        0 => String::new(),
        count => format!(", {count} undone but not recorded in the journal (no space left)"),
    }
}

pub(crate) fn name(attached: &Attached) -> String {
    let purpose = attached.purpose();
    let mode = purpose.mode().map_or_else(|| purpose.to_string(), |mode| mode.to_string());
    let targets = &attached.history.targets;
    let first = targets.first().map(|TargetProgram { pid, name, .. }| format!("{name} {pid}")).unwrap_or_default();
    match targets.len() {
        0 => purpose.to_string(),
        1 => format!("{first} ({mode})"),
        many => format!("{first} and {} more ({mode})", many - 1),
    }
}

/// Output of `quell detach`.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct DetachReport {
    schema: &'static str,
    detached: Vec<DetachedReport>,
}

/// An attachment that has ended.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct DetachedReport {
    purpose: Purpose,
    programs: Vec<TargetProgram>,
    #[serde(flatten)]
    restored: RestoredReport,
}

/// Outcome of undoing each change, in words.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct RestoredReport {
    /// Changes that were undone.
    undone: Vec<String>,
    /// Changes whose object is gone or already had its previous value.
    already_gone: Vec<String>,
    /// Changes that were partly undone, with the reason for the rest.
    partial: Vec<String>,
    /// Changes that were left in place, because another program has changed the value since.
    left_alone: Vec<String>,
    /// Owners of newer values that stay, once for each change.
    superseded: Vec<String>,
    /// Changes that wait for their queue; they stay in the journal.
    waiting: Vec<String>,
    /// Changes that were undone, although it could not be recorded in the journal.
    unrecorded: Vec<String>,
    /// Changes that could not be undone; they stay in the journal.
    failed: Vec<String>,
}

impl DetachReport {
    pub(crate) const SCHEMA: &str = "quell-detach/2";

    pub(crate) fn new(all: &[(Attached, Detached)]) -> Self {
        Self { schema: Self::SCHEMA, detached: all.iter().map(DetachedReport::of).collect() }
    }
}

impl DetachedReport {
    pub(crate) fn of((attached, detached): &(Attached, Detached)) -> Self {
        let restored = RestoredReport {
            undone: in_words(&detached.undone),
            already_gone: in_words(&detached.already_gone),
            partial: reasons(&detached.partial),
            left_alone: reasons(&detached.left_alone),
            superseded: reasons(&detached.superseded),
            waiting: reasons(&detached.waiting),
            unrecorded: in_words(&detached.unrecorded),
            failed: in_words(&detached.failed),
        };
        Self { purpose: attached.purpose().clone(), programs: attached.history.targets.clone(), restored }
    }
}

impl RestoredReport {
    pub(crate) fn of_reverted(reverted: &Reverted) -> Self {
        Self {
            undone: in_words(&reverted.undone),
            already_gone: in_words(&reverted.already_gone),
            partial: reasons(&reverted.partial),
            left_alone: reasons(&reverted.left_alone),
            superseded: reasons(&reverted.superseded),
            waiting: reasons(&reverted.waiting),
            unrecorded: in_words(&reverted.unrecorded),
            failed: reverted.failed.iter().map(|(change, error)| format!("{change}: {error}")).collect(),
        }
    }
}

fn in_words(changes: &[Change]) -> Vec<String> {
    changes.iter().map(ToString::to_string).collect()
}

fn reasons(changes: &[(Change, String)]) -> Vec<String> {
    changes.iter().map(|(_, why)| why.clone()).collect()
}
