//! A snapshot as a tree: host, devices with queues, processes with epolls and sockets.

use std::collections::BTreeMap;

use quell_host::snapshot::{Cpu, Cpus, NetworkNamespace, Reading, Snapshot};
use quell_linux::CpuList;
use quell_linux::visible::counted;

use super::show_names::NapiNames;
use super::terminal::Terminal;
use super::tree::Meaning::{Faint, Notable, Plain, Set};
use super::tree::{self, Node};
use super::{show_device, show_process};

#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    pub(crate) terminal: Terminal,
    /// Show every queue on its own line, and every device.
    pub(crate) details: bool,
}

#[must_use]
pub(crate) fn tree(snapshot: &Snapshot, style: Style) -> String {
    let mut roots = vec![host(snapshot)];
    for namespace in &snapshot.namespaces {
        roots.extend((snapshot.namespaces.len() > 1).then(|| heading(namespace)));
        let devices = snapshot.devices.iter().filter(|device| device.namespace == namespace.inode);
        let index = snapshot.index();
        let every = style.details || snapshot.scope.device.is_some();
        let (whole, others): (Vec<_>, Vec<_>) =
            devices.partition(|device| every || show_device::is_on_packet_path(device));
        roots.extend(whole.into_iter().map(|device| show_device::node(device, &index, style.details)));
        roots.extend(show_device::without_napi(&others));
    }
    let context = show_process::Context {
        index: snapshot.index(),
        names: NapiNames::of(snapshot),
        online: snapshot.cpus.online.known().map(|cpus| cpus.len()),
        show_namespace: snapshot.namespaces.len() > 1,
    };
    roots.extend(snapshot.processes.iter().map(|process| context.node(process)));
    roots.extend(unseen(snapshot));
    tree::render(&roots, style.terminal)
}

fn host(snapshot: &Snapshot) -> Node {
    let mut node = Node::named(format!("Linux {}", snapshot.kernel.release));
    if let [namespace] = snapshot.namespaces.as_slice() {
        node.add(Plain, name(namespace));
    }
    if let Some(online) = snapshot.cpus.online.known() {
        node.add(Plain, format!("CPU {online}"));
    }
    let sets = [("isolated", &snapshot.cpus.isolated), ("nohz_full", &snapshot.cpus.nohz_full)];
    for (what, cpus) in sets {
        let cpus = cpus.known().filter(|cpus| !cpus.is_empty());
        node.add_if(Set, cpus.map(|cpus| format!("{what} {cpus}")));
    }
    power(&snapshot.cpus).into_iter().for_each(|text| node.add(Plain, text));
    for (name, value) in [("busy_poll", &snapshot.sysctls.busy_poll_us), ("busy_read", &snapshot.sysctls.busy_read_us)]
    {
        let us = value.known().filter(|us| **us > 0);
        node.add_if(Notable, us.map(|us| format!("net.core.{name} {us} µs")));
    }
    for socket in snapshot.management_sockets.known_elements().filter_map(|inode| snapshot.index().socket(*inode)) {
        let napi = socket.napi.known().copied().flatten().map(|id| format!(" on NAPI {id}")).unwrap_or_default();
        node.add_if(Plain, socket.remote.map(|remote| format!("your SSH session from {remote}{napi}")));
    }
    for service in snapshot.services.known_elements() {
        node.add(Notable, format!("{} {} is running", service.name, service.pid));
    }
    for file in snapshot.configured_files.known_elements() {
        let settings = file.content.known().map_or(&[][..], |content| &content.settings);
        node.add_if(Notable, (!settings.is_empty()).then(|| format!("{} sets {}", file.path, settings.join(", "))));
    }
    node
}

/// Frequency governors and deepest idle states, with their CPUs if these differ.
fn power(cpus: &Cpus) -> Vec<String> {
    let governor = |cpu: &Cpu| Some(format!("governor {}", cpu.governor.known()?));
    let deepest = |cpu: &Cpu| {
        let allowed = cpu.idle_states.known()?.iter().filter(|state| state.allowed);
        let state = allowed.max_by_key(|state| state.exit_latency_us)?;
        Some(format!("idle states up to {} ({} µs)", state.name, state.exit_latency_us))
    };
    [by_value(cpus, governor), by_value(cpus, deepest)].concat()
}

fn by_value(cpus: &Cpus, value: impl Fn(&Cpu) -> Option<String>) -> Vec<String> {
    let mut by_value: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for cpu in &cpus.each {
        if let Some(value) = value(cpu) {
            by_value.entry(value).or_default().push(cpu.number);
        }
    }
    let text = |(value, numbers): (String, Vec<u32>)| match numbers.len() == cpus.each.len() {
        true => value,
        false => format!("{value} on CPU {}", numbers.into_iter().collect::<CpuList>()),
    };
    by_value.into_iter().map(text).collect()
}

fn heading(namespace: &NetworkNamespace) -> Node {
    Node::named(name(namespace))
}

fn name(namespace: &NetworkNamespace) -> String {
    let names = namespace.names.join(", ");
    match (names.is_empty(), namespace.is_current) {
        (false, _) => format!("netns {names}"),
        (true, true) => "this network namespace".to_owned(),
        (true, false) => format!("net:[{}]", namespace.inode),
    }
}

fn unseen(snapshot: &Snapshot) -> Vec<Node> {
    let mut lines = Vec::new();
    if !snapshot.hidden_processes.is_empty() {
        let hidden = counted(snapshot.hidden_processes.len(), "process");
        let text = format!("{hidden} of other users not shown: needs CAP_SYS_PTRACE");
        lines.push(Node::default().with(Faint, text));
    }
    for namespace in &snapshot.namespaces {
        let devices = namespace.unlisted_devices.as_ref();
        lines.extend(devices.map(|unlisted| {
            Node::default().with(Faint, format!("devices of {} not shown: {}", name(namespace), unlisted.message))
        }));
        for unlisted in &namespace.unlisted_sockets {
            lines.push(Node::default().with(Faint, format!("sockets not shown: {}", unlisted.message)));
        }
    }
    if let Reading::Unknown(unknown) = &snapshot.cpus.online {
        lines.push(Node::default().with(Faint, format!("CPUs unknown: {}", unknown.unknown.message)));
    }
    lines
}
