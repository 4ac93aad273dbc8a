//! `quell-study ablate`: simulates without single parts of the model. `quell_study::ablation` defines the parts.

use clap::Args;
use quell_mode::DeliveryMode;
use quell_sim::{Load, RunScale, sweep};
use quell_study::ablation::{self, AblatedCell};
use serde::Serialize;

use crate::render::ablation_table;
use quell_cli::exit::ProgramFailure;
use quell_cli::output;
use quell_cli::progress::Progress;
use quell_cli::simulation::{self, HostArg};
use quell_cli::terminal::Terminal;

/// Options of `quell-study ablate`.
#[derive(Debug, Args)]
pub(crate) struct AblateArgs {
    /// Comma-separated modes, each at each load [default: base 200K, base max, defer20 400K, suspend20 max]
    #[arg(long, value_name = "LIST", requires = "load")]
    mode: Option<String>,
    /// Comma-separated loads: 600K, max
    #[arg(long, value_name = "LIST", requires = "mode", value_delimiter = ',')]
    load: Vec<Load>,
    #[command(flatten)]
    host: HostArg,
    /// Measured virtual time of each cell, in seconds.
    #[arg(long, value_name = "S", default_value_t = simulation::seconds(RunScale::FULL.measured_ns))]
    seconds: f64,
    /// Warm-up of each cell in virtual time, in seconds.
    #[arg(long, value_name = "S", default_value_t = simulation::seconds(RunScale::FULL.warm_up_ns))]
    warm_up: f64,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

/// Cells that together exercise every part of the model.
const CELLS: [(&str, Load); 4] =
    [("base", Load::Qps(200e3)), ("base", Load::Max), ("defer20", Load::Qps(400e3)), ("suspend20", Load::Max)];

#[derive(Debug, Serialize)]
struct Document<'a> {
    schema: &'static str,
    host: &'a str,
    cells: &'a [AblatedCell],
}

pub(crate) fn ablate(args: &AblateArgs) -> Result<(), ProgramFailure> {
    let cells = cells(args)?;
    let host = args.host.profile()?;
    let scale = super::scale(args.warm_up, args.seconds)?;
    let progress = Progress::new();
    let step = |done, total| progress.step(done, total, "runs");
    let ablated = ablation::ablate(&cells, &host, scale, simulation::threads(), step);
    progress.finish();
    let ablated = ablated.map_err(|error| simulation::not_run(&error))?;
    if args.json {
        return output::json(&Document { schema: "quell-study-ablate/1", host: &host.name, cells: &ablated });
    }
    output::data(&ablation_table::render(&host.name, &ablated, Terminal::of_stdout()))
}

fn cells(args: &AblateArgs) -> Result<Vec<(DeliveryMode, Load)>, ProgramFailure> {
    let Some(modes) = &args.mode else {
        let cell = |(mode, load): (&str, Load)| mode.parse().map(|mode| (mode, load));
        return CELLS.into_iter().map(cell).collect::<Result<_, _>>().map_err(|error| simulation::refused_mode(&error));
    };
    let modes = sweep::modes(modes).map_err(|error| simulation::refused_modes(&error))?;
    Ok(modes.into_iter().flat_map(|mode| args.load.iter().map(move |load| (mode, *load))).collect())
}
