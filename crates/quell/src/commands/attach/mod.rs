//! `quell attach`: prints the plan and the affected processes, asks for confirmation, applies the plan, and hands over
//! to a keeper.

pub(super) mod args;
pub(super) mod ask;
pub(crate) mod detach;
mod earlier;
mod follow;
pub(crate) mod keeper;
mod left;
pub(crate) mod poller;
pub(super) mod watch;

use std::ops::ControlFlow;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, value_parser};
use quell_change::journal::JournalError;
use quell_change::recovery::Reverted;
use quell_change::transaction::{ChangeError, ChangeStage};
use quell_host::attach::consequences::consequences_observed;
use quell_host::attach::effect::EffectOnQueue;
use quell_host::attach::hand_over::{Earlier, HAND_OVER, recall_values_before};
use quell_host::attach::no_poll::no_poll_cause_now;
use quell_host::attach::no_queue::NoQueueCause;
use quell_host::attach::own_work::OwnWork;
use quell_host::attach::owners::refuse_under_owners;
use quell_host::attach::payoff::packets_per_s;
use quell_host::attach::placement::{Groups, Placement, PlacementResult, Wanted, decide};
use quell_host::attach::plan::{QueueStep, polls_epolls};
use quell_host::attach::poller::with_safe_timer;
use quell_host::attach::{
    AttachError, AttachPlan, AttachRequest, Attached, AttachedMode, Attachment, EpollsSetBy, TargetError, Targets,
    observe_programs, plan, poll_counting,
};
use quell_host::behavior::{self, Behavior};
use quell_host::findings::{self, Finding, cpus_lacking_for_pollers};
use quell_host::servers::{JudgedMode, NextStep};
use quell_host::snapshot::{Snapshot, TakeError};
use quell_host::steer::{NothingSteered, Steering, mark_steered};
use quell_linux::pidfd::Signal;
use quell_linux::signal::Interruption;
use quell_mode::DeliveryMode;
use tracing::{debug, info};

use args::AttachProgramsArgs;

use self::left::{leave, reverted_meanwhile};
use self::watch::QueueWatch;
use super::earlier::{cost_of, covers, earlier_answers, measured, recorded};
use super::placement_args::PlacementArgs;
use super::stalls;
use super::status::queue_sharers;
use crate::exit::{Exit, Failure};
use crate::journals::{journal, revert_killed_runs};
use crate::output;
use crate::render::attach::placement::PlacementReport;
use crate::render::attach::{self as render, finding_lines};
use crate::render::client_load;
use crate::render::measured as measured_render;
use crate::render::program_arguments::ProgramArguments;
use crate::render::progress::Progress;

/// Time for which the queues of a mode that is kept are watched, to check that it is in effect.
const EFFECT_WATCHED: Duration = Duration::from_secs(1);
/// Time for which packets are counted if the programs are not observed.
const LOAD_COUNTED: Duration = Duration::from_millis(200);
/// Interval at which the check looks whether the attachment was ended.
const ENDED_WITHIN: Duration = Duration::from_millis(100);
/// Time limit for observing new connections after steering, and threads that wait in epoll before pinning.
const PLACEMENT_WATCHED: Duration = Duration::from_secs(2);

/// Options of `quell attach`.
#[derive(Debug, Args)]
#[command(override_usage = "quell attach [OPTIONS] <MODE|--profile FILE> <PID|NAME...|--pid|--name|--unit|--cgroup>")]
pub(crate) struct AttachArgs {
    #[command(flatten)]
    programs: AttachProgramsArgs,
    /// Allow PID 1, and with it every visible process.
    #[arg(long)]
    all_processes: bool,
    #[command(flatten)]
    placement: PlacementArgs,
    /// Do not ask for confirmation.
    #[arg(short, long)]
    yes: bool,
    /// Show the plan and the affected processes; change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Attach even if a stall is predicted or an epoll receives from several queues, and keep the mode although its queues stall: network events can be delayed forever.
    #[arg(long)]
    accept_stalls: bool,
    /// Stay in the foreground, apply the mode to new workers and queues, and undo everything on exit; SIGUSR1 leaves it.
    #[arg(short, long)]
    follow: bool,
    /// Continue an earlier attachment with the same mode and options without setting a value, or restore another one first.
    #[arg(long, requires_all = ["follow", "yes"])]
    take_over: bool,
    /// Duration for which the queues are watched to check that the mode is in effect; 0 skips the check
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = value_parser!(u64).range(..=3_600))]
    seconds: u64,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

