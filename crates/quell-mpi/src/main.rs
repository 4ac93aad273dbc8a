//! `quell-mpi`: the load of `quell load` from all ranks of an MPI job.

#![forbid(unsafe_code)]

use std::ffi::OsString;
use std::io::BufRead as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use clap::Parser;
use quell_linux::clock::monotonic_ns;
use quell_linux::process::raise_open_files_limit;
use quell_load::OfferedLoad;
use quell_load::args::{DISTRIBUTIONS, InvalidLoadOption, LoadOptions};
use quell_load::clients::{ClientsNotice, ClientsOrder};
use quell_load::cluster_run::client_name;
use quell_mpi::conductor::{Conductor, INVALID, REFUSED, RunFailure, USAGE};
use quell_mpi::launch::launch;
use quell_mpi::plan::{ClusterPlan, MeasuringLoad};
use quell_mpi::world::World;
use quell_mpi::{output, rank};

/// Version that all ranks must have.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Load a server from many machines: quell-mpi --hostfile FILE HOST:PORT --rate 200K
///
/// Every rank of the MPI job is a client with its share of the connections and of the rate. Rank 0 reads the options and
/// prints the result. Without --hostfile, a launcher such as mpirun or srun has to start the ranks.
#[derive(Debug, Parser)]
#[command(name = "quell-mpi", version, after_help = DISTRIBUTIONS)]
struct Options {
    #[command(flatten)]
    load: LoadOptions,
    /// Start a rank on each host of this file by mpirun. Must be the first option.
    #[arg(long, value_name = "FILE")]
    hostfile: Option<PathBuf>,
    /// Rank 0 only measures, at this rate in requests per second, while the other ranks load the server.
    #[arg(long, value_name = "RATE")]
    measure_rate: Option<OfferedLoad>,
    /// With --measure-rate: number of connections of rank 0.
    #[arg(long, value_name = "N", default_value_t = 8)]
    measure_connections: u32,
    /// Print the result as JSON, with raw histograms.
    #[arg(short, long)]
    json: bool,
    /// Measure the windows that `quell bench --clients` orders on standard input.
    #[arg(long, conflicts_with = "json")]
    follow: bool,
}

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    if let (Some(program), Some(option), Some(file)) = (arguments.next(), arguments.next(), arguments.next())
        && option == "--hostfile"
    {
        let rest: Vec<OsString> = arguments.collect();
        // The hosts need the same path, not the same search path.
        let program = std::env::current_exe().unwrap_or_else(|_| PathBuf::from(program));
        output::say(&format!("quell-mpi: {}", launch(Path::new(&file), &program, &rest)));
        return ExitCode::from(USAGE as u8);
    }
    // If the limit cannot be raised, opening the connections reports it.
    let _ = raise_open_files_limit();
    let Some(world) = World::join() else {
        output::say("quell-mpi: MPI was initialized twice");
        return ExitCode::from(REFUSED as u8);
    };
    if world.rank() > 0 {
        return match rank::follow(&world, VERSION) {
            Ok(()) => ExitCode::SUCCESS,
            Err(why) => {
                output::say(&format!(
                    "quell-mpi: {}: {why}; the run has ended",
                    client_name(world.rank(), world.host())
                ));
                world.abort(INVALID)
            }
        };
    }
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(error) => {
            let is_help = !error.use_stderr();
            if is_help {
                let _ = output::data(&error.render().to_string());
            } else {
                output::say(error.to_string().trim_end());
            }
            return end(&world, if is_help { 0 } else { USAGE });
        }
    };
    match conduct(&world, &options) {
        Ok(exit_code) => ExitCode::from(exit_code),
        Err(failure) => {
            output::say(&format!("quell-mpi: {failure}"));
            end(&world, failure.exit_code)
        }
    }
}

/// Ends the job. Other ranks wait for messages that will not come.
fn end(world: &World, exit_code: i32) -> ExitCode {
    if world.ranks() > 1 {
        world.abort(exit_code);
    }
    ExitCode::from(exit_code as u8)
}

