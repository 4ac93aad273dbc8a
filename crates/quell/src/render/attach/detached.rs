//! Outcome of detaching, as text and as JSON.

use std::collections::BTreeMap;

use quell_change::change::Change;
use quell_change::journal::TargetProgram;
use quell_host::attach::attachment::Attached;
use quell_host::attach::keeper::Detached;
use quell_linux::visible::counted;
use serde_json::{Value, json};

pub(crate) fn text(all: &[(Attached, Detached)]) -> String {
    all.iter().map(|(attached, detached)| one(attached, detached)).collect()
}

fn one(attached: &Attached, detached: &Detached) -> String {
    let count = detached.restored();
    let settings = counted(count, "setting");
    let done = if attached.purpose().mode().is_some() { "detached" } else { "ended" };
    let mut text = format!("{done} {}: {settings} restored", name(attached));
    if !detached.already_gone.is_empty() {
        text.push_str(&format!(", {} already restored or gone", detached.already_gone.len()));
    }
    text.push_str(&superseded(&detached.superseded));
    text.push_str(&unrecorded(&detached.unrecorded));
    text.push('\n');
    text.push_str(&left(&detached.partial, &detached.left_alone, &detached.waiting));
    for change in &detached.failed {
        text.push_str(&format!("  not restored: {}\n", change));
    }
    text
}

pub(crate) fn left(
    partial: &[(Change, String)],
    left_alone: &[(Change, String)],
    waiting: &[(Change, String)],
) -> String {
    let left_alone = partial.iter().chain(left_alone).map(|(_, why)| format!("  left alone: {why}\n"));
    left_alone.chain(waiting.iter().map(|(_, why)| format!("  waits: {why}\n"))).collect()
}

pub(crate) fn superseded(changes: &[(Change, String)]) -> String {
    let mut owners: BTreeMap<&str, usize> = BTreeMap::new();
    changes.iter().for_each(|(_, owner)| *owners.entry(owner).or_default() += 1);
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

pub(crate) fn report(all: &[(Attached, Detached)]) -> Value {
    let one = |(attached, detached): &(Attached, Detached)| {
        json!({
            "purpose": attached.purpose(),
            "programs": attached.history.targets,
            "undone": detached.undone,
            "already-gone": detached.already_gone,
            "partial": detached.partial.iter().map(|(_, why)| why).collect::<Vec<_>>(),
            "left-alone": detached.left_alone.iter().map(|(_, why)| why).collect::<Vec<_>>(),
            "superseded": detached.superseded.iter().map(|(_, owner)| owner).collect::<Vec<_>>(),
            "waiting": detached.waiting.iter().map(|(_, why)| why).collect::<Vec<_>>(),
            "unrecorded": detached.unrecorded,
            "failed": detached.failed,
        })
    };
    json!({ "schema": "quell-detach/1", "detached": all.iter().map(one).collect::<Vec<_>>() })
}
