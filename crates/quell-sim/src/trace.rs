//! What a run did, moment by moment: the segments of every CPU and the marks of every queue, for
//! Perfetto (JSON trace event format) and for a timeline in the terminal.

use crate::engine::Ns;
use crate::world::Thread;

/// A recording of a run.
#[derive(Debug, Default)]
pub(crate) struct Trace {}

impl Trace {
    pub(crate) fn mark(&mut self, _at_ns: Ns, _queue: usize, _what: &'static str) {}
    pub(crate) fn segment(&mut self, _cpu: usize, _c: crate::world::Context, _t: Option<(usize, &Thread)>, _now: Ns) {}
}
