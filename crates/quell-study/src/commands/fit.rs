//! `quell-study fit`: fits the constants of a host to published cells. `quell_study::fit` does the fitting; this
//! module selects the training cells and scores the held-out ones.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::{Args, value_parser};
use quell_linux::output_file::OutputFile;
use quell_linux::visible;
use quell_mode::DeliveryMode;
use quell_published::{PublishedCell, irq_suspension_cells, irq_suspension_cells_from};
use quell_sim::{Constant, HostProfile, RunError, RunScale, sweep};
use quell_study::fit::{FITTED, Fit, Fitted};
use quell_study::published::{Scored, TRAINING, irq_suspension, score};
use serde::Serialize;

use crate::render::fit_report;
use quell_cli::exit::{Exit, ProgramFailure};
use quell_cli::file;
use quell_cli::output;
use quell_cli::progress::Progress;
use quell_cli::simulation::{self, HostArg};
use quell_cli::terminal::Terminal;

/// Options of `quell-study fit`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct FitArgs {
    /// CSV file with cells to fit to, with the columns of both published files [default: experiment (a)]
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    #[command(flatten)]
    host: HostArg,
    /// Comma-separated training modes; all other modes are held out.
    #[arg(long, value_name = "LIST", default_value_t = TRAINING.join(","))]
    train: String,
    /// Maximum number of rounds; the fit stops early when a round gains less than 1 %.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Measured virtual time of each cell during the fit, in seconds; five times as long in modes without deferral.
    /// Errors are reported for longer runs.
    #[arg(long, value_name = "S", default_value_t = 0.04)]
    seconds: f64,
    /// Warm-up of each cell during the fit, in virtual seconds.
    #[arg(long, value_name = "S", default_value_t = 0.04)]
    warm_up: f64,
    /// Write the profile to this file [HOST-fitted.toml in the current directory]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

const HELP: &str = "\
Cells are simulated with the setup of experiment (a): 8 queues and workers, 4,480 connections.
Columns of a custom CSV file:
  case (the mode), load_qps, qps_mean, lat_avg_us, lat_p50_us, lat_p95_us, lat_p99_us,
  lat_avg_cov_pct, cpu_pct, soft_pct, cycles_per_query, irqs_per_s, napi_poll_work_mean,
  napi_polls_per_s_per_queue, napi_polls_zero_pct, epoll_events_mean

Examples:
  quell-study fit -o mine.toml
  quell-study fit --host mine.toml --train base,suspend20 --rounds 1 -o better.toml";

#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct FittedConstant {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    pub(crate) before: f64,
    pub(crate) after: f64,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Errors {
    pub(crate) training: Scored,
    pub(crate) held_out: Scored,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Report {
    pub(crate) schema: &'static str,
    pub(crate) host: String,
    pub(crate) training_modes: Vec<DeliveryMode>,
    pub(crate) training_cells: usize,
    /// Sum of squared errors in units of the tolerance, before and after.
    pub(crate) objective: (f64, f64),
    pub(crate) constants: Vec<FittedConstant>,
    pub(crate) before: Errors,
    pub(crate) after: Errors,
}

pub(crate) fn fit(args: &FitArgs) -> Result<(), ProgramFailure> {
    let modes = sweep::modes(&args.train).map_err(|error| simulation::refused_modes(&error))?;
    let cells = cells(args.from.as_deref())?;
    let training = training(&cells, &modes)?;
    let host = args.host.profile()?;
    let scale = super::scale(args.warm_up, args.seconds)?;
    let destination = match &args.output {
        Some(file) => OutputFile::named(file.clone(), "the profile"),
        None => OutputFile::by_default(format!("{}-fitted.toml", host.name).into(), "the profile"),
    };
    destination.check_writable().map_err(ProgramFailure::usage)?;

    let constants = FITTED.to_vec();
    let rounds = args.rounds.into();
    let fit = Fit { host, training, constants, scale, rounds, threads: simulation::threads() };
    let progress = Progress::new();
    let outcome = run_fit(&fit, &cells, &modes, &progress);
    progress.finish();
    let (fitted, report) = outcome?;
    destination.write(&fitted.host.to_toml()).map_err(|error| ProgramFailure::new(Exit::KernelRefused, error))?;
    output::say(&format!("profile: {}", visible::path(destination.path())));
    if args.json {
        return output::json(&report);
    }
    output::data(&fit_report::render(&report, Terminal::of_stdout()))
}

fn cells(from: Option<&Path>) -> Result<Vec<PublishedCell>, ProgramFailure> {
    let Some(from) = from else { return irq_suspension_cells().map_err(ProgramFailure::usage) };
    let text = file::read(from, file::BY_HAND_MAX)?;
    irq_suspension_cells_from(&text, &text)
        .map_err(|error| ProgramFailure::usage(format!("{}: {error}", visible::path(from))))
}

/// The cells of the training modes; every mode needs at least one cell.
fn training<'a>(cells: &'a [PublishedCell], modes: &[DeliveryMode]) -> Result<Vec<&'a PublishedCell>, ProgramFailure> {
    if let Some(mode) = modes.iter().find(|mode| !cells.iter().any(|cell| cell.mode == **mode)) {
        let known: BTreeSet<String> = cells.iter().map(|cell| cell.mode.to_string()).collect();
        let known: Vec<String> = known.into_iter().collect();
        return Err(ProgramFailure::usage(format!(
            "--train {mode}: no cells of this mode in the data; available modes: {}",
            known.join(", ")
        )));
    }
    Ok(cells.iter().filter(|cell| modes.contains(&cell.mode)).collect())
}

