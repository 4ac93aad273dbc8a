//! What the tests of servers under a mode share: the mode, a load, and what can be seen of the mode from outside.

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
/// Long enough that a mode is attached and detached meanwhile, also on a busy machine.
pub(crate) const UNDER_LOAD: Effort = Effort::Closed { seconds: 4.0, expected_per_s: 100_000.0 };
/// Whether a queue is told what the mode says.
pub(crate) fn is_suspending(queue: &Napi) -> bool {
    let settings = queue.settings;
    (settings.defer_hard_irqs, settings.gro_flush_timeout_ns, settings.irq_suspend_timeout_ns)
        == (Some(100), Some(200_000), Some(20_000_000))
}

/// What the epolls are told; of none at all nothing can be said.
pub(crate) fn parameters(epolls: &[SeenEpoll]) -> Vec<EpollParams> {
    assert!(!epolls.is_empty(), "no epoll of the server has connections");
    epolls.iter().map(|epoll| epoll.params).collect()
}

/// What the mode tells an epoll.
pub(crate) const SUSPENDING: EpollParams =
    EpollParams { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true };

/// The share of polls of the lab's queues that threads other than the kernel's made while the server was loaded.
pub(crate) fn share_of_busy_polls(lab: &ServersLab, program: Program, server: &Server) -> Option<f64> {
    let ids: Vec<NapiId> = lab.queues().iter().map(|queue| queue.id).collect();
    let counter = NapiPollCounter::attach(kernel::sysfs(), &ids).ok()?;
    let found = lab.start_client(program.client(), server.address, Effort::WarmUp).end().unwrap();
    assert_eq!(found.failed, 0, "{found:?}");
    let polls = counter.read().unwrap();
    let sum = |of: fn(&NapiPolls) -> u64| polls.values().map(of).sum::<u64>() as f64;
    Some(sum(|polls| polls.by_busy_poll) / sum(|polls| polls.polls))
}
