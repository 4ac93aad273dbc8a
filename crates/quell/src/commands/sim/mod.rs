//! `quell sim`: simulations of the kernel's packet delivery, one module per subcommand. Shared code is here.

mod explain;
mod hosts;
mod run;
mod sweep_output;
mod xsk;

pub(super) use hosts::HostsReport;

use clap::Subcommand;
pub(crate) use quell_cli::simulation::{
    DEFAULT_HOST, HostArg, measured_ns, not_run, profile, refused_mode, refused_modes, seconds, threads, warm_up_ns,
};
use quell_linux::visible::counted;
use quell_sim::sweep::Setup;

use crate::exit::Failure;

/// Simulations.
#[derive(Debug, Subcommand)]
pub(crate) enum SimCommand {
    /// Simulate modes under loads on a host; prints one row each.
    Run(Box<run::RunArgs>),
    /// Explain a mode step by step: one request and one busy period, from a simulated run.
    Explain(explain::ExplainArgs),
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
        SimCommand::Hosts(args) => hosts::hosts(args),
    }
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
