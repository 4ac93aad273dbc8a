//! `quell sim fit`: the constants of a host from published cells. What is fitted and how is in `quell_sim_study::fit`; here is
//! which cells it may see, and what its result is worth on those that it has not seen.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::{Args, value_parser};
use quell_linux::visible;
use quell_mode::DeliveryMode;
use quell_sim::{Constant, HostProfile, RunError, RunScale, sweep};
use quell_sim_study::fit::{FITTED, Fit, Fitted};
use quell_sim_study::published::{IrqSuspension, PublishedCell, PublishedError, Scored, TRAINING, score};
use serde::Serialize;

use super::HostArg;
use crate::exit::{Exit, Failure};
use crate::file::{self, Destination};
use crate::output;
use crate::render::fit_report;
use crate::render::progress::Progress;
use crate::render::terminal::Terminal;

/// Options of `quell sim fit`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct FitArgs {
    /// Cells in place of the published ones of experiment (a): one CSV file with the columns of both published files.
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    #[command(flatten)]
    host: HostArg,
    /// Modes whose cells the fit may see, by commas; all others are held out.
    #[arg(long, value_name = "LIST", default_value_t = TRAINING.join(","))]
    train: String,
    /// Times that it begins again where it has come to, at most; it ends when it gains less than 1 %.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = value_parser!(u16).range(1..=100))]
    rounds: u16,
    /// Virtual time of each cell that the fit counts, in seconds; errors are told of longer runs.
    #[arg(long, value_name = "S", default_value_t = 0.04)]
    seconds: f64,
    /// Virtual time of each cell before the fit counts anything, in seconds.
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
A cell is simulated as experiment (a) was run: 8 queues and workers, 4,480 connections.
Columns of a file of your own:
  case (the mode), load_qps, qps_mean, lat_avg_us, lat_p50_us, lat_p95_us, lat_p99_us,
  lat_avg_cov_pct, cpu_pct, soft_pct, cycles_per_query, irqs_per_s, napi_poll_work_mean,
  napi_polls_per_s_per_queue, napi_polls_zero_pct, epoll_events_mean

Examples:
  quell sim fit -o mine.toml
  quell sim fit --host mine.toml --train base,suspend20 --rounds 1 -o better.toml";

/// A fitted constant.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct FittedConstant {
    /// Its name in profiles.
    pub(crate) name: &'static str,
    /// What it is measured in.
    pub(crate) unit: &'static str,
    /// Where the fit began.
    pub(crate) before: f64,
    /// What it found.
    pub(crate) after: f64,
}

/// Errors of some cells with a profile.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Errors {
    /// In the modes that the fit saw.
    pub(crate) training: Scored,
    /// In the others.
    pub(crate) held_out: Scored,
}

/// What a fit came to.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) struct Report {
    /// `quell-sim-fit/1`.
    pub(crate) schema: &'static str,
    /// The host that it began with.
    pub(crate) host: String,
    /// Modes that it saw.
    pub(crate) training_modes: Vec<DeliveryMode>,
    /// Cells that it saw.
    pub(crate) training_cells: usize,
    /// Sum of squared errors in tolerances, before and after.
    pub(crate) objective: (f64, f64),
    /// Every constant that it might move.
    pub(crate) constants: Vec<FittedConstant>,
    /// Errors of the profile that it began with.
    pub(crate) before: Errors,
    /// Errors of the profile that it found.
    pub(crate) after: Errors,
}

/// Runs the command.
///
/// # Errors
/// When the data, a mode or the host is none, the profile cannot be written, or a run is not possible.
pub(super) fn fit(args: &FitArgs) -> Result<(), Failure> {
    let modes = sweep::modes(&args.train).map_err(|error| super::refused_modes(&error))?;
    let experiment = experiment(args.from.as_deref())?;
    let training = training(&experiment.cells, &modes)?;
    let host = args.host.profile()?;
    let scale = super::scale(args.warm_up, args.seconds)?;
    let destination = match &args.output {
        Some(file) => Destination::named(file.clone(), "the profile"),
        None => Destination::by_default(format!("{}-fitted.toml", host.name).into(), "the profile"),
    };
    destination.check_writable()?;

    let constants = FITTED.to_vec();
    let rounds = args.rounds.into();
    let fit = Fit { host, training, constants, scale, rounds, threads: super::threads() };
    let progress = Progress::new();
    let outcome = found(&fit, &experiment, &modes, &progress);
    progress.finish();
    let (fitted, report) = outcome?;
    destination.write(&fitted.host.to_toml())?;
    output::say(&format!("profile: {}", visible::path(destination.path())));
    if args.json {
        return output::json(&report);
    }
    output::data(&fit_report::render(&report, Terminal::of_stdout()))
}

