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
const NONE: u32 = u32::MAX;

const fn shift(wheel: usize) -> u32 {
    RESOLUTION_BITS + SLOT_BITS * wheel as u32
}

/// Part of the time that is the same for all events in the wheels up to `wheel`.
const fn window(at_ns: Ns, wheel: usize) -> Ns {
    at_ns >> shift(wheel + 1)
}

#[derive(Debug)]
struct Node<E> {
    at_ns: Ns,
    event: E,
    next: u32,
}

/// First and last node of a list; both are valid only if the list is not empty.
#[derive(Debug, Clone, Copy)]
struct List {
    first: u32,
    last: u32,
}

impl List {
    const EMPTY: Self = Self { first: NONE, last: NONE };

    fn push<E>(&mut self, nodes: &mut [Node<E>], node: u32) {
        nodes[node as usize].next = NONE;
        match self.first {
            NONE => self.first = node,
            _ => nodes[self.last as usize].next = node,
        }
        self.last = node;
    }

    /// Inserts a node behind all nodes that are not later.
    #[inline]
    fn insert<E>(&mut self, nodes: &mut [Node<E>], node: u32) {
        let at_ns = nodes[node as usize].at_ns;
        if self.first == NONE || nodes[self.last as usize].at_ns <= at_ns {
            return self.push(nodes, node);
        }
        let mut next = self.first;
        let mut previous = NONE;
        while nodes[next as usize].at_ns <= at_ns {
            (previous, next) = (next, nodes[next as usize].next);
        }
        nodes[node as usize].next = next;
        match previous {
            NONE => self.first = node,
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

    #[inline]
    fn take(&mut self, slot: usize) -> u32 {
        self.used[slot / 64] &= !(1 << (slot % 64));
        if self.used[slot / 64] == 0 {
            self.used_words &= !(1 << (slot / 64));
        }
        std::mem::replace(&mut self.slots[slot], List::EMPTY).first
    }
}

/// An event that was removed, until the next one is scheduled.
#[derive(Debug)]
pub(crate) struct Removed {
    pub(crate) at_ns: Ns,
    index: u32,
}

#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    wheels: [Wheel; WHEELS],
    later: List,
    nodes: Vec<Node<E>>,
    free: u32,
    /// No pending event is earlier. The wheels are positioned at this time.
    reached_ns: Ns,
    bound: usize,
    overflowed: bool,
}

impl<E> EventQueue<E> {
    pub(crate) fn with_bound(bound: usize) -> Self {
        Self {
            wheels: std::array::from_fn(|_| Wheel::new()),
            later: List::EMPTY,
            nodes: Vec::with_capacity(bound),
            free: NONE,
            reached_ns: 0,
            bound,
            overflowed: false,
        }
    }

    /// Schedules `event` for `at_ns`, which must not be before the last event that was removed. If the queue is full, the
    /// event is dropped and [`overflowed`](Self::overflowed) is set. Such a run has no result.
    pub(crate) fn schedule(&mut self, at_ns: Ns, event: E) {
        debug_assert!(at_ns >= self.reached_ns, "an event for {at_ns} ns at {} ns", self.reached_ns);
        let node = Node { at_ns, event, next: NONE };
        let index = self.free;
        if index == NONE {
            if self.nodes.len() == self.bound {
                self.overflowed = true;
                return;
            }
            self.nodes.push(node);
            return self.place(self.nodes.len() as u32 - 1);
        }
        self.free = self.nodes[index as usize].next;
        self.nodes[index as usize] = node;
        self.place(index);
    }

    #[inline]
    fn place(&mut self, index: u32) {
        let (at_ns, reached_ns) = (self.nodes[index as usize].at_ns, self.reached_ns);
        let [first, second] = &mut self.wheels;
        if window(at_ns, 0) == window(reached_ns, 0) {
            first.slot(at_ns >> shift(0)).insert(&mut self.nodes, index);
        } else if window(at_ns, 1) == window(reached_ns, 1) {
            second.slot(at_ns >> shift(1)).push(&mut self.nodes, index);
        } else {
            self.later.push(&mut self.nodes, index);
        }
    }

    /// Removes the earliest event if it is before `until_ns`. The caller gets it with [`removed`](Self::removed), because
    /// copying it twice would be the most expensive part of the event loop.
    #[inline]
    pub(crate) fn pop_before(&mut self, until_ns: Ns) -> Option<Removed> {
        loop {
            let Some(slot) = self.wheels[0].earliest() else {
                self.turn(until_ns)?;
                continue;
            };
            let index = self.wheels[0].slots[slot].first;
            let node = &mut self.nodes[index as usize];
            let at_ns = node.at_ns;
            if at_ns >= until_ns {
                return None;
            }
            let next = std::mem::replace(&mut node.next, self.free);
            self.free = index;
            if next == NONE {
                self.wheels[0].take(slot);
            } else {
                self.wheels[0].slots[slot].first = next;
            }
            self.reached_ns = at_ns;
            return Some(Removed { at_ns, index });
        }
    }

    #[inline]
    pub(crate) fn removed(&self, removed: &Removed) -> &E {
        &self.nodes[removed.index as usize].event
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
            Some((wheel, slot)) => self.wheels[wheel].take(slot),
            None => std::mem::replace(&mut self.later, List::EMPTY).first,
        };
        while index != NONE {
            let next = self.nodes[index as usize].next;
            self.place(index);
            index = next;
        }
        Some(())
    }

    fn earliest_later_ns(&self) -> Option<Ns> {
        let next = |node: &&Node<E>| self.nodes.get(node.next as usize);
        std::iter::successors(self.nodes.get(self.later.first as usize), next).map(|node| node.at_ns).min()
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
        let next = |queue: &mut EventQueue<E>| {
            let removed = queue.pop_before(Ns::MAX)?;
            Some((removed.at_ns, *queue.removed(&removed)))
        };
        std::iter::from_fn(|| next(&mut queue)).collect()
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
                    let removed = queue.pop_before(now_ns).expect("it is due");
                    prop_assert_eq!((removed.at_ns, *queue.removed(&removed)), event);
                }
                prop_assert!(queue.pop_before(now_ns).is_none());
            }
        }
    }
}
