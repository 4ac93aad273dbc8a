//! `quell lab`: a lab to try things in, labs that run, and what killed runs left behind.

mod up;

use std::path::Path;

use clap::Subcommand;
use quell_bench::lab::veth::PURPOSE;
use quell_host::attach::attachment::mode_of;
use quell_host::journal::{Change, History, ListedJournal, Stay};
use quell_host::recovery::{Found, recover};
use quell_linux::visible;
use serde::Serialize;

pub(super) use self::up::is_kept_lab;
use crate::exit::{Exit, Failure};
use crate::journals::journal;
use crate::output;
use crate::render::change::in_words;

/// What can be done about labs.
#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Raise a lab that stays: two network namespaces and a veth pair between them, to try things in.
    Up(up::UpArgs),
    /// Take that lab down, with everything that runs in it.
    Down,
    /// List the labs of this machine: running ones, and what killed runs left.
    List {
        /// Print JSON.
        #[arg(short, long)]
        json: bool,
    },
    /// Remove what killed runs left: processes, links, namespaces. Running labs are left alone.
    Clean {
        /// Print JSON.
        #[arg(short, long)]
        json: bool,
    },
}

/// What is printed about one journal.
#[derive(Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
struct Entry {
    journal: String,
    state: &'static str,
    purpose: Option<String>,
    pid: Option<u32>,
    changes: Vec<Change>,
    failed: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Report {
    schema: &'static str,
    labs: Vec<Entry>,
}

/// Runs the command.
///
/// # Errors
/// When the journals cannot be read, or something could not be removed.
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
                let text = "not everything could be removed: see above; what is left stays in its journal";
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

/// Absent: a host's settings are no lab.
fn of_listed(listed: ListedJournal) -> Option<Entry> {
    Some(match listed {
        ListedJournal::Abandoned { path, history } if history.stay != Stay::WithOwner => {
            return (history.begin.purpose == PURPOSE).then(|| of_history(&path, "up", Some(&history)));
        }
        ListedJournal::Running { history: Some(history), .. } if mode_of(&history).is_some() => return None,
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
        pid: history.map(|history| history.begin.pid),
        changes: changes.unwrap_or_default(),
        failed: Vec::new(),
    }
}

fn clean() -> Result<Vec<Entry>, Failure> {
    let found = recover(&journal()).map_err(Failure::refused)?;
    Ok(found.into_iter().filter_map(of_found).collect())
}

/// Absent: what is to stay is no lab's.
fn of_found(found: Found) -> Option<Entry> {
    Some(match found {
        Found::Kept { .. } => return None,
        Found::Running { history: Some(history), .. } if mode_of(&history).is_some() => return None,
        Found::Running { path, history } => of_history(&path, "running", history.as_ref()),
        Found::Unusable(unusable) => of_failure(&unusable.path, &unusable),
        Found::Failed(error) => of_failure(&error.path, &error),
        Found::Recovered { path, reverted } => {
            let failed = reverted.failed.iter().map(|(_, error)| error.to_string()).collect();
            Entry { changes: reverted.undone, failed, ..of_history(&path, "removed", None) }
        }
    })
}

fn show(labs: Vec<Entry>, json: bool) -> Result<(), Failure> {
    if json {
        return output::json(&Report { schema: "quell-labs/1", labs });
    }
    if labs.is_empty() {
        return output::data("no lab is running, and nothing was left behind\n");
    }
    output::data(&labs.iter().map(describe).collect::<String>())
}

fn describe(entry: &Entry) -> String {
    let owner = entry.pid.map_or_else(String::new, |pid| format!(", process {pid}"));
    let mut text = format!("{} ({}{owner})\n", entry.journal, entry.state);
    for change in &entry.changes {
        text.push_str(&format!("  {}\n", in_words(change)));
    }
    for failed in &entry.failed {
        text.push_str(&format!("  {failed}\n"));
    }
    text
}
