//! `quell doctor`: finds problems of the host's packet delivery, with severity and fix.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, value_parser};
use quell_change::journal::{EndRecord, StallRecord, TargetProgram};
use quell_host::attach::AttachedMode;
use quell_host::attach::attached::{
    Attached, Unfinished, adapt, attached_modes, conditions, drifted, experiments, in_use, unfinished,
};
use quell_host::attach::measured::settings_below;
use quell_host::attach::own_work::WorkReading;
use quell_host::attach::placement::mark_attached_filters;
use quell_host::attach::views::with_queue_sharers;
use quell_host::behavior::{self, Behavior, ReadQueues};
use quell_host::findings::{self, FindingsReport, Rule, Severity};
use quell_host::servers::{self, EarlierAnswers, HostServer, Known, LocalServer, NextStep};
use quell_host::snapshot::{self, Process, Snapshot, SnapshotScope};
use quell_linux::proc::ProcRoot;
use quell_linux::process::is_root;
use quell_linux::visible::counted;
use quell_linux::{NapiId, Pid, kernel, visible};
use quell_mode::{DeliveryMode, did_you_mean};
use quell_result::store;
use quell_sampler::{PollCounters, QueueSample, Sampler, SamplerError};
use schemars::JsonSchema;
use serde::Serialize;
use tracing::info;

use super::earlier::earlier_answers;
use super::snapshot_scope::{ScopeArgs, not_taken};
use crate::exit::{Exit, Failure};
use crate::journals::{boot_id, journal};
use crate::output;
use crate::render::conclusion::LastLine;
use crate::render::doctor as render;
use crate::render::progress::Progress;
use crate::render::servers::{self as servers_render, Examined, Fixes, ServerCommand};
use crate::render::terminal::Terminal;

/// Time between the two snapshots of `quell` without arguments.
const OVERVIEW_S: u64 = 1;
/// Arguments about the examination of this host.
const OF_THIS_HOST: [&str; 6] = ["pids", "ProgramsArgs", "device", "netns", "all", "seconds"];

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
    #[arg(long, value_name = "FILE", num_args = 1..=2, conflicts_with_all = OF_THIS_HOST)]
    read: Vec<PathBuf>,
    /// Explain one kind of finding.
    #[arg(long, value_name = "ID", conflicts_with_all = OF_THIS_HOST, conflicts_with_all = ["read", "list"])]
    explain: Option<String>,
    /// List all kinds of findings.
    #[arg(long, conflicts_with_all = OF_THIS_HOST, conflicts_with = "read")]
    list: bool,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

impl DoctorArgs {
    fn examined(&self) -> Examined {
        if self.read.is_empty() { self.scope.examined() } else { Examined::Snapshot }
    }
}

/// What `quell doctor` and `quell` print.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(super) struct DoctorReport<'a> {
    #[serde(flatten)]
    findings: &'a FindingsReport,
    servers: &'a [HostServer],
    /// Programs that listen for clients of this host only.
    local_servers: &'a [LocalServer],
    /// Command of the next step of each server that has one.
    commands: Vec<ServerCommand>,
    /// What to do first, about the most urgent of these servers.
    conclusion: LastLine,
}

/// What `quell doctor --list` and `--explain` print.
#[derive(Serialize, JsonSchema)]
pub(super) struct RulesReport {
    schema: &'static str,
    /// Kinds of findings.
    rules: Vec<&'static Rule>,
}

impl RulesReport {
    pub(super) const SCHEMA: &str = "quell-rules/1";

    fn print(rules: Vec<&'static Rule>) -> Result<(), Failure> {
        output::json(&Self { schema: Self::SCHEMA, rules })
    }
}

