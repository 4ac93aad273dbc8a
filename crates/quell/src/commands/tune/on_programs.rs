//! Searches on running programs of this host: says what it would do, asks, starts the load, searches, restores.

use std::ops::ControlFlow;
use std::time::Duration;

use quell_bench::experiment::judge::Judges;
use quell_bench::experiment::program::{Programs, Traffic};
use quell_bench::experiment::{Preview, ProgramsFacts, SubjectFacts, server_side};
use quell_change::journal::{Journal, Purpose};
use quell_host::attach::attachment::refuse_what_is_attached;
use quell_host::attach::consequences::consequences_observed;
use quell_host::attach::{AttachPlan, Targets};
use quell_host::behavior;
use quell_host::findings::Finding;
use quell_host::switching::{SwitchError, SwitchPlan, Switching, refuse_queues_of_others};
use quell_linux::{CpuList, kernel, visible};
use quell_mode::DeliveryMode;
use quell_tune::{RefusedMode, TuneEvent, TuneMetric, TunePlan, TuneResult, TuneSpace, tune};

use super::args::TuneArgs;
use super::{Searched, check, guarded, metrics, refused, show_progress};
use crate::commands::attach::{ask, keeper, refuse_every_process};
use crate::commands::bench::on_programs::{LoadSource, affected, exit_of_switching, preview, under_load};
use crate::commands::bench::{self, seed_from_the_clock};
use crate::exit::{Exit, Failure};
use crate::journals::{journal, revert_killed_runs};
use crate::output;
use crate::render::progress::Progress;
use crate::render::tune as render;

const BUDGET: Duration = Duration::from_secs(180);
/// Default duration of a slice, in ms. A command that measures latency needs more time.
const SLICE_MS: u32 = 200;
const JUDGED_SLICE_MS: u32 = 500;
const SETTLE_MS: u32 = 10;
/// Name of the load in the result.
const LIVE: &str = "the present load";

/// Searches on the programs of `targets`. Returns `None` after a dry run.
pub(super) fn run(args: &TuneArgs, targets: Targets) -> Result<Option<(Searched, Targets)>, Failure> {
    let goal = args.goal.clone().ok_or_else(|| Failure::usage("specify --goal"))?;
    refuse_every_process(&targets, "")?;
    let words = |command: &Option<String>| bench::words(command.as_deref());
    let (load, clients) = (words(&args.load)?, words(&args.clients)?);
    let mut judges = Judges {
        latency: bench::judge(args.latency.as_deref())?,
        // The server answers others, too.
        counts_all_requests: false,
        ..Judges::default()
    };
    let slice_ms = args.slice.unwrap_or(if judges.is_empty() { SLICE_MS } else { JUDGED_SLICE_MS });
    let mut plan = TunePlan {
        guards: args.never.clone(),
        loads: vec![LIVE.to_owned()],
        slice_ms,
        settle_ms: args.settle.unwrap_or(SETTLE_MS),
        budget_ms: u64::try_from(args.budget.unwrap_or(BUDGET).as_millis()).unwrap_or(u64::MAX),
        ..TunePlan::new(
            goal,
            DeliveryMode::default(),
            TuneSpace::default(),
            args.seed.unwrap_or_else(seed_from_the_clock),
        )
    };
    if let Some(limit) = guarded(&plan)? {
        judges.run_max = limit;
    }
    match (&clients, judges.is_empty()) {
        (Some(_), _) => metrics::of_generator().check(&plan)?,
        (None, true) => metrics::of_server().check(&plan)?,
        // Checked after the first run of the command.
        (None, false) => {}
    }
    let journal = journal();
    // Another search switches these settings. A snapshot of them would be of no use.
    refuse_what_is_attached(&journal, &targets).map_err(|error| cannot_switch(&error.into()))?;
    if args.dry_run {
        let preview = preview(&targets, &TuneSpace::default().all(), false, &|| false)?;
        let (preview, _) = with_present(&mut plan, preview, &targets, args.accept_stalls)?;
        check(&plan)?;
        check_journal(&journal)?;
        let facts = ProgramsFacts::of(&preview, &targets, load.as_deref(), &judges, None);
        output::data(&plan_text(&plan, &preview, &SubjectFacts::Programs(facts)))?;
        return Ok(None);
    }
    // Changes left by a killed run must be reverted first. Otherwise they would be taken for the present setting.
    revert_killed_runs(&journal).map_err(Failure::refused)?;
    let source = LoadSource::of(load.clone(), clients);
    let of_search = targets.clone();
    let (mut searched, why) = under_load(&journal, source, |clients, has_load, stopped| {
        let preview = preview(&of_search, &TuneSpace::default().all(), has_load, stopped)?;
        let (preview, modes) = with_present(&mut plan, preview, &of_search, args.accept_stalls)?;
        check(&plan)?;
        check_journal(&journal)?;
        let facts = ProgramsFacts::of(&preview, &of_search, load.as_deref(), &judges, clients.as_ref());
        let subject = SubjectFacts::Programs(facts);
        output::say(plan_text(&plan, &preview, &subject).trim_end());
        ask::unless(args.yes, "search?", "--yes")?;
        // A command that fails, or does not print a figure, is detected before anything is changed.
        if !judges.is_empty() {
            match judges.run(slice_ms, stopped).map_err(Failure::usage)? {
                Some(printed) => metrics::of_command(&judges, &printed).check(&plan)?,
                None => return Err(Failure::new(Exit::Interrupted, "interrupted; nothing was changed")),
            }
        }
        let traffic = match clients {
            Some(clients) => Traffic::Clients(Box::new(clients)),
            None => {
                judges.end_after(plan.budget_ms, plan.slice_ms);
                Traffic::Live(judges.clone())
            }
        };
        let (result, left_alone) = search(plan, &preview, &modes, of_search, traffic, &journal, stopped)?;
        Ok(Searched { subject, result, not_a_measurement: None, left_alone })
    })?;
    searched.ended_because(why);
    Ok(Some((searched, targets)))
}

