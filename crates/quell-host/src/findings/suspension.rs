//! Rules about IRQ suspension: incomplete settings, suspension without effect, and queues that stay suspended.

use std::collections::BTreeMap;

use quell_linux::Pid;
use quell_linux::visible::counted;
use quell_mode::NapiAttribute;

use super::fix::Fix;
use super::sorting::{QueuePerEpoll, one_queue_per_epoll};
use super::text::time_text;
use super::{Observation, Rule, Severity};
use crate::attach::effect::{EffectOnQueue, ModeVerdict, suspension_of};
use crate::attach::no_poll::cause;
use crate::attach::own_work::has_backlog;
use crate::snapshot::query::{EpollContext, PACKETS_TO_JUDGE, SnapshotQuery, saturating_sum};
use crate::snapshot::{Device, Process, SnapshotNapi, WatchedKind};

pub(super) const RULES: &[&Rule] = &[
    &SUSPENSION_WITHOUT_DEFERRAL,
    &SUSPEND_TIMEOUT_TOO_SHORT,
    &NOBODY_PREFERS,
    &NESTED_EPOLL,
    &SUSPENSION_WITHOUT_EFFECT,
];

static SUSPENSION_WITHOUT_DEFERRAL: Rule = Rule {
    id: "suspension-without-deferral",
    severity: Severity::Serious,
    title: "a queue has irq-suspend-timeout but no deferral",
    impact: "Suspension only extends an existing deferral. Unless both defer-hard-irqs and gro-flush-timeout are set, \
          every completed poll re-enables the interrupt.",
    source: "net/core/dev.c, napi_complete_done; Documentation/networking/napi.rst, IRQ suspension; measured",
    explanation: "Detected if irq-suspend-timeout is set and defer-hard-irqs or gro-flush-timeout is 0. Fix: set both, \
                  defer-hard-irqs to 100 and gro-flush-timeout to at least 20 µs.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: suspension_without_deferral,
};

fn suspension_without_deferral(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let broken = |(device, napi): (&Device, &SnapshotNapi)| {
        let (count, timeout_ns) = napi.deferral()?;
        if !napi.suspends() || (count > 0 && timeout_ns > 0) {
            return None;
        }
        let mut values = Vec::new();
        if count == 0 {
            values.push((NapiAttribute::DeferHardIrqs, 100));
        }
        if timeout_ns == 0 {
            values.push((NapiAttribute::GroFlushTimeout, 20_000));
        }
        Some(Observation {
            severity: Severity::Serious,
            nodes: vec![query.napi_node(napi.id)],
            observed: format!(
                "defer-hard-irqs {count}, gro-flush-timeout {timeout_ns} ns, and irq-suspend-timeout is set"
            ),
            fix: vec![Fix::napi_set(query, device, napi, &values)],
        })
    };
    query.napis().filter_map(broken).collect()
}

static SUSPEND_TIMEOUT_TOO_SHORT: Rule = Rule {
    id: "suspend-timeout-too-short",
    severity: Severity::Warning,
    title: "irq-suspend-timeout does not exceed gro-flush-timeout",
    impact: "A suspension that ends no later than the deferral saves no polls.",
    source: "net/core/dev.c, napi_suspend_irqs and napi_watchdog: both arm the same timer",
    explanation: "Detected if irq-suspend-timeout is set to at most gro-flush-timeout. Fix: a value well above the \
                  time that the program needs for one batch of events, such as 20 ms; if gro-flush-timeout is at least \
                  10 ms, shorten it instead.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: suspend_timeout_too_short,
};