fn conduct(world: &World, options: &Options) -> Result<u8, RunFailure> {
    if options.hostfile.is_some() {
        return Err(RunFailure { exit_code: USAGE, why: "--hostfile must be the first option".to_owned() });
    }
    let plan = plan(options).map_err(|error| RunFailure { exit_code: USAGE, why: error })?;
    let conductor = Conductor::start(world, plan, VERSION)?;
    if options.follow {
        return follow(conductor);
    }
    let result = conductor.run()?;
    let written = if options.json { output::json_line(&result) } else { output::data(&result.table()) };
    written.map_err(|error| could_not_write(&error))?;
    Ok(if result.invalid.is_some() { INVALID as u8 } else { 0 })
}

fn could_not_write(error: &std::io::Error) -> RunFailure {
    RunFailure { exit_code: REFUSED, why: format!("could not write to standard output: {error}") }
}

fn plan(options: &Options) -> Result<ClusterPlan, String> {
    let text = |error: InvalidLoadOption| error.to_string();
    let measuring = match options.measure_rate {
        None => None,
        Some(OfferedLoad::Rate(rate_per_s)) => {
            Some(MeasuringLoad { rate_per_s, connections: options.measure_connections })
        }
        Some(_) => return Err("--measure-rate: give requests per second".to_owned()),
    };
    Ok(ClusterPlan {
        run: options.load.run_spec().map_err(text)?,
        preload_ms: options.load.preload_limit().map_err(text)?.map(|limit| limit.as_millis() as u64),
        spec: options.load.spec().map_err(text)?,
        measuring,
    })
}

/// Measures the windows that an experiment orders, until it closes standard input.
fn follow(mut conductor: Conductor<'_>) -> Result<u8, RunFailure> {
    let orders = read_orders();
    let plan = conductor.plan();
    write(&ClientsNotice::Ready {
        version: VERSION.to_owned(),
        spec: Box::new(plan.spec.clone()),
        run: plan.run.clone(),
        clients: conductor.clients().to_vec(),
    })?;
    loop {
        match orders.recv_timeout(Duration::from_secs(1)) {
            Err(RecvTimeoutError::Timeout) => say_why(conductor.stay())?,
            Err(RecvTimeoutError::Disconnected) => {
                conductor.stop()?;
                return Ok(0);
            }
            Ok(Err(why)) => return say_why(Err(RunFailure { exit_code: USAGE, why })),
            Ok(Ok((number, window_ns))) => {
                let reports = say_why(conductor.measure(&window_ns))?;
                write(&ClientsNotice::Window { number, reports })?;
            }
        }
    }
}

/// Number and times of an ordered window, or why a line is not an order.
type Ordered = Result<(u64, std::ops::Range<u64>), String>;

/// Reads orders on a thread of its own, which answers questions for the time at once.
fn read_orders() -> Receiver<Ordered> {
    let (sender, orders) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let parsed = line.map_err(|error| error.to_string());
            let parsed = parsed.and_then(|line| serde_json::from_str(&line).map_err(|error| error.to_string()));
            let ordered = match parsed {
                Ok(ClientsOrder::Time { number }) => {
                    // If the experiment is gone, standard input ends too.
                    let _ = output::json_line(&ClientsNotice::Time { number, clock_ns: monotonic_ns() });
                    continue;
                }
                Ok(ClientsOrder::Window { number, window_ns }) => Ok((number, window_ns)),
                Err(why) => Err(format!("standard input is not from `quell bench --clients`: {why}")),
            };
            if sender.send(ordered).is_err() {
                return;
            }
        }
    });
    orders
}

fn say_why<T>(result: Result<T, RunFailure>) -> Result<T, RunFailure> {
    if let Err(failure) = &result {
        write(&ClientsNotice::Failed { why: failure.why.clone() })?;
    }
    result
}

fn write(notice: &ClientsNotice) -> Result<(), RunFailure> {
    output::json_line(notice).map_err(|error| could_not_write(&error))
}
