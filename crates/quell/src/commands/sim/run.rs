//! `quell sim run`: rows of modes and loads on a host, in parallel; for one row also what happened, moment by moment.

use std::path::{Path, PathBuf};

use clap::{Args, value_parser};
use quell_linux::visible;
use quell_sim::sweep::{self, Loads, Point, Setup, SweepRow};
use quell_sim::{RunScale, Trace};
use serde::Serialize;

use super::HostArg;
use crate::exit::Failure;
use crate::file::Destination;
use crate::output;
use crate::render::progress::Progress;
use crate::render::terminal::Terminal;
use crate::render::{sim_rows, timeline};

/// Options of `quell sim run`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct RunArgs {
    /// Modes, by commas; a range stands for the modes at 1, 2, 5, 10, 20, … between: base,suspend10..200
    #[arg(long, value_name = "LIST")]
    mode: String,
    /// Loads, by commas: requests/s (600K), MAX, shares of what base reaches (90%), ranges (10%..100%, 200K..1M)
    #[arg(long, value_name = "LIST")]
    load: Loads,
    #[command(flatten)]
    host: HostArg,
    /// RX queues of the server, and as many workers and CPUs [those of the host]
    #[arg(long, value_name = "N")]
    queues: Option<u32>,
    /// Give each queue one more CPU, for its interrupt or NAPI thread; it counts in cpu% and cyc/req.
    #[arg(long)]
    irqs_apart: bool,
    /// Connections in all [560 for each queue, as published]
    #[arg(long, value_name = "N")]
    connections: Option<u32>,
    /// Virtual time that is counted, in seconds.
    #[arg(long, value_name = "S", default_value_t = super::seconds(RunScale::FULL.measured_ns))]
    seconds: f64,
    /// Virtual time before anything is counted, in seconds.
    #[arg(long, value_name = "S", default_value_t = super::seconds(RunScale::FULL.warm_up_ns))]
    warm_up: f64,
    /// Where all random numbers come from: the same seed gives the same row on every machine.
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Simulate every row with so many seeds, --seed and those after it: does it scatter?
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u16).range(1..=1000))]
    seeds: u16,
    /// Write what happened in the counted time to this file, for ui.perfetto.dev (one row only).
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print what happened in the first so many µs of the counted time (one row only).
    #[arg(long, value_name = "US", num_args = 0..=1, default_missing_value = "300")]
    timeline: Option<f64>,
    /// Print JSON.
    #[arg(short, long)]
    json: bool,
}

const HELP: &str = "\
Modes: base, deferN, napibusy, fullbusy, suspendN, threaded, threadedbusy, eventspinN, with N in µs.

Examples:
  quell sim run --mode suspend20 --load 600K
  quell sim run --mode base,suspend10..200 --load 10%..100%
  quell sim run --mode suspend20 --load 75K --queues 1 --timeline 500";

#[derive(Debug, Serialize)]
struct Document<'a> {
    schema: &'static str,
    rows: &'a [SweepRow],
}

/// Runs the command.
///
/// # Errors
/// With the exit code of what went wrong.
pub(super) fn run(args: &RunArgs) -> Result<(), Failure> {
    let setup = setup(args)?;
    let modes = sweep::modes(&args.mode).map_err(|error| super::refused_modes(&error))?;
    if let Some(file) = &args.trace {
        Destination::named(file.clone(), "the trace").check_writable()?;
    }
    let progress = Progress::new();
    progress.doing("finding what base reaches");
    let loads = args.load.resolve(&setup, args.seed).map_err(|error| super::not_run(&error))?;
    let seeds = args.seed..args.seed.saturating_add(args.seeds.into());
    let mut points = Vec::new();
    for &mode in &modes {
        points.extend(loads.iter().flat_map(|&load| seeds.clone().map(move |seed| Point { mode, load, seed })));
    }
    let outcome = if args.trace.is_some() || args.timeline.is_some() {
        recorded(&setup, &points).map(|(row, trace)| (vec![row], Some(trace)))
    } else {
        let step = |done| progress.step(done, points.len(), "rows");
        let rows = sweep::sweep(&setup, &points, super::threads(), step);
        rows.map(|rows| (rows, None)).map_err(|error| super::not_run(&error))
    };
    progress.finish();
    let (rows, trace) = outcome?;
    show(args, &setup, &rows, trace.as_ref())
}

fn setup(args: &RunArgs) -> Result<Setup, Failure> {
    let mut setup = Setup::new(args.host.profile()?);
    if let Some(queues) = args.queues {
        setup = setup.with_queues(super::queues(queues)?);
    }
    if let Some(connections) = args.connections {
        setup.connections = connections as usize;
    }
    super::check_connections(&setup)?;
    setup.irqs_apart = args.irqs_apart;
    setup.measured_ns = super::measured_ns(args.seconds)?;
    setup.warm_up_ns = super::warm_up_ns(args.warm_up)?;
    Ok(setup)
}

/// A recording is of one run.
fn recorded(setup: &Setup, points: &[Point]) -> Result<(SweepRow, Trace), Failure> {
    let [point] = points else {
        let rows = points.len();
        return Err(Failure::usage(format!(
            "--trace and --timeline show one row, and these are {rows}: give one mode, one load and one seed"
        )));
    };
    setup.recorded_row(point).map_err(|error| super::not_run(&error))
}

fn show(args: &RunArgs, setup: &Setup, rows: &[SweepRow], trace: Option<&Trace>) -> Result<(), Failure> {
    if let (Some(file), Some(trace)) = (&args.trace, trace) {
        Destination::named(file.clone(), "the trace").write_json(&trace.perfetto())?;
        tell_of_trace(file, setup, trace);
    }
    if args.json {
        return output::json(&Document { schema: "quell-sim-run/1", rows });
    }
    let mut text = sim_rows::render(setup, rows, Terminal::of_stdout());
    if let (Some(us), Some(trace)) = (args.timeline, trace) {
        text.push_str(&format!("\n{}", timeline::render(trace, setup.warm_up_ns, us)));
    }
    output::data(&text)
}

fn tell_of_trace(file: &Path, setup: &Setup, trace: &Trace) {
    let ms = |ns: u64| ns as f64 / 1e6;
    let held = trace.span_ns().map_or(0, |(_, to_ns)| to_ns.saturating_sub(setup.warm_up_ns));
    let much = if trace.cut_off {
        format!("the first {:.1} of {:.1} ms, more does not fit", ms(held), ms(setup.measured_ns))
    } else {
        format!("{:.1} ms", ms(setup.measured_ns))
    };
    output::say(&format!("trace file: {} ({much}); open it at https://ui.perfetto.dev", visible::path(file)));
}