fn suspend_timeout_too_short(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let short = |(device, napi): (&Device, &SnapshotNapi)| {
        let (suspend, flush) = (*napi.irq_suspend_timeout_ns.known()?, *napi.gro_flush_timeout_ns.known()?);
        let wanted = flush.saturating_mul(2).max(20_000_000);
        (suspend > 0 && suspend <= flush).then(|| Observation {
            severity: Severity::Warning,
            nodes: vec![query.napi_node(napi.id)],
            observed: format!("irq-suspend-timeout is {}, gro-flush-timeout {}", time_text(suspend), time_text(flush)),
            fix: match flush < LONG_FLUSH_NS {
                true => vec![
                    Fix::advice("choose an irq-suspend-timeout well above gro-flush-timeout, such as 20 ms"),
                    Fix::napi_set(query, device, napi, &[(NapiAttribute::IrqSuspendTimeout, wanted)]),
                ],
                // A suspension of twice this time would delay packets as long.
                false => vec![
                    Fix::advice(
                        "choose a shorter gro-flush-timeout, such as 20 µs; packets wait for it after each suspension",
                    ),
                    Fix::napi_set(query, device, napi, &[(NapiAttribute::GroFlushTimeout, 20_000)]),
                ],
            },
        })
    };
    query.napis().filter_map(short).collect()
}

/// A gro-flush-timeout of at least this is too long, rather than the suspension too short.
const LONG_FLUSH_NS: u64 = 10_000_000;

static NOBODY_PREFERS: Rule = Rule {
    id: "no-epoll-prefers",
    severity: Severity::Warning,
    title: "a queue allows suspension, but no epoll on it prefers busy polling",
    impact: "Only an epoll with prefer_busy_poll suspends interrupts.",
    source: "fs/eventpoll.c, ep_suspend_napi_irqs",
    explanation: "Detected if irq-suspend-timeout is set on a queue, and none of the epolls with sockets on it has \
                  prefer_busy_poll. Programs outside the snapshot are not considered. Fix: set the epoll's parameter \
                  (quell attach; ioctl EPIOCSPARAMS), or set irq-suspend-timeout to 0.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: nobody_prefers,
};

fn nobody_prefers(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let mut observations = Vec::new();
    for (device, napi) in query.napis().filter(|(_, napi)| napi.suspends()) {
        let epolls: Vec<&EpollContext<'_>> = query.epolls_on(napi.id).collect();
        if epolls.is_empty() || epolls.iter().any(|epoll| epoll.params.is_none_or(|params| params.prefer_busy_poll)) {
            continue;
        }
        let mut nodes = vec![query.napi_node(napi.id)];
        nodes.extend(epolls.iter().flat_map(|epoll| epoll.nodes()));
        nodes.dedup();
        // A mode that polls is refused for an epoll that keeps the connections of several queues.
        let (mixing, others): (Vec<_>, Vec<_>) =
            epolls.iter().copied().partition(|epoll| cannot_be_sorted(query, epoll));
        let by_program = "let the program set prefer_busy_poll on its epoll (ioctl EPIOCSPARAMS)";
        let first = match mixing.first() {
            Some(epoll) if others.is_empty() => one_queue_per_epoll(query, epoll),
            _ => Fix::attach(query, napi, &others.iter().map(|epoll| epoll.process).collect::<Vec<_>>(), by_program),
        };
        observations.push(Observation {
            severity: Severity::Warning,
            nodes,
            observed: format!("{} on it, none with prefer_busy_poll", counted(epolls.len(), "epoll")),
            fix: vec![
                first,
                Fix::napi_set(query, device, napi, &[(NapiAttribute::IrqSuspendTimeout, 0)])
                    .instead("to end suspension"),
            ],
        });
    }
    observations
}

/// Whether an epoll has connections of several queues, which a filter cannot change.
fn cannot_be_sorted(query: &SnapshotQuery<'_>, epoll: &EpollContext<'_>) -> bool {
    epoll.by_napi.len() > 1 && QueuePerEpoll::of(query, epoll) != QueuePerEpoll::Steered
}

static NESTED_EPOLL: Rule = Rule {
    id: "nested-epoll",
    severity: Severity::Warning,
    title: "an epoll that prefers busy polling watches another epoll",
    impact: "An epoll gets its queue only from sockets that it watches directly, so waiting on the outer epoll polls \
          nothing.",
    source: "fs/eventpoll.c, ep_set_busy_poll_napi_id: the watched file has to be a socket",
    explanation: "Detected if an epoll with prefer_busy_poll or busy_poll_usecs watches another epoll and no socket \
                  with a queue. Fix: wait on the inner epoll.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: nested_epoll,
};