pub(crate) fn run(args: &AttachArgs) -> Result<(), Failure> {
    if !args.dry_run {
        // Without this, changes left by a killed run would be recorded as the host's own values.
        revert_killed_runs(&journal()).map_err(Failure::refused)?;
    }
    let (mode, targets) = args.programs.find(&args.placement.wanted())?;
    if !args.all_processes {
        refuse_every_process(&targets, ", or add --all-processes")?;
    }
    let request = AttachRequest { mode, epolls: EpollsSetBy::Attachment };
    let wanted = args.placement.wanted();
    let (earlier, were_steered) = earlier::of(&targets, &request, args)?;
    let Observation { snapshot, request, mut plan, mut findings, behavior, seen } =
        look(&targets, request, &wanted, args.json)?;
    if let Earlier::Differs(restored) = &earlier {
        restored.iter().for_each(|earlier| recall_values_before(&mut plan, &earlier.history));
    }
    plan.covers = covers(&plan.values(), &targets.pids());
    let mode = request.mode;
    plan.log();
    for finding in &findings {
        info!(id = %finding.id, severity = ?finding.severity, seen = finding.observed, "the mode would cause this finding");
    }
    let mut groups = groups(&wanted, &snapshot, &targets, args.follow)?;
    let is_steered = !groups.steerings.is_empty();
    findings::are_placed(&mut findings, &targets.pids(), is_steered, args.placement.pins());
    findings::name_mode(&mut findings, &mode);
    if let Some(sharing) = queue_sharers(&targets, &plan.queues().map(|step| step.napi).collect()) {
        findings::compare_with(&mut findings, &targets.pids(), &sharing);
    }
    if were_steered {
        // Their workers were selected by the filters of the earlier attachment.
        groups.steerings.iter_mut().for_each(Steering::forget_established);
    }
    let follows = args.command_that_follows(mode, !args.dry_run && !render::sets_nothing(&mode, &plan));
    let mut report = render::Report::new(&request, &targets, &plan, findings, follows);
    if polls_epolls(&mode) {
        report.will_mix = findings::will_mix(&snapshot, &targets.pids(), is_steered);
    }
    if mode.poller().is_some() {
        report.lacking_cpus = cpus_lacking_for_pollers(&snapshot, &targets.pids(), plan.queues().count());
    }
    if args.placement.is_requested() {
        report.placement = Some(PlacementReport::new(&groups, None));
    }
    let attached = AttachedMode {
        mode,
        launched: false,
        steers: is_steered,
        steers_udp: args.placement.steers_udp(),
        pins: args.placement.pins(),
        accepts_stalls: args.accept_stalls,
        follows: args.follow,
    };
    let answers = earlier_answers();
    let planned = JudgedMode { packets_per_s: packets_per_s(seen.iter()), ..JudgedMode::planned(attached) };
    let step = measured(&snapshot, &targets.pids(), &answers, &planned);
    report.measured =
        step.as_ref().and_then(|step| measured_render::before(step, &mode, cost_of(&mode, &step.next).as_deref()));
    // A measurement decides before a prediction.
    let is_best = step.is_some_and(|step| matches!(step.next, NextStep::Keep { .. }));
    let would_stall = report.findings.iter().any(Finding::predicts_stall);
    report.own_work = OwnWork::of_queues(&seen).filter(|_| !is_best && !would_stall);
    if let Some(behavior) = behavior.filter(|_| !is_best) {
        let stays = |finding: &&Finding| !is_steered || findings::stays_when_steered(finding);
        let mixed = findings::observed_to_mix(&report.findings, &behavior);
        let (staying, ending): (Vec<_>, Vec<_>) = mixed.partition(stays);
        (report.unsorted, report.slowed) = (!ending.is_empty(), staying.first().copied().cloned());
    }
    if args.dry_run {
        if args.json {
            output::json(&report)?;
        } else {
            show_plan(&report, &groups, args)?;
        }
    }
    refuse(&report, args)?;
    // Whether a mode stalls a program is observed while it runs.
    if !args.accept_stalls {
        findings::check_not_stopped(&snapshot, &targets.pids())
            .map_err(|stopped| Failure::new(Exit::NotSupported, stopped).unchanged())?;
    }
    poller::check(&mode, plan.queues().count())?;
    if earlier == Earlier::None {
        refuse_under_owners(&journal(), &plan).map_err(failure)?;
    }
    journal().check_writable().map_err(|error| Failure::refused(error).unchanged())?;
    if args.dry_run {
        let follows = "follows: new workers and queues get the mode; everything is restored on exit\n";
        return if args.follow && !args.json { output::data(follows) } else { Ok(()) };
    }
    if !args.json {
        show_plan(&report, &groups, args)?;
    }
    ask::unless(args.yes, "apply?", "--yes")?;
    let interruption = match args.follow {
        true => Interruption::listen_to(&[Signal::INT, Signal::TERM, Signal::HUP, HAND_OVER]),
        false => Interruption::listen(),
    };
    let interruption = interruption.map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let mut placement = Placement::new(wanted);
    let watched = args.placement.is_requested().then_some(PLACEMENT_WATCHED);
    let mut plan_to_make = plan.clone();
    let continued = match &earlier {
        Earlier::Continues(continued) => {
            recall_values_before(&mut plan_to_make, &continued.history);
            Some(continued.as_ref())
        }
        Earlier::None | Earlier::Differs(_) => None,
    };
    let (mut attachment, placed) =
        attach((&targets, continued), request, &plan_to_make, (&groups, &mut placement, watched), &interruption)?;
    let queues: Vec<QueueStep> = attachment.queues().cloned().collect();
    report.rings_left_alone = render::RingLeftAlone::of(&attachment);
    if args.accept_stalls {
        attachment.accept_stalls().map_err(|error| Failure::new(Exit::RolledBack, error))?;
    }
    if args.follow {
        attachment.hold().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    }
    let (kept, mut left) = match args.follow {
        true => (Some(attachment), None),
        false => (None, Some(leave(attachment)?)),
    };
    if args.placement.is_requested() {
        report.placement = Some(PlacementReport::new(&groups, Some(&placed)));
    }
    // An attachment that was taken over keeps its pins.
    let attached = recorded(&snapshot, &targets).unwrap_or(attached);
    let time = Duration::from_secs(args.seconds);
    let mut is_over = || left.as_mut().is_some_and(|left| !left.is_kept());
    report.effect = effect((&request, &attached), &queues, (&targets, &snapshot), time, &mut is_over, &interruption);
    let payoff =
        |effect: &render::Effect| effect.payoff(&attached, &targets.pids(), &report.findings, report.lacking_cpus);
    report.payoff = report.effect.as_ref().and_then(payoff);
    if is_over() {
        return Err(reverted_meanwhile(&targets, left.as_ref()));
    }
    let judged = report.payoff.as_ref().map(|payoff| JudgedMode {
        payoff: Some(payoff),
        packets_per_s: payoff.packets_per_s,
        ..JudgedMode::planned(attached)
    });
    let programs = ProgramArguments::of_selection(targets.selection())
        .attached(Some(attached))
        .answered_by(judged.and_then(|judged| measured(&snapshot, &targets.pids(), &answers, &judged)))
        .judged_by(client_load::judge_in(&snapshot, &targets.pids()))
        .in_netns(snapshot.named_netns_of(&targets.pids()).map(str::to_owned))
        .mixing(findings::mixes_queues(&snapshot, &targets.pids()))
        .unreached(findings::Unreached::of(&snapshot, &targets.pids()))
        .predicted(report.findings.iter().find(|finding| finding.predicts_stall()).map(|finding| finding.id))
        .sharing(queue_sharers(&targets, &queues.iter().map(|step| step.napi).collect()));
    let has_older = groups.steerings.iter().any(Steering::leaves_established);
    let conclude = || render::conclusion(report.payoff.as_ref(), &programs, has_older);
    report.conclusion = report.effect.is_some().then(conclude);
    let printed = if args.json {
        output::json(&report)
    } else {
        let may_be_pinned = !args.follow
            && placed.not_pinned.iter().any(|one| one.why.may_change())
            && findings::workers_can_be_pinned(&snapshot, &targets.pids());
        let to_pin = may_be_pinned.then(|| args.command_instead(mode));
        show_what_was_set(&report, &groups, &placed, to_pin)
    };
    // A closed pipe must not undo the mode.
    if let Some(attachment) = kept {
        let watch = match queues.is_empty() && !time.is_zero() {
            true => QueueWatch::from_begin(args.placement.pins()),
            false => QueueWatch::after(report.payoff.as_ref(), args.placement.pins()),
        };
        follow::follow(attachment, placement, watch, &interruption)?;
        return printed;
    }
    printed.map_err(|failure| Failure { text: format!("{}; the mode stays applied", failure.text), ..failure })
}