fn search(
    plan: TunePlan,
    preview: &Preview,
    modes: &[DeliveryMode],
    targets: Targets,
    traffic: Traffic,
    journal: &Journal,
    stopped: &dyn Fn() -> bool,
) -> Result<(TuneResult, Vec<String>), Failure> {
    let watched = server_side::watched(&preview.snapshot, &targets.pids(), &preview.plan.napis());
    let switching = Switching::begin(journal, Purpose::Search, targets, &preview.plan, Some(&mut keeper::start))
        .map_err(|error| cannot_switch(&error))?;
    let mut subject = Programs::new(switching, &preview.plan, modes, &[], watched, traffic, stopped);
    let progress = Progress::new();
    let mut watch = |event: TuneEvent<'_>| {
        if let TuneEvent::SliceRecorded(tuner) = event {
            show_progress(&progress, tuner);
        }
        if stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let finished = tune(&mut subject, plan, &mut |_, _| Ok(()), &mut watch);
    progress.finish();
    let finished = finished.map_err(Failure::usage)?;
    finished.restored.map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    Ok((finished.result, subject.left_alone))
}

fn cannot_switch(error: &SwitchError) -> Failure {
    Failure::new(exit_of_switching(error), error).unchanged()
}

fn check_journal(journal: &Journal) -> Result<(), Failure> {
    journal.check_writable().map_err(|error| Failure::refused(error).unchanged())
}

/// Completes the plan: which mode the programs have now, and which kinds of mode are not possible for them. Returns a
/// preview of all modes, and the modes. A setting that is not in the grid is added to them.
fn with_present(
    plan: &mut TunePlan,
    found: Preview,
    targets: &Targets,
    accept_stalls: bool,
) -> Result<(Preview, Vec<DeliveryMode>), Failure> {
    refuse_queues_of_others(&journal(), &found.plan).map_err(|error| cannot_switch(&error))?;
    let mut modes = TuneSpace::default().all();
    let (mut preview, present) = match found.plan.present() {
        Some(present) => (found, Some(present)),
        None => match present_mode(&found.plan) {
            Some(mode) => {
                modes.push(mode);
                let with_mode = Preview::of(targets, &modes).map_err(Failure::refused)?;
                let present = with_mode.plan.present();
                (with_mode, present)
            }
            None => (found, None),
        },
    };
    let Some(present) = present else {
        return Err(Failure::new(
            Exit::NotSupported,
            "the present settings differ between the queues or epolls of these programs, so no mode equals them, and a \
             search has nothing to compare with (`quell show` lists them). Set one mode for all, for example with \
             `quell apply`; nothing was changed",
        ));
    };
    preview.plan.accepts_stalls = accept_stalls;
    let findings = if accept_stalls { Vec::new() } else { findings_of_suspension(&preview, targets) };
    let stall = findings.iter().find(|finding| finding.predicts_stall());
    let mut refused = refused_here(&preview, &modes, stall);
    if hides_napi_threads(plan, &preview, targets) {
        let kinds = ["threaded", "threadedbusy"].into_iter().filter(|kind| refused.iter().all(|one| one.kind != *kind));
        let reason = "its NAPI thread can run on CPUs that these programs do not use, whose time is not measured";
        let new = kinds.map(|kind| RefusedMode { kind: kind.to_owned(), reason: reason.to_owned() });
        refused.extend(new.collect::<Vec<_>>());
    }
    let space = TuneSpace { refused };
    let arms = space.coarse();
    if arms.len() < 2 {
        let reasons: Vec<String> = space.refused.iter().map(|one| format!("{}: {}", one.kind, one.reason)).collect();
        return Err(Failure::new(
            Exit::NotSupported,
            format!("no mode can be set on these programs; nothing was changed:\n{}", reasons.join("\n")),
        ));
    }
    (plan.present, plan.arms, plan.space) = (modes[present], arms, Some(space));
    Ok((preview, modes))
}

