//! Unread messages of a socket. A connection mostly has one request in flight, so one message needs no memory of its
//! own: thousands of sockets stay in the cache.

use std::collections::VecDeque;

use crate::engine::{NEVER, Ns};

/// Unread messages in the order of their arrival, each with the time at which it was sent.
#[derive(Debug, Clone)]
pub(crate) struct Inbox {
    /// Time of the oldest message; [`NEVER`] without messages.
    oldest_ns: Ns,
    #[expect(clippy::box_collection, reason = "8 bytes instead of 32 in each socket")]
    others: Option<Box<VecDeque<Ns>>>,
}

impl Default for Inbox {
    fn default() -> Self {
        Self { oldest_ns: NEVER, others: None }
    }
}

impl Inbox {
    pub(crate) fn len(&self) -> usize {
        usize::from(self.oldest_ns != NEVER) + self.others.as_ref().map_or(0, |others| others.len())
    }

    pub(crate) fn front(&self) -> Option<Ns> {
        (self.oldest_ns != NEVER).then_some(self.oldest_ns)
    }

    pub(crate) fn push_back(&mut self, sent_ns: Ns) {
        if self.oldest_ns == NEVER {
            self.oldest_ns = sent_ns;
        } else {
            self.others.get_or_insert_default().push_back(sent_ns);
        }
    }

    pub(crate) fn pop_front(&mut self) -> Option<Ns> {
        let next_ns = self.others.as_mut().and_then(|others| others.pop_front()).unwrap_or(NEVER);
        let oldest_ns = std::mem::replace(&mut self.oldest_ns, next_ns);
        (oldest_ns != NEVER).then_some(oldest_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_leave_in_the_order_of_their_arrival() {
        let mut inbox = Inbox::default();
        (1..=3).for_each(|sent_ns| inbox.push_back(sent_ns));
        assert_eq!((inbox.pop_front(), inbox.front(), inbox.len()), (Some(1), Some(2), 2));
        inbox.push_back(4);
        assert_eq!(std::iter::from_fn(|| inbox.pop_front()).collect::<Vec<_>>(), [2, 3, 4]);
        assert_eq!(inbox.len(), 0);
    }
}