/// Applies a mode to programs without asking, and leaves it applied. Prints what was set.
///
/// # Errors
/// When the mode cannot be applied; changes are undone.
pub(in crate::commands) fn keep(
    targets: &Targets,
    mode: DeliveryMode,
    args: &PlacementArgs,
    accept_stalls: bool,
) -> Result<(), Failure> {
    let request = AttachRequest { mode, epolls: EpollsSetBy::Attachment };
    let wanted = args.wanted();
    let Observation { snapshot, request, plan, mut findings, .. } = look(targets, request, &wanted, true)?;
    let groups = groups(&wanted, &snapshot, targets, false)?;
    findings::are_placed(&mut findings, &targets.pids(), !groups.steerings.is_empty(), args.pins());
    finding_lines(&findings).iter().for_each(|line| output::say(line));
    let report = render::Report::new(&request, targets, &plan, findings, None);
    refuse_impossible(&report)?;
    poller::check(&mode, plan.queues().count())?;
    if !accept_stalls {
        stalls::refuse(&report.findings, "keeps the mode")?;
    }
    let interruption = Interruption::listen().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let mut placement = Placement::new(wanted);
    let watched = args.is_requested().then_some(PLACEMENT_WATCHED);
    let (attachment, placed) =
        attach((targets, None), request, &plan, (&groups, &mut placement, watched), &interruption)?;
    let queues: Vec<QueueStep> = attachment.queues().cloned().collect();
    let mut left = leave(attachment)?;
    let mut is_over = || !left.is_kept();
    let attached = AttachedMode {
        mode,
        launched: false,
        steers: !groups.steerings.is_empty(),
        steers_udp: args.steers_udp(),
        pins: args.pins(),
        accepts_stalls: accept_stalls,
        follows: false,
    };
    let (request, of) = ((&request, &attached), (targets, &snapshot));
    let effect = effect(request, &queues, of, EFFECT_WATCHED, &mut is_over, &interruption);
    if is_over() {
        return Err(reverted_meanwhile(targets, Some(&left)));
    }
    output::say(render::placement::placed(&groups, &placed).trim_end());
    effect.iter().for_each(|effect| output::say(effect.to_string().trim_end()));
    Ok(())
}

