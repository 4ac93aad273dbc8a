//! The command line of Quell: parses, calls the crates below, prints. What the answers are is decided there.

#![forbid(unsafe_code)]

mod cli;
mod commands;
mod exit;
mod file;
mod journals;
mod output;
mod render;

use std::process::ExitCode;

use clap::error::ErrorKind;

use crate::cli::{Cli, Command};
use crate::exit::{Exit, Failure};
use crate::render::terminal::Terminal;

fn main() -> ExitCode {
    let cli = match Cli::from_command_line() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    match run(&cli.command) {
        Ok(code) => code,
        Err(failure) => ended(&failure),
    }
}

fn ended(failure: &Failure) -> ExitCode {
    output::say(&format!("quell: {}", failure.text));
    failure.exit.into()
}

/// Whether it holds a file for each process or socket of a program, or for each connection, and starts nothing but itself.
fn holds_many_files(command: &Command) -> bool {
    use Command::{Attach, Detach, Keeper, Load, Respond, Revert};
    matches!(command, Attach(_) | Detach(_) | Keeper(_) | Revert(_) | Load(_) | Respond(_))
}

fn run(command: &Command) -> Result<ExitCode, Failure> {
    if holds_many_files(command) {
        // Where it stays as it is, whatever lacks a file says so.
        let _ = quell_linux::process::raise_open_files_limit();
    }
    let done = match command {
        // Its exit code is that of the program which it has started.
        Command::Run(args) => return commands::run::run(args),
        Command::Bench(args) => commands::bench::bench(args),
        Command::Show(args) => commands::show::run(args),
        Command::Apply(args) => commands::apply::run(args),
        Command::Status(args) => commands::status::status(args),
        Command::Revert(args) => commands::status::revert(args),
        Command::Confirm(args) => commands::status::confirmed(args),
        Command::Attach(args) => commands::attach::run(args),
        Command::Detach(args) => commands::attach::detach::run(args),
        Command::Keeper(args) => commands::attach::keeper::run(args),
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
        Command::VmLab { request } => commands::vm::lab_in_guest(request),
        Command::VmGuest => commands::vm::guest_init(),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// Help and version are answers, the rest is a wrong command line.
fn usage(error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let terminal = Terminal::of_stdout();
            let help = error.render();
            let help = if terminal.colour { help.ansi().to_string() } else { help.to_string() };
            match output::styled(&help, terminal) {
                Ok(()) => ExitCode::SUCCESS,
                Err(failure) => ended(&failure),
            }
        }
        // It quotes what was typed, or what a script has taken from elsewhere.
        _ => {
            output::say(error.to_string().trim_end());
            Exit::Usage.into()
        }
    }
}
