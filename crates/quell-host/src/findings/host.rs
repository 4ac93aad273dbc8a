//! Rules about the whole host: sysctls that affect every program, and services that override settings.

use super::fix::Fix;
use super::{Node, Observation, Rule, Severity};
use crate::snapshot::query::SnapshotQuery;
use crate::snapshot::{Reading, Service};

pub(super) const RULES: &[&Rule] = &[&SYSTEM_WIDE, &SERVICES];

static SYSTEM_WIDE: Rule = Rule {
    id: "system-wide-busy-poll",
    severity: Severity::Warning,
    title: "busy polling is enabled for every program on the host",
    why: "net.core.busy_poll makes every poll, select and epoll_wait spin; net.core.busy_read makes every blocking \
          receive spin, even in programs that only wait for a file. It also replaces the single non-spinning poll of \
          prefer_busy_poll.",
    source: "fs/eventpoll.c, ep_busy_loop_on; include/net/busy_poll.h; Documentation/admin-guide/sysctl/net.rst",
    explanation: "Detected if one of the two sysctls is not 0. Fix: set it to 0, and set the parameters of the epolls \
                  that should poll. tuned's profile network-latency sets both.",
    needs_two: false,
    examine: system_wide,
};

fn system_wide(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let sysctls = [
        ("net.core.busy_poll", &query.now.sysctls.busy_poll_us),
        ("net.core.busy_read", &query.now.sysctls.busy_read_us),
    ];
    let on = |(name, reading): (&str, &Reading<u32>)| {
        let us = reading.known().filter(|&&us| us > 0)?;
        Some(Observation {
            severity: Severity::Warning,
            nodes: vec![Node::Host],
            seen: format!("{name} is {us} µs"),
            fix: vec![Fix::command(&["sysctl", "-w", &format!("{name}=0")])],
        })
    };
    sysctls.into_iter().filter_map(on).collect()
}

static SERVICES: Rule = Rule {
    id: "service-undoes-settings",
    severity: Severity::Warning,
    title: "a running service sets interrupts, CPUs or sysctls by its own rules",
    why: "irqbalance moves interrupts every ten seconds; tuned sets sysctls and governors when it applies a profile. \
          Both override manual placement.",
    source: "irqbalance(1); tuned-profiles(7), network-latency",
    explanation: "Detected if a process of that name runs. A warning if a queue in the snapshot defers or suspends, \
                  or an epoll polls; otherwise a note. Fix: stop it, or exclude the affected settings (irqbalance \
                  --banirq, a tuned profile without them).",
    needs_two: false,
    examine: services,
};

fn services(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let set = query.napis().any(|(_, napi)| napi.suspends() || napi.defers());
    let matters = set || query.epolls.iter().any(|epoll| epoll.polls());
    let of = |service: &Service| Observation {
        severity: if matters { Severity::Warning } else { Severity::Note },
        nodes: vec![service.into()],
        seen: format!("{} runs", service.name),
        fix: vec![Fix::command(&["systemctl", "stop", &service.name])],
    };
    query.now.services.known_elements().map(of).collect()
}
