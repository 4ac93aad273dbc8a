//! A snapshot as a tree: host, devices with queues, processes with epolls and sockets.

use quell_host::snapshot::{NetworkNamespace, Reading, Snapshot};

use super::number::count;
use super::show_names::NapiNames;
use super::terminal::Terminal;
use super::tree::Meaning::{Faint, Notable, Plain, Set};
use super::tree::{self, Node};
use super::{show_device, show_process};

/// Style of the tree.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    /// Output terminal.
    pub(crate) terminal: Terminal,
    /// Show every queue on its own line, and every device.
    pub(crate) details: bool,
}

/// The snapshot as text.
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
    for (name, value) in [("busy_poll", &snapshot.sysctls.busy_poll_us), ("busy_read", &snapshot.sysctls.busy_read_us)]
    {
        let us = value.known().filter(|us| **us > 0);
        node.add_if(Notable, us.map(|us| format!("net.core.{name} {us} µs")));
    }
    for service in snapshot.services.known_elements() {
        node.add(Notable, format!("{} {} is running", service.name, service.pid));
    }
    node
}

fn heading(namespace: &NetworkNamespace) -> Node {
    Node::named(name(namespace))
}

fn name(namespace: &NetworkNamespace) -> String {
    let names = namespace.names.join(", ");
    match (names.is_empty(), namespace.is_readers) {
        (false, _) => format!("netns {names}"),
        (true, true) => "this network namespace".to_owned(),
        (true, false) => format!("net:[{}]", namespace.inode),
    }
}

/// Objects hidden by missing privileges.
fn unseen(snapshot: &Snapshot) -> Vec<Node> {
    let mut lines = Vec::new();
    if !snapshot.hidden_processes.is_empty() {
        let number = count(snapshot.hidden_processes.len());
        let text = format!("{number} processes of other users not shown: needs CAP_SYS_PTRACE");
        lines.push(Node::default().with(Faint, text));
    }
    for namespace in &snapshot.namespaces {
        for unlisted in &namespace.unlisted_sockets {
            lines.push(Node::default().with(Faint, format!("sockets not shown: {}", unlisted.said)));
        }
    }
    if let Reading::Unknown(unknown) = &snapshot.cpus.online {
        lines.push(Node::default().with(Faint, format!("CPUs unknown: {}", unknown.unknown.said)));
    }
    lines
}
