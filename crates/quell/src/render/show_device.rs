//! A device in the tree of `quell show`, with its queues; equal queues share a line.

use std::collections::BTreeMap;

use quell_host::snapshot::{Device, Index, Provenance, Reading, RxQueue, SnapshotNapi, Unknown};
use quell_linux::CpuList;
use quell_linux::ethtool::{CoalesceParameter, Coalescing, FlowAction, InstalledFlowRule, RssContext};
use quell_linux::link::OperationalState;
use quell_linux::netdev::NapiThreading;
use quell_linux::sched::Policy;
use quell_linux::visible::counted;
use quell_mode::duration_text;

use super::number::count;
use super::show_names::{ranges, reason};
use super::tree::Meaning::{Faint, Notable, Plain, Set};
use super::tree::Node;

const FEATURES: [(&str, &str); 4] =
    [("rx-gro", "gro"), ("rx-gro-hw", "gro-hw"), ("tx-tcp-segmentation", "tso"), ("rx-lro", "lro")];

pub(super) fn node(device: &Device, index: &Index<'_>, details: bool) -> Node {
    let mut node = Node::named(&device.name);
    describe(device, &mut node);
    node.extend(rx_groups(device, index, details));
    node.extend(napis_without_queue(device, index));
    node.extend(tx_groups(device));
    node.extend(device.rss_contexts.known_elements().filter_map(rss));
    node.extend(device.flow_rules.known_elements().map(flow_rule));
    node
}

/// Whether the device has, or may have, a NAPI instance, XDP, RPS, XPS or drops. Most stacked devices and `lo` have
/// none of them.
pub(super) fn is_on_packet_path(device: &Device) -> bool {
    let has_napi = device.napis.known().is_none_or(|napis| !napis.is_empty());
    let on_queue = |queue: &RxQueue| {
        queue.napi.known().is_none_or(Option::is_some) || queue.rps_cpus.known().is_some_and(|cpus| !cpus.is_empty())
    };
    let dropped = device.counters.known().is_some_and(|counters| counters.rx_dropped > 0)
        || device.rx_queue_dropped.known().is_some_and(|&full| full > 0);
    has_napi
        || device.rx_queues.known().is_none_or(|queues| queues.iter().any(on_queue))
        || device.has_xdp.known() == Some(&true)
        || !tx_groups(device).is_empty()
        || dropped
}

pub(super) fn without_napi(devices: &[&Device]) -> Option<Node> {
    if devices.is_empty() {
        return None;
    }
    let mut node = Node::named("without NAPI");
    for device in devices {
        let down = if device.is_up { "" } else { " (down)" };
        node.add(Faint, format!("{}{down}", device.name));
    }
    Some(node)
}

fn describe(device: &Device, node: &mut Node) {
    let driver = device.driver.known().and_then(|driver| driver.driver.clone());
    node.add_if(Plain, device.kind.clone().filter(|kind| Some(kind) != driver.as_ref()));
    node.add_if(Plain, driver);
    match (device.is_up, device.operational_state) {
        (false, _) => node.add(Notable, "down"),
        (true, OperationalState::Up | OperationalState::Unknown) => node.add(Plain, "up"),
        (true, other) => node.add(Notable, format!("up, {}", state(other))),
    }
    let speed = device.speed_mbit.known().copied().flatten();
    node.add_if(Plain, speed.map(|mbit| format!("{} Mbit/s", count(mbit as usize))));
    node.add_if(Plain, device.numa_node.known().copied().flatten().map(|number| format!("node {number}")));
    if let Some(channels) = device.channels.known() {
        let kinds = [
            ("rx", channels.rx_count, channels.rx_max),
            ("tx", channels.tx_count, channels.tx_max),
            ("combined", channels.combined_count, channels.combined_max),
        ];
        let parts: Vec<String> =
            kinds.into_iter().filter_map(|(kind, now, max)| Some(format!("{kind} {}/{}", now?, max?))).collect();
        node.add_if(Plain, (!parts.is_empty()).then(|| format!("channels {}", parts.join(", "))));
    }
    let rings = device.rings.known().and_then(|rings| Some(format!("ring rx {}/{}", rings.rx?, rings.rx_max?)));
    node.add_if(Plain, rings);
    node.add_if(Plain, device.coalescing.known().map(coalescing));
    if let Some(features) = device.features.known() {
        let on = FEATURES.into_iter().filter_map(|(name, short)| {
            Some(format!("{short} {}", if features.get(name)?.active { "on" } else { "off" }))
        });
        node.add(Plain, on.collect::<Vec<_>>().join(", "));
    }
    node.add_if(Set, (device.has_xdp.known() == Some(&true)).then(|| "xdp".to_owned()));
    let full = device.rx_queue_dropped.known().copied().unwrap_or(0);
    // A veth's figure is that of its peer, which sends while the link is down, too.
    let or_down = if device.kind.as_deref() == Some("veth") { " or while the link was down" } else { "" };
    let lost = |packets| format!("{} lost by full queues{or_down}", counted(packets, "received packet"));
    node.add_if(Notable, (full > 0).then(|| lost(full)));
    let dropped = device.counters.known().map_or(0, |counters| counters.rx_dropped);
    node.add_if(Notable, (dropped > 0).then(|| format!("rx_dropped {}", count(dropped as usize))));
    for (why, what) in unknown(device) {
        node.add(Faint, format!("{} unknown: {why}", what.join(", ")));
    }
}