/// The settings that all queues and all epolls have, as a mode: `base` with overrides. `None` if they differ.
pub(super) fn present_mode(plan: &SwitchPlan) -> Option<DeliveryMode> {
    let queue = plan.queues.first()?.old;
    let epoll = plan.epolls.first().map(|epoll| epoll.old).unwrap_or_default();
    if plan.queues.iter().any(|other| other.old != queue) || plan.epolls.iter().any(|other| other.old != epoll) {
        return None;
    }
    let settings = [
        ("defer-hard-irqs", queue.defer_hard_irqs.map(u64::from)),
        ("gro-flush-timeout", queue.gro_flush_timeout_ns),
        ("irq-suspend-timeout", queue.irq_suspend_timeout_ns),
        ("threaded", queue.threaded.map(|threaded| threaded.as_kernel().into())),
        ("busy-poll-usecs", Some(epoll.busy_poll_usecs.into())),
        ("busy-poll-budget", Some(epoll.busy_poll_budget.into())),
        ("prefer-busy-poll", Some(epoll.prefer_busy_poll.into())),
    ];
    let overrides = settings.into_iter().filter_map(|(name, value)| Some(format!(",{name}={}", value?)));
    format!("base{}", overrides.collect::<String>()).parse().ok()
}

/// Whether the goal or a guard uses CPU time, but the measured CPUs are not all on which a new NAPI thread can run.
fn hides_napi_threads(plan: &TunePlan, preview: &Preview, targets: &Targets) -> bool {
    let limited = plan.goal.limits.iter().map(|limit| &limit.metric);
    let metrics = limited.chain([&plan.goal.objective]).chain(plan.guards.iter().map(|guard| &guard.metric));
    let uses_cpu = metrics.into_iter().any(|metric| matches!(metric, TuneMetric::Cpu | TuneMetric::Busy));
    let measured = server_side::watched(&preview.snapshot, &targets.pids(), &preview.plan.napis()).server_cpus;
    uses_cpu && CpuList::online(kernel::sysfs()).is_ok_and(|online| online != measured)
}

/// Findings that the first suspending mode would cause, from an observation of the programs. Empty if no mode suspends.
fn findings_of_suspension(preview: &Preview, targets: &Targets) -> Vec<Finding> {
    let suspends = |plan: &&AttachPlan| plan.queues().any(|step| step.new.irq_suspend_timeout_ns.unwrap_or(0) > 0);
    let Some(suspending) = preview.plans().iter().find(suspends) else { return Vec::new() };
    let behavior = behavior::observe(&preview.snapshot, &targets.pids(), true);
    consequences_observed(&preview.snapshot, None, suspending, Some(&behavior))
}

/// Kinds of mode of which no value can be set, or that would stall the programs.
fn refused_here(preview: &Preview, modes: &[DeliveryMode], stall: Option<&Finding>) -> Vec<RefusedMode> {
    let why = |mode: &DeliveryMode| {
        let at = modes.iter().position(|other| other == mode)?;
        preview.plan.impossible[at].first().map(|first| format!("{}: {}", first.what, first.reason))
    };
    let mut refused = refused(modes, &why);
    if let Some(Finding { id, observed, .. }) = stall {
        let reason = format!(
            "would stall these programs: {observed} (`quell doctor --explain {id}`); --accept-stalls searches it anyway"
        );
        refused.push(RefusedMode { kind: "suspend".to_owned(), reason });
    }
    refused
}

fn plan_text(plan: &TunePlan, preview: &Preview, subject: &SubjectFacts) -> String {
    let affected = affected(preview);
    format!(
        "searches on {}\n{}{affected}everything is restored at the end, after Ctrl-C, and if this command is killed\n",
        render::searched_on(subject),
        render::plan(plan, ""),
    )
}

impl Searched {
    /// Replaces an interruption by its cause: the load has ended.
    fn ended_because(&mut self, why: Option<String>) {
        if let (Some(reason), quell_tune::TuneEnd::Interrupted) = (why, &self.result.end) {
            let reason = visible::name(&reason).into_owned();
            self.result.end = quell_tune::TuneEnd::SubjectFailed { reason };
        }
    }
}