fn show_what_was_set(
    report: &render::Report<'_>,
    groups: &Groups,
    placed: &PlacementResult,
    to_pin: Option<String>,
) -> Result<(), Failure> {
    output::prose(&render::rings_left_alone(&report.rings_left_alone))?;
    output::prose(&render::placement::placed(groups, placed))?;
    if let Some(command) = to_pin {
        output::prose(&format!("to pin workers as soon as that is possible: `{command}`\n"))?;
    }
    let (Some(effect), Some(conclusion)) = (&report.effect, &report.conclusion) else { return Ok(()) };
    output::prose(&format!("{effect}{conclusion}"))
}

fn show_plan(report: &render::Report<'_>, groups: &Groups, args: &AttachArgs) -> Result<(), Failure> {
    output::prose(&report.to_string())?;
    output::prose(&render::placement::groups(groups, args.placement.pins()))
}

struct Observation {
    snapshot: Snapshot,
    /// The request, with a timer that suits the observed rate.
    request: AttachRequest,
    plan: AttachPlan,
    findings: Vec<Finding>,
    /// Absent if the mode polls no epoll.
    behavior: Option<Behavior>,
    /// Packets and polls of its queues. Empty if they cannot be counted.
    seen: Vec<EffectOnQueue>,
}

/// Plans the attachment. Observes the programs if their epolls have to poll queues. If the mode suspends and other
/// processes share the queues, or if it has a poller, takes a second snapshot, which shows how long they can wait, and how
/// fast the rings fill.
fn look(targets: &Targets, request: AttachRequest, wanted: &Wanted, json: bool) -> Result<Observation, Failure> {
    let observe = || observe_and_plan(targets, request, wanted);
    let looked = Progress::during_seconds("observing the programs", json, observe);
    looked.map_err(|error| failure(AttachError::Look(error)))
}

