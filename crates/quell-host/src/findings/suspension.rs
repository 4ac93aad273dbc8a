//! Rules about IRQ suspension: whether it can work, whether it does, and what keeps a queue suspended that should not
//! be.

use super::mend::Mend;
use super::view::{EpollView, PACKETS_TO_JUDGE, View, counted, deferral, suspends, time_text};
use super::{Node, Observation, Rule, Severity};
use crate::picture::{Device, Napi, WatchedKind, WatchedTarget};

pub(super) const RULES: &[&Rule] = &[
    &READY_FILE,
    &SUSPENSION_WITHOUT_DEFERRAL,
    &SUSPEND_TIMEOUT_TOO_SHORT,
    &NOBODY_PREFERS,
    &NESTED_EPOLL,
    &SUSPENSION_WITHOUT_EFFECT,
];

/// ID of the rule about files that stay ready.
pub const READY_FILE_HOLDS_SUSPENSION: &str = "ready-file-holds-suspension";

static READY_FILE: Rule = Rule {
    id: READY_FILE_HOLDS_SUSPENSION,
    severity: Severity::Serious,
    title: "a file without a queue stays ready in an epoll that suspends interrupts",
    why: "Every epoll_wait that reports it arms the suspension anew and never polls the device, so network events wait \
          for ever: irq-suspend-timeout is no safety net against it.",
    source: "fs/eventpoll.c, ep_poll and ep_send_events; measured: no network event in 2 s with a timeout of 20 ms",
    explanation: "Seen: an epoll with prefer_busy_poll, on a queue with irq-suspend-timeout, watches an eventfd, pipe, \
                  timerfd or unix socket that was ready when the picture was taken, and reports it by each wait (neither \
                  EPOLLET nor EPOLLONESHOT). Serious when it was ready in both of \
                  two pictures; a warning with one, for a program that is just about to read it looks the same. Mended \
                  by reading the file, or by watching it in an epoll of its own.",
    needs_two: false,
    examine: ready_file,
};

fn ready_file(view: &View<'_>) -> Vec<Observation> {
    let suspending = view.epolls.iter().filter(|epoll| epoll.prefers() && on_suspending_queue(view, epoll));
    let ready = suspending.flat_map(|epoll| {
        let others = epoll.others.iter().filter(|(target, _, _)| is_reported_by_each_wait(target));
        let ready = others.filter(|(_, _, ready)| ready.known() == Some(&true));
        ready.map(move |(target, kind, _)| (epoll, target.fd, *kind))
    });
    ready.map(|(epoll, fd, kind)| of_ready_file(view, epoll, fd, kind)).collect()
}

/// A file that is reported only once, when it becomes ready, does not prevent the next wait from polling the queue.
fn is_reported_by_each_wait(target: &WatchedTarget) -> bool {
    const EPOLLONESHOT: u32 = 1 << 30;
    const EPOLLET: u32 = 1 << 31;
    target.events & (EPOLLONESHOT | EPOLLET) == 0
}

fn of_ready_file(view: &View<'_>, epoll: &EpollView<'_>, fd: i32, kind: &WatchedKind) -> Observation {
    let then = was_ready_before(view, epoll, fd);
    let (severity, when) = match then {
        Some(true) => (Severity::Serious, "in both pictures"),
        Some(false) => (Severity::Note, "in the second picture and not in the first"),
        None => (Severity::Warning, "when the picture was taken"),
    };
    let mut nodes = epoll.nodes();
    nodes.push(Node::File { pid: epoll.process.pid, fd });
    let advice = "let the program read it until it would block, or watch it in another epoll";
    Observation {
        severity,
        nodes,
        seen: format!("file {fd}, {}, was ready {when}", kind_in_words(kind)),
        mend: vec![Mend::advice(advice)],
    }
}

/// Whether the same file was ready in the earlier snapshot; absent when unknown.
fn was_ready_before(view: &View<'_>, epoll: &EpollView<'_>, fd: i32) -> Option<bool> {
    let before = view.before()?.processes.iter().find(|process| process.pid == epoll.process.pid)?;
    let before = before.files.known()?.epolls.iter().find(|other| other.fd == epoll.epoll.fd)?;
    let target = before.targets.known()?.iter().find(|target| target.fd == fd)?;
    match &target.file {
        crate::picture::WatchedFile::Other { ready, .. } => ready.known().copied(),
        crate::picture::WatchedFile::Socket { .. } => None,
    }
}