fn state(state: OperationalState) -> &'static str {
    match state {
        OperationalState::NotPresent => "hardware not present",
        OperationalState::Down => "no carrier",
        OperationalState::LowerLayerDown => "lower device is down",
        OperationalState::Testing => "testing",
        OperationalState::Dormant => "dormant",
        OperationalState::Up => "carrier",
        _ => "state unknown",
    }
}

fn unknown(device: &Device) -> BTreeMap<String, Vec<&'static str>> {
    let readings: [(&str, Option<&Unknown>); 10] = [
        ("driver", device.driver.why_unknown()),
        ("speed", device.speed_mbit.why_unknown()),
        ("NUMA node", device.numa_node.why_unknown()),
        ("channels", device.channels.why_unknown()),
        ("rings", device.rings.why_unknown()),
        ("coalescing", device.coalescing.why_unknown()),
        ("RSS", device.rss_contexts.why_unknown()),
        ("flow rules", device.flow_rules.why_unknown()),
        ("features", device.features.why_unknown()),
        ("queues", device.rx_queues.why_unknown().or(device.napis.why_unknown())),
    ];
    let mut by_reason: BTreeMap<String, Vec<&'static str>> = BTreeMap::new();
    for (what, unknown) in readings {
        if let Some(unknown) = unknown {
            by_reason.entry(reason(unknown)).or_default().push(what);
        }
    }
    by_reason
}

fn coalescing(values: &Coalescing) -> String {
    use CoalesceParameter::{RxMaxFrames, RxUsecs, UseAdaptiveRx};
    let mut parts = Vec::new();
    if values.get(UseAdaptiveRx) == Some(1) {
        parts.push("adaptive".to_owned());
    }
    parts.extend(values.get(RxUsecs).map(|usecs| format!("{usecs} µs")));
    parts.extend(values.get(RxMaxFrames).map(|frames| counted(frames, "frame")));
    format!("coalescing rx {}", if parts.is_empty() { "none".to_owned() } else { parts.join("/") })
}

/// Displayed properties of a receive queue; queues with equal ones share a line.
#[derive(PartialEq, Eq)]
struct Likeness {
    settings: Vec<(super::tree::Meaning, String)>,
    has_napi: Option<Provenance>,
}

fn rx_groups(device: &Device, index: &Index<'_>, details: bool) -> Vec<Node> {
    let mut groups: Vec<(Likeness, Vec<&RxQueue>)> = Vec::new();
    for queue in device.rx_queues.known_elements() {
        let alike = likeness(device, queue, index);
        match groups.iter_mut().find(|(other, _)| *other == alike && !details) {
            Some((_, queues)) => queues.push(queue),
            None => groups.push((alike, vec![queue])),
        }
    }
    groups.into_iter().map(|(alike, queues)| rx_node(alike, &queues, index)).collect()
}

fn likeness(device: &Device, queue: &RxQueue, index: &Index<'_>) -> Likeness {
    let linked = queue.napi.known().copied().flatten();
    let napi = linked.and_then(|linked| Some(index.napi(linked.to)?.1));
    let mut settings = napi.map_or_else(Vec::new, napi_settings);
    match &queue.napi {
        Reading::Known(Some(_)) => {}
        Reading::Known(None) => settings.push((Faint, "no NAPI".to_owned())),
        Reading::Unknown(unknown) => settings.push((Faint, format!("NAPI unknown: {}", reason(&unknown.unknown)))),
    }
    if let Some(Some(lease)) = queue.lease.known() {
        settings.push((Notable, format!("leased by queue {} of interface {}", lease.queue, lease.ifindex.get())));
    }
    if let Some(cpus) = queue.rps_cpus.known().filter(|cpus| !cpus.is_empty()) {
        settings.push((Set, format!("rps to CPU {cpus}")));
    }
    if let Some(own) = queue.coalescing.known().filter(|own| Some(*own) != device.coalescing.known()) {
        settings.push((Set, coalescing(own)));
    }
    Likeness { settings, has_napi: linked.map(|linked| linked.source) }
}

