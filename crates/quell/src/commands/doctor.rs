//! `quell doctor`: what is wrong with the host's packet delivery, how bad it is, and what mends it.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use clap::{Args, value_parser};
use quell_host::findings::{self, Report, Rule, Severity};
use quell_host::picture::{self, Picture};
use quell_linux::visible;

use super::picture_scope::{ScopeArgs, not_taken};
use crate::exit::{Exit, Failure};
use crate::render::doctor as render;
use crate::render::terminal::Terminal;
use crate::{file, output};

/// Options of `quell doctor`.
#[derive(Debug, Args)]
#[command(after_help = "Exit code 3: something serious was found.")]
pub(crate) struct DoctorArgs {
    #[command(flatten)]
    scope: ScopeArgs,
    /// How long to watch, for what shows only over time; 0 for a single look.
    #[arg(long, value_name = "S", default_value_t = 2, value_parser = value_parser!(u64).range(..=3_600))]
    seconds: u64,
    /// Examine a picture that `quell show --json` wrote, or two, the earlier first, and not this host.
    #[arg(long, value_name = "FILE", num_args = 1..=2, conflicts_with_all = ["pids", "device", "netns", "all", "seconds"])]
    read: Vec<PathBuf>,
    /// Say all about one kind of finding.
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
/// When no picture can be had, the rule is not known, or something serious was found.
pub(crate) fn doctor(args: &DoctorArgs) -> Result<(), Failure> {
    let terminal = Terminal::of_stdout();
    if args.list {
        return output::data(&render::list(findings::rules()));
    }
    if let Some(id) = &args.explain {
        return output::data(&render::explanation(rule(id)?, terminal));
    }
    let (before, now) = pictures(args)?;
    let report = findings::examine(&now, before.as_ref());
    if args.json {
        output::json(&report)?;
    } else {
        output::styled(&render::report(&report, terminal), terminal)?;
    }
    verdict(&report)
}

fn verdict(report: &Report) -> Result<(), Failure> {
    let serious = report.findings.iter().filter(|finding| finding.severity == Severity::Serious).count();
    match serious {
        0 => Ok(()),
        1 => Err(Failure::new(Exit::VerifyFailed, "one finding is serious")),
        count => Err(Failure::new(Exit::VerifyFailed, format!("{count} findings are serious"))),
    }
}

fn rule(id: &str) -> Result<&'static Rule, Failure> {
    findings::rule(id)
        .ok_or_else(|| Failure::usage(format!("no finding is called {id:?}; `quell doctor --list` names them all")))
}

/// The earlier picture, if there is one, and the later.
fn pictures(args: &DoctorArgs) -> Result<(Option<Picture>, Picture), Failure> {
    match &args.read[..] {
        [] => take(args),
        [now] => Ok((None, read(now)?)),
        [before, now, ..] => Ok((Some(read(before)?), read(now)?)),
    }
}

fn take(args: &DoctorArgs) -> Result<(Option<Picture>, Picture), Failure> {
    let scope = args.scope.scope();
    let look = || picture::take(&scope).map(|(picture, _)| picture).map_err(|error| not_taken(&error));
    if args.seconds == 0 {
        return Ok((None, look()?));
    }
    let before = look()?;
    thread::sleep(Duration::from_secs(args.seconds));
    Ok((Some(before), look()?))
}

fn read(path: &Path) -> Result<Picture, Failure> {
    let text = file::read_json(path)?;
    Picture::parse(text.as_bytes()).map_err(|error| Failure::usage(format!("{}: {error}", visible::path(path))))
}