fn kind_in_words(kind: &WatchedKind) -> &str {
    match kind {
        WatchedKind::EventFd => "an eventfd",
        WatchedKind::TimerFd => "a timerfd",
        WatchedKind::SignalFd => "a signalfd",
        WatchedKind::Pipe => "a pipe",
        WatchedKind::Epoll => "another epoll",
        WatchedKind::OtherSocket => "a socket without a queue",
        WatchedKind::Named(name) => name,
        WatchedKind::Unnamed => "a file that has lost its number",
    }
}

fn on_suspending_queue(view: &View<'_>, epoll: &EpollView<'_>) -> bool {
    epoll.by_napi.keys().any(|&id| view.napi(id).is_some_and(|(_, napi)| suspends(napi)))
}

static SUSPENSION_WITHOUT_DEFERRAL: Rule = Rule {
    id: "suspension-without-deferral",
    severity: Severity::Serious,
    title: "a queue is told to suspend, but not to defer",
    why: "Suspension only lengthens a deferral that is there: without both defer-hard-irqs and gro-flush-timeout the \
          interrupt comes back with every completed poll.",
    source: "net/core/dev.c, napi_complete_done; Documentation/networking/napi.rst, IRQ suspension; measured",
    explanation: "Seen: irq-suspend-timeout is set, and defer-hard-irqs or gro-flush-timeout is 0. Mended by setting both, \
                  defer-hard-irqs to 100 and gro-flush-timeout to 20 µs or more.",
    needs_two: false,
    examine: suspension_without_deferral,
};

fn suspension_without_deferral(view: &View<'_>) -> Vec<Observation> {
    let broken = |(device, napi): (&Device, &Napi)| {
        let (count, timeout_ns) = deferral(napi)?;
        if !suspends(napi) || (count > 0 && timeout_ns > 0) {
            return None;
        }
        let mut values = Vec::new();
        if count == 0 {
            values.push(("defer-hard-irqs", 100));
        }
        if timeout_ns == 0 {
            values.push(("gro-flush-timeout", 20_000));
        }
        Some(Observation {
            severity: Severity::Serious,
            nodes: vec![view.napi_node(napi.id)],
            seen: format!("defer-hard-irqs {count}, gro-flush-timeout {timeout_ns} ns, and irq-suspend-timeout is set"),
            mend: vec![Mend::napi_set(view, device, napi.id, &values)],
        })
    };
    view.napis().filter_map(broken).collect()
}

static SUSPEND_TIMEOUT_TOO_SHORT: Rule = Rule {
    id: "suspend-timeout-too-short",
    severity: Severity::Warning,
    title: "irq-suspend-timeout is not above gro-flush-timeout",
    why: "A suspension that ends no later than the deferral would have ended saves no poll.",
    source: "net/core/dev.c, napi_suspend_irqs and napi_watchdog: both arm the same timer",
    explanation: "Seen: irq-suspend-timeout is set, and at most gro-flush-timeout. Mended by a value well above the time \
                  that the program works on one batch of events; 20 ms is what the published measurements used.",
    needs_two: false,
    examine: suspend_timeout_too_short,
};

fn suspend_timeout_too_short(view: &View<'_>) -> Vec<Observation> {
    let short = |(device, napi): (&Device, &Napi)| {
        let (suspend, flush) = (*napi.irq_suspend_timeout_ns.known()?, *napi.gro_flush_timeout_ns.known()?);
        let wanted = flush.saturating_mul(2).max(20_000_000);
        (suspend > 0 && suspend <= flush).then(|| Observation {
            severity: Severity::Warning,
            nodes: vec![view.napi_node(napi.id)],
            seen: format!("irq-suspend-timeout is {}, gro-flush-timeout {}", time_text(suspend), time_text(flush)),
            mend: vec![Mend::napi_set(view, device, napi.id, &[("irq-suspend-timeout", wanted)])],
        })
    };
    view.napis().filter_map(short).collect()
}

