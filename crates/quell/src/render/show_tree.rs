//! The picture of a host as a tree: the host, its devices with their queues, its processes with what they wait for.

use quell_host::picture::{NetworkNamespace, Picture, Reading};

use super::number::count;
use super::show_names::NapiNames;
use super::terminal::Terminal;
use super::tree::Meaning::{Faint, Notable, Plain, Set};
use super::tree::{self, Node};
use super::{show_device, show_process};

/// How the tree is to look.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Style {
    /// Whoever reads it.
    pub(crate) terminal: Terminal,
    /// Every queue on a line of its own.
    pub(crate) verbose: bool,
}

/// The picture as text.
#[must_use]
pub(crate) fn tree(picture: &Picture, style: Style) -> String {
    let mut roots = vec![host(picture)];
    for namespace in &picture.namespaces {
        roots.extend((picture.namespaces.len() > 1).then(|| heading(namespace)));
        let devices = picture.devices.iter().filter(|device| device.namespace == namespace.inode);
        let index = picture.index();
        let every = style.verbose || picture.scope.device.is_some();
        let (whole, others): (Vec<_>, Vec<_>) =
            devices.partition(|device| every || show_device::is_on_the_packet_path(device));
        roots.extend(whole.into_iter().map(|device| show_device::node(device, &index, style.verbose)));
        roots.extend(show_device::without_napi(&others));
    }
    let context = show_process::Context {
        index: picture.index(),
        names: NapiNames::of(picture),
        online: picture.cpus.online.known().map(|cpus| cpus.len()),
        tell_namespace: picture.namespaces.len() > 1,
    };
    roots.extend(picture.processes.iter().map(|process| context.node(process)));
    roots.extend(unseen(picture));
    tree::render(&roots, style.terminal)
}

fn host(picture: &Picture) -> Node {
    let mut node = Node::named(format!("Linux {}", picture.kernel.release));
    if let [namespace] = picture.namespaces.as_slice() {
        node.add(Plain, name(namespace));
    }
    if let Some(online) = picture.cpus.online.known() {
        node.add(Plain, format!("CPU {online}"));
    }
    let kept = [("isolated", &picture.cpus.isolated), ("without tick", &picture.cpus.nohz_full)];
    for (what, cpus) in kept {
        let cpus = cpus.known().filter(|cpus| !cpus.is_empty());
        node.add_if(Set, cpus.map(|cpus| format!("{what} {cpus}")));
    }
    for (name, value) in [("busy_poll", &picture.sysctls.busy_poll_us), ("busy_read", &picture.sysctls.busy_read_us)] {
        let us = value.known().filter(|us| **us > 0);
        node.add_if(Notable, us.map(|us| format!("net.core.{name} {us} µs")));
    }
    for service in picture.services.known_elements() {
        node.add(Notable, format!("{} {} runs", service.name, service.pid));
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

/// What more privilege would show.
fn unseen(picture: &Picture) -> Vec<Node> {
    let mut lines = Vec::new();
    if !picture.hidden_processes.is_empty() {
        let number = count(picture.hidden_processes.len());
        let text = format!("{number} processes of other users are not shown: needs CAP_SYS_PTRACE");
        lines.push(Node::default().with(Faint, text));
    }
    for namespace in &picture.namespaces {
        for unlisted in &namespace.unlisted_sockets {
            lines.push(Node::default().with(Faint, format!("sockets not shown: {}", unlisted.said)));
        }
    }
    if let Reading::Unknown(unknown) = &picture.cpus.online {
        lines.push(Node::default().with(Faint, format!("CPUs unknown: {}", unknown.unknown.said)));
    }
    lines
}
