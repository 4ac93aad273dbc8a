//! Finds the connections that may have an answer. The module documentation of `drive` explains the choice of methods.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use quell_linux::event::{Epoll, Ticker, Trigger};

use crate::connection::Socket;

pub(super) const TICK_TOKEN: u64 = u64::MAX;

pub(crate) enum Finder {
    /// The ticker wakes `epoll_wait` so that housekeeping can run.
    Epoll { epoll: Epoll, ticker: Ticker },
    /// Connections with outstanding requests, oldest first.
    BusyPoll(VecDeque<u32>),
}

impl Finder {
    /// Longest sleep of a thread in a closed loop. A run ends at most this much late.
    const TICK: Duration = Duration::from_millis(5);

    pub(crate) fn epoll(connections: usize) -> io::Result<Self> {
        let epoll = Epoll::new(connections + 1)?;
        let ticker = Ticker::new(Self::TICK)?;
        epoll.add(&ticker, TICK_TOKEN, Trigger::Edge)?;
        Ok(Self::Epoll { epoll, ticker })
    }

    pub(crate) fn add(&self, id: u32, socket: &Socket) -> io::Result<()> {
        match self {
            Self::Epoll { epoll, .. } => socket.watch(epoll, id.into()),
            Self::BusyPoll(_) => socket.busy_poll().map_err(io::Error::other),
        }
    }
}
