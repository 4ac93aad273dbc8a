//! Rules about AF_XDP sockets.

use quell_mode::NapiAttribute;

use super::text::time_text;
use super::{Fix, Node, Observation, Rule, Severity};
use crate::snapshot::query::{EpollContext, SnapshotQuery};
use crate::snapshot::{Process, SnapshotXdpSocket};

/// Longest deferral that modes for programs without an epoll use (`userbusy`).
const LONG_DELAY_NS: u64 = 1_000_000;
/// As `defer200`.
const SHORT_FLUSH_NS: u64 = 200_000;

pub(super) static RULES: &[&Rule] = &[&DROPS, &NO_BUSY_POLLING, &WAITS_FOR_TIMER];

static DROPS: Rule = Rule {
    id: "xdp-socket-drops",
    severity: Severity::Warning,
    title: "an AF_XDP socket loses received frames",
    impact: "The program never sees these frames. Their senders repeat them, or the data is lost.",
    source: "net/xdp/xsk.c, xsk_rcv and XDP_STATISTICS",
    explanation: "Detected by XDP_STATISTICS of the socket: rx_dropped, rx_ring_full, rx_fill_ring_empty_descs. With two \
                  snapshots, they have to grow; with one, they count since the socket was opened. Fix: larger rings, \
                  frames that the program gives to the fill ring before it works on others, or more CPU time for it.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: drops,
};

fn drops(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    sockets(query).filter_map(|(process, socket)| of_drops(query, process, socket)).collect()
}

fn of_drops(query: &SnapshotQuery<'_>, process: &Process, socket: &SnapshotXdpSocket) -> Option<Observation> {
    let before = query.before().and_then(|before| {
        let files = before.same_process(process)?.files.known()?;
        files.xdp_details.iter().find(|other| other.fd == socket.fd).map(SnapshotXdpSocket::losses)
    });
    let lost: Vec<String> = socket
        .losses()
        .into_iter()
        .enumerate()
        .map(|(at, (number, what))| (number.saturating_sub(before.map_or(0, |before| before[at].0)), what))
        .filter(|(number, _)| *number > 0)
        .map(|(number, what)| format!("{number} {what}"))
        .collect();
    (!lost.is_empty()).then(|| Observation {
        severity: Severity::Warning,
        nodes: vec![Node::from(process)],
        observed: format!(
            "frames of socket {} {}: {}",
            socket.fd,
            if before.is_some() { "between the snapshots" } else { "since it was opened" },
            lost.join(", ")
        ),
        fix: vec![Fix::advice("larger rings, or more CPU time for the thread that receives")],
    })
}

static NO_BUSY_POLLING: Rule = Rule {
    id: "xdp-socket-cannot-busy-poll",
    severity: Severity::Warning,
    title: "an AF_XDP socket asks for busy polling, but has no NAPI ID",
    impact: "Receive calls of the program poll nothing. Frames wait for an interrupt, or for the queue's timer if the queue \
             defers.",
    source: "net/xdp/xsk.c, xsk_recvmsg; include/net/busy_poll.h, sk_can_busy_loop and sk_busy_loop; seen on veth, Linux 6.18",
    explanation: "Detected if a socket has SO_PREFER_BUSY_POLL or SO_BUSY_POLL, and SO_INCOMING_NAPI_ID is 0. A socket in \
                  copy mode has no ID before its first frame; one of a veth never has one, and one in copy mode has none on \
                  some kernels from 6.13 on. SO_BUSY_POLL alone, as the sysctl net.core.busy_read sets it, is a note. Fix: \
                  zero-copy mode, another kernel, or a thread that polls the queue by its ID.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: no_busy_polling,
};

fn no_busy_polling(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let asks = sockets(query).filter(|(_, socket)| socket.wants_to_poll() && socket.napi.is_none());
    asks.map(|(process, socket)| Observation {
        severity: if socket.prefer_busy_poll { Severity::Warning } else { Severity::Note },
        nodes: vec![Node::from(process)],
        observed: format!(
            "socket {}: SO_PREFER_BUSY_POLL {}, SO_BUSY_POLL {} µs, SO_INCOMING_NAPI_ID 0: it has received nothing, or this AF_XDP \
             socket cannot busy poll on this kernel",
            socket.fd,
            u8::from(socket.prefer_busy_poll),
            socket.busy_poll_us
        ),
        fix: vec![Fix::advice("zero-copy mode; or, with a free CPU for the queue, a thread of Quell that polls it (mode userbusy)")],
    })
    .collect()
}

static WAITS_FOR_TIMER: Rule = Rule {
    id: "xdp-socket-waits-for-timer",
    severity: Severity::Serious,
    title: "an AF_XDP socket that does not poll receives from a queue with a long timer",
    impact: "While interrupts are deferred, the queue's timer delivers its frames, each after up to gro-flush-timeout.",
    source: "net/core/dev.c, napi_complete_done and napi_watchdog; net/xdp/xsk.c, xsk_poll does not busy poll",
    explanation: "Detected if an AF_XDP socket is bound to a queue that defers interrupts with a gro-flush-timeout above \
                  1 ms, the socket has no busy polling or no NAPI ID, and no epoll busy-polls the queue. Fix: a shorter \
                  gro-flush-timeout, or a thread that polls the queue.",
    needs_two: false,
    judges_settings: false,
    stalls: true,
    examine: waits_for_timer,
};

fn waits_for_timer(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    sockets(query).filter_map(|(process, socket)| of_timer(query, process, socket)).collect()
}

fn of_timer(query: &SnapshotQuery<'_>, process: &Process, socket: &SnapshotXdpSocket) -> Option<Observation> {
    let (device, napi) = query.napi(query.napi_of_xdp(socket).ok()??)?;
    let flush_ns = *napi.gro_flush_timeout_ns.known()?;
    let polls = socket.wants_to_poll() && socket.napi.is_some();
    if polls || !napi.defers() || flush_ns <= LONG_DELAY_NS || query.epolls_on(napi.id).any(EpollContext::polls) {
        return None;
    }
    Some(Observation {
        severity: Severity::Serious,
        nodes: vec![Node::from(process), query.napi_node(napi.id)],
        observed: format!("socket {} does not poll, and gro-flush-timeout is {}", socket.fd, time_text(flush_ns)),
        fix: vec![
            Fix::napi_set(query, device, napi, &[(NapiAttribute::GroFlushTimeout, SHORT_FLUSH_NS)]),
            Fix::advice("with a free CPU for the queue, let a thread of Quell poll it (mode userbusy)"),
        ],
    })
}

fn sockets<'a>(query: &SnapshotQuery<'a>) -> impl Iterator<Item = (&'a Process, &'a SnapshotXdpSocket)> {
    let of_process = |process: &'a Process| {
        let files = process.files.known().into_iter();
        files.flat_map(|files| &files.xdp_details).map(move |socket| (process, socket))
    };
    query.now.processes.iter().flat_map(of_process)
}
