//! Shared by the tests of servers under a mode: the mode, a load, and observations of the mode from outside.

use quell_linux::NapiId;
use quell_linux::bpf::{NapiPollCounter, NapiPolls};
use quell_linux::epoll_params::EpollParams;
use quell_linux::kernel;
use quell_linux::netdev::Napi;

use crate::client::Effort;
use crate::lab::{SeenEpoll, Server, ServersLab};
use crate::program::Program;

/// The mode of the tests.
pub(crate) const MODE: &str = "suspend200";
/// Long enough to attach and detach a mode during the load, even on a busy machine.
pub(crate) const UNDER_LOAD: Effort = Effort::Closed { seconds: 4.0, expected_per_s: 100_000.0 };
/// Whether a queue has the values of the mode.
pub(crate) fn is_suspending(queue: &Napi) -> bool {
    let settings = queue.settings;
    (settings.defer_hard_irqs, settings.gro_flush_timeout_ns, settings.irq_suspend_timeout_ns)
        == (Some(100), Some(200_000), Some(20_000_000))
}

/// Parameters of the epolls. Fails without epolls, because nothing could be checked.
pub(crate) fn parameters(epolls: &[SeenEpoll]) -> Vec<EpollParams> {
    assert!(!epolls.is_empty(), "no epoll of the server has connections");
    epolls.iter().map(|epoll| epoll.params).collect()
}

/// Parameters that the mode sets on an epoll.
pub(crate) const SUSPENDING: EpollParams =
    EpollParams { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true };

/// Share of polls of the lab's queues under load that were made by threads other than kernel threads.
pub(crate) fn share_of_busy_polls(lab: &ServersLab, program: Program, server: &Server) -> Option<f64> {
    let ids: Vec<NapiId> = lab.queues().iter().map(|queue| queue.id).collect();
    let counter = NapiPollCounter::attach(kernel::sysfs(), &ids).ok()?;
    let found = lab.start_client(program.client(), server.address, Effort::WarmUp).end().unwrap();
    assert_eq!(found.failed, 0, "{found:?}");
    let polls = counter.read().unwrap();
    let sum = |of: fn(&NapiPolls) -> u64| polls.values().map(of).sum::<u64>() as f64;
    Some(sum(|polls| polls.by_busy_poll) / sum(|polls| polls.polls))
}
