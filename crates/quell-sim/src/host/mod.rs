//! A host: what things cost on it, its NIC, its kernel and the clients that load it, as a profile
//! file says it.

mod constants;
mod costs;
mod profile;

pub use constants::{CONSTANTS, Constant, Constants};
pub(crate) use costs::Costs;
pub use profile::{HostProfile, IdleState, ProfileError, Value};