static NOBODY_PREFERS: Rule = Rule {
    id: "no-epoll-prefers",
    severity: Severity::Warning,
    title: "a queue may suspend, but no epoll on it prefers busy polling",
    why: "Only an epoll with prefer_busy_poll suspends interrupts; for all others the queue is merely deferred.",
    source: "fs/eventpoll.c, ep_suspend_napi_irqs",
    explanation: "Seen: irq-suspend-timeout is set on a queue, epolls have sockets on it, the parameters of all of them \
                  are known, and none has prefer_busy_poll. Not seen are programs outside of the picture. Mended by \
                  giving the epoll the parameter (quell attach; ioctl EPIOCSPARAMS), or by setting irq-suspend-timeout to 0.",
    needs_two: false,
    examine: nobody_prefers,
};

fn nobody_prefers(view: &View<'_>) -> Vec<Observation> {
    let mut observations = Vec::new();
    for (device, napi) in view.napis().filter(|(_, napi)| suspends(napi)) {
        let epolls: Vec<&EpollView<'_>> = view.epolls_on(napi.id).collect();
        if epolls.is_empty() || epolls.iter().any(|epoll| epoll.params.is_none_or(|params| params.prefer_busy_poll)) {
            continue;
        }
        let mut nodes = vec![view.napi_node(napi.id)];
        nodes.extend(epolls.iter().flat_map(|epoll| epoll.nodes()));
        nodes.dedup();
        observations.push(Observation {
            severity: Severity::Warning,
            nodes,
            seen: format!("{} on it, none with prefer_busy_poll", counted(epolls.len(), "epoll")),
            mend: vec![
                Mend::attach(
                    napi,
                    &epolls.iter().map(|epoll| epoll.process.pid).collect(),
                    "let the program set prefer_busy_poll on its epoll (ioctl EPIOCSPARAMS)",
                ),
                Mend::napi_set(view, device, napi.id, &[("irq-suspend-timeout", 0)]),
            ],
        });
    }
    observations
}

static NESTED_EPOLL: Rule = Rule {
    id: "nested-epoll",
    severity: Severity::Warning,
    title: "an epoll that prefers busy polling waits for another epoll",
    why: "An epoll learns its queue from the sockets that it watches itself; an epoll within it gives it none, so waiting \
          on the outer one polls nothing.",
    source: "fs/eventpoll.c, ep_set_busy_poll_napi_id: the watched file has to be a socket",
    explanation: "Seen: an epoll with prefer_busy_poll or busy_poll_usecs watches another epoll and no socket that arrives \
                  by a queue. Mended by waiting on the inner one.",
    needs_two: false,
    examine: nested_epoll,
};

fn nested_epoll(view: &View<'_>) -> Vec<Observation> {
    let outer = view.epolls.iter().filter(|epoll| epoll.polls() && epoll.by_napi.is_empty());
    let observation = |epoll: &EpollView<'_>| {
        let (inner, _, _) = epoll.others.iter().find(|(_, kind, _)| **kind == WatchedKind::Epoll)?;
        Some(Observation {
            severity: Severity::Warning,
            nodes: epoll.nodes(),
            seen: format!("it watches epoll {} and no socket that arrives by a queue", inner.fd),
            mend: vec![Mend::advice(format!("let the program wait on epoll {} itself", inner.fd))],
        })
    };
    outer.filter_map(observation).collect()
}

static SUSPENSION_WITHOUT_EFFECT: Rule = Rule {
    id: "suspension-without-effect",
    severity: Severity::Warning,
    title: "a queue is told to suspend, and is polled by timers all the same",
    why: "Near saturation a suspended queue is polled by the program; softirqs and timer interrupts as often as under mere \
          deferral mean that the suspension never holds.",
    source: "measured per 1,000 requests: NET_RX softirqs 4,000 with deferral and 1,000 with suspension, timer interrupts \
             3,400 and 125; packets per interrupt and BusyPollRxPackets tell nothing",
    explanation: "Compared over two pictures, on the CPU that does the queue's packet work: softirqs and timer interrupts \
                  for each packet. Below 80 % load of the thread that serves the queue the answer is that it cannot be \
                  told: there the queue drains, and suspension lapses as designed. It cannot be told either for a queue \
                  that a kernel thread polls, for that CPU's other queues, or between the two measured ratios. Mended by \
                  what the other rules say about the same queue; without them, by a longer irq-suspend-timeout.",
    needs_two: true,
    examine: suspension_without_effect,
};

