//! Rules about sysctls that affect every program.

use super::fix::Fix;
use super::setting::{Setting, SettingObject};
use super::{Node, Observation, Rule, Severity};
use crate::snapshot::query::SnapshotQuery;
use crate::snapshot::{FileWait, Process, Reading, Thread};

pub(super) const RULES: &[&Rule] = &[&SYSTEM_WIDE];

static SYSTEM_WIDE: Rule = Rule {
    id: "system-wide-busy-poll",
    severity: Severity::Warning,
    title: "busy polling is enabled for every program on the host",
    impact: "net.core.busy_poll makes every poll, select and epoll_wait spin; net.core.busy_read makes every blocking \
          receive spin, even in programs that only wait for a file. It also replaces the single non-spinning poll of \
          prefer_busy_poll.",
    source: "fs/eventpoll.c, ep_busy_loop_on; include/net/busy_poll.h; Documentation/admin-guide/sysctl/net.rst",
    explanation: "Detected if one of the two sysctls is not 0. Names the programs with sockets that wait in poll or \
                  select: only the sysctl makes these poll a queue. Fix: set it to 0, and set the parameters of the \
                  epolls that should poll. TuneD's profile network-latency sets both.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: system_wide,
};

fn system_wide(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let sysctls = [
        ("net.core.busy_poll", &query.now.sysctls.busy_poll_us),
        ("net.core.busy_read", &query.now.sysctls.busy_read_us),
    ];
    let on = |(name, reading): (&str, &Reading<u32>)| {
        let us = reading.known().filter(|&&us| us > 0)?;
        let waiting = if name == "net.core.busy_poll" { waiting_in_poll(query) } else { Vec::new() };
        let names: Vec<String> = waiting.iter().map(|process| format!("{} {}", process.name, process.pid)).collect();
        let waits = match names.is_empty() {
            true => String::new(),
            false => format!("; in poll or select wait: {}", names.join(", ")),
        };
        Some(Observation {
            severity: Severity::Warning,
            nodes: std::iter::once(Node::Host).chain(waiting.into_iter().map(Node::from)).collect(),
            observed: format!("{name} is {us} µs{waits}"),
            fix: vec![Fix::command(&["sysctl", "-w", &format!("{name}=0")]).setting_of(Setting::host(
                SettingObject::Host,
                name,
                us,
                0,
            ))],
        })
    };
    sysctls.into_iter().filter_map(on).collect()
}

/// Programs with sockets, one of whose threads waits in `poll` or `select`.
fn waiting_in_poll<'a>(query: &SnapshotQuery<'a>) -> Vec<&'a Process> {
    let waits = |thread: &Thread| matches!(thread.file_wait, Some(FileWait::Poll | FileWait::Select));
    let has_sockets = |process: &Process| process.files.known().is_some_and(|files| !files.sockets.is_empty());
    let waiting = |process: &&Process| has_sockets(process) && process.threads.known_elements().any(waits);
    query.now.processes.iter().filter(waiting).collect()
}
