//! `quell doctor`: finds problems of the host's packet delivery, with severity and fix.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, value_parser};
use quell_host::attach::attachment::adapt;
use quell_host::attach::placement::mark_attached_filters;
use quell_host::behavior::{self, Behavior};
use quell_host::findings::{self, FindingsReport, Rule, Severity};
use quell_host::snapshot::{self, Snapshot};
use quell_linux::visible::counted;
use quell_linux::{NapiId, kernel, visible};
use quell_result::store;
use quell_sampler::{PollCounters, QueueSample, Sampler, SamplerError};
use tracing::info;

use super::snapshot_scope::{ScopeArgs, not_taken};
use crate::exit::{Exit, Failure};
use crate::journals::journal;
use crate::output;
use crate::render::doctor as render;
use crate::render::terminal::Terminal;

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
    let Examined { before, now, polls, behavior } = examined(args)?;
    let mut report = findings::examine_observed(&now, before.as_ref(), &polls, behavior.as_ref());
    if args.read.is_empty() {
        adapt(&mut report.findings, &journal());
    }
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
        count => Err(Failure::new(Exit::VerifyFailed, counted(count, "serious finding"))),
    }
}

fn rule(id: &str) -> Result<&'static Rule, Failure> {
    findings::rule(id).ok_or_else(|| Failure::usage(format!("unknown finding {id:?}; `quell doctor --list` lists all")))
}

struct Examined {
    before: Option<Snapshot>,
    now: Snapshot,
    /// Polls between the two snapshots. Empty if polls cannot be sampled.
    polls: BTreeMap<NapiId, QueueSample>,
    /// What the programs whose epolls suspend interrupts did between the two snapshots; absent without such
    /// programs.
    behavior: Option<Behavior>,
}

fn examined(args: &DoctorArgs) -> Result<Examined, Failure> {
    let polls = BTreeMap::new();
    match &args.read[..] {
        [] => take(args),
        [now] => Ok(Examined { before: None, now: read(now)?, polls, behavior: None }),
        [before, now, ..] => Ok(Examined { before: Some(read(before)?), now: read(now)?, polls, behavior: None }),
    }
}

fn take(args: &DoctorArgs) -> Result<Examined, Failure> {
    let scope = args.scope.with_attachments();
    let look = || {
        let (mut snapshot, _) = snapshot::take(&scope).map_err(|error| not_taken(&error))?;
        mark_attached_filters(&mut snapshot, &journal());
        Ok(snapshot)
    };
    let before = look()?;
    if args.seconds == 0 {
        return Ok(Examined { before: None, now: before, polls: BTreeMap::new(), behavior: None });
    }
    let napis = before.devices.iter().flat_map(|device| device.napis.known_elements().map(|napi| napi.id));
    let sampling = Sampling::begin(napis.collect());
    let began = Instant::now();
    let programs = behavior::polling_programs(&before);
    let behavior = (!programs.is_empty()).then(|| behavior::observe(&before, &programs, true));
    thread::sleep(Duration::from_secs(args.seconds).saturating_sub(began.elapsed()));
    let polls = sampling.and_then(Sampling::end).unwrap_or_else(|error| {
        info!(error = %error, "polls cannot be sampled; rules compare counters instead");
        BTreeMap::new()
    });
    Ok(Examined { before: Some(before), now: look()?, polls, behavior })
}

struct Sampling {
    sampler: Sampler,
    before: BTreeMap<NapiId, PollCounters>,
}

impl Sampling {
    fn begin(napis: BTreeSet<NapiId>) -> Result<Self, SamplerError> {
        let sampler = Sampler::of(kernel::sysfs(), napis)?;
        let before = sampler.read()?;
        Ok(Self { sampler, before })
    }

    fn end(self) -> Result<BTreeMap<NapiId, QueueSample>, SamplerError> {
        let after = self.sampler.read()?;
        Ok(after.into_iter().map(|(napi, counters)| (napi, counters.since(self.before.get(&napi)))).collect())
    }
}

fn read(path: &Path) -> Result<Snapshot, Failure> {
    let text = store::read_text(path).map_err(Failure::usage)?;
    let text = visible::json_of_others(&text);
    Snapshot::parse(text.as_bytes()).map_err(|error| Failure::usage(format!("{}: {error}", visible::path(path))))
}
