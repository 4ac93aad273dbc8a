//! Rules about single queues over time: a queue that stalls, one that drops packets, and one whose NAPI instance was
//! replaced.

use quell_linux::NapiId;

use super::mend::Mend;
use super::view::{EpollView, View, defers, suspends, time_text};
use super::{Node, Observation, Rule, Severity};
use crate::picture::{Device, Napi};

pub(super) const RULES: &[&Rule] = &[&STALLED, &DROPS, &REPLACED];

static STALLED: Rule = Rule {
    id: "stalled-queue",
    severity: Severity::Serious,
    title: "packets arrive, and the stack takes none of them in",
    why: "Packets of a suspended queue lie in the ring until the program waits on its epoll again or irq-suspend-timeout \
          is over; a program that does neither is deaf, and the ring overflows.",
    source: "net/core/dev.c, napi_suspend_irqs; measured: held for the whole timeout by four wrong orders of undoing and by \
             epoll_wait with a timeout of 0",
    explanation: "Compared over two pictures: a device with a queue that may suspend counted 64 received packets or more, \
                  and its namespace took in no IP packet at all. Only devices that count what arrives can be judged so; \
                  veth counts what is polled. Of several queues one that stalls is hidden by those that do not, and XDP \
                  programs take packets before the stack. Freed at once by whatever polls the queue; for good by letting \
                  the program come back to epoll_wait with a timeout above 0.",
    needs_two: true,
    examine: stalled,
};

/// Fewer packets may be ARP and the like, which is not IP.
const ARRIVALS_TO_JUDGE: u64 = 64;

fn stalled(view: &View<'_>) -> Vec<Observation> {
    view.now.devices.iter().filter_map(|device| of_stalled(view, device)).collect()
}

fn of_stalled(view: &View<'_>, device: &Device) -> Option<Observation> {
    let suspending: Vec<&Napi> = device.napis.known()?.iter().filter(|napi| suspends(napi)).collect();
    let longest = suspending.iter().filter_map(|napi| napi.irq_suspend_timeout_ns.known()).max()?;
    if device.has_xdp.known() != Some(&false) {
        return None;
    }
    let arrived = view.device_packets(device).filter(|&arrived| arrived >= ARRIVALS_TO_JUDGE)?;
    let namespace = view.now.namespaces.iter().find(|namespace| namespace.inode == device.namespace)?;
    let before = view.namespace_before(device.namespace)?;
    if namespace.ip_rx_packets.known()? != before.ip_rx_packets.known()? {
        return None;
    }
    let mut nodes = vec![Node::from(device)];
    nodes.extend(suspending.iter().map(|napi| view.napi_node(napi.id)));
    let holders = suspending.iter().flat_map(|napi| view.epolls_on(napi.id)).filter(|epoll| epoll.prefers());
    nodes.extend(holders.flat_map(EpollView::nodes));
    nodes.dedup();
    let interval = time_text(view.interval_ns()?);
    Some(Observation {
        severity: Severity::Serious,
        nodes,
        seen: format!(
            "{arrived} packets arrived in {interval} and the stack took in none; irq-suspend-timeout is {}",
            time_text(*longest)
        ),
        mend: vec![Mend::advice("let the program come back to epoll_wait, with a timeout above 0")],
    })
}

static DROPS: Rule = Rule {
    id: "packets-dropped",
    severity: Severity::Serious,
    title: "a device drops received packets",
    why: "A request that is dropped comes back after a retransmission timeout of 200 ms or more, a thousand times the \
          latency that any delivery mode is about.",
    source: "net/ipv4/tcp_timer.c; veth's ring holds 255 packets and drops further ones without a word (measured)",
    explanation: "Compared over two pictures: the device's rx_dropped, which also counts packets that nobody wanted. \
                  Serious where the device has a suspended or deferred queue, whose ring fills while it is not polled. \
                  Mended by a larger ring, or by a shorter suspension; a veth's ring cannot be changed, so fewer \
                  connections for each queue help.",
    needs_two: true,
    examine: drops,
};

fn drops(view: &View<'_>) -> Vec<Observation> {
    let of = |device: &Device| {
        let before = view.device_before(device)?.counters.known()?;
        let dropped = device.counters.known()?.rx_dropped.checked_sub(before.rx_dropped).filter(|&count| count > 0)?;
        let held = device.napis.known_elements().any(|napi| suspends(napi) || defers(napi));
        let ring = device.rings.known().and_then(|rings| Some((rings.rx?, rings.rx_max?)));
        let mend = match ring.filter(|(now, max)| now < max) {
            Some((_, max)) => {
                Mend::in_namespace(view, device.namespace, &["ethtool", "-G", &device.name, "rx", &max.to_string()])
            }
            None => Mend::advice("fewer connections for each queue, more queues, or a shorter irq-suspend-timeout"),
        };
        Some(Observation {
            severity: if held { Severity::Serious } else { Severity::Warning },
            nodes: vec![device.into()],
            seen: format!("{dropped} received packets dropped in {}", time_text(view.interval_ns()?)),
            mend: vec![mend],
        })
    };
    view.now.devices.iter().filter_map(of).collect()
}

static REPLACED: Rule = Rule {
    id: "napi-replaced",
    severity: Severity::Warning,
    title: "the queues of a device have new NAPI ids",
    why: "Drivers that do not keep settings forget them with the id: what was set by queue is gone, and epolls keep polling \
          an id that no longer exists until a socket tells them of the new one.",
    source: "net/core/dev.c, napi_restore_config: only drivers that ask for it; measured on veth, link down and up",
    explanation: "Compared over two pictures: the device has other NAPI ids than before, because its link went down and up \
                  or its channels changed. Mended by setting the queues again; the commands are those that set them \
                  first.",
    needs_two: true,
    examine: replaced,
};

fn replaced(view: &View<'_>) -> Vec<Observation> {
    let of = |device: &Device| {
        let ids = |napis: &[Napi]| napis.iter().map(|napi| napi.id).collect::<Vec<_>>();
        let (before, now) = (view.device_before(device)?.napis.known()?, device.napis.known()?);
        let (old, new) = (ids(before), ids(now));
        // Down, or never up: no instance was replaced.
        if old.is_empty() || new.is_empty() || old.iter().all(|id| new.contains(id)) {
            return None;
        }
        let was_set = before.iter().any(|napi| suspends(napi) || defers(napi));
        Some(Observation {
            severity: if was_set { Severity::Warning } else { Severity::Note },
            nodes: vec![device.into()],
            seen: format!("NAPI ids were {} and are {}", listed(&old), listed(&new)),
            mend: vec![Mend::advice("set the queues again, as they were set first")],
        })
    };
    view.now.devices.iter().filter_map(of).collect()
}

fn listed(ids: &[NapiId]) -> String {
    ids.iter().map(NapiId::to_string).collect::<Vec<_>>().join(", ")
}
