//! Commands: one module each.

pub(crate) mod ablate;
pub(crate) mod fit;
pub(crate) mod published;

use quell_cli::exit::ProgramFailure;
use quell_cli::simulation::{measured_ns, warm_up_ns};
use quell_sim::RunScale;

/// Scale of a simulation, from virtual times in seconds.
fn scale(warm_up: f64, seconds: f64) -> Result<RunScale, ProgramFailure> {
    Ok(RunScale { warm_up_ns: warm_up_ns(warm_up)?, measured_ns: measured_ns(seconds)?, ..RunScale::FULL })
}
