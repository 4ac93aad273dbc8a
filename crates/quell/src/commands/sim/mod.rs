//! `quell sim`: questions to the model of the kernel's packet delivery. One file a question; what they share is here: the
//! host that is modelled, and on how many CPUs of this machine.

mod ablate;
mod explain;
pub(crate) mod fit;
mod hosts;
mod published;
mod run;

use std::path::Path;
use std::thread;

use clap::{Args, Subcommand};
use quell_mode::ParseModeError;
use quell_sim::sweep::{ModesError, Setup};
use quell_sim::{HostProfile, RunError, RunScale};

use crate::exit::{Exit, Failure};
use crate::file;

/// What the model can be asked.
#[derive(Debug, Subcommand)]
pub(crate) enum SimCommand {
    /// What would these modes do under these loads on this host? One row each, simulated.
    Run(Box<run::RunArgs>),
    /// One request and one busy period under a mode, step by step, in words generated from the run itself.
    Explain(explain::ExplainArgs),
    /// Published experiments beside the model: every figure, its error, and what they come to.
    Published(published::PublishedArgs),
    /// Find the constants of a host from published cells, on declared training modes only.
    Fit(fit::FitArgs),
    /// Which figure does each part of the model move? The same cells without it.
    Ablate(ablate::AblateArgs),
    /// List the hosts that can be simulated, or print one as the TOML file that `--host` reads.
    Hosts(hosts::HostsArgs),
}

/// Runs the command.
///
/// # Errors
/// With the exit code of what went wrong.
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

/// The host of the published experiment, on which everything is fitted.
pub(crate) const DEFAULT_HOST: &str = "epyc7662-cx5";

/// Which host is modelled.
#[derive(Debug, Args)]
struct HostArg {
    /// The host: one of `quell sim hosts`, or the path of a profile, which ends in .toml.
    #[arg(long, value_name = "NAME|FILE", default_value = DEFAULT_HOST)]
    host: String,
}

impl HostArg {
    fn profile(&self) -> Result<HostProfile, Failure> {
        profile(&self.host)
    }
}

/// The profile of a host that is named or whose file is.
///
/// # Errors
/// When there is none of that name, or the file cannot be read or is no profile.
pub(crate) fn profile(host: &str) -> Result<HostProfile, Failure> {
    if Path::new(host).extension().is_none_or(|extension| extension != "toml") {
        return HostProfile::shipped(host).map_err(|error| {
            Failure::usage(format!("{error}; a profile of your own is named by its path, which ends in .toml"))
        });
    }
    let text = file::read(Path::new(host), file::BY_HAND_MAX)?;
    HostProfile::from_toml(&text).map_err(|error| Failure::usage(format!("{host}: {error}")))
}

/// More queues than a model of one server has a use for.
const QUEUES_MAX: u32 = 128;
/// More connections than that are no longer simulated in seconds.
const CONNECTIONS_MAX: usize = 200_000;

/// A number of queues that can be simulated.
///
/// # Errors
/// When it is too large.
pub(crate) fn queues(queues: u32) -> Result<usize, Failure> {
    if !(1..=QUEUES_MAX).contains(&queues) {
        return Err(Failure::usage(format!("--queues {queues}: the model has 1 to {QUEUES_MAX} queues")));
    }
    Ok(queues as usize)
}

/// Whether so many connections can be simulated on so many queues.
///
/// # Errors
/// When they are too few or too many.
pub(crate) fn check_connections(setup: &Setup) -> Result<(), Failure> {
    let Setup { connections, queues, .. } = setup;
    if connections < queues {
        return Err(Failure::usage(format!("--connections {connections}: each of {queues} queues needs one at least")));
    }
    if *connections > CONNECTIONS_MAX {
        return Err(Failure::usage(format!("--connections {connections}: the model has {CONNECTIONS_MAX} at most")));
    }
    Ok(())
}

/// CPUs of this machine that runs may take.
pub(crate) fn threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// A refused mode with its place in the text.
fn refused_mode(error: &ParseModeError) -> Failure {
    Failure::usage(format!("{error}\n\n{}", error.caret()))
}

fn refused_modes(error: &ModesError) -> Failure {
    match error {
        ModesError::Mode(error) => refused_mode(error),
        _ => Failure::usage(error),
    }
}

/// Seconds of virtual time in ns.
fn virtual_ns(option: &str, seconds: f64, least: f64, most: f64) -> Result<u64, Failure> {
    if !(least..=most).contains(&seconds) {
        return Err(Failure::usage(format!("{option} {seconds}: write {least} to {most} seconds of virtual time")));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    Ok((seconds * 1e9).round() as u64)
}

/// How much of the published experiment is simulated, from virtual times in seconds.
fn scale(warm_up: f64, seconds: f64) -> Result<RunScale, Failure> {
    Ok(RunScale { warm_up_ns: warm_up_ns(warm_up)?, measured_ns: measured_ns(seconds)?, ..RunScale::FULL })
}

/// The virtual time of `--seconds`.
fn measured_ns(seconds: f64) -> Result<u64, Failure> {
    virtual_ns("--seconds", seconds, 0.0001, 100.0)
}

/// The virtual time of `--warm-up`.
fn warm_up_ns(seconds: f64) -> Result<u64, Failure> {
    virtual_ns("--warm-up", seconds, 0.0, 100.0)
}

/// ns in seconds, for defaults.
fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// A run that is not possible: a mode that the modelled server does not know, or one that was given up.
fn not_run(error: &RunError) -> Failure {
    let exit = if matches!(error, RunError::Setting(_)) { Exit::NotSupported } else { Exit::RolledBack };
    Failure::new(exit, error)
}