fn run_fit(
    fit: &Fit<'_>,
    cells: &[PublishedCell],
    modes: &[DeliveryMode],
    progress: &Progress,
) -> Result<(Fitted, Report), ProgramFailure> {
    progress.doing("simulating every cell before the fit");
    let before = errors(cells, &fit.host, modes).map_err(|error| simulation::not_run(&error))?;
    progress.doing("fitting: simulating the training cells for each constant");
    let on_step = |objective: f64, _: &HostProfile| {
        progress.doing(&format!("fitting: sum of squared errors {objective:.1}"));
    };
    let fitted = fit.find(on_step).map_err(|error| ProgramFailure::new(Exit::RolledBack, error))?;
    progress.doing("simulating every cell after the fit");
    let after = errors(cells, &fitted.host, modes).map_err(|error| simulation::not_run(&error))?;
    let report = Report {
        schema: "quell-study-fit/1",
        host: fit.host.name.clone(),
        training_modes: modes.to_vec(),
        training_cells: fit.training.len(),
        objective: fitted.objective,
        constants: constants(&fit.constants, &fit.host, &fitted.host),
        before,
        after,
    };
    Ok((fitted, report))
}

fn errors(cells: &[PublishedCell], host: &HostProfile, modes: &[DeliveryMode]) -> Result<Errors, RunError> {
    let compared = irq_suspension(cells, host, RunScale::FULL, 1, simulation::threads(), |_| ())?;
    Ok(Errors {
        training: score(&compared.cells, |cell| modes.contains(&cell.mode)),
        held_out: score(&compared.cells, |cell| !modes.contains(&cell.mode)),
    })
}

fn constants(names: &[&str], before: &HostProfile, after: &HostProfile) -> Vec<FittedConstant> {
    let fitted = |constant: &'static Constant| FittedConstant {
        name: constant.name,
        unit: constant.unit(),
        before: constant.of(&before.constants),
        after: constant.of(&after.constants),
    };
    names.iter().filter_map(|name| Constant::named(name)).map(fitted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modes(text: &str) -> Vec<DeliveryMode> {
        sweep::modes(text).unwrap()
    }

    #[test]
    fn the_fit_sees_the_cells_of_the_training_modes_and_no_others() {
        let cells = irq_suspension_cells().unwrap();
        let training = training(&cells, &modes("base,suspend20")).unwrap();
        assert_eq!(training.len(), 12);
        assert!(training.iter().all(|cell| ["base", "suspend20"].contains(&cell.mode.to_string().as_str())));
    }

    #[test]
    fn a_training_mode_without_a_cell_is_refused_and_the_available_modes_are_listed() {
        let cells = irq_suspension_cells().unwrap();
        let refused = training(&cells, &modes("base,suspend30")).unwrap_err().text;
        assert!(refused.starts_with("--train suspend30:") && refused.matches("napibusy").count() == 1, "{refused}");
    }

    #[test]
    fn every_fitted_constant_is_reported_with_its_unit() {
        let host = HostProfile::shipped(simulation::DEFAULT_HOST).unwrap();
        let mut moved = host.clone();
        moved.constants.wake_ns = 2.0 * host.constants.wake_ns;
        let reported = constants(&FITTED, &host, &moved);
        assert_eq!(reported.len(), FITTED.len());
        let wake = reported.iter().find(|constant| constant.name == "wake_ns").unwrap();
        assert!(wake.unit == "ns" && wake.after == 2.0 * wake.before);
    }
}