/// NAPI settings; values that differ from the kernel's defaults are highlighted.
fn napi_settings(napi: &SnapshotNapi) -> Vec<(super::tree::Meaning, String)> {
    let mut parts = Vec::new();
    let (defer, flush, suspend) = (&napi.defer_hard_irqs, &napi.gro_flush_timeout_ns, &napi.irq_suspend_timeout_ns);
    if let (Some(0), Some(0), Some(0)) = (defer.known(), flush.known(), suspend.known()) {
        parts.push((Plain, "no deferral".to_owned()));
    } else {
        parts.push(setting("defer-hard-irqs", defer.clone().map(u64::from), |count| count.to_string()));
        parts.push(setting("gro-flush-timeout", flush.clone(), duration_text));
        parts.push(setting("irq-suspend-timeout", suspend.clone(), duration_text));
    }
    match napi.threading.known() {
        Some(NapiThreading::Enabled) => parts.push((Set, "threaded".to_owned())),
        Some(NapiThreading::BusyPoll) => parts.push((Set, "threaded busy poll".to_owned())),
        _ => {}
    }
    if let Some(thread) = napi.thread.known().and_then(Option::as_ref) {
        match thread.scheduling.known().map(|scheduling| scheduling.policy) {
            Some(Policy::Fifo { priority }) => parts.push((Set, format!("fifo {priority}"))),
            Some(Policy::RoundRobin { priority }) => parts.push((Set, format!("rr {priority}"))),
            _ => {}
        }
    }
    parts
}

fn setting(name: &str, value: Reading<u64>, text: impl Fn(u64) -> String) -> (super::tree::Meaning, String) {
    match value {
        Reading::Known(0) => (Plain, format!("{name} 0")),
        Reading::Known(value) => (Set, format!("{name} {}", text(value))),
        Reading::Unknown(unknown) => (Faint, format!("{name} unknown: {}", reason(&unknown.unknown))),
    }
}

fn rx_node(alike: Likeness, queues: &[&RxQueue], index: &Index<'_>) -> Node {
    let mut node = Node::named(format!("rx {}", ranges(queues.iter().map(|queue| queue.id))));
    let links = queues.iter().filter_map(|queue| queue.napi.known().copied().flatten());
    let napis: Vec<&SnapshotNapi> = links.filter_map(|linked| Some(index.napi(linked.to)?.1)).collect();
    if let Some(source) = alike.has_napi {
        let inferred = if source == Provenance::Kernel { "" } else { " (inferred)" };
        node.add(Plain, format!("NAPI {}{inferred}", ranges(napis.iter().map(|napi| napi.id.get()))));
    }
    add_pollers(&napis, index, &mut node);
    for (meaning, text) in alike.settings {
        node.add(meaning, text);
    }
    let packets: Option<u64> = queues.iter().map(|queue| queue.counters.known()?.rx_packets).sum();
    node.add_if(Faint, packets.map(|packets| counted(packets, "packet")));
    node
}

fn add_pollers(napis: &[&SnapshotNapi], index: &Index<'_>, node: &mut Node) {
    let links: Vec<_> = napis.iter().filter_map(|napi| napi.irq.known().copied().flatten()).collect();
    let irqs: Vec<_> = links.iter().filter_map(|linked| index.irq(linked.to)).collect();
    if !irqs.is_empty() {
        let inferred = if links.iter().all(|linked| linked.source == Provenance::Kernel) { "" } else { " (inferred)" };
        let cpus: Vec<_> = irqs.iter().map(|irq| (irq.number, irq.effective_affinity.known())).collect();
        node.add(Plain, on_cpus("irq", inferred, &cpus));
        let counts = irqs.iter().filter_map(|irq| irq.counts.known()).flatten().map(|(_, count)| *count).sum::<u64>();
        node.add(Faint, counted(counts, "interrupt"));
    }
    let is_without = |napi: &&&SnapshotNapi| napi.irq.known() == Some(&None);
    if !napis.is_empty() && napis.iter().filter(is_without).count() == napis.len() {
        node.add(Faint, "no interrupt");
    }
    if let Some(unknown) = napis.iter().find_map(|napi| napi.irq.why_unknown()) {
        node.add(Faint, format!("irq unknown: {}", reason(unknown)));
    }
    let threads: Vec<_> = napis.iter().filter_map(|napi| napi.thread.known()?.as_ref()).collect();
    if !threads.is_empty() {
        let cpus: Vec<_> =
            threads.iter().map(|thread| (thread.tid.get().unsigned_abs(), thread.affinity.known())).collect();
        node.add(Set, on_cpus("thread", "", &cpus));
    }
}

/// Affinities up to this number are listed one by one.
const CPUS_LISTED: usize = 8;

