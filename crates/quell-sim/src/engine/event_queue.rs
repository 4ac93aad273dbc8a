//! Pending events, ordered by time and sequence number. Events with the same time happen in the order in which they
//! were scheduled. The capacity is fixed, and the memory is allocated once.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::Ns;

#[derive(Debug)]
struct Entry<E> {
    at_ns: Ns,
    sequence: u64,
    event: E,
}

impl<E> Entry<E> {
    fn key(&self) -> (Ns, u64) {
        (self.at_ns, self.sequence)
    }
}

impl<E> PartialEq for Entry<E> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<E> Eq for Entry<E> {}

impl<E> PartialOrd for Entry<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Entry<E> {
    /// The order is reversed, because `BinaryHeap` returns its greatest element.
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

/// Pending events, at most `bound`.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    heap: BinaryHeap<Entry<E>>,
    sequence: u64,
    bound: usize,
    overflowed: bool,
}

impl<E> EventQueue<E> {
    /// Creates an empty queue with a capacity of `bound` events.
    pub(crate) fn with_bound(bound: usize) -> Self {
        Self { heap: BinaryHeap::with_capacity(bound), sequence: 0, bound, overflowed: false }
    }

    /// Schedules `event` for `at_ns`. If the queue is full, the event is dropped and [`overflowed`](Self::overflowed)
    /// is set. Such a run has no result.
    pub(crate) fn schedule(&mut self, at_ns: Ns, event: E) {
        if self.heap.len() == self.bound {
            self.overflowed = true;
            return;
        }
        let sequence = self.sequence;
        self.sequence += 1;
        self.heap.push(Entry { at_ns, sequence, event });
    }

    /// Removes the earliest event.
    pub(crate) fn pop(&mut self) -> Option<(Ns, E)> {
        self.heap.pop().map(|entry| (entry.at_ns, entry.event))
    }

    /// Time of the earliest event.
    pub(crate) fn next_at_ns(&self) -> Option<Ns> {
        self.heap.peek().map(|entry| entry.at_ns)
    }

    /// Whether an event was dropped.
    pub(crate) fn overflowed(&self) -> bool {
        self.overflowed
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn events_with_the_same_time_happen_in_the_order_of_scheduling() {
        let mut queue = EventQueue::with_bound(8);
        for name in ["first", "second", "third"] {
            queue.schedule(5, name);
        }
        queue.schedule(4, "earlier");
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(order, [(4, "earlier"), (5, "first"), (5, "second"), (5, "third")]);
    }

    #[test]
    fn an_event_beyond_the_capacity_sets_overflowed() {
        let mut queue = EventQueue::with_bound(1);
        queue.schedule(1, ());
        assert!(!queue.overflowed());
        queue.schedule(2, ());
        assert!(queue.overflowed());
    }

    proptest! {
        #[test]
        fn events_come_in_the_order_of_a_stable_sort_by_time(moments in prop::collection::vec(0u64..50, 0..200)) {
            let mut queue = EventQueue::with_bound(200);
            for (index, &at_ns) in moments.iter().enumerate() {
                queue.schedule(at_ns, index);
            }
            let mut expected: Vec<_> = moments.iter().copied().zip(0..).collect();
            expected.sort_by_key(|&(at_ns, _)| at_ns);
            prop_assert_eq!(std::iter::from_fn(|| queue.pop()).collect::<Vec<_>>(), expected);
        }
    }
}
