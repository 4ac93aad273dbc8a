//! Why no queue of the programs is known, as far as a snapshot shows it, and what to do. Pure.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::fmt;

use quell_linux::Pid;
use quell_linux::visible::counted;
use quell_mode::DeliveryMode;
use schemars::JsonSchema;
use serde::Serialize;

use super::plan::{AttachObstacle, AttachPlan, AttachRequest, AttachStep, EpollsSetBy, first_of};
use crate::findings::{FixText, fix_of_bypass, gro_on, lacks_napi, link_up};
use crate::snapshot::query::{SnapshotQuery, bypasses_napi, is_loopback};
use crate::snapshot::{Device, Files, OtherSocket, Process, Snapshot, SnapshotSocket};

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(tag = "cause", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum NoQueueCause {
    /// All sockets of the programs are loopback ones, which never have a queue.
    Loopback,
    /// The programs listen on Unix or vsock sockets, and have no TCP or UDP socket.
    LocalListeners,
    NoNetworkSocket,
    /// The device that delivers to the programs is a veth without NAPI instances.
    GroOff {
        device: String,
        fix: FixText,
    },
    /// Connections of the programs receive packets that pass no NAPI instance.
    Bypass {
        connections: usize,
        fix: FixText,
    },
    /// All devices that can deliver to the programs are down, or the queues of their connections are gone and this device is
    /// down. Of several, it has received the most packets.
    LinkDown {
        device: String,
        fix: FixText,
    },
    /// All connections of the programs came through queues of a device that was removed, or is not visible.
    DeviceGone,
    /// The programs have unconnected UDP sockets only, and none has recorded a queue. Such a socket records that of its
    /// first datagram (`sk_mark_napi_id_once` in `include/net/busy_poll.h`), also if it had none.
    NoDatagram,
    #[default]
    NoPacket,
}

/// The cause for which no packet of these programs can pass a queue, as long as they have the sockets of this snapshot.
#[must_use]
pub fn final_cause(snapshot: &Snapshot, programs: &BTreeSet<Pid>) -> Option<NoQueueCause> {
    Some(no_queue_cause(&SnapshotQuery::new(snapshot, None), programs)).filter(NoQueueCause::is_final)
}

/// The cause for programs that have no known queue.
pub(crate) fn no_queue_cause(query: &SnapshotQuery<'_>, programs: &BTreeSet<Pid>) -> NoQueueCause {
    let processes: Vec<_> = query.now.processes.iter().filter(|process| programs.contains(&process.pid)).collect();
    let files: Vec<_> = processes.iter().filter_map(|process| process.files.known()).collect();
    let held: Vec<Option<&SnapshotSocket>> =
        files.iter().flat_map(|files| &files.sockets).map(|held| query.socket(held.inode)).collect();
    let has_other_ways = |files: &&Files| !files.xdp_sockets.is_empty() || files.receiving_rings().next().is_some();
    let is_visible = files.len() == processes.len() && !files.iter().any(has_other_ways);
    let is_over_loopback =
        |socket: &Option<&SnapshotSocket>| socket.is_some_and(|socket| is_loopback(socket) && !socket.has_queue());
    if is_visible && !held.is_empty() && held.iter().all(is_over_loopback) {
        return NoQueueCause::Loopback;
    }
    if is_visible && held.is_empty() {
        return without_network_socket(&files);
    }
    let sockets: Vec<&SnapshotSocket> = held.into_iter().flatten().filter(|socket| !is_loopback(socket)).collect();
    let namespaces: BTreeSet<u64> = sockets.iter().map(|socket| socket.namespace).collect();
    if let Some(device) = namespaces.into_iter().find_map(|namespace| veth_without_napi(query, namespace, &sockets)) {
        return NoQueueCause::GroOff { device: device.name.clone(), fix: gro_on(query, device).text() };
    }
    // Connections whose packets pass no NAPI instance are alive.
    let mut recorded = sockets.iter().filter(|socket| socket.has_queue()).peekable();
    let are_gone = recorded.peek().is_some()
        && recorded.all(|socket| query.has_lost_queue(socket))
        && !sockets.iter().any(|socket| bypasses_napi(socket));
    if let Some(device) = down(query, &sockets, are_gone) {
        return NoQueueCause::LinkDown { device: device.name.clone(), fix: link_up(query, device).text() };
    }
    if are_gone {
        return NoQueueCause::DeviceGone;
    }
    let is_silent_udp = |socket: &&SnapshotSocket| socket.records_first_napi() && socket.napi.known() == Some(&None);
    if !sockets.is_empty() && sockets.iter().all(is_silent_udp) {
        return NoQueueCause::NoDatagram;
    }
    let bypassing: Vec<&SnapshotSocket> = sockets.into_iter().filter(|socket| bypasses_napi(socket)).collect();
    match fix_of_bypass(query, &bypassing).first() {
        Some(fix) if !bypassing.is_empty() => NoQueueCause::Bypass { connections: bypassing.len(), fix: fix.text() },
        _ => NoQueueCause::NoPacket,
    }
}

fn without_network_socket(files: &[&Files]) -> NoQueueCause {
    let others = || files.iter().flat_map(|files| &files.other_sockets);
    let listens = others().any(|other| matches!(other, OtherSocket::UnixListener | OtherSocket::VsockListener));
    match listens && others().all(|other| other.has_no_queue()) {
        true => NoQueueCause::LocalListeners,
        // A program that starts has no socket yet.
        false => NoQueueCause::NoNetworkSocket,
    }
}

/// The veth without NAPI instances that delivers to the sockets, if another device is not as likely.
fn veth_without_napi<'a>(query: &SnapshotQuery<'a>, namespace: u64, sockets: &[&SnapshotSocket]) -> Option<&'a Device> {
    let here = || query.now.devices.iter().filter(|device| device.namespace == namespace && device.is_up);
    let has_napi = here().any(|device| device.napis.known().is_none_or(|napis| !napis.is_empty()));
    // Ports of a bridge deliver to other namespaces.
    let veths = here().filter(|device| device.master.is_none() && lacks_napi(device));
    veths
        .filter(|_| !has_napi || sockets.iter().any(|socket| socket.namespace == namespace && bypasses_napi(socket)))
        .max_by_key(|device| likelihood(device, sockets))
}

