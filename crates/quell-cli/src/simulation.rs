//! Options of simulations, and the errors of runs.

use std::path::Path;
use std::thread;

use clap::Args;
use quell_mode::ParseModeError;
use quell_sim::sweep::ModesError;
use quell_sim::{HostProfile, RunError};

use crate::exit::{Exit, ProgramFailure};
use crate::file;

/// Host of the published experiment that the model was fitted to.
pub const DEFAULT_HOST: &str = "epyc7662-cx5";

#[derive(Debug, Args)]
pub struct HostArg {
    /// Host profile: a name listed by `quell sim hosts`, or the path of a .toml file [default: epyc7662-cx5]
    #[arg(long, value_name = "NAME|FILE")]
    host: Option<String>,
}

impl HostArg {
    pub fn profile(&self) -> Result<HostProfile, ProgramFailure> {
        self.profile_or(DEFAULT_HOST)
    }

    /// Profile of the option, or else the shipped one with this name.
    pub fn profile_or(&self, default: &str) -> Result<HostProfile, ProgramFailure> {
        profile(self.host.as_deref().unwrap_or(default))
    }
}

/// Loads a shipped host profile by name, or a profile file by path.
pub fn profile(host: &str) -> Result<HostProfile, ProgramFailure> {
    if Path::new(host).extension().is_none_or(|extension| extension != "toml") {
        return HostProfile::shipped(host)
            .map_err(|error| ProgramFailure::usage(format!("{error}; a profile file needs the extension .toml")));
    }
    let text = file::read(Path::new(host), file::BY_HAND_MAX)?;
    HostProfile::from_toml(&text).map_err(|error| ProgramFailure::usage(format!("{host}: {error}")))
}

/// Number of simulation threads: the CPUs available to this process.
pub fn threads() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Error of an invalid mode, with a caret below the position.
pub fn refused_mode(error: &ParseModeError) -> ProgramFailure {
    ProgramFailure::usage(format!("{error}\n\n{}", error.caret()))
}

pub fn refused_modes(error: &ModesError) -> ProgramFailure {
    match error {
        ModesError::Mode(error) => refused_mode(error),
        _ => ProgramFailure::usage(error),
    }
}

/// Converts virtual time from seconds to ns and checks its range.
fn virtual_ns(option: &str, seconds: f64, least: f64, most: f64) -> Result<u64, ProgramFailure> {
    if !(least..=most).contains(&seconds) {
        return Err(ProgramFailure::usage(format!(
            "{option} {seconds}: expected {least} to {most} seconds of virtual time"
        )));
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked above")]
    Ok((seconds * 1e9).round() as u64)
}

/// Value of `--seconds`, in ns.
pub fn measured_ns(seconds: f64) -> Result<u64, ProgramFailure> {
    virtual_ns("--seconds", seconds, 0.0001, 100.0)
}

/// Value of `--warm-up`, in ns.
pub fn warm_up_ns(seconds: f64) -> Result<u64, ProgramFailure> {
    virtual_ns("--warm-up", seconds, 0.0, 100.0)
}

/// Converts ns to seconds, for defaults of options.
pub fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Error of a run: unsupported mode, or aborted simulation.
pub fn not_run(error: &RunError) -> ProgramFailure {
    let exit = if matches!(error, RunError::Setting(_)) { Exit::NotSupported } else { Exit::RolledBack };
    ProgramFailure::new(exit, error)
}
