//! `quell sim`: simulations of the kernel's packet delivery, one module per subcommand. Shared code is here.

mod ablate;
mod explain;
pub(crate) mod fit;
mod hosts;
mod published;
mod run;
mod sweep_output;

use std::path::Path;
use std::thread;

use clap::{Args, Subcommand};
use quell_linux::visible::counted;
use quell_mode::ParseModeError;
use quell_sim::sweep::{ModesError, Setup};
use quell_sim::{HostProfile, RunError, RunScale};

use crate::exit::{Exit, Failure};
use crate::file;

/// Simulations.
#[derive(Debug, Subcommand)]
pub(crate) enum SimCommand {
    /// Simulate modes under loads on a host; prints one row each.
    Run(Box<run::RunArgs>),
    /// Explain a mode step by step: one request and one busy period, from a simulated run.
    Explain(explain::ExplainArgs),
    /// Compare published experiments with the model: every figure, its error, and a summary.
    Published(published::PublishedArgs),
    /// Fit the constants of a host to published cells of the training modes.
    Fit(fit::FitArgs),
    /// Simulate without each part of the model, and show which figures change.
    Ablate(ablate::AblateArgs),
    /// List the host profiles, or print one as TOML for `--host`.
    Hosts(hosts::HostsArgs),
}

/// Runs the command.
///
/// # Errors
/// When the options are invalid or a run fails.
pub(crate) fn run(command: &SimCommand) -> Result<(), Failure> {
    match command {
        SimCommand::Run(args) => run::run(args),
        SimCommand::Explain(args) => explain::explain(args),
        SimCommand::Published(args) => published::published(args),
        SimCommand::Fit(args) => fit::fit(args),
        SimCommand::Ablate(args) => ablate::ablate(args),
        SimCommand::Hosts(args) => hosts::hosts(args),
    }
}

/// Host of the published experiment that the model was fitted to.
pub(crate) const DEFAULT_HOST: &str = "epyc7662-cx5";

/// The simulated host.
#[derive(Debug, Args)]
struct HostArg {
    /// Host profile: a name listed by `quell sim hosts`, or the path of a .toml file.
    #[arg(long, value_name = "NAME|FILE", default_value = DEFAULT_HOST)]
    host: String,
}

impl HostArg {
    fn profile(&self) -> Result<HostProfile, Failure> {
        profile(&self.host)
    }
}

/// Loads a shipped host profile by name, or a profile file by path.
///
/// # Errors
/// When the name is unknown, or the file cannot be read or parsed.
pub(crate) fn profile(host: &str) -> Result<HostProfile, Failure> {
    if Path::new(host).extension().is_none_or(|extension| extension != "toml") {
        return HostProfile::shipped(host)
            .map_err(|error| Failure::usage(format!("{error}; a profile file needs the extension .toml")));
    }
    let text = file::read(Path::new(host), file::BY_HAND_MAX)?;
    HostProfile::from_toml(&text).map_err(|error| Failure::usage(format!("{host}: {error}")))
}

/// Upper limit: more queues than one server uses.
const QUEUES_MAX: u32 = 128;
/// Upper limit: more connections cannot be simulated within seconds.
const CONNECTIONS_MAX: usize = 200_000;

/// Checks the number of queues.
///
/// # Errors
/// When it is 0 or too large.
pub(crate) fn queues(queues: u32) -> Result<usize, Failure> {
    if !(1..=QUEUES_MAX).contains(&queues) {
        return Err(Failure::usage(format!("--queues {queues}: expected 1 to {QUEUES_MAX}")));
    }
    Ok(queues as usize)
}

/// Checks the number of connections.
///
/// # Errors
/// When it is less than the number of queues, or too large.
pub(crate) fn check_connections(setup: &Setup) -> Result<(), Failure> {
    let Setup { connections, queues, .. } = setup;
    if connections < queues {
        return Err(Failure::usage(format!(
            "--connections {connections}: expected at least one for each of {}",
            counted(*queues, "queue")
        )));
    }
    if *connections > CONNECTIONS_MAX {
        return Err(Failure::usage(format!("--connections {connections}: expected at most {CONNECTIONS_MAX}")));
    }
    Ok(())
}

/// Number of simulation threads: the CPUs available to this process.
pub(crate) fn threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Error of an invalid mode, with a caret below the position.
fn refused_mode(error: &ParseModeError) -> Failure {
    Failure::usage(format!("{error}\n\n{}", error.caret()))
}

fn refused_modes(error: &ModesError) -> Failure {
    match error {
        ModesError::Mode(error) => refused_mode(error),
        _ => Failure::usage(error),
    }
}

/// Converts virtual time from seconds to ns and checks its range.
fn virtual_ns(option: &str, seconds: f64, least: f64, most: f64) -> Result<u64, Failure> {
    if !(least..=most).contains(&seconds) {
        return Err(Failure::usage(format!("{option} {seconds}: expected {least} to {most} seconds of virtual time")));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    Ok((seconds * 1e9).round() as u64)
}

/// Scale of a simulation, from virtual times in seconds.
fn scale(warm_up: f64, seconds: f64) -> Result<RunScale, Failure> {
    Ok(RunScale { warm_up_ns: warm_up_ns(warm_up)?, measured_ns: measured_ns(seconds)?, ..RunScale::FULL })
}

/// Value of `--seconds`, in ns.
fn measured_ns(seconds: f64) -> Result<u64, Failure> {
    virtual_ns("--seconds", seconds, 0.0001, 100.0)
}

/// Value of `--warm-up`, in ns.
fn warm_up_ns(seconds: f64) -> Result<u64, Failure> {
    virtual_ns("--warm-up", seconds, 0.0, 100.0)
}

/// Converts ns to seconds, for defaults of options.
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Error of a run: unsupported mode, or aborted simulation.
fn not_run(error: &RunError) -> Failure {
    let exit = if matches!(error, RunError::Setting(_)) { Exit::NotSupported } else { Exit::RolledBack };
    Failure::new(exit, error)
}
