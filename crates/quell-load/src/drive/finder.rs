//! How a generator thread learns which connections may have an answer; why these ways is said at
//! the top of `drive`.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use quell_linux::event::{Epoll, Ticker, Trigger};

use crate::connection::Socket;

/// What the ticker is watched as.
pub(super) const TICK_TOKEN: u64 = u64::MAX;

/// How the thread finds answers.
pub(crate) enum Finder {
    /// The ticker ends waits for the sake of housekeeping.
    Epoll { epoll: Epoll, ticker: Ticker },
    /// The connections that have requests under way, by age.
    BusyPoll(VecDeque<u32>),
}

impl Finder {
    /// How long a thread may sleep in a closed loop; a run ends late by no more than this.
    const TICK: Duration = Duration::from_millis(5);

    /// An epoll for so many connections.
    pub(crate) fn epoll(connections: usize) -> io::Result<Self> {
        let epoll = Epoll::new(connections + 1)?;
        let ticker = Ticker::new(Self::TICK)?;
        epoll.add(&ticker, TICK_TOKEN, Trigger::Edge)?;
        Ok(Self::Epoll { epoll, ticker })
    }

    /// Prepares a connected socket to be found when it has an answer.
    pub(crate) fn add(&self, id: u32, socket: &Socket) -> io::Result<()> {
        match self {
            Self::Epoll { epoll, .. } => socket.watch(epoll, id.into()),
            Self::BusyPoll(_) => socket.busy_poll().map_err(io::Error::other),
        }
    }
}