/// Runs the command.
///
/// # Errors
/// When no snapshot can be taken, the rule is unknown, or a finding is serious.
pub(crate) fn doctor(args: &DoctorArgs) -> Result<(), Failure> {
    let terminal = Terminal::of_stdout();
    if args.list {
        return match args.json {
            true => RulesReport::print(findings::rules().collect()),
            false => output::data(&render::list(findings::rules(), terminal)),
        };
    }
    if let Some(id) = &args.explain {
        return match args.json {
            true => RulesReport::print(vec![rule(id)?]),
            false => output::data(&render::explanation(rule(id)?, terminal)),
        };
    }
    let diagnosis = match &args.read[..] {
        [] => Diagnosis::of_this_host(args.scope.with_attachments()?, args.seconds, args.json)?,
        [now] => Diagnosis::of(&Observed::from(read(now)?), (&[], &[]), &BTreeMap::new(), &BTreeMap::new()),
        [before, now, ..] => {
            let observed = Observed { before: Some(read(before)?), ..Observed::from(read(now)?) };
            Diagnosis::of(&observed, (&[], &[]), &BTreeMap::new(), &BTreeMap::new())
        }
    };
    if args.json {
        output::json(&diagnosis.document(Fixes::Above, &args.examined()))?;
    } else {
        let text = render::report(&diagnosis.report, terminal)
            + "\n"
            + &diagnosis.servers_and_conclusion(terminal, Fixes::Above, &args.examined());
        output::styled(&text, terminal)?;
    }
    verdict(&diagnosis.report)
}

/// `quell` without arguments: the servers of this host, in all its network namespaces, and the first step.
///
/// # Errors
/// When no snapshot can be taken.
pub(crate) fn overview(json: bool) -> Result<(), Failure> {
    let terminal = Terminal::of_stdout();
    let scope = SnapshotScope { whole_host: true, configured_files: true, ..SnapshotScope::default() };
    let diagnosis = Diagnosis::of_this_host(scope, OVERVIEW_S, false)?;
    if json {
        return output::json(&diagnosis.document(Fixes::ByDoctor, &Examined::Host));
    }
    let text = diagnosis.servers_and_conclusion(terminal, Fixes::ByDoctor, &Examined::Host)
        + &render::overview(&diagnosis.report, terminal);
    output::styled(&text, terminal)
}

/// Findings and servers of a host.
struct Diagnosis {
    report: FindingsReport,
    servers: Vec<HostServer>,
    local_servers: Vec<LocalServer>,
    /// Modes that Quell reverted without being asked, the newest last.
    reverted: Vec<EndRecord>,
    /// Number of processes whose files are hidden.
    hidden: usize,
    unfinished: Option<Unfinished>,
}

impl Diagnosis {
    fn of_this_host(scope: SnapshotScope, seconds: u64, json: bool) -> Result<Self, Failure> {
        let programs: BTreeSet<Pid> = scope.pids.iter().copied().collect();
        let scope = with_queue_sharers(scope);
        let is_examined = |pid: &Pid| programs.is_empty() || programs.contains(pid);
        let observing = format!("observing this host for {}", counted(seconds, "second"));
        // One after the other: with two CPUs, a server would find both taken.
        let (measured, examined) =
            Progress::during_seconds(&observing, json, || (earlier_answers(), take(&scope, seconds, is_examined)));
        let (examined, journal) = (examined?, journal());
        let owners = in_use(&journal).unwrap_or_default();
        let below = settings_below(&journal, &owners, &examined.now);
        let reverted = reverted(journal.ends(), &examined.now, &attached_modes(&owners));
        let unfinished = unfinished(&journal, &examined.now, &owners, !programs.is_empty());
        let stalls = boot_id().ok().and_then(|boot_id| journal.stall_records(&boot_id).ok()).unwrap_or_default();
        let mut diagnosis = Self { reverted, unfinished, ..Self::of(&examined, (&owners, &stalls), &below, &measured) };
        if !programs.is_empty() {
            diagnosis.report.leave_out_others(&examined.now, &programs);
            diagnosis.servers.retain(|server| server.processes.iter().any(is_examined));
            diagnosis.local_servers.retain(|server| is_examined(&server.pid));
            diagnosis.reverted.retain(|end| end.programs.iter().any(|program| is_examined(&program.pid)));
        }
        Ok(diagnosis)
    }