fn observe_and_plan(targets: &Targets, mut request: AttachRequest, wanted: &Wanted) -> Result<Observation, TakeError> {
    let observed = || -> Result<Snapshot, TakeError> {
        let mut snapshot = observe_programs(&targets.pids())?;
        mark_planned_steering(&mut snapshot, targets, wanted);
        Ok(snapshot)
    };
    let first = observed()?;
    let planned = plan(&first, None, &targets.pids(), &request);
    let is_refused = !planned.impossible.is_empty();
    let suspends = request.mode.napi().irq_suspend_timeout_ns > 0 && !is_refused;
    let observes = planned.polls_queues() && !is_refused;
    let queues: Vec<QueueStep> = planned.queues().filter(|_| !is_refused).cloned().collect();
    let observe = || behavior::observe(&first, &targets.pids(), true);
    let mut behavior = None;
    let mut wait = || match observes {
        true => behavior = Some(observe()),
        false => thread::sleep(LOAD_COUNTED),
    };
    let seen = match queues.is_empty() {
        true => Vec::new(),
        false => poll_counting::watch(&queues, &targets.pids(), &first, &mut wait).unwrap_or_default(),
    };
    let behavior = behavior.or_else(|| observes.then(observe));
    let has_poller = request.mode.poller().is_some() && !queues.is_empty();
    // Only two snapshots show that a program does not read its connections.
    if !is_refused && !has_poller && (!suspends || planned.affected_processes.is_empty()) {
        let findings = consequences_observed(&first, None, &planned, behavior.as_ref());
        return Ok(Observation { snapshot: first, request, plan: planned, findings, behavior, seen });
    }
    if behavior.is_none() {
        thread::sleep(behavior::OBSERVED);
    }
    let snapshot = observed()?;
    request.mode = with_safe_timer(request.mode, &first, &snapshot, &planned);
    let plan = plan(&snapshot, Some(&first), &targets.pids(), &request);
    let findings = consequences_observed(&snapshot, Some(&first), &plan, behavior.as_ref());
    Ok(Observation { snapshot, request, plan, findings, behavior, seen })
}

