//! Rules about devices whose packets bypass NAPI, or whose packets move to other CPUs after NAPI.

use super::fix::{Feature, Fix};
use super::setting::{Setting, SettingObject};
use super::{Observation, Rule, Severity};
use crate::snapshot::query::SnapshotQuery;
use crate::snapshot::{Device, RxQueue};
use quell_linux::visible::counted;

pub(super) const RULES: &[&Rule] = &[&GRO_OFF, &TSO, &RPS, &SMALL_RING];

/// ID of the finding about devices without GRO.
pub(crate) const GRO_OFF_ID: &str = "gro-off";

static GRO_OFF: Rule = Rule {
    id: GRO_OFF_ID,
    severity: Severity::Warning,
    title: "GRO is off",
    impact: "Every packet passes the stack separately. A veth without GRO has no NAPI at all, so it cannot be polled, \
          deferred or suspended.",
    source: "drivers/net/veth.c, veth_set_features and veth_open; net/core/gro.c",
    explanation: "Detected if the feature rx-gro is off on a veth without XDP, or on a device with NAPI instances, \
                  that is up. Fix: enable it.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: gro_off,
};

fn gro_off(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let of = |device: &Device| {
        let napis = device.napis.known()?.len();
        let matters = napis > 0 || lacks_napi(device);
        (is_gro_off(device) && matters).then(|| Observation {
            severity: Severity::Warning,
            nodes: vec![device.into()],
            observed: format!("rx-gro is off, {}", counted(napis, "NAPI instance")),
            fix: vec![gro_on(query, device)],
        })
    };
    query.now.devices.iter().filter_map(of).collect()
}

fn is_gro_off(device: &Device) -> bool {
    let gro = device.features.known().and_then(|features| features.get("rx-gro"));
    device.is_up && gro.is_some_and(|gro| !gro.active)
}

/// Whether the device is a veth without NAPI instances, because its GRO is off.
pub(crate) fn lacks_napi(device: &Device) -> bool {
    is_gro_off(device)
        && device.kind.as_deref() == Some("veth")
        && device.has_xdp.known() == Some(&false)
        && device.napis.known().is_some_and(Vec::is_empty)
}

pub(crate) fn gro_on(query: &SnapshotQuery<'_>, device: &Device) -> Fix {
    Fix::feature(query, device, Feature::Gro, true)
}

static TSO: Rule = Rule {
    id: "tso-bypasses-napi",
    severity: Severity::Warning,
    title: "the peer of a veth sends packets that bypass NAPI",
    impact: "veth delivers aggregated packets without NAPI. No poll finds them, and their sockets have no queue.",
    source: "drivers/net/veth.c, veth_skb_is_eligible_for_gro; measured: SO_INCOMING_NAPI_ID reads 0",
    explanation: "Detected if a veth has NAPI instances and its peer, in the same namespace, has tx-tcp-segmentation \
                  on. For a peer in another namespace, see connections-without-napi. Fix: disable TSO and GSO on the \
                  peer.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: tso,
};

fn tso(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let of = |device: &Device| {
        let is_veth = device.kind.as_deref() == Some("veth") && !device.napis.known()?.is_empty();
        let lower = device.lower.filter(|lower| is_veth && !lower.is_in_other_namespace)?;
        let peer = query.device(device.namespace, lower.ifindex)?;
        peer.features.known()?.get("tx-tcp-segmentation")?.active.then(|| Observation {
            severity: Severity::Warning,
            nodes: vec![device.into(), peer.into()],
            observed: format!("tx-tcp-segmentation is on at {}", peer.name),
            fix: vec![Fix::feature(query, peer, Feature::Tso, false), Fix::feature(query, peer, Feature::Gso, false)],
        })
    };
    query.now.devices.iter().filter_map(of).collect()
}

static RPS: Rule = Rule {
    id: "rps-on-polled-queue",
    severity: Severity::Warning,
    title: "RPS moves packets of a polled queue to other CPUs",
    impact: "If a program polls a packet and RPS moves it to another CPU, this causes an inter-processor interrupt and a \
          softirq there. Polling is meant to avoid both.",
    source: "net/core/dev.c, netif_receive_skb_list_internal and enqueue_to_backlog",
    explanation: "Detected if rps_cpus of a receive queue is not empty, and the queue allows suspension or an epoll on \
                  it busy-polls. Fix: clear rps_cpus.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: rps,
};

fn rps(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let of = |device: &Device, queue: &RxQueue| {
        let cpus = queue.rps_cpus.known().filter(|cpus| !cpus.is_empty())?;
        let (_, napi) = query.napi(queue.napi_id()?).filter(|(_, napi)| query.is_polled(napi))?;
        let script = r#"echo 0 > /sys/class/net/"$0"/queues/rx-"$1"/rps_cpus"#;
        let queue_id = queue.id.to_string();
        let words = ["sh", "-c", script, &device.name, &queue_id];
        let object = SettingObject::RxQueue(device.namespace, device.ifindex, queue.id);
        Some(Observation {
            severity: Severity::Warning,
            nodes: vec![query.rx_queue_node(device, queue.id), query.napi_node(napi.id)],
            observed: format!("rps_cpus is {cpus}"),
            fix: vec![
                Fix::in_namespace(query, device.namespace, &words)
                    .setting_of(Setting::host(object, "rps_cpus", cpus, "none")),
            ],
        })
    };
    let queues =
        query.now.devices.iter().flat_map(|device| device.rx_queues.known_elements().map(move |queue| (device, queue)));
    queues.filter_map(|(device, queue)| of(device, queue)).collect()
}

static SMALL_RING: Rule = Rule {
    id: "small-ring-many-connections",
    severity: Severity::Warning,
    title: "a suspended veth queue has more connections than its ring can hold",
    impact: "A veth's ring holds 255 packets and silently drops further ones. Each connection may have a request and an \
          acknowledgement in it.",
    source: "drivers/net/veth.c, VETH_RING_SIZE; measured: 1,936 packets lost above about 128 connections",
    explanation: "Detected if a queue of a veth allows suspension and serves more than 128 connections in epolls. Fix: \
                  more queues, fewer connections, or a shorter irq-suspend-timeout.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: small_ring,
};

const VETH_CONNECTIONS_MAX: usize = 128;

fn small_ring(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let veths = query.napis().filter(|(device, _)| device.kind.as_deref() == Some("veth"));
    let suspending = veths.filter(|(_, napi)| napi.suspends());
    let of = |(device, napi): (&Device, &crate::snapshot::SnapshotNapi)| {
        let on = |epoll: &crate::snapshot::query::EpollContext<'_>| epoll.by_napi.get(&napi.id).map_or(0, Vec::len);
        let connections: usize = query.epolls_on(napi.id).map(on).sum();
        (connections > VETH_CONNECTIONS_MAX).then(|| Observation {
            severity: Severity::Warning,
            nodes: vec![device.into(), query.napi_node(napi.id)],
            observed: counted(connections, "connection"),
            fix: vec![Fix::advice("use more queues, fewer connections, or a shorter irq-suspend-timeout")],
        })
    };
    suspending.filter_map(of).collect()
}
