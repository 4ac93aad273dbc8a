//! Hosts: costs, NIC and clients, from a profile file.

mod constants;
mod costs;
mod profile;

pub use constants::{CONSTANTS, Constant, Constants};
pub(crate) use costs::Costs;
pub use profile::{HostProfile, HostProfileError, IdleState, Value};
