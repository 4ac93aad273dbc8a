//! Rules about missing values: not supported by the kernel, not supported by the driver, or not permitted to the
//! caller. The kernel's answer decides, never a version number. Only these rules report unknown values.

use std::collections::BTreeSet;

use quell_linux::capability::Capability;

use super::mend::Mend;
use super::view::View;
use super::{Node, Observation, Rule, Severity};
use crate::picture::{Device, Napi, Process, Reading, Why};

pub(super) const RULES: &[&Rule] = &[&KERNEL, &DRIVER, &PRIVILEGE];

static KERNEL: Rule = Rule {
    id: "kernel-lacks",
    severity: Severity::Note,
    title: "the kernel lacks something that delivery modes use",
    why: "What the kernel does not have cannot be set, whatever the driver and the privilege.",
    source: "the kernel's own answers; napi-set Linux 6.13, epoll parameters 6.9, threaded by queue 6.17",
    explanation: "Seen: the kernel answered that it does not know the question, for NAPI settings or epoll parameters. Mended \
                  by a newer kernel.",
    needs_two: false,
    examine: kernel,
};

fn kernel(view: &View<'_>) -> Vec<Observation> {
    let lacking: BTreeSet<&str> = asked(view)
        .into_iter()
        .filter(|asked| matches!(asked.why, Why::UnsupportedByKernel))
        .map(|asked| asked.what)
        .collect();
    let of = |what: &str| Observation {
        severity: Severity::Note,
        nodes: vec![Node::Host],
        seen: format!("Linux {} has no {what}", view.now.kernel.release),
        mend: vec![Mend::advice("a newer kernel")],
    };
    lacking.into_iter().map(of).collect()
}

static DRIVER: Rule = Rule {
    id: "driver-lacks",
    severity: Severity::Note,
    title: "a driver does not tell or offer something",
    why: "What the driver does not have cannot be set on its devices, on any kernel; what it does not tell is concluded or \
          left open.",
    source: "the kernel's own answers: EOPNOTSUPP of an operation that it knows",
    explanation: "Seen: the kernel knows the question and the driver does not answer it, on a device that is up and has NAPI \
                  instances. There is nothing to mend but the driver.",
    needs_two: false,
    examine: driver,
};

fn driver(view: &View<'_>) -> Vec<Observation> {
    let of = |device: &Device| {
        if !device.is_up || device.napis.known()?.is_empty() {
            return None;
        }
        let lacks = |why: Option<&Why>| matches!(why, Some(Why::UnsupportedByDriver));
        let features = [
            ("channels", why(&device.channels)),
            ("rings", why(&device.rings)),
            ("coalescing", why(&device.coalescing)),
            ("RSS contexts", why(&device.rss_contexts)),
            ("flow rules", why(&device.flow_rules)),
        ];
        let lacking: Vec<&str> = features.into_iter().filter(|(_, why)| lacks(*why)).map(|(what, _)| what).collect();
        (!lacking.is_empty()).then(|| Observation {
            severity: Severity::Note,
            nodes: vec![device.into()],
            seen: format!("no {}", lacking.join(", ")),
            mend: Vec::new(),
        })
    };
    view.now.devices.iter().filter_map(of).collect()
}

static PRIVILEGE: Rule = Rule {
    id: "privilege-lacks",
    severity: Severity::Note,
    title: "more privilege would show more",
    why: "What may not be looked at is neither right nor wrong: this report says nothing about it.",
    source: "the kernel's own answers: EPERM, EACCES",
    explanation: "Seen: the kernel refused to show epolls or sockets of a process, or settings of a queue. Mended by running \
                  as root, or with the capability that is named.",
    needs_two: false,
    examine: privilege,
};

fn privilege(view: &View<'_>) -> Vec<Observation> {
    let mut refused: Vec<(&str, Option<Capability>, Vec<Node>)> = Vec::new();
    for Asked { what, why, of } in asked(view) {
        let Why::Denied { needs } = *why else { continue };
        match refused.iter_mut().find(|(known, known_needs, _)| *known == what && *known_needs == needs) {
            Some((_, _, nodes)) => nodes.push(of),
            None => refused.push((what, needs, vec![of])),
        }
    }
    let of = |(what, needs, mut nodes): (&str, Option<Capability>, Vec<Node>)| {
        nodes.dedup();
        let mend = match needs {
            Some(capability) => Mend::advice(format!("run it with {capability}, or as root")),
            None => Mend::advice("run it as root"),
        };
        Observation { severity: Severity::Note, seen: format!("{what} may not be read"), nodes, mend: vec![mend] }
    };
    refused.into_iter().map(of).chain(hidden(view)).collect()
}

/// Processes that may have sockets and may not be inspected.
fn hidden(view: &View<'_>) -> Option<Observation> {
    let count = view.now.hidden_processes.len();
    (count > 0).then(|| Observation {
        severity: Severity::Note,
        nodes: vec![Node::Host],
        seen: format!(
            "{} may not be looked into",
            if count == 1 { "one process".to_owned() } else { format!("{count} processes") }
        ),
        mend: vec![Mend::advice("run it with CAP_SYS_PTRACE, or as root")],
    })
}

/// A request without an answer.
struct Asked<'a> {
    what: &'static str,
    why: &'a Why,
    of: Node,
}

/// Unanswered requests for values that delivery modes need.
fn asked<'a>(view: &View<'a>) -> Vec<Asked<'a>> {
    let of_napi = |(device, napi): (&'a Device, &'a Napi)| {
        let of = Node::Napi { id: napi.id, device: Some(device.name.clone()) };
        let readings = [
            ("defer-hard-irqs by queue", why(&napi.defer_hard_irqs)),
            ("gro-flush-timeout by queue", why(&napi.gro_flush_timeout_ns)),
            ("irq-suspend-timeout", why(&napi.irq_suspend_timeout_ns)),
            ("threaded by queue", why(&napi.threading)),
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
    view.napis().flat_map(of_napi).chain(view.now.processes.iter().flat_map(of_process)).collect()
}

fn why<T>(reading: &Reading<T>) -> Option<&Why> {
    reading.why_unknown().map(|unknown| &unknown.why)
}
