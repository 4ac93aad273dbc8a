//! `quell sim run`: simulates modes and loads in parallel; can record a trace or a timeline of a single row.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum, value_parser};
use quell_linux::output_file::OutputFile;
use quell_linux::visible;
use quell_result::simulation::SimulationRun;
use quell_sim::sweep::{self, Loads, Point, Setup, SweepRow};
use quell_sim::{RunScale, Trace};

use super::{HostArg, sweep_output, xsk};
use crate::exit::Failure;
use crate::output;
use crate::render::progress::Progress;
use crate::render::terminal::Terminal;
use crate::render::{sim_rows, timeline};

/// Servers of the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum SimServer {
    Memcached,
    Xsk,
}

/// Options of `quell sim run`.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub(crate) struct RunArgs {
    /// Server to simulate; xsk: two hosts that exchange packets over AF_XDP sockets, as in published experiment (c)
    #[arg(long, value_enum, default_value_t = SimServer::Memcached)]
    server: SimServer,
    /// Comma-separated modes; a range expands to the steps 1, 2, 5, 10, 20, …: base,suspend10..200. With --server xsk,
    /// who polls (default: all): interrupts, busy-poll, busy-poll-thread, threaded-busy-poll
    #[arg(long, value_name = "LIST")]
    pub(super) mode: Option<String>,
    /// Comma-separated loads: requests/s (600K), max, percentages of base's maximum (90%), ranges (10%..100%, 200K..1M)
    #[arg(long, value_name = "LIST")]
    load: Option<Loads>,
    /// With --server xsk: comma-separated times between two packets of the client, such as 83.3us
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = xsk::time_ns,
        conflicts_with_all = ["load", "sweep", "queues", "irqs_apart", "connections", "seed", "seeds", "trace", "timeline"]
    )]
    pub(super) period: Vec<u64>,
    /// With --server xsk: comma-separated times for which the client works on each reply; they are below the period.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        value_parser = xsk::time_ns,
        default_value = "0",
        requires = "period"
    )]
    pub(super) delay: Vec<u64>,
    /// Simulate the points of this file; prints each row as a line of JSON as soon as it is finished. A line of the file is
    /// `MODES LOADS [SEEDS]`, such as: base,suspend10..200 10%..100% 1..5
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["mode", "load", "seed", "seeds", "trace", "timeline", "json"]
    )]
    sweep: Option<PathBuf>,
    /// Write the rows of --sweep to this file. If it has rows of the same sweep, continue after them.
    #[arg(short, long, value_name = "FILE", requires = "sweep")]
    output: Option<PathBuf>,
    #[command(flatten)]
    pub(super) host: HostArg,
    /// Number of RX queues, workers and CPUs of the server [default: the host's]
    #[arg(long, value_name = "N")]
    queues: Option<u32>,
    /// Add a CPU per queue for its interrupt, NAPI thread or polling thread (userbusy); it is included in cpu% and
    /// cyc/req.
    #[arg(long)]
    irqs_apart: bool,
    /// Total number of connections [default: 560 per queue, as published]
    #[arg(long, value_name = "N")]
    connections: Option<u32>,
    /// Measured virtual time, in seconds.
    #[arg(long, value_name = "S", default_value_t = super::seconds(RunScale::FULL.measured_ns))]
    pub(super) seconds: f64,
    /// Warm-up in virtual time, in seconds.
    #[arg(long, value_name = "S", default_value_t = super::seconds(RunScale::FULL.warm_up_ns))]
    pub(super) warm_up: f64,
    /// Seed of the random numbers; the same seed gives the same row on every machine [default: 1]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Print a row for each of N consecutive seeds starting at --seed [default: 3 seeds, summarised in one row; 1 with
    /// --seed, --trace or --timeline]
    #[arg(long, value_name = "N", value_parser = value_parser!(u16).range(1..=1000))]
    seeds: Option<u16>,
    /// Write a trace of the measured time to this file, for ui.perfetto.dev (one row only).
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Print a timeline of the first US µs of the measured time (one row only).
    #[arg(long, value_name = "US", num_args = 0..=1, default_missing_value = "300")]
    timeline: Option<f64>,
    /// Print JSON.
    #[arg(short, long)]
    pub(super) json: bool,
}