/// Marks the sockets that the requested filters would steer. [`groups`] reports errors.
fn mark_planned_steering(snapshot: &mut Snapshot, targets: &Targets, wanted: &Wanted) {
    let Some(groups) = wanted.steer.as_ref().and_then(|devices| decide(snapshot, &targets.pids(), devices).ok()) else {
        return;
    };
    mark_steered(snapshot, &groups.steerings.iter().flat_map(Steering::queues_of_sockets).collect());
}

/// Selects the reuseport filters to attach. With `follow`, having none is not an error, because groups can appear
/// later.
fn groups(wanted: &Wanted, snapshot: &Snapshot, targets: &Targets, follow: bool) -> Result<Groups, Failure> {
    let Some(request) = &wanted.steer else { return Ok(Groups::default()) };
    let refused = |error| Failure::new(Exit::KernelRefused, error).unchanged();
    let groups = decide(snapshot, &targets.pids(), request).map_err(refused)?;
    if groups.steerings.is_empty() && !follow {
        let text = match groups.refused.is_empty() {
            true => format!("{}; nothing was changed", NothingSteered(Vec::new())),
            false => {
                format!("nothing can be steered; nothing was changed:\n{}", render::placement::groups(&groups, false))
            }
        };
        return Err(Failure::new(Exit::NotSupported, text.trim_end()));
    }
    Ok(groups)
}

/// Refuses PID 1, because every process descends from it. `remedy` names the option that allows it, if there is one.
pub(super) fn refuse_every_process(targets: &Targets, remedy: &str) -> Result<(), Failure> {
    match targets.pids().iter().any(|pid| pid.get() == 1) {
        true => Err(Failure::usage(format!(
            "process 1 is among the selected processes, and every process descends from it: name the programs{remedy}; \
             nothing was changed"
        ))),
        false => Ok(()),
    }
}

fn refuse_impossible(report: &render::Report<'_>) -> Result<(), Failure> {
    if report.plan.impossible.is_empty() {
        return Ok(());
    }
    let why = render::impossible(report.plan);
    Err(Failure::new(Exit::NotSupported, format!("not possible here; nothing was changed:\n{why}")))
}

fn refuse(report: &render::Report<'_>, args: &AttachArgs) -> Result<(), Failure> {
    refuse_impossible(report)?;
    if report.sets_nothing() {
        let cause = match &report.plan.without_queue {
            Some(cause @ (NoQueueCause::NoDatagram | NoQueueCause::NoNetworkSocket)) => cause.to_string(),
            Some(cause) if cause.lacks_napi() => cause.to_string(),
            _ => {
                "no TCP or UDP socket of the programs has received from a queue. Loopback, raw and packet sockets have \
                  none"
                    .to_owned()
            }
        };
        let text = format!(
            "nothing to set yet: {cause}. To wait for a queue: `{}`",
            args.command_that_follows(report.mode, false).unwrap_or_default()
        );
        let shown = if args.dry_run { String::new() } else { report.to_string() };
        return Err(Failure::new(Exit::NotSupported, format!("{shown}{text}")));
    }
    if args.accept_stalls {
        return Ok(());
    }
    let is_slowed = || report.slowed.as_ref().map(|finding| stalls::refused_mixed(finding, "attaches"));
    let refused = stalls::refuse(&report.findings, "attaches").err().or_else(is_slowed);
    let Some(failure) = refused else { return Ok(()) };
    // The plan of a dry run has it.
    let text = match report.nothing_to_gain().filter(|_| !args.dry_run) {
        Some(nothing) => format!("{nothing}\n{}", failure.text),
        None => failure.text,
    };
    Err(Failure { text, ..failure })
}