    /// `owners` are those of settings of this host, `stalls` the records of their stalls, `below` the settings of attached
    /// programs without their attachments.
    fn of(
        observed: &Observed,
        (owners, stalls): (&[Attached], &[StallRecord]),
        below: &BTreeMap<Pid, DeliveryMode>,
        measured: &EarlierAnswers,
    ) -> Self {
        let Observed { before, now, polls, worked_ns, sampled, behavior } = observed;
        let mut report = findings::examine_observed(now, before.as_ref(), polls, behavior.as_ref());
        report.leave_out_own(now);
        let origins = servers::origins(now);
        let attached = &servers::with_started_since(attached_modes(owners), now, &origins);
        adapt(&mut report.findings, now, owners, attached);
        let conditions = conditions(owners);
        findings::add_missing_queues(&mut report.findings, now, &conditions);
        let known = Known {
            findings: &report.findings,
            origins: &origins,
            attached,
            experiments: &experiments(owners),
            drifted: &drifted(&conditions),
            owners,
            below,
            measured,
            stalls,
            polls,
            sampled_ns: u64::try_from(sampled.as_nanos()).unwrap_or(u64::MAX),
            worked_ns,
            behavior: behavior.as_ref(),
        };
        let servers = servers::servers(now, before.as_ref(), &known);
        for server in &servers {
            if let NextStep::Return { mode, .. } | NextStep::Attach { mode, .. } = server.next {
                findings::set_instead(&mut report.findings, server.pid, mode);
            }
            if let Some(sharing) = &server.sharing {
                let programs = server.processes.iter().copied().collect();
                findings::compare_with(&mut report.findings, &programs, sharing);
            }
        }
        let local_servers = servers::local_servers(now, &origins);
        Self {
            servers,
            local_servers,
            reverted: Vec::new(),
            hidden: now.hidden_processes.len(),
            unfinished: None,
            report,
        }
    }

    fn document(&self, fixes: Fixes, examined: &Examined) -> DoctorReport<'_> {
        DoctorReport {
            findings: &self.report,
            servers: &self.servers,
            local_servers: &self.local_servers,
            commands: servers_render::commands(&self.servers, fixes),
            conclusion: self.conclusion(fixes, examined),
        }
    }

    fn conclusion(&self, fixes: Fixes, examined: &Examined) -> LastLine {
        match &self.unfinished {
            Some(first) => servers_render::undo_first(first),
            None => servers_render::conclusion(&self.servers, is_root(), fixes, examined),
        }
    }

    fn servers_and_conclusion(&self, terminal: Terminal, fixes: Fixes, examined: &Examined) -> String {
        let hidden = match self.hidden {
            0 => String::new(),
            count => format!("{} hidden: root sees their servers\n", counted(count, "process")),
        };
        let elsewhere = match (examined, self.servers.is_empty()) {
            (Examined::Namespace(None), false) => other_namespaces(),
            _ => 0,
        };
        let elsewhere = match elsewhere {
            0 => String::new(),
            count => format!("not examined: {}: quell doctor --all\n", counted(count, "other network namespace")),
        };
        servers_render::table(&self.servers, terminal, fixes)
            + &servers_render::not_listed(&self.local_servers, terminal)
            + &servers_render::reverted(&self.reverted, terminal)
            + &hidden
            + &elsewhere
            + &self.conclusion(fixes, examined).to_string()
    }
}

/// Number of network namespaces of processes, other than that of this one.
fn other_namespaces() -> usize {
    let proc = ProcRoot::default();
    let of = |pid: Pid| proc.process(pid).net_namespace().ok();
    let all: BTreeSet<u64> = proc.pids().unwrap_or_default().into_iter().filter_map(of).collect();
    all.len().saturating_sub(1)
}

/// Ends that were the last of a running program which has no mode now, if Quell caused them without being asked.
fn reverted(ends: Vec<EndRecord>, now: &Snapshot, attached: &BTreeMap<Pid, AttachedMode>) -> Vec<EndRecord> {
    let is_present = |target: &TargetProgram| {
        let runs = |process: &Process| (process.pid, process.start_time_ticks) == (target.pid, target.start_time_ticks);
        !attached.contains_key(&target.pid) && now.processes.iter().any(runs)
    };
    let mut last: BTreeMap<Pid, EndRecord> = BTreeMap::new();
    for end in ends {
        if let Some(target) = end.programs.iter().find(|target| is_present(target)) {
            last.insert(target.pid, end);
        }
    }
    last.into_values().filter(EndRecord::is_unasked).collect()
}