fn nested_epoll(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let outer = query.epolls().filter(|epoll| epoll.polls() && epoll.by_napi.is_empty());
    let observation = |epoll: &EpollContext<'_>| {
        let (inner, _, _) = epoll.others.iter().find(|(_, kind, _)| **kind == WatchedKind::Epoll)?;
        Some(Observation {
            severity: Severity::Warning,
            nodes: epoll.nodes(),
            observed: format!("it watches epoll {} and no socket with a queue", inner.fd),
            fix: vec![Fix::advice(format!("let the program wait on epoll {} itself", inner.fd))],
        })
    };
    outer.filter_map(observation).collect()
}

static SUSPENSION_WITHOUT_EFFECT: Rule = Rule {
    id: "suspension-without-effect",
    severity: Severity::Warning,
    title: "a queue allows suspension, but timers poll it",
    impact: "While a queue is suspended, polls by the program replace most softirqs and timer interrupts of deferral.",
    source: "measured per 1,000 requests: NET_RX softirqs 4,000 with deferral and 1,000 with suspension, timer \
             interrupts 3,400 and 125; packets per interrupt and BusyPollRxPackets do not distinguish the two",
    explanation: "Samples the polls of the queue, as quell attach does: polls by the program should find the interrupt \
                  suspended. No verdict if the programs used less than 1 µs of CPU time per packet: the packets are \
                  those of others. Without CAP_BPF and CAP_PERFMON, and for snapshots from files, compares softirqs \
                  and timer interrupts per packet on the CPU that does the queue's packet work. This needs a thread \
                  that serves the queue and runs at least 80 % of the time: below that, suspension ends as designed. \
                  No verdict if a kernel thread polls the queue, or if the ratios lie between those of suspension and \
                  deferral. Fix: if the program never polls, remove the cause that its snapshot shows; otherwise, a \
                  longer irq-suspend-timeout.",
    needs_two: true,
    judges_settings: true,
    stalls: false,
    examine: suspension_without_effect,
};

/// CPU share of the thread below which the queue sometimes runs empty.
const NEAR_SATURATION: f64 = 0.8;
/// Softirqs per received packet. A request takes two packets: the request itself and the acknowledgement of its
/// response. The limits lie between the ratios measured with suspension (0.5 and 0.06) and with deferral (2 and 1.7).
const SOFTIRQS_IF_HELD: f64 = 0.7;
const SOFTIRQS_IF_NOT: f64 = 1.2;
const TIMERS_IF_HELD: f64 = 0.3;
const TIMERS_IF_NOT: f64 = 0.8;

fn suspension_without_effect(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let suspending = query.napis().filter(|(_, napi)| napi.suspends());
    let preferred = suspending.filter(|(_, napi)| query.epolls_on(napi.id).any(EpollContext::prefers));
    preferred.filter_map(|(device, napi)| judge_effect(query, device, napi)).collect()
}

