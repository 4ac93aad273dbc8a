//! Kernel counters during a scenario: polls by type of poller, interrupts, and packets received by busy polling. Absent
//! if the kernel does not count them.

use quell_linux::proc::{Interrupts, Netstat, ProcRoot};
use quell_linux::{NapiId, kernel};
use quell_mode::NAPI_POLL_WEIGHT;
use quell_sampler::{QueueSample, Sampler};

use super::queues::Queues;
use super::{PlayError, Site};
use crate::observe::ScenarioQueueCounters;
use crate::scenario::Scenario;

pub(super) struct Counting {
    /// NAPI IDs, each with its interrupt if the device has one.
    napis: Vec<(NapiId, Option<u32>)>,
    /// Absent if there is no NAPI instance to observe.
    polls: Option<Sampler>,
    /// Whether no busy poll has the budget of a softirq poll.
    budgets_differ: bool,
    netstat: Netstat,
    interrupts: Interrupts,
}

impl Counting {
    pub(super) fn begin(site: &Site, queues: &mut Queues, scenario: &Scenario) -> Result<Self, PlayError> {
        let irqs = queues.irqs(site)?;
        let napis = queues.ids();
        let polls = (!napis.is_empty()).then(|| Sampler::of(kernel::sysfs(), napis.iter().copied())).transpose()?;
        let napis = napis.iter().copied().zip(irqs).collect();
        // Drivers use the default weight for softirq polls.
        let budgets_differ = !scenario.busy_polls_with_budget(NAPI_POLL_WEIGHT);
        Ok(Self {
            napis,
            polls,
            budgets_differ,
            netstat: netstat(site)?,
            interrupts: ProcRoot::default().interrupts()?,
        })
    }

    /// Ends the measurement. Returns each queue's counts and `BusyPollRxPackets`.
    pub(super) fn end(self, site: &Site) -> Result<(Vec<ScenarioQueueCounters>, Option<u64>), PlayError> {
        let read = self.polls.as_ref().map(Sampler::read).transpose()?.unwrap_or_default();
        let interrupts = ProcRoot::default().interrupts()?;
        let queue = |(napi, irq): &(NapiId, Option<u32>)| ScenarioQueueCounters {
            interrupts: irq.and_then(|irq| count_since(&self.interrupts, &interrupts, irq)),
            ..read.get(napi).map_or_else(ScenarioQueueCounters::default, |counters| {
                self::queue(&counters.since(None), self.budgets_differ)
            })
        };
        let queues = self.napis.iter().map(queue).collect();
        let (before, after) = (self.netstat.busy_poll_rx_packets(), netstat(site)?.busy_poll_rx_packets());
        let busy_poll_rx_packets = before.zip(after).map(|(before, after)| after.saturating_sub(before));
        Ok((queues, busy_poll_rx_packets))
    }
}

fn count_since(before: &Interrupts, after: &Interrupts, irq: u32) -> Option<u64> {
    Some(after.irq(irq)?.total.saturating_sub(before.irq(irq)?.total))
}

fn netstat(site: &Site) -> Result<Netstat, PlayError> {
    Ok(site.application.namespace.run(|| ProcRoot::default().thread_self().netstat())??)
}

fn queue(sample: &QueueSample, budgets_differ: bool) -> ScenarioQueueCounters {
    let polls = sample.polls;
    let other_polls = polls.total() - polls.thread - polls.program;
    ScenarioQueueCounters {
        polls: Some(polls.total()),
        empty_polls: Some(sample.empty),
        busy_polls: Some(polls.program),
        thread_polls: Some(polls.thread),
        softirq_polls: budgets_differ.then(|| other_polls - polls.program_last),
        other_polls: Some(other_polls),
        ..ScenarioQueueCounters::default()
    }
}