fn verdict(report: &FindingsReport) -> Result<(), Failure> {
    match findings::kinds_of(Severity::Serious, report.findings.iter()) {
        0 => Ok(()),
        count => Err(Failure::new(Exit::VerifyFailed, counted(count, "serious finding"))),
    }
}

fn rule(id: &str) -> Result<&'static Rule, Failure> {
    findings::rule(id).ok_or_else(|| {
        let near = did_you_mean(id, findings::rules().map(|rule| rule.id));
        Failure::usage(format!("unknown finding {id:?}{near}; `quell doctor --list` lists all"))
    })
}

struct Observed {
    before: Option<Snapshot>,
    now: Snapshot,
    /// Polls between the two snapshots. Empty if polls cannot be sampled.
    polls: BTreeMap<NapiId, QueueSample>,
    /// CPU time of each process between the two snapshots, of its threads that slept in between.
    worked_ns: BTreeMap<Pid, u64>,
    /// Time for which they were sampled.
    sampled: Duration,
    /// What the programs whose epolls suspend interrupts did between the two snapshots; absent without such
    /// programs.
    behavior: Option<Behavior>,
}

impl From<Snapshot> for Observed {
    fn from(now: Snapshot) -> Self {
        Self {
            before: None,
            now,
            polls: BTreeMap::new(),
            worked_ns: BTreeMap::new(),
            sampled: Duration::ZERO,
            behavior: None,
        }
    }
}

fn take(scope: &SnapshotScope, seconds: u64, is_examined: impl Fn(&Pid) -> bool) -> Result<Observed, Failure> {
    let look = || {
        let (mut snapshot, _) = snapshot::take(scope).map_err(|error| not_taken(&error))?;
        mark_attached_filters(&mut snapshot, &journal());
        Ok(snapshot)
    };
    let before = look()?;
    if seconds == 0 {
        return Ok(before.into());
    }
    let napis = before.devices.iter().flat_map(|device| device.napis.known_elements().map(|napi| napi.id));
    let sampling = Sampling::begin(napis.collect());
    let began = Instant::now();
    let observed = before.processes.iter().map(|process| process.pid).collect();
    let work = WorkReading::of(&observed);
    let reads = ReadQueues::observe(&before, |_| true);
    let programs = behavior::programs_to_observe(&before, |pid| is_examined(&pid));
    let behavior = (!programs.is_empty()).then(|| behavior::observe(&before, &programs, true));
    thread::sleep(Duration::from_secs(seconds).saturating_sub(began.elapsed()));
    let worked_ns = WorkReading::of(&observed).since(&work);
    let (polls, sampled) = sampling.and_then(Sampling::end).unwrap_or_else(|error| {
        info!(error = %error, "polls cannot be sampled; rules compare counters instead");
        (BTreeMap::new(), Duration::ZERO)
    });
    let mut now = look()?;
    reads.add_to(&mut now);
    Ok(Observed { before: Some(before), now, polls, worked_ns, sampled, behavior })
}

struct Sampling {
    sampler: Sampler,
    before: BTreeMap<NapiId, PollCounters>,
    began: Instant,
}

impl Sampling {
    fn begin(napis: BTreeSet<NapiId>) -> Result<Self, SamplerError> {
        let sampler = Sampler::of(kernel::sysfs(), napis)?;
        let before = sampler.read()?;
        Ok(Self { sampler, before, began: Instant::now() })
    }

    fn end(self) -> Result<(BTreeMap<NapiId, QueueSample>, Duration), SamplerError> {
        let (after, sampled) = (self.sampler.read()?, self.began.elapsed());
        let since = |(napi, counters): (NapiId, PollCounters)| (napi, counters.since(self.before.get(&napi)));
        Ok((after.into_iter().map(since).collect(), sampled))
    }
}

fn read(path: &Path) -> Result<Snapshot, Failure> {
    let text = store::read_text(path).map_err(Failure::usage)?;
    let text = visible::json_of_others(&text);
    Snapshot::parse(text.as_bytes()).map_err(|error| Failure::usage(format!("{}: {error}", visible::path(path))))
}