fn judge_effect(query: &SnapshotQuery<'_>, device: &Device, napi: &SnapshotNapi) -> Option<Observation> {
    let observation = |severity, observed: String, fix| {
        let holders = query.epolls_on(napi.id).filter(|epoll| epoll.prefers()).flat_map(EpollContext::nodes);
        let nodes = std::iter::once(query.napi_node(napi.id)).chain(holders).collect();
        Some(Observation { severity, nodes, observed, fix })
    };
    let cannot_tell = |why: &str| observation(Severity::CannotTell, why.to_owned(), Vec::new());
    // Longer than the present one, and at least that of the published measurements.
    let longer = || {
        let present_ns = napi.irq_suspend_timeout_ns.known().copied().unwrap_or_default();
        let wanted_ns = present_ns.saturating_mul(2).max(20_000_000);
        Fix::napi_set(query, device, napi, &[(NapiAttribute::IrqSuspendTimeout, wanted_ns)])
    };
    if let Some((sample, interval_ns)) = query.polls(napi.id).zip(query.interval_ns()) {
        let programs: BTreeMap<Pid, &Process> = query
            .epolls_on(napi.id)
            .filter(|epoll| epoll.prefers())
            .map(|epoll| (epoll.process.pid, epoll.process))
            .collect();
        let pids = programs.keys().copied().collect();
        let observed = EffectOnQueue {
            programs_cpu_ns: saturating_sum(programs.values().map(|process| query.cpu_ns(process))),
            programs_cpu_wait_ns: saturating_sum(programs.values().map(|process| query.cpu_wait_ns(process))),
            ..EffectOnQueue::of(napi.id, interval_ns, sample)
        };
        let observed = observed.with_backlog(has_backlog(query.now, &pids));
        let timeout_ns = *napi.irq_suspend_timeout_ns.known()?;
        return match suspension_of(&observed, timeout_ns, || cause(query, &pids, napi.id)) {
            (ModeVerdict::InEffect(_), _) => None,
            // The finding `stalled-queue` is about it.
            _ if sample.wait.has_stalled() => None,
            (ModeVerdict::NotInEffect(observed), fix) => {
                let is_polled = sample.polls.program + sample.polls.program_last > 0;
                let fix = fix.or_else(|| is_polled.then(longer));
                observation(Severity::Warning, observed, fix.into_iter().collect())
            }
            (ModeVerdict::CannotTell(why), _) => cannot_tell(&why),
        };
    }
    let share = |epoll: &EpollContext<'_>| {
        let shares = epoll.waiters.iter().filter_map(|(thread, _)| query.busy_share(epoll.process, thread));
        shares.reduce(f64::max)
    };
    let load = query.epolls_on(napi.id).filter_map(share).reduce(f64::max);
    let Some(load) = load else {
        return cannot_tell("the thread that serves the queue or its run time is unknown");
    };
    if load < NEAR_SATURATION {
        return cannot_tell(&format!(
            "no verdict at this load: the thread that serves the queue ran {:.0} % of the time; below {:.0} % \
             suspension lapses as designed",
            load * 100.0,
            NEAR_SATURATION * 100.0
        ));
    }
    if matches!(napi.thread.known(), Some(Some(_))) {
        return cannot_tell("a kernel thread polls the queue, so per-CPU softirq counters do not apply");
    }
    let cpus = query.packet_cpus(napi);
    let cpu = cpus.as_ref().filter(|cpus| cpus.len() == 1).and_then(|cpus| cpus.iter().next());
    let Some((before, now)) = cpu.and_then(|cpu| query.cpu_pair(cpu)) else {
        return cannot_tell("the CPU that does its packet work is unknown");
    };
    let Some(packets) = query.queue_packets(device, napi.id).filter(|&packets| packets >= PACKETS_TO_JUDGE) else {
        return cannot_tell("too few packets in the queue's counters");
    };
    let per_packet = |then: Option<&u64>, now: Option<&u64>| Some(now?.checked_sub(*then?)? as f64 / packets as f64);
    let (then, now) = (&before.counters, &now.counters);
    let softirqs = per_packet(then.net_rx_softirqs.known(), now.net_rx_softirqs.known());
    let timers = per_packet(then.timer_interrupts.known(), now.timer_interrupts.known());
    let Some((softirqs, timers)) = softirqs.zip(timers) else {
        return cannot_tell("softirq or timer interrupt counters are not available");
    };
    let observed =
        format!("{softirqs:.2} softirqs and {timers:.2} timer interrupts per packet at {:.0} % load", load * 100.0);
    if softirqs < SOFTIRQS_IF_HELD && timers < TIMERS_IF_HELD {
        return None;
    }
    if softirqs > SOFTIRQS_IF_NOT && timers > TIMERS_IF_NOT {
        return observation(Severity::Warning, observed, vec![longer()]);
    }
    cannot_tell(&format!("{observed}: between the ratios measured for suspension and deferral"))
}