/// Number of seeds of a row without `--seed` and `--seeds`: a tail differs between seeds by factors.
const SEEDS: u16 = 3;

const HELP: &str = "\
Modes: base, deferN, napibusy, fullbusy, suspendN, threaded, threadedbusy, userbusy, eventspinN (N in µs).

Examples:
  quell sim run --mode suspend20 --load 600K
  quell sim run --mode base,suspend10..200 --load 10%..100%
  quell sim run --mode suspend20 --load 75K --queues 1 --timeline 500
  quell sim run --sweep points.txt -o rows.jsonl
  quell sim run --server xsk --period 83.3us,40us --delay 38us";

/// Runs the command.
///
/// # Errors
/// With the exit code of what went wrong.
pub(super) fn run(args: &RunArgs) -> Result<(), Failure> {
    match (args.server, args.period.is_empty()) {
        (SimServer::Xsk, _) => return xsk::run(args),
        (SimServer::Memcached, false) => return Err(Failure::usage("--period applies to --server xsk")),
        (SimServer::Memcached, true) => {}
    }
    let setup = setup(args)?;
    if let Some(file) = &args.sweep {
        return sweep_output::run(&setup, file, args.output.as_ref());
    }
    let (Some(modes), Some(loads)) = (&args.mode, &args.load) else {
        return Err(Failure::usage(
            "give --mode and --load, as in `quell sim run --mode base,suspend200 --load 50%`, or --sweep FILE",
        ));
    };
    let modes = sweep::modes(modes).map_err(|error| super::refused_modes(&error))?;
    if let Some(file) = &args.trace {
        OutputFile::named(file.clone(), "the trace").check_writable().map_err(Failure::usage)?;
    }
    let progress = Progress::new();
    progress.doing("finding the maximum load of base");
    let first = args.seed.unwrap_or(1);
    let loads = loads.resolve(&setup, first).map_err(|error| super::not_run(&error))?;
    let is_single = args.seed.is_some() || args.trace.is_some() || args.timeline.is_some();
    let count = args.seeds.unwrap_or(if is_single { 1 } else { SEEDS });
    let seeds = first..first.saturating_add(count.into());
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
    show(args, &setup, rows, trace.as_ref())
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

/// Records a single run.
fn recorded(setup: &Setup, points: &[Point]) -> Result<(SweepRow, Trace), Failure> {
    let [point] = points else {
        let rows = points.len();
        return Err(Failure::usage(format!(
            "--trace and --timeline need a single row, not {rows}: give one mode, one load and one seed"
        )));
    };
    setup.recorded_row(point).map_err(|error| super::not_run(&error))
}

fn show(args: &RunArgs, setup: &Setup, rows: Vec<SweepRow>, trace: Option<&Trace>) -> Result<(), Failure> {
    if let (Some(file), Some(trace)) = (&args.trace, trace) {
        OutputFile::named(file.clone(), "the trace").write_json(&trace.perfetto()).map_err(crate::exit::not_written)?;
        report_trace(file, setup, trace);
    }
    let run = SimulationRun::new(setup, rows);
    if args.json {
        return output::json(&run);
    }
    let terminal = Terminal::of_stdout();
    let mut text = match args.seeds {
        Some(_) => sim_rows::render(&run.setup, &run.rows, terminal),
        None => sim_rows::summary(&run.setup, &run.rows, terminal),
    };
    if let (Some(us), Some(trace)) = (args.timeline, trace) {
        text.push_str(&format!("\n{}", timeline::render(trace, setup.warm_up_ns, us)));
    }
    output::data(&text)
}

fn report_trace(file: &Path, setup: &Setup, trace: &Trace) {
    let ms = |ns: u64| ns as f64 / 1e6;
    let recorded = trace.span_ns().map_or(0, |(_, to_ns)| to_ns.saturating_sub(setup.warm_up_ns));
    let extent = if trace.cut_off {
        format!("truncated to the first {:.1} of {:.1} ms", ms(recorded), ms(setup.measured_ns))
    } else {
        format!("{:.1} ms", ms(setup.measured_ns))
    };
    output::say(&format!("trace file: {} ({extent}); open it at https://ui.perfetto.dev", visible::path(file)));
}
