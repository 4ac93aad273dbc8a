//! An epoll context and the sockets in it: the ready list, the busy-poll parameters, and the one
//! NAPI id that `fs/eventpoll.c` remembers and forgets.

use std::collections::VecDeque;

use quell_mode::EpollSettings;

use crate::engine::Ns;

/// `BUSY_POLL_BUDGET` of `net/core/dev.c`, for contexts whose budget is 0.
const DEFAULT_BUDGET: u16 = 8;

/// A file descriptor that an application waits for.
#[derive(Debug, Clone, Default)]
pub(crate) struct Socket {
    /// The epoll that has it, by index.
    pub(crate) epoll: Option<usize>,
    /// `SO_INCOMING_NAPI_ID`: the queue of the last packet; none for a descriptor without NAPI.
    pub(crate) napi: Option<usize>,
    /// Requests that wait to be read: when the client sent each.
    pub(crate) received: VecDeque<Ns>,
    /// How many of them a worker is serving.
    pub(crate) in_service: usize,
    /// Segments of a request that is not complete, which wait to be read.
    pub(crate) parts: u32,
    /// The CPU on which its last packet was received.
    pub(crate) rx_cpu: usize,
    /// An eventfd, pipe or timer that nobody reads: ready for ever.
    pub(crate) always_ready: bool,
    /// Reported once when it becomes readable (`EPOLLET`), not again at every wait.
    pub(crate) edge_triggered: bool,
    /// An epoll that has it with an empty interest mask: it learns the NAPI id and reports nothing.
    pub(crate) without_interest_in: Option<usize>,
    /// In the ready list already.
    pub(crate) listed: bool,
    /// The epoll that the descriptor is: it has no NAPI id of its own.
    pub(crate) nested: Option<usize>,
    /// `SO_PREFER_BUSY_POLL`.
    pub(crate) prefer_busy_poll: bool,
    /// A thread that blocks in `recv`, or looks into the receive ring.
    pub(crate) reader: Option<usize>,
}

impl Socket {
    /// Whether a read would find something.
    pub(crate) fn readable(&self) -> bool {
        self.always_ready || self.parts > 0 || self.unserved() > 0
    }

    /// Requests that no worker has begun to serve.
    pub(crate) fn unserved(&self) -> usize {
        self.received.len().saturating_sub(self.in_service)
    }
}

/// An epoll context.
#[derive(Debug, Clone)]
pub(crate) struct Epoll {
    pub(crate) settings: EpollSettings,
    /// `ep->napi_id`: the queue that `epoll_wait` polls.
    pub(crate) napi: Option<usize>,
    /// Descriptors that may be ready, in the order in which they became so.
    pub(crate) ready: VecDeque<u32>,
    /// Threads that sleep in `epoll_wait`.
    pub(crate) waiters: VecDeque<usize>,
    /// The descriptor by which another epoll has this one.
    pub(crate) outer: Option<u32>,
    /// References to the file.
    pub(crate) references: usize,
}

impl Epoll {
    pub(crate) fn new(settings: EpollSettings, sockets: usize) -> Self {
        Self {
            settings,
            napi: None,
            ready: VecDeque::with_capacity(sockets),
            waiters: VecDeque::with_capacity(2),
            outer: None,
            references: 1,
        }
    }

    /// Whether it busy polls at all (`ep_busy_loop_on`); `sysctl_busy_poll_usecs` is
    /// `net.core.busy_poll`.
    pub(crate) fn busy_loop_on(&self, sysctl_busy_poll_usecs: u32) -> bool {
        self.settings.busy_poll_usecs > 0 || self.settings.prefer_busy_poll || sysctl_busy_poll_usecs > 0
    }

    /// A socket of `napi` was added or became ready (`ep_set_busy_poll_napi_id`).
    pub(crate) fn remember_napi(&mut self, napi: Option<usize>, sysctl_busy_poll_usecs: u32) {
        if napi.is_some() && self.busy_loop_on(sysctl_busy_poll_usecs) {
            self.napi = napi;
        }
    }

    /// Packets that one poll of its busy loop takes at most.
    pub(crate) fn budget(&self) -> u32 {
        budget(self.settings.busy_poll_budget)
    }

    /// How long the busy loop polls, in ns; 0: exactly one iteration. The kernel's µs here are
    /// 1,024 ns (`busy_loop_current_time`).
    pub(crate) fn loop_ns(&self, sysctl_busy_poll_usecs: u32) -> Ns {
        let usecs = match self.settings.busy_poll_usecs {
            0 => sysctl_busy_poll_usecs,
            usecs => usecs,
        };
        u64::from(usecs) * 1024
    }
}

/// Packets that one poll takes at most, where it is set to `budget`.
pub(crate) fn budget(budget: u16) -> u32 {
    if budget == 0 { DEFAULT_BUDGET.into() } else { budget.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PREFER: EpollSettings = EpollSettings { busy_poll_usecs: 0, busy_poll_budget: 0, prefer_busy_poll: true };

    #[test]
    fn the_last_socket_with_a_valid_id_decides_and_only_while_busy_polling_is_on() {
        let mut off = Epoll::new(EpollSettings::default(), 4);
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
    fn without_its_own_time_the_system_wide_one_counts() {
        let epoll = Epoll::new(PREFER, 1);
        assert_eq!((epoll.loop_ns(0), epoll.loop_ns(50)), (0, 51_200));
        assert!(Epoll::new(EpollSettings::default(), 1).busy_loop_on(50));
    }
}