/// CPU share below which the queue runs dry now and then.
const NEAR_SATURATION: f64 = 0.8;
/// Softirqs per received packet; a request is two packets, itself and the acknowledgement of its response. The limits
/// lie between the ratios measured with suspension (0.5 and 0.06) and with deferral (2 and 1.7).
const SOFTIRQS_IF_HELD: f64 = 0.7;
const SOFTIRQS_IF_NOT: f64 = 1.2;
const TIMERS_IF_HELD: f64 = 0.3;
const TIMERS_IF_NOT: f64 = 0.8;

fn suspension_without_effect(view: &View<'_>) -> Vec<Observation> {
    let suspending = view.napis().filter(|(_, napi)| suspends(napi));
    let preferred = suspending.filter(|(_, napi)| view.epolls_on(napi.id).any(EpollView::prefers));
    preferred.filter_map(|(device, napi)| judge_effect(view, device, napi)).collect()
}

fn judge_effect(view: &View<'_>, device: &Device, napi: &Napi) -> Option<Observation> {
    let observation =
        |severity, seen: String, mend| Some(Observation { severity, nodes: vec![view.napi_node(napi.id)], seen, mend });
    let cannot_tell = |why: &str| observation(Severity::CannotTell, why.to_owned(), Vec::new());
    let share = |epoll: &EpollView<'_>| {
        let shares = epoll.waiters.iter().filter_map(|(thread, _)| view.busy_share(epoll.process, thread));
        shares.reduce(f64::max)
    };
    let load = view.epolls_on(napi.id).filter_map(share).reduce(f64::max);
    let Some(load) = load else {
        return cannot_tell("which thread serves the queue, or how much it ran, is not known");
    };
    if load < NEAR_SATURATION {
        return cannot_tell(&format!(
            "cannot tell at this load: the thread that serves it ran {:.0} % of the time, and below {:.0} % suspension \
             lapses as designed",
            load * 100.0,
            NEAR_SATURATION * 100.0
        ));
    }
    if matches!(napi.thread.known(), Some(Some(_))) {
        return cannot_tell("a kernel thread polls it, so its softirqs are not counted by CPU");
    }
    let cpus = view.packet_cpus(napi);
    let cpu = cpus.as_ref().filter(|cpus| cpus.len() == 1).and_then(|cpus| cpus.iter().next());
    let Some((before, now)) = cpu.and_then(|cpu| view.cpu_pair(cpu)) else {
        return cannot_tell("which CPU does its packet work is not known");
    };
    let Some(packets) = view.queue_packets(device, napi.id).filter(|&packets| packets >= PACKETS_TO_JUDGE) else {
        return cannot_tell("too few packets were counted by queue");
    };
    let per_packet = |then: Option<&u64>, now: Option<&u64>| Some(now?.checked_sub(*then?)? as f64 / packets as f64);
    let (then, now) = (&before.counters, &now.counters);
    let softirqs = per_packet(then.net_rx_softirqs.known(), now.net_rx_softirqs.known());
    let timers = per_packet(then.timer_interrupts.known(), now.timer_interrupts.known());
    let Some((softirqs, timers)) = softirqs.zip(timers) else {
        return cannot_tell("softirqs or timer interrupts are not counted here");
    };
    let seen = format!(
        "{softirqs:.2} softirqs and {timers:.2} timer interrupts for each packet at {:.0} % load",
        load * 100.0
    );
    if softirqs < SOFTIRQS_IF_HELD && timers < TIMERS_IF_HELD {
        return None;
    }
    if softirqs > SOFTIRQS_IF_NOT && timers > TIMERS_IF_NOT {
        let longer = Mend::napi_set(view, device, napi.id, &[("irq-suspend-timeout", 20_000_000)]);
        return observation(Severity::Warning, seen, vec![longer]);
    }
    cannot_tell(&format!("{seen}: between what suspension and deferral were measured at"))
}
