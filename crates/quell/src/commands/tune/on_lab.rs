//! Searches on a server in a private lab, under loads that Quell generates.

use std::ops::ControlFlow;
use std::time::Duration;

use quell_bench::experiment::Timing;
use quell_bench::experiment::program::Programs;
use quell_bench::run::{LabEvent, LabRequest, check_possible, in_lab, schedule};
use quell_linux::signal::Interruption;
use quell_linux::visible::counted;
use quell_load::OfferedLoad;
use quell_mode::{DeliveryMode, Requirement};
use quell_tune::{TuneEvent, TunePlan, TuneSpace, tune};

use super::args::TuneArgs;
use super::{Searched, check, guarded, metrics, refused, show_progress};
use crate::commands::bench::on_veth::{self, NotRun};
use crate::commands::bench::seed_from_the_clock;
use crate::exit::{Exit, Failure};
use crate::journals::journal;
use crate::output;
use crate::render::progress::Progress;
use crate::render::tune as render;

const LOADS: [OfferedLoad; 2] = [OfferedLoad::Percent(50.0), OfferedLoad::Percent(90.0)];
const BUDGET: Duration = Duration::from_secs(180);
const SLICE_MS: u32 = 200;
const SETTLE_MS: u32 = 10;

/// Searches in a lab. Returns `None` after a dry run.
pub(super) fn run(args: &TuneArgs) -> Result<Option<Searched>, Failure> {
    let goal = args.goal.clone();
    let seed = args.seed.unwrap_or_else(seed_from_the_clock);
    let loads = args.loads.clone().unwrap_or_else(|| LOADS.to_vec());
    let mut plan = TunePlan {
        guards: args.never.clone(),
        loads: loads.iter().map(ToString::to_string).collect(),
        slice_ms: args.slice.unwrap_or(SLICE_MS),
        settle_ms: args.settle.unwrap_or(SETTLE_MS),
        budget_ms: u64::try_from(args.budget.unwrap_or(BUDGET).as_millis()).unwrap_or(u64::MAX),
        ..TunePlan::new(goal, DeliveryMode::default(), space(), seed)
    };
    guarded(&plan)?;
    check(&plan)?;
    metrics::of_generator().check(&plan)?;
    let (budget_ms, slice_ms, settle_ms) = (plan.budget_ms, plan.slice_ms, plan.settle_ms);
    let request = LabRequest {
        modes: TuneSpace::default().all(),
        loads,
        timing: Timing { budget_ms, slice_ms, settle_ms, margin: 0.0, seed },
        server: on_veth::server(args.server.as_deref())?,
        workload: on_veth::workload(args.protocol),
        beside: None,
        queues: args.queues.unwrap_or(1),
        generators: 1,
        connections: args.connections.unwrap_or(on_veth::CONNECTIONS),
        interrupt_stand_in: true,
        insist: args.insist,
    };
    let text = format!(
        "searches on {} in a private lab on this machine, {}, {}; the lab is removed at the end\n{}",
        render::server(&request.server),
        counted(request.queues, "queue"),
        counted(request.connections, "connection"),
        render::plan(&plan, "")
    );
    if args.dry_run {
        output::data(&text)?;
        check_possible(&request).map_err(|error| on_veth::failure(NotRun::Bench(error)))?;
        return Ok(None);
    }
    output::say(text.trim_end());
    let interruption = Interruption::listen().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let flag = interruption.flag();
    let stopped = || flag.get().is_some();
    let progress = Progress::new();
    progress.doing("setting up the lab");
    let mut report = |event: LabEvent<'_>| on_veth::show(&progress, &mut String::new(), event);
    let searched = in_lab(&request, &journal(), &mut report, &stopped, |server, _| {
        let (mut subject, rates) = server.under_load(&request.modes, &request.loads)?;
        let space = TuneSpace { refused: refused(&request.modes, &|mode| subject.why_impossible(mode)) };
        (plan.arms, plan.space) = (space.coarse(), Some(space));
        let mut offer = |subject: &mut Programs<'_>, load: usize| subject.offer(schedule(rates[load]));
        let mut watch = |event: TuneEvent<'_>| {
            if let TuneEvent::SliceRecorded(tuner) = event {
                show_progress(&progress, tuner);
            }
            if stopped() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        let finished = tune(&mut subject, plan, &mut offer, &mut watch);
        Ok((finished, server.subject.clone(), server.not_a_measurement.clone()))
    });
    progress.finish();
    let (finished, subject, not_a_measurement) = searched.map_err(|error| on_veth::failure(NotRun::Bench(error)))?;
    let finished = finished.map_err(Failure::usage)?;
    finished.restored.map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    Ok(Some(Searched { subject, result: finished.result, not_a_measurement, left_alone: Vec::new() }))
}

/// Modes that can be set on a server that was not started by `quell run`, as far as this is known before the lab is up.
fn space() -> TuneSpace {
    let why = |mode: &DeliveryMode| {
        let launch = |requirement: &Requirement| *requirement == Requirement::SpinBeforeSleep;
        mode.requirements().into_iter().find(launch)
    };
    TuneSpace { refused: refused(&TuneSpace::default().all(), &why) }
}