fn attach(
    (targets, earlier): (&Targets, Option<&Attached>),
    request: AttachRequest,
    plan: &AttachPlan,
    (groups, placement, watched): (&Groups, &mut Placement, Option<Duration>),
    interruption: &Interruption,
) -> Result<(Attachment, PlacementResult), Failure> {
    let flag = interruption.flag();
    let mut observer = |_: usize, _: ChangeStage| match flag.get() {
        Some(_) => ControlFlow::Break(()),
        None => ControlFlow::Continue(()),
    };
    let mut start = |path: &Path| keeper::start(path);
    let taken = earlier
        .map(|earlier| Attachment::take_over(&journal(), earlier, targets.clone(), request, &mut start))
        .transpose()
        .map_err(failure)?;
    let mut attachment = match taken.flatten() {
        Some(attachment) => attachment,
        None => Attachment::begin(&journal(), targets.clone(), request, &mut start).map_err(failure)?,
    };
    let set = Progress::during("applying the mode", || {
        poller::start(&mut attachment)?;
        attachment.make(plan, &mut observer)?;
        placement.steer(groups, &mut attachment, &mut observer)?;
        attachment.settle(&mut observer)?;
        match watched {
            Some(within) => placement.watch(&mut attachment, within, &mut observer),
            None => Ok(PlacementResult::default()),
        }
    });
    match set {
        Ok(placed) => Ok((attachment, placed)),
        Err(error) => Err(restore(&error, &attachment.end())),
    }
}

/// Checks whether the mode is in effect. `None` without queues, with `--seconds 0`, and if a signal ended the check: too few
/// polls are no evidence.
fn effect(
    (request, attached): (&AttachRequest, &AttachedMode),
    queues: &[QueueStep],
    (targets, snapshot): (&Targets, &Snapshot),
    time: Duration,
    is_over: &mut dyn FnMut() -> bool,
    interruption: &Interruption,
) -> Option<render::Effect> {
    if time.is_zero() || queues.is_empty() {
        return None;
    }
    let programs = targets.pids();
    // A signal ends the wait, as does the end of the attachment; the caller checks for both.
    let mut wait = || {
        // Loading the programs that count polls can take as long as the check.
        let until = Instant::now() + time;
        while !is_over() && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            if !matches!(interruption.wait(left.min(ENDED_WITHIN)), Ok(None)) {
                break;
            }
        }
    };
    let watched = Progress::during("checking whether the mode is in effect", || {
        poll_counting::watch(queues, &programs, snapshot, &mut wait)
    });
    if interruption.flag().get().is_some() {
        return None;
    }
    Some(match watched {
        Ok(seen) => {
            seen.iter().for_each(|seen| debug!(?seen, "counted polls of a queue"));
            let cause = |napi| no_poll_cause_now(Some(snapshot), &programs, napi).if_attached(attached);
            render::Effect::of(request, queues, seen, cause)
        }
        Err(error) => {
            info!(%error, "could not count polls");
            render::Effect::blind(&error)
        }
    })
}

fn restore(error: &AttachError, reverted: &Result<Reverted, JournalError>) -> Failure {
    let exit = if error.is_stopped() { Exit::Interrupted } else { Exit::RolledBack };
    Failure::new(exit, format!("{error}; {}", crate::render::reverted::undo_outcome(reverted)))
}

/// Converts an error that occurred before anything was changed.
pub(in crate::commands) fn failure(error: AttachError) -> Failure {
    let exit = match &error {
        AttachError::Target(TargetError::Proc(_)) => Exit::KernelRefused,
        AttachError::Target(_) => Exit::Usage,
        AttachError::AlreadyAttached { .. } | AttachError::BeingAttached { .. } => Exit::KernelRefused,
        AttachError::Begin(ChangeError::Refused { .. }) => Exit::NotSupported,
        _ => return Failure::refused(error).unchanged(),
    };
    Failure::new(exit, error).unchanged()
}
