//! Pending events, ordered by time. Events with the same time happen in the order in which they were scheduled. The
//! capacity is fixed, and the memory is allocated once.
//!
//! A hierarchical timing wheel (Varghese and Lauck 1987) keeps the order. A slot of the first wheel is a sorted list,
//! which mostly has one event. A slot of the next wheel has the events of a whole revolution of the first one, in the
//! order in which they were scheduled.

use super::Ns;

/// Bits of the time below those that select a slot: a slot of the first wheel is 64 ns long.
const RESOLUTION_BITS: u32 = 6;
const SLOT_BITS: u32 = 10;
const SLOTS: usize = 1 << SLOT_BITS;
/// Number of wheels. Together they span 67 ms; later events wait in a list of their own.
const WHEELS: usize = 2;
/// Index of the node that stands before the first node of every list, and that ends every list. Its time is 0, and its
/// `next` has no meaning.
const SENTINEL: u32 = 0;

const fn shift(wheel: usize) -> u32 {
    RESOLUTION_BITS + SLOT_BITS * wheel as u32
}

/// Part of the time that is the same for all events in the wheels up to `wheel`.
const fn window(at_ns: Ns, wheel: usize) -> Ns {
    at_ns >> shift(wheel + 1)
}

/// Two nodes of 16-byte events share a cache line, and none has two.
#[derive(Debug)]
#[repr(align(32))]
struct Node<E> {
    at_ns: Ns,
    /// `None` in the sentinel.
    event: Option<E>,
    next: u32,
}

/// First and last node of a list: both are the sentinel if the list is empty. Most slots have zero or one event, which
/// no branch prediction gets right. So adding and removing do not branch on it.
#[derive(Debug, Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

impl List {
    const EMPTY: Self = Self { first: SENTINEL, last: SENTINEL };

    #[inline]
    fn push<E>(&mut self, nodes: &mut [Node<E>], node: u32) {
        nodes[node as usize].next = SENTINEL;
        nodes[self.last as usize].next = node;
        self.first = if self.first == SENTINEL { node } else { self.first };
        self.last = node;
    }

    /// Inserts a node behind all nodes that are not later.
    #[inline]
    fn insert<E>(&mut self, nodes: &mut [Node<E>], node: u32, at_ns: Ns) {
        if nodes[self.last as usize].at_ns <= at_ns {
            return self.push(nodes, node);
        }
        let mut next = self.first;
        let mut previous = SENTINEL;
        while nodes[next as usize].at_ns <= at_ns {
            (previous, next) = (next, nodes[next as usize].next);
        }
        nodes[node as usize].next = next;
        match previous {
            SENTINEL => self.first = node,
            _ => nodes[previous as usize].next = node,
        }
    }
}

/// One wheel, with a bit for each slot that is not empty.
#[derive(Debug)]
struct Wheel {
    slots: Box<[List; SLOTS]>,
    used: [u64; SLOTS / 64],
    used_words: u64,
}

impl Wheel {
    fn new() -> Self {
        Self { slots: Box::new([List::EMPTY; SLOTS]), used: [0; SLOTS / 64], used_words: 0 }
    }

    #[inline]
    fn slot(&mut self, position: Ns) -> &mut List {
        let slot = position as usize % SLOTS;
        self.used[slot / 64] |= 1 << (slot % 64);
        self.used_words |= 1 << (slot / 64);
        &mut self.slots[slot]
    }

    /// The earliest slot that is not empty. Slots of the past are always empty.
    #[inline]
    fn earliest(&self) -> Option<usize> {
        let word = self.used_words.trailing_zeros() as usize;
        let bits = self.used.get(word)?;
        Some(64 * word + bits.trailing_zeros() as usize)
    }

    /// Makes `first` the first node of a slot, or empties the slot if it is the sentinel.
    #[inline]
    fn begin_at(&mut self, slot: usize, first: u32) {
        let list = &mut self.slots[slot];
        list.first = first;
        list.last = if first == SENTINEL { SENTINEL } else { list.last };
        let word = &mut self.used[slot / 64];
        *word &= !(u64::from(first == SENTINEL) << (slot % 64));
        self.used_words &= !(u64::from(*word == 0) << (slot / 64));
    }
}

#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    wheels: [Wheel; WHEELS],
    later: List,
    /// The sentinel, and a node for each event.
    nodes: Vec<Node<E>>,
    free: u32,
    /// No pending event is earlier. The wheels are positioned at this time.
    reached_ns: Ns,
    bound: usize,
    overflowed: bool,
}

impl<E: Copy> EventQueue<E> {
    pub(crate) fn with_bound(bound: usize) -> Self {
        let mut nodes = Vec::with_capacity(1 + bound);
        nodes.push(Node { at_ns: 0, event: None, next: SENTINEL });
        Self {
            wheels: std::array::from_fn(|_| Wheel::new()),
            later: List::EMPTY,
            nodes,
            free: SENTINEL,
            reached_ns: 0,
            bound,
            overflowed: false,
        }
    }

    /// Schedules `event` for `at_ns`, which must not be before the last event that was removed. If the queue is full, the
    /// event is dropped and [`overflowed`](Self::overflowed) is set. Such a run has no result.
    ///
    /// Inlined, so that the fields of the event are written to its node. A copy of the event would have to wait for them.
    #[inline(always)]
    pub(crate) fn schedule(&mut self, at_ns: Ns, event: E) {
        debug_assert!(at_ns >= self.reached_ns, "an event for {at_ns} ns at {} ns", self.reached_ns);
        let Some(index) = self.take_node() else { return };
        let node = &mut self.nodes[index as usize];
        (node.at_ns, node.event) = (at_ns, Some(event));
        self.place(index, at_ns);
    }

