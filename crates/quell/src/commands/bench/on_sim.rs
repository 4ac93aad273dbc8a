//! A plan simulated on the model of a host, with progress.

use quell_bench::model::{self, ModelError};
use quell_bench::plan::Plan;
use quell_bench::result::BenchResult;
use quell_sim::sweep::Setup;

use super::args::BenchArgs;
use crate::commands::sim;
use crate::exit::{Exit, Failure};
use crate::render::progress::Progress;

/// Simulates the plan; its times are virtual.
pub(super) fn run(args: &BenchArgs, plan: Plan) -> Result<BenchResult, Failure> {
    if let Some(option) = args.of_lab_only().first() {
        return Err(Failure::usage(format!("{option} is about a lab, and means nothing on the model")));
    }
    let host = sim::profile(args.host.as_deref().unwrap_or(sim::DEFAULT_HOST))?;
    let setup = setup(args, Setup::new(host))?;
    let measure_ms = if args.seconds.is_some() { plan.measure_ms } else { model::measure_ms(&setup) };
    let warm_up_ms = model::warm_up_ms(&setup);
    let request = model::Request { plan: Plan { measure_ms, warm_up_ms, ..plan }, setup, threads: sim::threads() };
    let progress = Progress::new();
    let outcome = model::run(&request, |done, total| progress.step(done, total, "runs of the model"));
    progress.finish();
    outcome.map_err(|error| match error {
        ModelError::NoModeLeft(_) => Failure::new(Exit::NotSupported, error),
        _ => Failure::new(Exit::RolledBack, error),
    })
}

fn setup(args: &BenchArgs, mut setup: Setup) -> Result<Setup, Failure> {
    if let Some(queues) = args.queues {
        setup = setup.with_queues(sim::queues(queues)?);
    }
    if let Some(connections) = args.connections {
        setup.connections = connections as usize;
    }
    sim::check_connections(&setup)?;
    Ok(setup)
}
