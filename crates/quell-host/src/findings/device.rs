//! Rules about devices whose packets bypass NAPI or are moved to other CPUs after it.

use super::mend::Mend;
use super::view::{View, counted, napi_of};
use super::{Node, Observation, Rule, Severity};
use crate::picture::{Device, RxQueue};

pub(super) const RULES: &[&Rule] = &[&GRO_OFF, &TSO, &RPS, &SMALL_RING];

static GRO_OFF: Rule = Rule {
    id: "gro-off",
    severity: Severity::Warning,
    title: "GRO is off",
    why: "Without GRO every packet goes through the stack by itself, and a veth has no NAPI at all, so that nothing can poll \
          it, defer it or suspend it.",
    source: "drivers/net/veth.c, veth_set_features and veth_open; net/core/gro.c",
    explanation: "Seen: the feature rx-gro is off on a device that is up. A warning on a veth without XDP, and on a device \
                  with NAPI instances; other devices, lo among them, are left alone. Mended by switching it on.",
    needs_two: false,
    examine: gro_off,
};

fn gro_off(view: &View<'_>) -> Vec<Observation> {
    let of = |device: &Device| {
        let off = device.is_up && !device.features.known()?.get("rx-gro")?.active;
        let napis = device.napis.known()?.len();
        let is_veth = device.kind.as_deref() == Some("veth");
        let matters = napis > 0 || (is_veth && device.has_xdp.known() == Some(&false));
        (off && matters).then(|| Observation {
            severity: Severity::Warning,
            nodes: vec![device.into()],
            seen: format!("rx-gro is off, {}", counted(napis, "NAPI instance")),
            mend: vec![Mend::feature(view, device, "gro", true)],
        })
    };
    view.now.devices.iter().filter_map(of).collect()
}

static TSO: Rule = Rule {
    id: "tso-bypasses-napi",
    severity: Severity::Warning,
    title: "the other end of a veth sends packets that bypass NAPI",
    why: "A packet that was put together before it is sent needs no merging, so veth hands it on without NAPI: nothing polls \
          it, and its socket knows no queue.",
    source: "drivers/net/veth.c, veth_skb_is_eligible_for_gro; measured: SO_INCOMING_NAPI_ID reads 0",
    explanation: "Seen: a veth has NAPI instances, its other end is in the same namespace, and has tx-tcp-segmentation on. \
                  An end in another namespace cannot be told apart from others of its number; see \
                  connections-without-napi. Mended by switching TSO and GSO off at the other end.",
    needs_two: false,
    examine: tso,
};

fn tso(view: &View<'_>) -> Vec<Observation> {
    let of = |device: &Device| {
        let is_veth = device.kind.as_deref() == Some("veth") && !device.napis.known()?.is_empty();
        let lower = device.lower.filter(|lower| is_veth && !lower.is_elsewhere)?;
        let peer = view.device(device.namespace, lower.ifindex)?;
        peer.features.known()?.get("tx-tcp-segmentation")?.active.then(|| Observation {
            severity: Severity::Warning,
            nodes: vec![device.into(), peer.into()],
            seen: format!("tx-tcp-segmentation is on at {}", peer.name),
            mend: vec![Mend::feature(view, peer, "tso", false), Mend::feature(view, peer, "gso", false)],
        })
    };
    view.now.devices.iter().filter_map(of).collect()
}

static RPS: Rule = Rule {
    id: "rps-on-polled-queue",
    severity: Severity::Warning,
    title: "RPS hands packets of a polled queue to other CPUs",
    why: "A packet that a program polls and RPS sends to another CPU comes back by an inter-processor interrupt and that \
          CPU's softirq, which is what polling was to save.",
    source: "net/core/dev.c, netif_receive_skb_list_internal and enqueue_to_backlog",
    explanation: "Seen: rps_cpus of a receive queue is not empty, and the queue may suspend or an epoll on it busy polls. \
                  Mended by emptying it.",
    needs_two: false,
    examine: rps,
};

fn rps(view: &View<'_>) -> Vec<Observation> {
    let of = |device: &Device, queue: &RxQueue| {
        let cpus = queue.rps_cpus.known().filter(|cpus| !cpus.is_empty())?;
        let (_, napi) = view.napi(napi_of(queue)?).filter(|(_, napi)| view.is_polled(napi))?;
        let script = r#"echo 0 > /sys/class/net/"$0"/queues/rx-"$1"/rps_cpus"#;
        let queue_id = queue.id.to_string();
        Some(Observation {
            severity: Severity::Warning,
            nodes: vec![Node::RxQueue { device: device.name.clone(), queue: queue.id }, view.napi_node(napi.id)],
            seen: format!("rps_cpus is {cpus}"),
            mend: vec![Mend::in_namespace(view, device.namespace, &["sh", "-c", script, &device.name, &queue_id])],
        })
    };
    let queues =
        view.now.devices.iter().flat_map(|device| device.rx_queues.known_elements().map(move |queue| (device, queue)));
    queues.filter_map(|(device, queue)| of(device, queue)).collect()
}

static SMALL_RING: Rule = Rule {
    id: "small-ring-many-connections",
    severity: Severity::Note,
    title: "a suspended veth queue has more connections than its ring has room for",
    why: "A veth's ring holds 255 packets and drops further ones without a word; while the queue is suspended one request \
          and one acknowledgement of each connection may lie there.",
    source: "drivers/net/veth.c, VETH_RING_SIZE; measured: 1,936 packets lost above about 128 connections",
    explanation: "Seen: a queue of a veth may suspend, and more than 128 connections in epolls arrive by it. Mended by more \
                  queues, fewer connections, or a shorter irq-suspend-timeout.",
    needs_two: false,
    examine: small_ring,
};

const VETH_CONNECTIONS_MAX: usize = 128;

fn small_ring(view: &View<'_>) -> Vec<Observation> {
    let veths = view.napis().filter(|(device, _)| device.kind.as_deref() == Some("veth"));
    let suspending = veths.filter(|(_, napi)| super::view::suspends(napi));
    let of = |(device, napi): (&Device, &crate::picture::Napi)| {
        let on = |epoll: &super::view::EpollView<'_>| epoll.by_napi.get(&napi.id).map_or(0, Vec::len);
        let connections: usize = view.epolls_on(napi.id).map(on).sum();
        (connections > VETH_CONNECTIONS_MAX).then(|| Observation {
            severity: Severity::Note,
            nodes: vec![device.into(), view.napi_node(napi.id)],
            seen: counted(connections, "connection"),
            mend: vec![Mend::advice("more queues, fewer connections, or a shorter irq-suspend-timeout")],
        })
    };
    suspending.filter_map(of).collect()
}
