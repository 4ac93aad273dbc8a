//! `quell doctor`: finds problems of the host's packet delivery, with severity and fix.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use clap::{Args, value_parser};
use quell_host::findings::{self, FindingsReport, Rule, Severity};
use quell_host::snapshot::{self, Snapshot};
use quell_linux::visible;

use super::snapshot_scope::{ScopeArgs, not_taken};
use crate::exit::{Exit, Failure};
use crate::render::doctor as render;
use crate::render::terminal::Terminal;
use crate::{file, output};

/// Options of `quell doctor`.
#[derive(Debug, Args)]
#[command(after_help = "Exits with 3 if a finding is serious.")]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    scope: ScopeArgs,
    /// Time between two snapshots, for findings that compare counters; 0 takes a single one.
    #[arg(long, value_name = "S", default_value_t = 2, value_parser = value_parser!(u64).range(..=3_600))]
    seconds: u64,
    /// Examine one snapshot written by `quell show --json`, or two (earlier first), instead of this host.
    #[arg(long, value_name = "FILE", num_args = 1..=2, conflicts_with_all = ["pids", "device", "netns", "all", "seconds"])]
    read: Vec<PathBuf>,
    /// Explain one kind of finding.
    #[arg(long, value_name = "ID", exclusive = true)]
    explain: Option<String>,
    /// List all kinds of findings.
    #[arg(long, exclusive = true)]
    list: bool,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// When no snapshot can be taken, the rule is unknown, or a finding is serious.
pub(crate) fn doctor(args: &DoctorArgs) -> Result<(), Failure> {
    let terminal = Terminal::of_stdout();
    if args.list {
        return output::data(&render::list(findings::rules()));
    }
    if let Some(id) = &args.explain {
        return output::data(&render::explanation(rule(id)?, terminal));
    }
    let (before, now) = snapshots(args)?;
    let report = findings::examine(&now, before.as_ref());
    if args.json {
        output::json(&report)?;
    } else {
        output::styled(&render::report(&report, terminal), terminal)?;
    }
    verdict(&report)
}

fn verdict(report: &FindingsReport) -> Result<(), Failure> {
    let serious = report.findings.iter().filter(|finding| finding.severity == Severity::Serious).count();
    match serious {
        0 => Ok(()),
        1 => Err(Failure::new(Exit::VerifyFailed, "1 serious finding")),
        count => Err(Failure::new(Exit::VerifyFailed, format!("{count} serious findings"))),
    }
}

fn rule(id: &str) -> Result<&'static Rule, Failure> {
    findings::rule(id).ok_or_else(|| Failure::usage(format!("unknown finding {id:?}; `quell doctor --list` lists all")))
}

/// Returns the earlier snapshot, if there is one, and the later snapshot.
fn snapshots(args: &DoctorArgs) -> Result<(Option<Snapshot>, Snapshot), Failure> {
    match &args.read[..] {
        [] => take(args),
        [now] => Ok((None, read(now)?)),
        [before, now, ..] => Ok((Some(read(before)?), read(now)?)),
    }
}

fn take(args: &DoctorArgs) -> Result<(Option<Snapshot>, Snapshot), Failure> {
    let scope = args.scope.scope();
    let look = || snapshot::take(&scope).map(|(snapshot, _)| snapshot).map_err(|error| not_taken(&error));
    if args.seconds == 0 {
        return Ok((None, look()?));
    }
    let before = look()?;
    thread::sleep(Duration::from_secs(args.seconds));
    Ok((Some(before), look()?))
}

fn read(path: &Path) -> Result<Snapshot, Failure> {
    let text = file::read_json(path)?;
    Snapshot::parse(text.as_bytes()).map_err(|error| Failure::usage(format!("{}: {error}", visible::path(path))))
}
