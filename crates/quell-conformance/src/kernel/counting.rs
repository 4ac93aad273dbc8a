//! What the kernel counts while a scenario is played: polls by who polled, and packets received by
//! busy polling. What it does not count is absent.

use quell_linux::bpf::{NapiPollCounter, NapiPolls};
use quell_linux::proc::{Netstat, ProcRoot};
use quell_linux::{NapiId, kernel};

use super::{PlayError, Site};
use crate::observe::Queue;

/// Counting under way.
pub(super) struct Counting {
    napis: Vec<NapiId>,
    /// Absent where there is no NAPI instance to watch.
    polls: Option<NapiPollCounter>,
    netstat: Netstat,
}

impl Counting {
    pub(super) fn begin(site: &Site, napis: &[NapiId]) -> Result<Self, PlayError> {
        let polls = (!napis.is_empty()).then(|| NapiPollCounter::attach(kernel::sysfs(), napis)).transpose()?;
        Ok(Self { napis: napis.to_vec(), polls, netstat: netstat(site)? })
    }

    /// Each queue's counts, and `BusyPollRxPackets`.
    pub(super) fn end(self, site: &Site) -> Result<(Vec<Queue>, Option<u64>), PlayError> {
        let read = self.polls.as_ref().map(NapiPollCounter::read).transpose()?.unwrap_or_default();
        let queues = self.napis.iter().map(|napi| read.get(napi).map_or_else(Queue::default, queue)).collect();
        let (before, after) = (self.netstat.busy_poll_rx_packets(), netstat(site)?.busy_poll_rx_packets());
        let busy_poll_rx_packets = before.zip(after).map(|(before, after)| after.saturating_sub(before));
        Ok((queues, busy_poll_rx_packets))
    }
}

fn netstat(site: &Site) -> Result<Netstat, PlayError> {
    Ok(site.application.namespace.run(|| ProcRoot::default().thread_self().netstat())??)
}

fn queue(polls: &NapiPolls) -> Queue {
    Queue {
        polls: Some(polls.polls),
        empty_polls: Some(polls.empty),
        busy_polls: Some(polls.by_busy_poll),
        thread_polls: Some(polls.by_thread),
        other_polls: Some(polls.by_softirq_or_last_of_busy_poll()),
        ..Queue::default()
    }
}
