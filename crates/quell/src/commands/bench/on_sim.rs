//! Runs experiments on the model of a host and shows their progress.

use quell_experiment::SliceStage;
use quell_linux::signal::Interruption;
use quell_result::experiment::ExperimentResult;
use quell_sim::sweep::Setup;
use quell_subject::experiment::model::{ModelRequest, run_model};

use super::args::BenchArgs;
use crate::commands::asked;
use crate::commands::sim;
use crate::exit::{Exit, Failure};
use crate::render::progress::Progress;

/// Simulates the experiments.
pub(super) fn run(args: &BenchArgs) -> Result<ExperimentResult, Failure> {
    if let Some(option) = args.of_lab_only().first() {
        return Err(Failure::usage(format!("{option} configures a lab and cannot be used with --on sim")));
    }
    let host = sim::profile(args.host.as_deref().unwrap_or(sim::DEFAULT_HOST))?;
    let setup = setup(args, Setup::new(host))?;
    let extent = super::extent(args);
    let request = ModelRequest {
        modes: super::modes(args, extent.modes())?,
        loads: args.loads.clone().unwrap_or_else(|| extent.loads()),
        timing: super::timing(args, extent.virtual_budget(), super::Slices::Simulated),
        setup,
        threads: sim::threads(),
    };
    let interruption = Interruption::listen().map_err(|error| Failure::new(Exit::KernelRefused, error))?;
    let flag = interruption.flag();
    let progress = Progress::new();
    let mut watch = |load, experiment: &_, stage: SliceStage<'_>| {
        super::show_progress(&progress, &super::under(load), experiment, stage);
    };
    let result = run_model(&request, &mut watch, &|| flag.get().is_some());
    progress.finish();
    result.map_err(|error| asked::of_comparison(&error))
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
