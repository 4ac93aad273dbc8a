//! Searches on a server in a private lab, under loads that Quell generates.

use std::time::Duration;

use quell_linux::signal::Interruption;
use quell_linux::visible::counted;
use quell_load::OfferedLoad;
use quell_mode::{DeliveryMode, Requirement};
use quell_subject::bench_load;
use quell_subject::experiment::Timing;
use quell_subject::question::{Searched, guarded_run_max, metrics, refused_kinds};
use quell_subject::run::{LabEvent, LabRequest, LabSpec, check_possible, in_lab};
use quell_tune::{TunePlan, TuneSpace, tune};

use super::args::TuneArgs;
use super::{check, watch};
use crate::commands::bench::on_veth::{self, NotRun};
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
    let loads = args.loads.clone().unwrap_or_else(|| LOADS.to_vec());
    let names = loads.iter().map(ToString::to_string).collect();
    let mut plan = super::plan(args, names, SLICE_MS, SETTLE_MS, BUDGET);
    let space = space();
    (plan.arms, plan.space) = (space.coarse(), Some(space));
    guarded_run_max(&plan).map_err(Failure::usage)?;
    check(&plan)?;
    metrics::of_generator().check(&plan).map_err(Failure::usage)?;
    let TunePlan { budget_ms, slice_ms, settle_ms, seed, .. } = plan;
    let request = LabRequest {
        modes: TuneSpace::default().all(),
        loads,
        timing: Timing { budget_ms, slice_ms, settle_ms, margin: 0.0, seed },
        workload: on_veth::workload(args.protocol),
        beside: None,
        lab: LabSpec {
            server: on_veth::server(args.server.as_deref())?,
            queues: args.queues.unwrap_or(1),
            generators: 1,
            connections: args.connections.unwrap_or(bench_load::CONNECTIONS),
            interrupt_stand_in: true,
            insist: args.insist,
        },
    };
    let text = format!(
        "searches on {} in a private lab on this machine, {}, {}; the lab is removed at the end\n{}",
        render::server(&request.lab.server),
        counted(request.lab.queues, "queue"),
        counted(request.lab.connections, "connection"),
        render::plan(&plan, "")
    );
    if args.dry_run {
        output::data(&text)?;
        check_possible(&request.lab).map_err(|error| on_veth::failure(NotRun::Bench(error)))?;
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
        let mut subject = server.under_load(&request.modes, &request.loads)?;
        let space = TuneSpace { refused: refused_kinds(&request.modes, &|mode| subject.why_impossible(mode)) };
        (plan.arms, plan.space) = (space.coarse(), Some(space));
        let finished = tune(&mut subject, plan, &mut watch(&progress, &stopped));
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
    TuneSpace { refused: refused_kinds(&TuneSpace::default().all(), &why) }
}