/// How likely it is that a device delivers to these sockets: those with their address first, then by received packets.
fn likelihood(device: &Device, sockets: &[&SnapshotSocket]) -> (bool, u64) {
    let has_address = |socket: &&SnapshotSocket| socket.local.is_some_and(|local| device.has_address(local.ip()));
    let received = device.counters.known().map_or(0, |counters| counters.rx_packets);
    (sockets.iter().any(has_address), received)
}

/// The device of a network namespace that is down, while none is up, or if queues from which sockets have received are gone
/// and it has received packets.
fn down<'a>(query: &SnapshotQuery<'a>, sockets: &[&SnapshotSocket], queues_are_gone: bool) -> Option<&'a Device> {
    let namespace = sockets.first()?.namespace;
    let here = || query.now.devices.iter().filter(|device| device.namespace == namespace && device.name != "lo");
    let may_deliver = |device: &Device| likelihood(device, sockets) > (false, 0);
    let is_candidate = |device: &&Device| !device.is_up && (!queues_are_gone || may_deliver(device));
    let likely = here().filter(is_candidate).max_by_key(|device| likelihood(device, sockets));
    likely.filter(|_| queues_are_gone || !here().any(|device| device.is_up))
}

impl NoQueueCause {
    /// Whether no NAPI instance delivers to the programs until the host or their connections change.
    #[must_use]
    pub fn lacks_napi(&self) -> bool {
        matches!(self, Self::GroOff { .. } | Self::Bypass { .. } | Self::LinkDown { .. } | Self::DeviceGone)
    }

    /// Whether no packet of the programs can pass a queue, so that no mode has an effect.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Loopback | Self::LocalListeners)
    }
}

impl AttachPlan {
    /// Whether the plan sets no queue, and no epoll that can get one without a change of the host.
    #[must_use]
    pub fn is_without_effect(&self) -> bool {
        // An epoll that is set polls nothing as long as no NAPI instance delivers to it.
        let lacks_napi = self.without_queue.as_ref().is_some_and(NoQueueCause::lacks_napi);
        self.queues().next().is_none() && (lacks_napi || self.steps.iter().all(AttachStep::is_there))
    }

    /// Refuses a mode for programs whose data passes no queue, where no mode has an effect. Returns whether it did.
    pub(super) fn refuse_without_queue(
        &mut self,
        query: &SnapshotQuery<'_>,
        targets: &BTreeSet<Pid>,
        request: &AttachRequest,
    ) -> bool {
        let is_set = request.epolls == EpollsSetBy::Attachment && request.mode != DeliveryMode::default();
        let cause = is_set.then(|| no_queue_cause(query, targets)).filter(NoQueueCause::is_final);
        if let Some(cause) = &cause {
            let processes: Vec<&Process> =
                query.now.processes.iter().filter(|process| targets.contains(&process.pid)).collect();
            self.impossible.push(AttachObstacle {
                what: format!("{} for {}", request.mode, first_of(&processes)),
                reason: format!("{cause}, and {SEND_REQUESTS}"),
            });
        }
        cause.is_some()
    }
}

impl fmt::Display for NoQueueCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loopback => f.write_str(
                "all sockets of the programs have loopback addresses: let the server listen on another address",
            ),
            Self::LocalListeners => f.write_str(
                "the programs listen on Unix or vsock sockets only, whose data passes no queue, so no mode has an \
                 effect: let the server listen on a TCP or UDP address",
            ),
            Self::NoNetworkSocket => f.write_str("the programs have no TCP or UDP socket"),
            Self::GroOff { device, fix } => {
                write!(
                    f,
                    "GRO is off on {device}, so its packets pass no NAPI instance and have no queue: {}",
                    to_do(fix)
                )
            }
            Self::Bypass { connections, fix } => {
                let connections = counted(*connections, "connection");
                write!(f, "the packets of {connections} pass no NAPI instance and have no queue: {}", to_do(fix))
            }
            Self::LinkDown { device, fix } => write!(f, "{device} is down, so its queues are gone: {}", to_do(fix)),
            Self::DeviceGone => f.write_str(
                "the device through which the connections came was removed, or is not visible here, so they have no queue: \
                 let the clients reconnect",
            ),
            Self::NoDatagram => write!(f, "the UDP sockets have received from no queue: {FIRST_DATAGRAM}"),
            Self::NoPacket => f.write_str("no socket of the programs has received a packet through a queue"),
        }
    }
}

fn to_do(fix: &FixText) -> Cow<'_, str> {
    match fix {
        FixText::Command(command) => format!("run `{command}`").into(),
        FixText::Advice(advice) => advice.into(),
    }
}

/// Why an unconnected UDP socket has no queue, and what to do. The kernel does not show which of the two it is.
pub const FIRST_DATAGRAM: &str = concat!(
    "no datagram has come, or the first one passed no NAPI instance, which the socket remembers; if datagrams do ",
    "come, let them pass one (veth: GRO on here, `ethtool -K PEER tso off gso off` at the other end), then restart ",
    "the program"
);

/// What gives programs a queue, in every case.
pub const SEND_REQUESTS: &str =
    "send requests from another machine or network namespace (not over loopback, which has no queue)";