    /// Takes a free node, or adds one. `None` if the queue is full.
    #[inline]
    fn take_node(&mut self) -> Option<u32> {
        let index = self.free;
        if index != SENTINEL {
            self.free = self.nodes[index as usize].next;
            return Some(index);
        }
        self.overflowed |= self.nodes.len() > self.bound;
        if self.overflowed {
            return None;
        }
        self.nodes.push(Node { at_ns: 0, event: None, next: SENTINEL });
        Some(self.nodes.len() as u32 - 1)
    }

    fn place(&mut self, index: u32, at_ns: Ns) {
        let reached_ns = self.reached_ns;
        let [first, second] = &mut self.wheels;
        if window(at_ns, 0) == window(reached_ns, 0) {
            first.slot(at_ns >> shift(0)).insert(&mut self.nodes, index, at_ns);
        } else if window(at_ns, 1) == window(reached_ns, 1) {
            second.slot(at_ns >> shift(1)).push(&mut self.nodes, index);
        } else {
            self.later.push(&mut self.nodes, index);
        }
    }

    /// Removes the earliest event if it is before `until_ns`.
    #[inline]
    pub(crate) fn pop_before(&mut self, until_ns: Ns) -> Option<(Ns, E)> {
        loop {
            let Some(slot) = self.wheels[0].earliest() else {
                self.turn(until_ns)?;
                continue;
            };
            let index = self.wheels[0].slots[slot].first;
            let node = &mut self.nodes[index as usize];
            let (at_ns, event) = (node.at_ns, node.event);
            if at_ns >= until_ns {
                return None;
            }
            let next = std::mem::replace(&mut node.next, self.free);
            self.free = index;
            self.wheels[0].begin_at(slot, next);
            self.reached_ns = at_ns;
            return Some((at_ns, event?));
        }
    }

    /// Advances to the next slot that has events, and distributes them over the slots of the finer wheels. `None` if that
    /// slot does not begin before `until_ns`.
    fn turn(&mut self, until_ns: Ns) -> Option<()> {
        let next = (1..WHEELS).find_map(|wheel| self.wheels[wheel].earliest().map(|slot| (wheel, slot)));
        let began_ns = match next {
            Some((wheel, slot)) => (window(self.reached_ns, wheel) << SLOT_BITS | slot as Ns) << shift(wheel),
            None => window(self.earliest_later_ns()?, WHEELS - 1) << shift(WHEELS),
        };
        if began_ns >= until_ns {
            return None;
        }
        self.reached_ns = began_ns;
        let mut index = match next {
            Some((wheel, slot)) => {
                let first = self.wheels[wheel].slots[slot].first;
                self.wheels[wheel].begin_at(slot, SENTINEL);
                first
            }
            None => std::mem::replace(&mut self.later, List::EMPTY).first,
        };
        while index != SENTINEL {
            let Node { next, at_ns, .. } = self.nodes[index as usize];
            self.place(index, at_ns);
            index = next;
        }
        Some(())
    }

    fn earliest_later_ns(&self) -> Option<Ns> {
        let node = |index: u32| (index != SENTINEL).then(|| &self.nodes[index as usize]);
        std::iter::successors(node(self.later.first), |before| node(before.next)).map(|node| node.at_ns).min()
    }

    pub(crate) fn overflowed(&self) -> bool {
        self.overflowed
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn emptied<E: Copy>(mut queue: EventQueue<E>) -> Vec<(Ns, E)> {
        std::iter::from_fn(|| queue.pop_before(Ns::MAX)).collect()
    }

    #[test]
    fn events_with_the_same_time_happen_in_the_order_of_scheduling() {
        let mut queue = EventQueue::with_bound(8);
        for name in ["first", "second", "third"] {
            queue.schedule(5, name);
        }
        queue.schedule(4, "earlier");
        assert_eq!(emptied(queue), [(4, "earlier"), (5, "first"), (5, "second"), (5, "third")]);
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
        fn events_come_in_the_order_of_a_stable_sort_by_time(
            moments in prop::collection::vec(prop_oneof![0u64..50, 0u64..200_000, 0u64..1 << 40], 0..200),
        ) {
            let mut queue = EventQueue::with_bound(200);
            for (index, &at_ns) in moments.iter().enumerate() {
                queue.schedule(at_ns, index);
            }
            let mut expected: Vec<_> = moments.iter().copied().zip(0..).collect();
            expected.sort_by_key(|&(at_ns, _)| at_ns);
            prop_assert_eq!(emptied(queue), expected);
        }

        #[test]
        fn events_scheduled_between_removals_come_in_the_same_order(
            steps in prop::collection::vec((prop_oneof![0u64..50, 0u64..200_000, 0u64..1 << 30], 0u64..100_000), 0..300),
        ) {
            let (mut queue, mut expected, mut now_ns) = (EventQueue::with_bound(300), Vec::new(), 0);
            for (index, &(after_ns, runs_ns)) in steps.iter().enumerate() {
                queue.schedule(now_ns + after_ns, index);
                expected.push((now_ns + after_ns, index));
                now_ns += runs_ns;
                expected.sort();
                let due = expected.iter().take_while(|&&(at_ns, _)| at_ns < now_ns).count();
                for event in expected.drain(..due) {
                    prop_assert_eq!(queue.pop_before(now_ns), Some(event));
                }
                prop_assert!(queue.pop_before(now_ns).is_none());
            }
        }
    }
}