/// Interrupts or threads of merged queues, in the order of the queues, with their CPUs.
fn on_cpus(what: &str, source: &str, pollers: &[(u32, Option<&CpuList>)]) -> String {
    let numbers = ranges(pollers.iter().map(|(number, _)| *number));
    let all = ranges(pollers.iter().filter_map(|(_, cpus)| *cpus).flat_map(CpuList::iter));
    let each: Option<Vec<Vec<u32>>> = pollers.iter().map(|(_, cpus)| Some(cpus.as_ref()?.iter().collect())).collect();
    let on = match each {
        Some(each) if each.iter().all(|cpus| *cpus == each[0]) => all,
        Some(each) if each.iter().all(|cpus| cpus.len() == 1) && each.is_sorted_by(|a, b| a < b) => {
            format!("{all}, one each")
        }
        Some(each) if each.len() <= CPUS_LISTED => {
            each.into_iter().map(ranges).collect::<Vec<_>>().join(" and ") + " in the order of the queues"
        }
        _ => all,
    };
    format!("{what} {numbers}{source} on CPU {on}")
}

fn napis_without_queue(device: &Device, index: &Index<'_>) -> Option<Node> {
    let linked: Vec<_> =
        device.rx_queues.known_elements().filter_map(|queue| queue.napi.known().copied().flatten()).collect();
    let others: Vec<&SnapshotNapi> =
        device.napis.known_elements().filter(|napi| linked.iter().all(|linked| linked.to != napi.id)).collect();
    if others.is_empty() {
        return None;
    }
    let mut node = Node::named(format!("NAPI {}", ranges(others.iter().map(|napi| napi.id.get()))));
    node.add(Faint, "no known receive queue");
    add_pollers(&others, index, &mut node);
    Some(node)
}

/// XPS: transmit queues selected by CPU or by receive queue, one line each.
fn tx_groups(device: &Device) -> Vec<Node> {
    let by_cpu = device.tx_queues.known_elements().filter_map(|queue| {
        let cpus = queue.xps_cpus.known()?.as_ref().filter(|cpus| !cpus.is_empty())?;
        Some(format!("{}→{cpus}", queue.id))
    });
    let by_queue = device.tx_queues.known_elements().filter_map(|queue| {
        let queues = queue.xps_rxqs.known().filter(|queues| !queues.is_empty())?;
        Some(format!("{}→{}", queue.id, ranges(queues.iter().copied())))
    });
    let parts = [("xps by CPU", by_cpu.collect::<Vec<_>>()), ("xps by rx queue", by_queue.collect())];
    let parts = parts.into_iter().filter(|(_, pairs)| !pairs.is_empty());
    parts.map(|(how, pairs)| Node::named("tx").with(Set, format!("{how} {}", pairs.join(" ")))).collect()
}

fn rss(context: &RssContext) -> Option<Node> {
    let table = context.indirection.as_ref().filter(|table| !table.is_empty())?;
    let mut node = Node::named(format!("rss {}", context.id));
    node.add(Plain, format!("{} over rx {}", counted(table.len(), "bucket"), ranges(table.iter().copied())));
    Some(node)
}

fn flow_rule(installed: &InstalledFlowRule) -> Node {
    let node = Node::named(format!("flow rule {}", installed.location));
    let Some(rule) = &installed.rule else { return node.with(Faint, "unsupported type") };
    let port = |what: &str, port: Option<u16>| port.map(|port| format!("{what} port {port}"));
    let mut node = node.with(Plain, format!("{:?}", rule.matches.transport).to_lowercase());
    node.add_if(Plain, port("source", rule.matches.source_port));
    node.add_if(Plain, port("destination", rule.matches.destination_port));
    match rule.action {
        FlowAction::Queue(queue) => node.with(Set, format!("to rx {queue}")),
        FlowAction::Context(context) => node.with(Set, format!("to rss {context}")),
        FlowAction::Discard => node.with(Notable, "dropped"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_queues_say_on_which_cpu_the_thread_of_each_is() {
        let cpus = |text: &str| text.parse::<CpuList>().unwrap();
        let (zero, one, both) = (cpus("0"), cpus("1"), cpus("0-1"));
        let said = |first, second| on_cpus("thread", "", &[(9_509, Some(first)), (9_517, Some(second))]);
        assert_eq!(said(&zero, &one), "thread 9509,9517 on CPU 0-1, one each");
        assert_eq!(said(&one, &zero), "thread 9509,9517 on CPU 1 and 0 in the order of the queues");
        assert_eq!(said(&both, &both), "thread 9509,9517 on CPU 0-1");
        assert_eq!(said(&zero, &zero), "thread 9509,9517 on CPU 0");
    }
}
