//! `quell attach`: says what it would set and whom it touches, asks, sets, and leaves it to a keeper.

mod ask;
pub(crate) mod detach;
pub(crate) mod keeper;

use std::ops::ControlFlow;
use std::thread;
use std::time::Duration;

use clap::Args;
use quell_host::attach::placement::{Groups, Placed, decide};
use quell_host::attach::{
    AttachError, Attachment, EpollsSetBy, Plan, Request, Selection, TargetError, Targets, observe, plan,
};
use quell_host::journal::{JournalError, Keeper};
use quell_host::picture::{Picture, TakeError};
use quell_host::recovery::{Reverted, recover};
use quell_host::transaction::Moment;
use quell_linux::Pid;
use quell_linux::cgroup::Cgroup;
use quell_linux::signal::Interruption;
use quell_mode::DeliveryMode;

use crate::exit::{Exit, Failure};
use crate::journals::journal;
use crate::output;
use crate::render::attach as render;

/// How long the load of a program is watched, where others share its queues, to tell how long they can wait.
const LOAD_WATCHED: Duration = Duration::from_millis(500);

/// How long it is looked for connections that came since the workers were steered, and for threads that wait.
const PLACEMENT_WATCHED: Duration = Duration::from_secs(2);

/// Options of `quell attach`.
#[derive(Debug, Args)]
pub(crate) struct AttachArgs {
    /// The delivery mode: base, deferN, napibusy, fullbusy, suspendN, threaded, with N in µs.
    mode: DeliveryMode,
    #[command(flatten)]
    programs: ProgramsArgs,
    #[command(flatten)]
    placement: PlacementArgs,
    /// Do not ask.
    #[arg(short, long)]
    yes: bool,
    /// Show what would be set and whom it touches; change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

/// Where the workers get their connections and run.
#[derive(Debug, Args)]
struct PlacementArgs {
    /// Give each worker the connections of its own queue, by a filter on the reuseport groups of the programs; of these
    /// devices' queues [default: all that lead there]
    #[arg(long, value_name = "DEVICE,…", num_args = 0..=1, require_equals = true, value_delimiter = ',')]
    steer: Option<Vec<String>>,
    /// Bind each worker to the CPUs of the queue by which its connections come.
    #[arg(long)]
    pin: bool,
}

impl PlacementArgs {
    fn is_asked_for(&self) -> bool {
        self.steer.is_some() || self.pin
    }

    /// The filters that are to be put on; none unless that was asked for.
    fn decide(&self, picture: &Picture, targets: &Targets) -> Result<Groups, Failure> {
        let Some(devices) = &self.steer else { return Ok(Groups::default()) };
        let refused = |error| Failure::new(Exit::KernelRefused, format!("{error}; nothing was changed"));
        let groups = decide(picture, &targets.pids(), devices).map_err(refused)?;
        if groups.steerings.is_empty() {
            let text =
                format!("nothing can be steered, so nothing was changed:\n{}", render::placement::groups(&groups));
            return Err(Failure::new(Exit::NotSupported, text.trim_end()));
        }
        Ok(groups)
    }
}

/// Which programs.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct ProgramsArgs {
    /// These processes, and their children.
    #[arg(value_name = "PID")]
    pids: Vec<Pid>,
    /// The processes of a unit of the service manager, like nginx.service.
    #[arg(long, value_name = "NAME")]
    unit: Option<String>,
    /// The processes of a control group, by its path below /sys/fs/cgroup.
    #[arg(long, value_name = "PATH")]
    cgroup: Option<String>,
}

impl ProgramsArgs {
    fn find(&self) -> Result<Targets, TargetError> {
        let selection = match (&self.unit, &self.cgroup) {
            (Some(unit), _) => Selection::Cgroup(Cgroup::of_unit(unit)?),
            (None, Some(path)) => Selection::Cgroup(Cgroup::at(path)?),
            (None, None) => Selection::Processes(self.pids.clone()),
        };
        Targets::find(selection)
    }
}

