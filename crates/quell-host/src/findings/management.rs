//! Rules about the session from which the host is managed.

use quell_mode::NapiAttribute;

use super::fix::Fix;
use super::text::time_text;
use super::{Node, Observation, Rule, Severity};
use crate::snapshot::query::SnapshotQuery;
use crate::snapshot::{Device, SnapshotNapi, SnapshotSocket};

pub(super) const RULES: &[&Rule] = &[&SESSION];

pub(super) static SESSION: Rule = Rule {
    id: "ssh-session-on-delayed-queue",
    severity: Severity::Serious,
    title: "your SSH session shares a suspended or deferred queue",
    impact: "If the program of the queue stops handling its events, each packet of your session waits, too.",
    source: "net/core/dev.c, napi_suspend_irqs and napi_watchdog; SSH_CONNECTION in ssh(1)",
    explanation: "Detected if the session that takes the snapshot (by SSH_CONNECTION, or by the sockets of sshd or \
                  dropbear among the ancestors) receives from a queue that allows suspension, or defers with a \
                  gro-flush-timeout of at least 1 ms. Serious if a packet can wait 1 s, otherwise a warning. Fix: \
                  receive SSH from another queue, use the mode on other queues only, or a shorter timeout.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: session,
};

const LONG_FLUSH_NS: u64 = 1_000_000;
const LOCKED_OUT_NS: u64 = 1_000_000_000;
/// irq-suspend-timeout of the published measurements.
const USUAL_SUSPENSION_NS: u64 = 20_000_000;

fn session(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let sockets = query.now.management_sockets.known_elements().filter_map(|&inode| query.socket(inode));
    let of = |socket: &SnapshotSocket| {
        let (device, napi) = query.napi((*socket.napi.known()?)?)?;
        Some(of_session(query, socket, device, napi, longest_wait_ns(napi)?))
    };
    sockets.filter_map(of).collect()
}

/// Longest time for which a packet waits in a queue that is not polled; absent if it is short.
fn longest_wait_ns(napi: &SnapshotNapi) -> Option<u64> {
    let suspended = napi.irq_suspend_timeout_ns.known().copied().filter(|&ns| ns > 0);
    let deferred = napi.gro_flush_timeout_ns.known().copied().filter(|&ns| napi.defers() && ns >= LONG_FLUSH_NS);
    suspended.max(deferred)
}

fn of_session(
    query: &SnapshotQuery<'_>,
    socket: &SnapshotSocket,
    device: &Device,
    napi: &SnapshotNapi,
    wait_ns: u64,
) -> Observation {
    let holder = query.now.processes.iter().find(|process| {
        process.files.known().is_some_and(|files| files.sockets.iter().any(|held| held.inode == socket.inode))
    });
    let mut nodes = vec![query.napi_node(napi.id)];
    nodes.extend(holder.map(Node::from));
    let mut fix = vec![match other_queue(device) {
        Some(queue) => steer(query, socket, device, queue),
        None => Fix::advice("use the mode only on queues that do not receive SSH, or log in through another device"),
    }];
    if napi.irq_suspend_timeout_ns.known().is_some_and(|&ns| ns > USUAL_SUSPENSION_NS) {
        fix.push(Fix::napi_set(query, device, napi, &[(NapiAttribute::IrqSuspendTimeout, USUAL_SUSPENSION_NS)]));
    }
    let from = socket.remote.map(|remote| format!(" from {remote}")).unwrap_or_default();
    Observation {
        severity: if wait_ns >= LOCKED_OUT_NS { Severity::Serious } else { Severity::Warning },
        nodes,
        observed: format!("packets of the session{from} wait up to {}", time_text(wait_ns)),
        fix,
    }
}

/// A receive queue without a mode, if the device supports flow rules.
fn other_queue(device: &Device) -> Option<u32> {
    device.flow_rules.known()?;
    let napis = device.napis.known()?;
    let free = |id| napis.iter().any(|napi| napi.id == id && !napi.defers() && !napi.suspends());
    device.rx_queues.known_elements().find(|queue| queue.napi_id().is_some_and(free)).map(|queue| queue.id)
}

/// A flow rule that sends the connections of the server's port to a queue.
fn steer(query: &SnapshotQuery<'_>, socket: &SnapshotSocket, device: &Device, queue: u32) -> Fix {
    let local = socket.local.map(|local| (local.ip().to_canonical().is_ipv6(), local.port()));
    let (is_ipv6, port) = local.unwrap_or((false, 22));
    let flow = if is_ipv6 { "tcp6" } else { "tcp4" };
    let (port, queue) = (port.to_string(), queue.to_string());
    let words = ["ethtool", "-N", &device.name, "flow-type", flow, "dst-port", &port, "action", &queue];
    Fix::in_namespace(query, device.namespace, &words)
}
