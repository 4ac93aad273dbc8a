//! `quell lab`: a veth lab for manual experiments, running labs, and leftovers of killed runs.

mod up;

use std::path::Path;

use clap::Subcommand;
use quell_change::change::Change;
use quell_change::journal::{History, ListedJournal, Persistence, Purpose};
use quell_change::recovery::{Found, recover};
use quell_linux::{Pid, visible};
use schemars::JsonSchema;
use serde::Serialize;

pub(super) use self::up::is_persistent_lab;
use crate::exit::{Exit, Failure};
use crate::journals::journal;
use crate::output;

/// Actions on labs.
#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Create a persistent lab for experiments: two network namespaces connected by a veth pair.
    Up(up::UpArgs),
    /// Remove this lab and kill everything that runs in it.
    Down,
    /// List labs: running ones, and leftovers of killed runs.
    List {
        /// Print JSON.
        #[arg(short, long)]
        json: bool,
    },
    /// Remove leftovers of killed runs: processes, links, namespaces. Running labs are not touched.
    Clean {
        /// Print JSON.
        #[arg(short, long)]
        json: bool,
    },
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "Lab")]
struct Entry {
    journal: String,
    state: &'static str,
    purpose: Option<Purpose>,
    /// Process that owns it.
    pid: Option<Pid>,
    /// Changes that are in force, as the journal records them; of a lab that was removed, those that were undone.
    #[schemars(with = "Vec<serde_json::Value>")]
    changes: Vec<Change>,
    /// Why changes could not be undone, or the journal not read.
    failed: Vec<String>,
}

/// Output of `quell lab list --json` and `quell lab clean --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct LabsReport {
    schema: &'static str,
    labs: Vec<Entry>,
}

impl LabsReport {
    pub(super) const SCHEMA: &str = "quell-labs/1";
}

pub(crate) fn run(command: &LabCommand) -> Result<(), Failure> {
    match command {
        LabCommand::Up(args) => up::up(args),
        LabCommand::Down => up::down(),
        LabCommand::List { json } => show(list()?, *json),
        LabCommand::Clean { json } => {
            let cleaned = clean()?;
            let failed = cleaned.iter().any(|entry| !entry.failed.is_empty() || entry.state == "unusable");
            show(cleaned, *json)?;
            if failed {
                let text = "some objects could not be removed: see above; their journals are kept";
                return Err(Failure::new(Exit::KernelRefused, text));
            }
            Ok(())
        }
    }
}

fn list() -> Result<Vec<Entry>, Failure> {
    let listed = journal().list().map_err(Failure::refused)?;
    Ok(listed.into_iter().filter_map(of_listed).collect())
}

/// Returns `None` for journals of host settings.
fn of_listed(listed: ListedJournal) -> Option<Entry> {
    Some(match listed {
        ListedJournal::Abandoned { path, history } if history.persistence != Persistence::WithOwner => {
            return (history.begin.purpose == Purpose::Lab).then(|| of_history(&path, "up", Some(&history)));
        }
        ListedJournal::Running { history: Some(history), .. } if is_of_programs(&history) => return None,
        ListedJournal::Running { path, history } => of_history(&path, "running", history.as_ref()),
        ListedJournal::Abandoned { path, history } => of_history(&path, "abandoned", Some(&history)),
        ListedJournal::Unusable(unusable) => of_failure(&unusable.path, &unusable),
        ListedJournal::Unreadable(error) => of_failure(&error.path, &error),
    })
}

fn of_failure(path: &Path, why: &impl ToString) -> Entry {
    Entry { failed: vec![why.to_string()], ..of_history(path, "unusable", None) }
}

fn of_history(path: &Path, state: &'static str, history: Option<&History>) -> Entry {
    let changes = history.map(|history| history.pending().map(|(_, entry)| entry.change.clone()).collect());
    Entry {
        journal: visible::path(path),
        state,
        purpose: history.map(|history| history.begin.purpose.clone()),
        pid: history.map(|history| history.begin.owner.pid),
        changes: changes.unwrap_or_default(),
        failed: Vec::new(),
    }
}

fn clean() -> Result<Vec<Entry>, Failure> {
    let found = recover(&journal()).map_err(Failure::refused)?;
    Ok(found.into_iter().filter_map(of_found).collect())
}

/// Returns `None` for persistent changes and attachments, which are not labs.
fn of_found(found: Found) -> Option<Entry> {
    Some(match found {
        Found::Kept { .. } => return None,
        Found::Running { history: Some(history), .. } if is_of_programs(&history) => return None,
        Found::Running { path, history } => of_history(&path, "running", history.as_ref()),
        Found::Unusable(unusable) => of_failure(&unusable.path, &unusable),
        Found::Failed(error) => of_failure(&error.path, &error),
        Found::Recovered { path, reverted, .. } => {
            let failed = reverted.failed.iter().map(|(_, error)| error.to_string()).collect();
            Entry { changes: reverted.undone, failed, ..of_history(&path, "removed", None) }
        }
    })
}

fn show(labs: Vec<Entry>, json: bool) -> Result<(), Failure> {
    if json {
        return output::json(&LabsReport { schema: LabsReport::SCHEMA, labs });
    }
    if labs.is_empty() {
        return output::data("no labs, and no leftovers of killed runs\n");
    }
    output::data(&labs.iter().map(describe).collect::<String>())
}

fn describe(entry: &Entry) -> String {
    let owner = entry.pid.map_or_else(String::new, |pid| format!(", process {pid}"));
    let mut text = format!("{} ({}{owner})\n", entry.journal, entry.state);
    for change in &entry.changes {
        text.push_str(&format!("  {}\n", change));
    }
    for failed in &entry.failed {
        text.push_str(&format!("  {failed}\n"));
    }
    text
}

/// Whether the journal is of programs and not of the namespaces of a lab, also if they run in a lab.
fn is_of_programs(history: &History) -> bool {
    history.begin.purpose.is_of_programs() || !history.targets.is_empty()
}
