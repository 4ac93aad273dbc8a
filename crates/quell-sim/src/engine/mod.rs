//! The discrete-event engine: an ordered event queue, random streams, and the digest of a run. The engine does not
//! depend on packets.

mod event_queue;
mod random;

pub(crate) use event_queue::EventQueue;
pub(crate) use random::{Purpose, RandomStream};

/// Virtual time in ns since the start of the run.
pub type Ns = u64;

pub(crate) const NEVER: Ns = Ns::MAX;

/// Digest of all events of a run with their times, in order. Equal digests from two machines mean that the runs were
/// identical. It uses FNV-1a over 64-bit words and is not cryptographic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Digest(u64);

impl Digest {
    pub(crate) fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    #[inline]
    pub(crate) fn add(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }

    pub(crate) fn value(self) -> u64 {
        self.0
    }
}
