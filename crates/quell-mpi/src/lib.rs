//! Load from many machines: every rank of an MPI job runs the generator of `quell load` with its share of the
//! connections and of the rate. Rank 0 distributes the plan, orders the measured windows and collects the reports.
//!
//! MPI implementations spin while they wait. Between two windows, ranks therefore look for messages once per
//! millisecond and sleep; inside a window no rank calls MPI.

#![forbid(unsafe_code)]

#[cfg(feature = "mpi")]
pub mod conductor;
pub mod launch;
pub mod output;
pub mod plan;
#[cfg(feature = "mpi")]
pub mod rank;
pub mod validity;
#[cfg(feature = "mpi")]
pub mod world;
