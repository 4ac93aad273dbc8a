//! `quell attach`: says what it would set and whom it touches, asks, sets, and leaves it to a keeper.

mod args;
mod ask;
pub(crate) mod detach;
mod follow;
pub(crate) mod keeper;
pub(crate) mod stalls;

use std::ops::ControlFlow;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, value_parser};
use quell_host::attach::attachment::refuse_what_is_attached;
use quell_host::attach::consequences::consequences;
use quell_host::attach::placement::{Groups, Placed, Placement, Wanted, decide};
use quell_host::attach::plan::QueueStep;
use quell_host::attach::{
    AttachError, Attachment, EpollsSetBy, Plan, Request, TargetError, Targets, effect, observe, plan, ready_files,
};
use quell_host::findings::{Finding, READY_FILE_HOLDS_SUSPENSION, Severity};
use quell_host::journal::JournalError;
use quell_host::picture::{Picture, TakeError};
use quell_host::recovery::Reverted;
use quell_host::transaction::Moment;
use quell_linux::signal::Interruption;
use quell_mode::DeliveryMode;

use args::ProgramsArgs;

use super::placement_args::PlacementArgs;
use crate::exit::{Exit, Failure};
use crate::journals::{journal, undo_what_killed_runs_left};
use crate::output;
use crate::render::attach as render;

/// How long the load of a program is watched, where others share its queues, to tell how long they can wait.
const LOAD_WATCHED: Duration = Duration::from_millis(500);

/// How long it is looked for connections that came since the workers were steered, and for threads that wait.
const PLACEMENT_WATCHED: Duration = Duration::from_secs(2);

