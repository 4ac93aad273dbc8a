//! External events on the kernel, in time order: datagrams from the peer, changed settings, and raised events.

use quell_linux::event::{Epoll, WakeEvent};
use quell_linux::udp::UdpSocket;
use quell_linux::{clock, epoll_params};
use quell_mode::{EpollParams, NapiSettings};

use super::queues::Queues;
use super::sockets::Sockets;
use super::start::wait_until;
use super::{PlayError, failed};
use crate::scenario::{ChangeKind, Scenario};

pub(super) struct Outside<'a> {
    /// Actions with their times, in ns since the start of the scenario.
    moments: Vec<(u64, Action<'a>)>,
    queues: Queues,
}

enum Action<'a> {
    Send { number: u32, by: &'a UdpSocket },
    Napi { queue: usize, settings: NapiSettings },
    Epoll { epoll: Epoll, settings: EpollParams },
    Raise(&'a WakeEvent),
}

impl<'a> Outside<'a> {
    pub(super) fn new(
        scenario: &'a Scenario,
        sockets: &'a Sockets,
        epolls: &[Epoll],
        queues: Queues,
    ) -> Result<Self, PlayError> {
        let packets = scenario.packets.iter().flat_map(|packet| packet.to.iter().map(|&to| (packet.at.0, to)));
        let mut moments: Vec<(u64, Action<'a>)> = packets
            .zip(0u32..)
            .filter_map(|((at_ns, to), number)| Some((at_ns, Action::Send { number, by: sockets.sender(to)? })))
            .collect();
        for change in &scenario.changes {
            let action = match change.what {
                ChangeKind::Napi { queue, settings } => Some(Action::Napi { queue, settings }),
                ChangeKind::Epoll { epoll, settings } => {
                    let epoll = epolls[epoll].duplicate().map_err(failed("duplicate an epoll"))?;
                    Some(Action::Epoll { epoll, settings })
                }
                ChangeKind::Raise(event) => sockets.event(event).map(Action::Raise),
            };
            moments.extend(action.map(|action| (change.at.0, action)));
        }
        moments.sort_by_key(|(at_ns, _)| *at_ns);
        Ok(Self { moments, queues })
    }

    /// Runs the actions. Returns the times at which messages were sent, in ns since `begins_ns`, in file order.
    pub(super) fn happen(mut self, begins_ns: u64) -> Result<Vec<u64>, PlayError> {
        let messages = self.moments.iter().filter(|(_, action)| matches!(action, Action::Send { .. })).count();
        let mut sent = vec![0; messages];
        for (at_ns, action) in self.moments {
            wait_until(begins_ns + at_ns);
            match action {
                Action::Send { number, by } => {
                    sent[number as usize] = clock::monotonic_ns().saturating_sub(begins_ns);
                    by.send(&number.to_ne_bytes()).map_err(failed("send a message"))?;
                }
                Action::Napi { queue, settings } => self.queues.set(queue, &settings)?,
                // Drop this reference to the epoll at once. An application may be about to close what must be the last
                // one.
                Action::Epoll { epoll, settings } => epoll_params::set(&epoll, settings)?,
                Action::Raise(event) => event.raise().map_err(failed("raise an eventfd"))?,
            }
        }
        Ok(sent)
    }
}
