//! `quell-study published`: compares published measurements with the model.

use clap::Args;
use quell_published::Experiment;
use quell_study::published::{self, ExperimentComparison, ExperimentError};
use serde::Serialize;

use crate::render::comparison;
use quell_cli::exit::ProgramFailure;
use quell_cli::output;
use quell_cli::progress::Progress;
use quell_cli::simulation;
use quell_cli::terminal::Terminal;

/// Options of `quell-study published`.
#[derive(Debug, Args)]
#[command(after_help = after_help())]
pub(crate) struct PublishedArgs {
    /// Experiments to compare [default: all]
    experiments: Vec<Experiment>,
    /// Host profile: a name listed by `quell sim hosts`, or the path of a .toml file [default: the host of the
    /// experiment]
    #[arg(long, value_name = "NAME|FILE")]
    host: Option<String>,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

fn after_help() -> String {
    let listed = Experiment::ALL
        .map(|experiment| format!("  {experiment}  {}\n     {}\n", experiment.title(), experiment.source()));
    format!("Experiments:\n{}", listed.concat())
}

#[derive(Debug, Serialize)]
struct Document<'a> {
    schema: &'static str,
    experiments: &'a [ExperimentComparison],
}

pub(crate) fn published(args: &PublishedArgs) -> Result<(), ProgramFailure> {
    let mut experiments = args.experiments.clone();
    if experiments.is_empty() {
        experiments.extend(Experiment::ALL);
    }
    let compared = experiments.iter().map(|&experiment| compare(experiment, args)).collect::<Result<Vec<_>, _>>()?;
    if args.json {
        return output::json(&Document { schema: "quell-study-published/1", experiments: &compared });
    }
    let terminal = Terminal::of_stdout();
    let shown: Vec<String> = compared.iter().map(|comparison| comparison::render(comparison, terminal)).collect();
    output::styled(&shown.join("\n\n"), terminal)
}

fn compare(experiment: Experiment, args: &PublishedArgs) -> Result<ExperimentComparison, ProgramFailure> {
    let host = simulation::profile(args.host.as_deref().unwrap_or(published::host_of(experiment)))?;
    let progress = Progress::new();
    let what = format!("runs of experiment ({experiment})");
    let compared =
        published::compare(experiment, host, simulation::threads(), |done, total| progress.step(done, total, &what));
    progress.finish();
    compared.map_err(|error| match error {
        ExperimentError::Run(error) => simulation::not_run(&error),
        error => ProgramFailure::usage(error),
    })
}
