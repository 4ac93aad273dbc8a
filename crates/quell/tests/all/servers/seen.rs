//! Shared by the tests of servers under a mode: the mode, a load, and observations of the mode from outside.

use quell_linux::epoll_params::EpollParams;
use quell_linux::kernel;
use quell_linux::netdev::Napi;
use quell_sampler::{PollsByPoller, Sampler};

use super::client::Effort;
use super::lab::{SeenEpoll, Server, ServersLab};
use super::program::Program;

/// The mode of the tests.
pub(crate) const MODE: &str = "suspend200";
/// Long enough to find the server's epolls, and to attach or detach a mode, on a busy machine. An attach that also
/// watches its effect can take longer.
pub(crate) const UNDER_LOAD: Effort = Effort::Closed { seconds: 12.0, expected_per_s: 100_000.0 };
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
    let sampler = Sampler::of(kernel::sysfs(), lab.queues().iter().map(|queue| queue.id)).ok()?;
    let found = lab.start_client(program.client(), server.address, Effort::WarmUp).end().unwrap();
    assert_eq!(found.failed, 0, "{found:?}");
    let counters = sampler.read().unwrap();
    let sum =
        |of: fn(PollsByPoller) -> u64| counters.values().map(|read| of(read.since(None).polls)).sum::<u64>() as f64;
    Some(sum(|polls| polls.program + polls.program_last) / sum(|polls| polls.total()))
}