fn experiment(from: Option<&Path>) -> Result<IrqSuspension, Failure> {
    let Some(from) = from else { return IrqSuspension::published().map_err(Failure::usage) };
    let text = file::read(from, file::BY_HAND_MAX)?;
    IrqSuspension::from_csv(&text, &text).map_err(|error| {
        let why = match &error {
            PublishedError::Csv { source, .. } => source.to_string(),
            PublishedError::Mode { source, .. } => source.to_string(),
            PublishedError::Load { source, .. } => source.to_string(),
            other => other.to_string(),
        };
        Failure::usage(format!("{}: {why}", visible::path(from)))
    })
}

/// The cells of some modes; a mode without a cell would be trained on nothing.
fn training<'a>(cells: &'a [PublishedCell], modes: &[DeliveryMode]) -> Result<Vec<&'a PublishedCell>, Failure> {
    if let Some(mode) = modes.iter().find(|mode| !cells.iter().any(|cell| cell.mode == **mode)) {
        let known: BTreeSet<String> = cells.iter().map(|cell| cell.mode.to_string()).collect();
        let known: Vec<String> = known.into_iter().collect();
        return Err(Failure::usage(format!(
            "--train {mode}: the data has no cell of this mode; there are: {}",
            known.join(", ")
        )));
    }
    Ok(cells.iter().filter(|cell| modes.contains(&cell.mode)).collect())
}

fn found(
    fit: &Fit<'_>,
    experiment: &IrqSuspension,
    modes: &[DeliveryMode],
    progress: &Progress,
) -> Result<(Fitted, Report), Failure> {
    progress.doing("simulating every cell before the fit");
    let before = errors(experiment, &fit.host, modes).map_err(|error| super::not_run(&error))?;
    progress.doing("fitting: every training cell, once for each constant");
    let heard = |objective: f64, _: &HostProfile| {
        progress.doing(&format!("fitting: sum of squared errors {objective:.1}"));
    };
    let fitted = fit.find(heard).map_err(|error| Failure::new(Exit::RolledBack, error))?;
    progress.doing("simulating every cell after the fit");
    let after = errors(experiment, &fitted.host, modes).map_err(|error| super::not_run(&error))?;
    let report = Report {
        schema: "quell-sim-fit/1",
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

fn errors(experiment: &IrqSuspension, host: &HostProfile, modes: &[DeliveryMode]) -> Result<Errors, RunError> {
    let compared = experiment.compare(host, RunScale::FULL, super::threads(), |_| ())?;
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
        let experiment = IrqSuspension::published().unwrap();
        let training = training(&experiment.cells, &modes("base,suspend20")).unwrap();
        assert_eq!(training.len(), 12);
        assert!(training.iter().all(|cell| ["base", "suspend20"].contains(&cell.mode.to_string().as_str())));
    }

    #[test]
    fn a_training_mode_without_a_cell_is_refused_with_those_that_there_are() {
        let experiment = IrqSuspension::published().unwrap();
        let refused = training(&experiment.cells, &modes("base,suspend30")).unwrap_err().text;
        assert!(refused.starts_with("--train suspend30:") && refused.matches("napibusy").count() == 1, "{refused}");
    }

    #[test]
    fn every_constant_of_the_fit_is_told_with_its_unit() {
        let host = HostProfile::shipped(super::super::DEFAULT_HOST).unwrap();
        let mut moved = host.clone();
        moved.constants.wake_ns = 2.0 * host.constants.wake_ns;
        let told = constants(&FITTED, &host, &moved);
        assert_eq!(told.len(), FITTED.len());
        let wake = told.iter().find(|constant| constant.name == "wake_ns").unwrap();
        assert!(wake.unit == "ns" && wake.after == 2.0 * wake.before);
    }
}
