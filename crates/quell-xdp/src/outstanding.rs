//! Requests without a response. The sender enters them, and the receiver removes them, without a lock.

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of requests that can be outstanding in an open loop: 5 s at 12,000 requests per second. A power of two.
pub(crate) const OPEN_LOOP: usize = 1 << 16;

#[derive(Debug, Default)]
struct Slot {
    /// Number of the request plus 1; 0 if it has its response.
    sequence: AtomicU64,
    due_ns: AtomicU64,
    sent_ns: AtomicU64,
}

/// Times of a request, `CLOCK_MONOTONIC`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RequestTimes {
    pub(crate) due_ns: u64,
    pub(crate) sent_ns: u64,
}

#[derive(Debug)]
pub(crate) struct Outstanding {
    slots: Box<[Slot]>,
}

impl Outstanding {
    /// Room for this number of requests, a power of two. Less room takes less of the cache.
    pub(crate) fn new(room: usize) -> Self {
        Self { slots: (0..room).map(|_| Slot::default()).collect() }
    }

    fn slot(&self, sequence: u64) -> &Slot {
        &self.slots[sequence as usize & (self.slots.len() - 1)]
    }

    /// Enters a request. Returns an earlier one that still has no response and is given up for it.
    #[inline]
    pub(crate) fn enter(&self, sequence: u64, times: RequestTimes) -> Option<RequestTimes> {
        let slot = self.slot(sequence);
        let given_up = (slot.sequence.swap(0, Ordering::AcqRel) != 0).then(|| slot.times());
        slot.due_ns.store(times.due_ns, Ordering::Relaxed);
        slot.sent_ns.store(times.sent_ns, Ordering::Relaxed);
        slot.sequence.store(sequence + 1, Ordering::Release);
        given_up
    }

    /// Removes a request. Returns `None` if it is not outstanding: the response is a second one, or too late.
    #[inline]
    pub(crate) fn remove(&self, sequence: u64) -> Option<RequestTimes> {
        let times = self.times(sequence)?;
        let entered = sequence.wrapping_add(1);
        let removed = self.slot(sequence).sequence.compare_exchange(entered, 0, Ordering::AcqRel, Ordering::Relaxed);
        removed.is_ok().then_some(times)
    }

    /// Times of a request that is outstanding.
    #[inline]
    pub(crate) fn times(&self, sequence: u64) -> Option<RequestTimes> {
        let slot = self.slot(sequence);
        // A number that no request has, such as that of the first one through the stack, wraps to 0.
        let entered = sequence.checked_add(1)?;
        (slot.sequence.load(Ordering::Acquire) == entered).then(|| slot.times())
    }

    /// Requests that are outstanding.
    pub(crate) fn all(&self) -> impl Iterator<Item = RequestTimes> + '_ {
        self.slots.iter().filter(|slot| slot.sequence.load(Ordering::Acquire) != 0).map(Slot::times)
    }
}

impl Slot {
    fn times(&self) -> RequestTimes {
        RequestTimes { due_ns: self.due_ns.load(Ordering::Relaxed), sent_ns: self.sent_ns.load(Ordering::Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn at(ns: u64) -> RequestTimes {
        RequestTimes { due_ns: ns, sent_ns: ns + 1 }
    }

    #[test]
    fn a_request_has_one_response() {
        let outstanding = Outstanding::new(8);
        assert_eq!(outstanding.enter(7, at(100)), None);
        assert_eq!(outstanding.remove(8), None);
        assert_eq!(outstanding.remove(7), Some(at(100)));
        assert_eq!(outstanding.remove(7), None, "a second response");
        assert_eq!(outstanding.remove(u64::MAX), None);
        assert_eq!(outstanding.all().count(), 0);
    }

    #[test]
    fn a_request_whose_place_is_needed_is_given_up() {
        let outstanding = Outstanding::new(8);
        outstanding.enter(3, at(100));
        assert_eq!(outstanding.enter(3 + 8, at(200)), Some(at(100)));
        assert_eq!(outstanding.remove(3), None, "its response is too late");
        assert_eq!(outstanding.all().collect::<Vec<_>>(), [at(200)]);
    }
}