/// Options of `quell attach`.
#[derive(Debug, Args)]
#[command(override_usage = "quell attach [OPTIONS] <MODE> <PID...|--unit <NAME>|--cgroup <PATH>>")]
pub(crate) struct AttachArgs {
    /// The delivery mode: base, deferN, napibusy, fullbusy, suspendN, threaded, threadedbusy, sockpollN, with N in µs.
    mode: DeliveryMode,
    #[command(flatten)]
    programs: ProgramsArgs,
    /// Also when process 1 is among them, and so every process that is visible here.
    #[arg(long)]
    all_processes: bool,
    #[command(flatten)]
    placement: PlacementArgs,
    /// Do not ask.
    #[arg(short, long)]
    yes: bool,
    /// Show what would be set and whom it touches; change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Attach although a file that stays ready keeps queues suspended: network events can wait for it for ever.
    #[arg(long)]
    accept_stalls: bool,
    /// Stay, keep up with workers that are started and queues that come up later, and restore everything at the end.
    #[arg(short, long, conflicts_with = "dry_run")]
    follow: bool,
    /// How long to watch who polls, to tell whether the mode is in effect; 0: not at all.
    #[arg(long, value_name = "S", default_value_t = 1, value_parser = value_parser!(u64).range(..=3_600))]
    seconds: u64,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

/// Runs the command.
///
/// # Errors
/// With the exit code of what went wrong.
pub(crate) fn run(args: &AttachArgs) -> Result<(), Failure> {
    if !args.dry_run {
        // What a killed one left would be taken for the host's own values.
        undo_what_killed_runs_left(&journal()).map_err(Failure::refused)?;
    }
    let targets = args.programs.find().map_err(|error| failure(AttachError::Target(error)))?;
    if !args.all_processes {
        refuse_every_process(&targets)?;
    }
    refuse_what_is_attached(&journal(), &targets).map_err(failure)?;
    let request = Request { mode: args.mode, epolls: EpollsSetBy::Attachment };
    let Looked { picture, plan, findings } =
        look(&targets, &request).map_err(|error| failure(AttachError::Look(error)))?;
    let wanted = args.placement.wanted();
    let groups = groups(&wanted, &picture, &targets, args.follow)?;
    let mut report = render::Report::new(&request, &targets, &plan, findings, args.follow);
    if args.placement.is_asked_for() {
        report.placement = Some(render::placement::report(&groups, None));
    }
    if args.dry_run {
        if args.json {
            output::json(&report)?;
        } else {
            show_plan(&report, &groups)?;
        }
        return refuse(&report, args);
    }
    refuse(&report, args)?;
    if !args.json {
        show_plan(&report, &groups)?;
    }
    ask::unless(args.yes, "set it?", "--yes")?;
    let told = Interruption::listen().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let mut placement = Placement::new(wanted);
    let watched = args.placement.is_asked_for().then_some(PLACEMENT_WATCHED);
    let (mut attachment, placed) = attach(&targets, request, &plan, (&groups, &mut placement, watched), &told)?;
    let queues: Vec<QueueStep> = attachment.queues().cloned().collect();
    report.rings_left_alone = render::RingLeftAlone::of(&attachment);
    if args.follow {
        attachment.hold().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    }
    let kept = if args.follow { Some(attachment) } else { leave(attachment)? };
    if args.placement.is_asked_for() {
        report.placement = Some(render::placement::report(&groups, Some(&placed)));
    }
    report.effect = effect(&request, &queues, Duration::from_secs(args.seconds), &told);
    let printed = if args.json { output::json(&report) } else { show_what_was_set(&report, &groups, &placed) };
    // A reader that is not there does not take the mode from the program.
    if let Some(attachment) = kept {
        follow::follow(attachment, placement, &told)?;
        return printed;
    }
    printed.map_err(|failure| Failure { text: format!("{}; the mode is set, and stays", failure.text), ..failure })
}

fn show_what_was_set(report: &render::Report<'_>, groups: &Groups, placed: &Placed) -> Result<(), Failure> {
    output::data(&render::rings_left_alone(&report.rings_left_alone))?;
    output::data(&render::placement::placed(groups, placed))?;
    output::data(&report.effect.as_ref().map(ToString::to_string).unwrap_or_default())
}

fn leave(attachment: Attachment) -> Result<Option<Attachment>, Failure> {
    attachment.leave().map_err(|error| Failure::new(Exit::RolledBack, error))?;
    output::say("applied and verified; restored when the program exits, or by `quell detach`");
    Ok(None)
}

fn show_plan(report: &render::Report<'_>, groups: &Groups) -> Result<(), Failure> {
    output::data(&report.to_string())?;
    output::data(&render::placement::groups(groups))
}

/// What is there, what would be set, and what that would bring along.
struct Looked {
    picture: Picture,
    plan: Plan,
    findings: Vec<Finding>,
}

/// Where others are on the queues, the plan is made from two looks, which show how long they can wait. A file that was
/// ready is asked again and again until then.
fn look(targets: &Targets, request: &Request) -> Result<Looked, TakeError> {
    let looked = |picture: Picture, before: Option<&Picture>| {
        let plan = plan(&picture, before, &targets.pids(), request);
        let findings = consequences(&picture, before, &plan);
        Looked { picture, plan, findings }
    };
    let first = looked(observe()?, None);
    let began = Instant::now();
    let suspects = ready_files::suspects(&first.picture, &first.findings);
    let stayed_ready = ready_files::stay_ready(suspects, LOAD_WATCHED);
    let others_wait = !first.plan.neighbours.is_empty() && request.mode.napi().irq_suspend_timeout_ns > 0;
    if stayed_ready.is_empty() && !others_wait {
        return Ok(first);
    }
    thread::sleep(LOAD_WATCHED.saturating_sub(began.elapsed()));
    let mut second = looked(observe()?, Some(&first.picture));
    ready_files::judge(&mut second.findings, &stayed_ready);
    Ok(second)
}

/// The filters that are to be put on; none unless that is asked for. One who stays waits for what can be steered.
fn groups(wanted: &Wanted, picture: &Picture, targets: &Targets, follow: bool) -> Result<Groups, Failure> {
    let Some(devices) = &wanted.steer else { return Ok(Groups::default()) };
    let refused = |error| Failure::new(Exit::KernelRefused, format!("{error}; nothing was changed"));
    let groups = decide(picture, &targets.pids(), devices).map_err(refused)?;
    if groups.steerings.is_empty() && !follow {
        let text = format!("nothing can be steered, so nothing was changed:\n{}", render::placement::groups(&groups));
        return Err(Failure::new(Exit::NotSupported, text.trim_end()));
    }
    Ok(groups)
}

/// Every process descends from process 1, and so do the programs of everybody else.
fn refuse_every_process(targets: &Targets) -> Result<(), Failure> {
    match targets.pids().iter().any(|pid| pid.get() == 1) {
        true => Err(Failure::usage(
            "process 1 is among the selected processes, and every process descends from it: name the programs, or add \
             --all-processes; nothing was changed",
        )),
        false => Ok(()),
    }
}

fn refuse_what_cannot_be(report: &render::Report<'_>) -> Result<(), Failure> {
    if report.plan.impossible.is_empty() {
        return Ok(());
    }
    let why = render::impossible(report.plan);
    Err(Failure::new(Exit::NotSupported, format!("it cannot be done here, so nothing was changed:\n{why}")))
}

fn refuse(report: &render::Report<'_>, args: &AttachArgs) -> Result<(), Failure> {
    refuse_what_cannot_be(report)?;
    if report.plan.steps.is_empty() && !args.follow {
        let text = "there is nothing to set yet: no epoll with network sockets, and no packet has come by a queue; \
                    --follow waits for them";
        let shown = if args.dry_run { String::new() } else { report.to_string() };
        return Err(Failure::new(Exit::NotSupported, format!("{shown}{text}")));
    }
    if args.accept_stalls { Ok(()) } else { refuse_stalls(report) }
}

/// A file that stays ready makes the mode a stall, which no timeout ends.
fn refuse_stalls(report: &render::Report<'_>) -> Result<(), Failure> {
    let stalls =
        |finding: &&Finding| finding.id == READY_FILE_HOLDS_SUSPENSION && finding.severity == Severity::Serious;
    let Some(finding) = report.findings.iter().find(stalls) else { return Ok(()) };
    let Finding { id, title, seen, why, .. } = finding;
    Err(Failure::new(
        Exit::VerifyFailed,
        format!("{id}: {title}: {seen}. {why} Nothing was changed; --accept-stalls attaches all the same"),
    ))
}

fn attach(
    targets: &Targets,
    request: Request,
    plan: &Plan,
    (groups, placement, watched): (&Groups, &mut Placement, Option<Duration>),
    told: &Interruption,
) -> Result<(Attachment, Placed), Failure> {
    let flag = told.flag();
    let mut looks_on = |_: usize, _: Moment| match flag.get() {
        Some(_) => ControlFlow::Break(()),
        None => ControlFlow::Continue(()),
    };
    let mut start = |path: &Path| keeper::start(path);
    let mut attachment = Attachment::begin(&journal(), targets.clone(), request, &mut start).map_err(failure)?;
    let set = attachment
        .make(plan, &mut looks_on)
        .and_then(|()| placement.steer(groups, &mut attachment, &mut looks_on))
        .and_then(|()| attachment.settle(&mut looks_on))
        .and_then(|()| match watched {
            Some(within) => placement.watch(&mut attachment, within, &mut looks_on),
            None => Ok(Placed::default()),
        });
    match set {
        Ok(placed) => Ok((attachment, placed)),
        Err(error) => Err(put_back(&error, &attachment.end())),
    }
}

/// Whether the mode shows; absent when nobody asked.
fn effect(request: &Request, queues: &[QueueStep], time: Duration, told: &Interruption) -> Option<render::Effect> {
    if time.is_zero() || queues.is_empty() {
        return None;
    }
    // A signal ends it, and is looked at by whoever comes next.
    let mut wait = || drop(told.wait(time));
    Some(match effect::watch(queues, &mut wait) {
        Ok(seen) => render::Effect::of(request, queues, seen),
        Err(error) => render::Effect::blind(&error),
    })
}

fn put_back(error: &AttachError, reverted: &Result<Reverted, JournalError>) -> Failure {
    let exit = if error.is_stopped() { Exit::Interrupted } else { Exit::RolledBack };
    Failure::new(exit, format!("{error}; {}", crate::render::status::how_it_went_back(reverted)))
}

/// Nothing was changed.
fn failure(error: AttachError) -> Failure {
    let exit = match &error {
        AttachError::Target(TargetError::Proc(_)) => Exit::KernelRefused,
        AttachError::Target(_) | AttachError::AlreadyAttached { .. } => Exit::Usage,
        _ => return nothing_was_changed(Failure::refused(error)),
    };
    nothing_was_changed(Failure::new(exit, error))
}

fn nothing_was_changed(failure: Failure) -> Failure {
    Failure { text: format!("{}; nothing was changed", failure.text), ..failure }
}
