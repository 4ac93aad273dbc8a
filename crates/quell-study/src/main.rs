//! `quell-study`: what the model is worth. A program for those who change the model; no package has it.

#![forbid(unsafe_code)]

mod commands;
mod render;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use quell_cli::output;

/// Name in errors.
const PROGRAM: &str = "quell-study";

/// Studies with the model of `quell sim`: published experiments beside it, its fit, and the effect of its parts.
#[derive(Debug, Parser)]
#[command(name = PROGRAM, version, propagate_version = true, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Study,
}

/// The studies.
#[derive(Debug, Subcommand)]
enum Study {
    /// Compare published experiments with the model: every figure, its error, and a summary.
    Published(commands::published::PublishedArgs),
    /// Fit the constants of a host to published cells of the training modes.
    Fit(commands::fit::FitArgs),
    /// Simulate without each part of the model, and show which figures change.
    Ablate(commands::ablate::AblateArgs),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return output::usage(PROGRAM, &error),
    };
    let result = match &cli.command {
        Study::Published(args) => commands::published::published(args),
        Study::Fit(args) => commands::fit::fit(args),
        Study::Ablate(args) => commands::ablate::ablate(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => output::report(PROGRAM, &failure),
    }
}