/// Runs the command.
///
/// # Errors
/// With the exit code of what went wrong.
pub(crate) fn run(args: &AttachArgs) -> Result<(), Failure> {
    if !args.dry_run {
        // What a killed one left would be taken for the host's own values.
        recover(&journal()).map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    }
    let targets = args.programs.find().map_err(|error| failure(AttachError::Target(error)))?;
    let request = Request { mode: args.mode, epolls: EpollsSetBy::Attachment };
    let (picture, plan) = look(&targets, &request).map_err(|error| failure(AttachError::Look(error)))?;
    let groups = args.placement.decide(&picture, &targets)?;
    let report = |placed: Option<&Placed>| {
        let report = render::Report::new(&request, &targets, &plan);
        match args.placement.is_asked_for() {
            true => report.with_placement(render::placement::report(&groups, placed)),
            false => report,
        }
    };
    let show_plan = || {
        show(&report(None), args.json)?;
        if args.json { Ok(()) } else { output::data(&render::placement::groups(&groups)) }
    };
    if args.dry_run {
        return show_plan();
    }
    refuse(&report(None), &plan)?;
    if !args.json {
        show_plan()?;
    }
    ask::unless(args.yes)?;
    let placed = attach(&targets, request, &plan, &groups, &args.placement)?;
    if args.json {
        show(&report(Some(&placed)), true)?;
    } else {
        output::data(&render::placement::placed(&groups, &placed))?;
    }
    output::say("set and verified; it goes back when the program ends, or with `quell detach`");
    Ok(())
}

fn show(report: &render::Report<'_>, json: bool) -> Result<(), Failure> {
    if json { output::json(report) } else { output::data(&report.to_string()) }
}

/// A picture and the plan; where others are on the queues, from two looks, by which it is told how long they can wait.
fn look(targets: &Targets, request: &Request) -> Result<(Picture, Plan), TakeError> {
    let plan_of = |now: &Picture, before: Option<&Picture>| plan(now, before, &targets.pids(), request);
    let first = observe()?;
    let planned = plan_of(&first, None);
    if planned.neighbours.is_empty() || request.mode.napi().irq_suspend_timeout_ns == 0 {
        return Ok((first, planned));
    }
    thread::sleep(LOAD_WATCHED);
    let second = observe()?;
    let planned = plan_of(&second, Some(&first));
    Ok((second, planned))
}

fn refuse(report: &render::Report<'_>, plan: &Plan) -> Result<(), Failure> {
    if !plan.impossible.is_empty() {
        let text = format!("it cannot be done here, so nothing was changed:\n{}", render::impossible(plan));
        return Err(Failure::new(Exit::NotSupported, text));
    }
    if plan.steps.is_empty() {
        let text = format!("{report}there is nothing to set: none of the programs has an epoll with network sockets");
        return Err(Failure::new(Exit::NotSupported, text));
    }
    Ok(())
}

fn attach(
    targets: &Targets,
    request: Request,
    plan: &Plan,
    groups: &Groups,
    placement: &PlacementArgs,
) -> Result<Placed, Failure> {
    let interruption = Interruption::listen().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let flag = interruption.flag();
    let mut looks_on = |_: usize, _: Moment| match flag.get() {
        Some(_) => ControlFlow::Break(()),
        None => ControlFlow::Continue(()),
    };
    let mut start = |path: &std::path::Path| -> Result<Keeper, String> { keeper::start(path) };
    let mut attachment = Attachment::begin(&journal(), targets.clone(), request, &mut start).map_err(failure)?;
    let set = attachment
        .make(plan, &mut looks_on)
        .and_then(|()| attachment.steer(&groups.steerings, &mut looks_on))
        .and_then(|()| attachment.settle(&mut looks_on))
        .and_then(|()| match placement.is_asked_for() {
            true => attachment.watch_placement(&groups.steerings, placement.pin, PLACEMENT_WATCHED, &mut looks_on),
            false => Ok(Placed::default()),
        });
    match set {
        Ok(placed) => match attachment.leave() {
            Ok(_) => Ok(placed),
            Err(error) => Err(Failure::new(Exit::RolledBack, error)),
        },
        Err(error) => Err(put_back(&error, &attachment.end())),
    }
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
        _ => Exit::KernelRefused,
    };
    Failure::new(exit, format!("{error}; nothing was changed"))
}
