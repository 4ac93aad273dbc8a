//! What any discrete-event model needs and nothing about packets: the ordered event queue, the
//! random streams and the digest that tells whether two runs were the same.

mod digest;
mod event_queue;
mod random;

pub(crate) use digest::Digest;
pub(crate) use event_queue::EventQueue;
pub(crate) use random::{Purpose, RandomStream};

/// Virtual time, in ns since the start of the run.
pub type Ns = u64;

/// A moment that never comes.
pub(crate) const NEVER: Ns = Ns::MAX;
