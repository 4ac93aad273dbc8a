//! Rules about the whole host: sysctls that affect every program, and services that override settings.

use super::mend::Mend;
use super::view::{View, defers, suspends};
use super::{Node, Observation, Rule, Severity};
use crate::picture::{Reading, Service};

pub(super) const RULES: &[&Rule] = &[&SYSTEM_WIDE, &SERVICES];

static SYSTEM_WIDE: Rule = Rule {
    id: "system-wide-busy-poll",
    severity: Severity::Warning,
    title: "busy polling is on for every program of the host",
    why: "net.core.busy_poll makes every poll, select and epoll_wait spin, and net.core.busy_read every blocking receive, \
          those of programs that only wait for a file too; it also takes from prefer_busy_poll its one poll without \
          spinning.",
    source: "fs/eventpoll.c, ep_busy_loop_on; include/net/busy_poll.h; Documentation/admin-guide/sysctl/net.rst",
    explanation: "Seen: one of the two sysctls is not 0. Mended by 0, and by parameters of the epolls that are to poll. The \
                  profile network-latency of tuned sets both.",
    needs_two: false,
    examine: system_wide,
};

fn system_wide(view: &View<'_>) -> Vec<Observation> {
    let sysctls = [
        ("net.core.busy_poll", &view.now.sysctls.busy_poll_us),
        ("net.core.busy_read", &view.now.sysctls.busy_read_us),
    ];
    let on = |(name, reading): (&str, &Reading<u32>)| {
        let us = reading.known().filter(|&&us| us > 0)?;
        Some(Observation {
            severity: Severity::Warning,
            nodes: vec![Node::Host],
            seen: format!("{name} is {us} µs"),
            mend: vec![Mend::command(&["sysctl", "-w", &format!("{name}=0")])],
        })
    };
    sysctls.into_iter().filter_map(on).collect()
}

static SERVICES: Rule = Rule {
    id: "service-undoes-settings",
    severity: Severity::Warning,
    title: "a service runs that sets interrupts, CPUs or sysctls by its own rules",
    why: "irqbalance moves interrupts every ten seconds and tuned sets sysctls and governors when its profile is applied: \
          what was placed by hand does not stay.",
    source: "irqbalance(1); tuned-profiles(7), network-latency",
    explanation: "Seen: a process of that name. A warning where a queue in the picture defers or suspends, or an epoll \
                  polls; otherwise a note. Mended by stopping it, or by telling it what to leave alone (irqbalance \
                  --banirq, a tuned profile without the settings).",
    needs_two: false,
    examine: services,
};

fn services(view: &View<'_>) -> Vec<Observation> {
    let set = view.napis().any(|(_, napi)| suspends(napi) || defers(napi));
    let matters = set || view.epolls.iter().any(|epoll| epoll.polls());
    let of = |service: &Service| Observation {
        severity: if matters { Severity::Warning } else { Severity::Note },
        nodes: vec![service.into()],
        seen: format!("{} runs", service.name),
        mend: vec![Mend::command(&["systemctl", "stop", &service.name])],
    };
    view.now.services.known_elements().map(of).collect()
}
