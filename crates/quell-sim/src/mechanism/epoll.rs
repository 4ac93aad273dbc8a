//! An epoll context and its sockets: ready list, busy-poll parameters, and the one NAPI ID that
//! `fs/eventpoll.c` stores per context.

use std::collections::VecDeque;
use std::num::NonZeroU32;

use quell_mode::EpollParams;

use super::inbox::Inbox;
use crate::engine::Ns;

/// `BUSY_POLL_BUDGET` of `net/core/dev.c`, for contexts whose budget is 0.
const DEFAULT_BUDGET: u16 = 8;

/// An optional index in 4 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Link(Option<NonZeroU32>);

impl From<Option<usize>> for Link {
    fn from(index: Option<usize>) -> Self {
        Self(index.and_then(|index| NonZeroU32::new(index as u32 + 1)))
    }
}

impl Link {
    pub(crate) fn to(index: usize) -> Self {
        Some(index).into()
    }

    #[inline]
    pub(crate) fn get(self) -> Option<usize> {
        self.0.map(|above| above.get() as usize - 1)
    }
}

/// A descriptor that an application waits for. A server has thousands, so each has one cache line.
#[derive(Debug, Clone, Default)]
#[repr(align(64))]
pub(crate) struct Socket {
    /// Epoll that contains the descriptor.
    pub(crate) epoll: Link,
    /// `SO_INCOMING_NAPI_ID` as the queue of the last packet; `None` without NAPI.
    pub(crate) napi: Link,
    pub(crate) received: Inbox,
    pub(crate) in_service: u32,
    /// Unread segments of incomplete requests.
    pub(crate) parts: u32,
    pub(crate) rx_cpu: u32,
    /// CPU on which a thread last served it; `None` if none has.
    pub(crate) served_on: Link,
    /// Whether the descriptor is permanently ready, like an eventfd, pipe or timer that is never read.
    pub(crate) always_ready: bool,
    pub(crate) edge_triggered: bool,
    /// Epoll that contains the descriptor with an empty interest mask. The epoll learns the NAPI ID and reports no
    /// events.
    pub(crate) without_interest_in: Link,
    pub(crate) listed: bool,
    /// Epoll that this descriptor refers to. A nested epoll has no NAPI ID.
    pub(crate) nested: Link,
    /// Thread that blocks in `recv` on this socket, or polls its receive ring.
    pub(crate) reader: Link,
}

const _: () = assert!(size_of::<Socket>() == 64, "a socket has one cache line");

impl Socket {
    pub(crate) fn readable(&self) -> bool {
        self.always_ready || self.parts > 0 || self.unserved() > 0
    }

    pub(crate) fn unserved(&self) -> u32 {
        (self.received.len() as u32).saturating_sub(self.in_service)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Epoll {
    pub(crate) settings: EpollParams,
    /// `ep->napi_id`: queue that `epoll_wait` busy polls.
    pub(crate) napi: Option<usize>,
    /// Descriptors that may be ready, in the order in which they were added.
    pub(crate) ready: VecDeque<u32>,
    pub(crate) waiters: VecDeque<usize>,
    /// Descriptor of this epoll in another epoll.
    pub(crate) outer: Option<u32>,
    pub(crate) references: usize,
}

impl Epoll {
    pub(crate) fn new(settings: EpollParams, sockets: usize) -> Self {
        Self {
            settings,
            napi: None,
            ready: VecDeque::with_capacity(sockets),
            waiters: VecDeque::with_capacity(2),
            outer: None,
            references: 1,
        }
    }

    /// Whether busy polling is enabled (`ep_busy_loop_on`). `sysctl_busy_poll_usecs` is `net.core.busy_poll`.
    pub(crate) fn busy_loop_on(&self, sysctl_busy_poll_usecs: u32) -> bool {
        self.settings.busy_poll_usecs > 0 || self.settings.prefer_busy_poll || sysctl_busy_poll_usecs > 0
    }

    /// Stores the NAPI ID of a socket that was added or became ready (`ep_set_busy_poll_napi_id`).
    pub(crate) fn remember_napi(&mut self, napi: Option<usize>, sysctl_busy_poll_usecs: u32) {
        if napi.is_some() && self.busy_loop_on(sysctl_busy_poll_usecs) {
            self.napi = napi;
        }
    }

    pub(crate) fn budget(&self) -> u32 {
        budget(self.settings.busy_poll_budget)
    }

    /// Duration of the busy-poll loop in ns; 0 means exactly one iteration. The kernel counts in units of 1,024 ns
    /// (`busy_loop_current_time`).
    pub(crate) fn loop_ns(&self, sysctl_busy_poll_usecs: u32) -> Ns {
        let usecs = match self.settings.busy_poll_usecs {
            0 => sysctl_busy_poll_usecs,
            usecs => usecs,
        };
        u64::from(usecs) * 1024
    }
}

pub(crate) fn budget(budget: u16) -> u32 {
    if budget == 0 { DEFAULT_BUDGET.into() } else { budget.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFER: EpollParams = EpollParams { busy_poll_usecs: 0, busy_poll_budget: 0, prefer_busy_poll: true };

    #[test]
    fn an_epoll_stores_the_last_valid_napi_id_and_only_while_busy_polling_is_enabled() {
        let mut off = Epoll::new(EpollParams::default(), 4);
        off.remember_napi(Some(1), 0);
        assert_eq!(off.napi, None);
        let mut on = Epoll::new(PREFER, 4);
        on.remember_napi(Some(1), 0);
        on.remember_napi(Some(2), 0);
        on.remember_napi(None, 0);
        assert_eq!(on.napi, Some(2));
    }

    #[test]
    fn a_budget_of_zero_means_eight() {
        assert_eq!(Epoll::new(PREFER, 1).budget(), 8);
    }

    #[test]
    fn an_epoll_without_parameters_uses_the_system_wide_time() {
        let epoll = Epoll::new(PREFER, 1);
        assert_eq!((epoll.loop_ns(0), epoll.loop_ns(50)), (0, 51_200));
        assert!(Epoll::new(EpollParams::default(), 1).busy_loop_on(50));
    }
}
