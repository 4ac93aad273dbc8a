//! The command line of Quell: parses options, calls the library crates, prints their results.

#![forbid(unsafe_code)]

mod cli;
mod commands;
mod completion;
mod exit;
mod journals;
mod logging;
mod manual;
mod render;

use std::process::{self, ExitCode};

use quell_cli::{file, output};
use tracing::{error_span, info};

use crate::cli::{Cli, Command};
use crate::exit::Failure;
use crate::logging::FullPipe;

fn main() -> ExitCode {
    completion::answer(cli::command);
    let cli = match Cli::from_command_line() {
        Ok(cli) => cli,
        Err(error) => return output::usage("quell", &error),
    };
    let restores_for_others = matches!(cli.command, Some(Command::Keeper(_) | Command::Watchdog(_)));
    logging::start(cli.verbose, if restores_for_others { FullPipe::DropLine } else { FullPipe::Wait });
    // Spans have the highest level, so that they are shown with lines of every level.
    let _command = error_span!("quell", command = %cli.command_name, pid = process::id()).entered();
    match cli.command.as_ref().map_or_else(|| overview(cli.json), run) {
        Ok(code) => code,
        Err(failure) => {
            info!(exit_code = failure.exit as u8, error = failure.text, "command failed");
            output::report("quell", &failure)
        }
    }
}

/// `quell` without a command.
fn overview(json: bool) -> Result<ExitCode, Failure> {
    commands::doctor::overview(json).map(|()| ExitCode::SUCCESS)
}

/// Whether the command opens a descriptor per process, socket or connection, and starts no program that would inherit
/// the raised limit.
fn holds_many_files(command: &Command) -> bool {
    use Command::{Attach, Detach, Export, Keeper, Load, Respond, Revert};
    matches!(command, Attach(_) | Detach(_) | Export(_) | Keeper(_) | Revert(_) | Load(_) | Respond(_))
}

fn run(command: &Command) -> Result<ExitCode, Failure> {
    if holds_many_files(command) {
        // If the limit cannot be raised, the operation that runs out of descriptors reports it.
        let _ = quell_linux::process::raise_open_files_limit();
    }
    let result = match command {
        // The exit code is that of the program that it started.
        Command::Run(args) => return commands::run::run(args),
        Command::Bench(args) => commands::bench::bench(args),
        Command::Tune(args) => commands::tune::run(args),
        Command::Results(args) => commands::results::run(args),
        Command::Report(args) => commands::report::run(args),
        Command::Show(args) => commands::show::run(args),
        Command::Top(args) => commands::top::run(args),
        Command::Export(args) => commands::export::run(args),
        Command::Apply(args) => commands::apply::run(args),
        Command::Status(args) => commands::status::status(args),
        Command::Revert(args) => commands::revert::run(args),
        Command::Confirm(args) => commands::status::confirmed(args),
        Command::Attach(args) => commands::attach::run(args),
        Command::Detach(args) => commands::attach::detach::run(args),
        Command::Keeper(args) => commands::attach::keeper::run(args),
        Command::Poller(args) => commands::attach::poller::run(args),
        Command::Completion(args) => completion::print(args),
        Command::ManualPages(args) => manual::write(args),
        Command::Watchdog(args) => commands::apply::watchdog::run(args),
        Command::Conformance(args) => commands::conformance::run(args),
        Command::Load(args) => commands::load::load(args),
        Command::Respond(args) => commands::respond::respond(args),
        Command::Doctor(args) => commands::doctor::doctor(args),
        Command::Sim { command } => commands::sim::run(command),
        Command::Lab { command } => commands::lab::run(command),
        Command::Vm { command } => commands::vm::run(command),
        Command::VmCommands { commands } => commands::vm_commands::run(commands),
        Command::VmConformance { names } => commands::conformance::play_in_this_guest(names),
        Command::VmLab { task } => commands::vm::lab_in_guest(task),
        Command::VmGuest => commands::vm::guest_init(),
    };
    result.map(|()| ExitCode::SUCCESS)
}
