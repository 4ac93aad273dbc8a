//! Rules about missing values: not supported by the kernel or the driver, or not permitted to the caller. The kernel's
//! answer decides, never a version number. No other rules report unknown values.

use std::collections::{BTreeMap, BTreeSet};

use quell_linux::capability::Capability;
use quell_linux::visible::counted;

use super::fix::Fix;
use super::{Node, Observation, Rule, Severity};
use crate::snapshot::query::SnapshotQuery;
use crate::snapshot::{Device, NetworkNamespace, Process, Reading, SnapshotNapi, UnknownReason};

pub(super) const RULES: &[&Rule] = &[&KERNEL, &DRIVER, &PRIVILEGE];

static KERNEL: Rule = Rule {
    id: "kernel-lacks",
    severity: Severity::Note,
    title: "the kernel lacks features that delivery modes use",
    impact: "No driver or privilege replaces it.",
    source: "the kernel's own answers; napi-set Linux 6.13, epoll parameters 6.9, threaded per queue 6.17",
    explanation: "Detected if the kernel does not support the queries for NAPI settings or epoll parameters. Fix: a \
                  newer kernel.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: kernel,
};

fn kernel(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let lacking: BTreeSet<&str> = asked(query)
        .into_iter()
        .filter(|asked| matches!(asked.why, UnknownReason::UnsupportedByKernel))
        .map(|asked| asked.what)
        .collect();
    let of = |what: &str| Observation {
        severity: Severity::Note,
        nodes: vec![Node::Host],
        observed: format!("Linux {} has no {what}", query.now.kernel.release),
        fix: vec![Fix::advice("use a newer kernel")],
    };
    lacking.into_iter().map(of).collect()
}

static DRIVER: Rule = Rule {
    id: "driver-lacks",
    severity: Severity::Note,
    title: "a driver does not report or support some properties",
    impact: "Values that it does not report are inferred or unknown.",
    source: "the kernel's own answers: EOPNOTSUPP for a known operation",
    explanation: "Detected if the kernel supports a query, but the driver does not, on a device that is up and has \
                  NAPI instances. Fix: a driver that supports it.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: driver,
};

fn driver(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let mut lacking_together: BTreeMap<String, Vec<Node>> = BTreeMap::new();
    let lacking_at = |device: &Device| {
        if !device.is_up || device.napis.known()?.is_empty() {
            return None;
        }
        let lacks = |why: Option<&UnknownReason>| matches!(why, Some(UnknownReason::UnsupportedByDriver));
        let features = [
            ("channels", why(&device.channels)),
            ("rings", why(&device.rings)),
            ("coalescing", why(&device.coalescing)),
            ("RSS contexts", why(&device.rss_contexts)),
            ("flow rules", why(&device.flow_rules)),
        ];
        let lacking: Vec<&str> = features.into_iter().filter(|(_, why)| lacks(*why)).map(|(what, _)| what).collect();
        (!lacking.is_empty()).then(|| format!("no {}", lacking.join(", ")))
    };
    for device in &query.now.devices {
        let lacking = lacking_at(device);
        lacking.into_iter().for_each(|lacking| lacking_together.entry(lacking).or_default().push(device.into()));
    }
    let of = |(observed, nodes)| Observation { severity: Severity::Note, nodes, observed, fix: Vec::new() };
    lacking_together.into_iter().map(of).collect()
}

static PRIVILEGE: Rule = Rule {
    id: "privilege-lacks",
    severity: Severity::Note,
    title: "some objects cannot be inspected without more privileges",
    impact: "This report says nothing about them.",
    source: "the kernel's own answers: EPERM, EACCES",
    explanation: "Detected if the kernel refused access to epolls or sockets of a process, or to settings of a queue. \
                  Fix: run as root or with the named capability.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: privilege,
};

fn privilege(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let mut refused: Vec<(&str, Option<Capability>, Vec<Node>)> = Vec::new();
    for Asked { what, why, of } in asked(query) {
        let UnknownReason::Denied { needs } = *why else { continue };
        match refused.iter_mut().find(|(known, known_needs, _)| *known == what && *known_needs == needs) {
            Some((_, _, nodes)) => nodes.push(of),
            None => refused.push((what, needs, vec![of])),
        }
    }
    let of = |(what, needs, mut nodes): (&str, Option<Capability>, Vec<Node>)| {
        nodes.dedup();
        let fix = match needs {
            Some(capability) => Fix::advice(format!("run with {capability} or as root")),
            None => Fix::advice("run as root"),
        };
        Observation { severity: Severity::Note, observed: format!("{what} cannot be read"), nodes, fix: vec![fix] }
    };
    refused.into_iter().map(of).chain(hidden(query)).collect()
}

/// Processes that may have sockets and that the caller may not inspect.
fn hidden(query: &SnapshotQuery<'_>) -> Option<Observation> {
    let count = query.now.hidden_processes.len();
    (count > 0).then(|| Observation {
        severity: Severity::Note,
        nodes: vec![Node::Host],
        observed: format!("{} cannot be inspected", counted(count, "process")),
        fix: vec![Fix::advice("run with CAP_SYS_PTRACE or as root")],
    })
}

struct Asked<'a> {
    what: &'static str,
    why: &'a UnknownReason,
    of: Node,
}

/// Unanswered queries for values that delivery modes need.
fn asked<'a>(query: &SnapshotQuery<'a>) -> Vec<Asked<'a>> {
    let of_napi = |(device, napi): (&'a Device, &'a SnapshotNapi)| {
        let of = Node::Napi { id: napi.id, device: Some(device.name.clone()) };
        let readings = [
            ("defer-hard-irqs per queue", why(&napi.defer_hard_irqs)),
            ("gro-flush-timeout per queue", why(&napi.gro_flush_timeout_ns)),
            ("irq-suspend-timeout", why(&napi.irq_suspend_timeout_ns)),
            ("threaded per queue", why(&napi.threading)),
        ];
        readings.into_iter().filter_map(move |(what, why)| Some(Asked { what, why: why?, of: of.clone() }))
    };
    let of_process = |process: &'a Process| {
        let files = why(&process.files).map(|why| Asked { what: "epolls and sockets", why, of: process.into() });
        let epolls = process.files.known().map_or(&[][..], |files| &files.epolls);
        let params = epolls.iter().filter_map(|epoll| {
            let of = Node::Epoll { pid: process.pid, fd: epoll.fd };
            Some(Asked { what: "busy-poll parameters of an epoll", why: why(&epoll.params)?, of })
        });
        files.into_iter().chain(params)
    };
    let of_namespace = |namespace: &'a NetworkNamespace| {
        let why = &namespace.unlisted_devices.as_ref()?.reason;
        Some(Asked { what: "devices of other network namespaces", why, of: Node::Host })
    };
    let namespaces = query.now.namespaces.iter().filter_map(of_namespace);
    namespaces.chain(query.napis().flat_map(of_napi)).chain(query.now.processes.iter().flat_map(of_process)).collect()
}

fn why<T>(reading: &Reading<T>) -> Option<&UnknownReason> {
    reading.why_unknown().map(|unknown| &unknown.reason)
}
