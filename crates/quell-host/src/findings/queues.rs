//! Rules about single queues over time: stalled queues, dropped packets, and replaced NAPI instances.

use std::collections::{BTreeMap, BTreeSet};

use quell_linux::visible::counted;
use quell_linux::{NapiId, Pid};
use quell_mode::PartialNapiSettings;
use quell_sampler::STALLED_NS;

use super::fix::Fix;
use super::setting::{Setting, SettingObject};
use super::starved::starved;
use super::text::time_text;
use super::{Node, Observation, Rule, Severity};
use crate::attach::effect::{EffectOnQueue, STALLED_POLLS_TO_JUDGE, suspect};
use crate::attach::no_poll::{NoPollCause, cause};
use crate::snapshot::query::{EpollContext, SnapshotQuery, saturating_sum};
use crate::snapshot::{Device, Process, SnapshotNapi};

pub(super) const RULES: &[&Rule] = &[&STALLED, &DROPS, &REPLACED];

static STALLED: Rule = Rule {
    id: "stalled-queue",
    severity: Severity::Serious,
    title: "packets arrive, but the stack receives none",
    impact: "Packets of a suspended queue stay in the ring until the program waits on its epoll again or \
          irq-suspend-timeout expires.",
    source: "net/core/dev.c, napi_suspend_irqs; measured: four wrong orders of undoing, and epoll_wait with a timeout \
             of 0, stall the queue until the timeout",
    explanation: "Detected if a sampled poll finds packets after 50 ms without a poll, with the interrupt masked; one \
                  such poll without a visible cause is no verdict. A warning if nobody polled a suspended queue \
                  although its programs ran: doctor does not poll it. If no sampled poll of the device found packets, \
                  without CAP_BPF and CAP_PERFMON, and for snapshots from files, a device is found that has a queue \
                  that allows suspension and counted at least 64 received packets, while its namespace received no IP \
                  packet. This needs a device that counts arrivals (veth counts polled packets), misses a stalled \
                  queue beside active ones, and is wrong if an XDP program consumes the packets. Any poll of the queue \
                  frees it. Fix: if a thread of the program waited longer for a CPU than it ran, a CPU for it; \
                  otherwise a program that returns to epoll_wait with a timeout above 0.",
    needs_two: true,
    judges_settings: true,
    stalls: false,
    examine: stalled,
};

const LET_IT_WAIT: &str = "let the program return to epoll_wait with a timeout above 0";
/// Fewer packets may be ARP and similar traffic, which does not count as IP.
const ARRIVALS_TO_JUDGE: u64 = 64;

fn stalled(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let sampled = query
        .napis()
        .filter_map(|(device, napi)| of_sampled(query, device, napi).or_else(|| of_unpolled(query, device, napi)));
    // Samples of queues that nobody polls show nothing, but the device may have counted packets.
    let found_packets = |napi: &SnapshotNapi| query.polls(napi.id).is_some_and(|sample| sample.packets > 0);
    let devices = query.now.devices.iter();
    let others = devices.filter(|device| !device.napis.known_elements().any(found_packets));
    sampled.chain(others.filter_map(|device| of_stalled(query, device))).collect()
}

fn of_sampled(query: &SnapshotQuery<'_>, device: &Device, napi: &SnapshotNapi) -> Option<Observation> {
    let wait = &query.polls(napi.id)?.wait;
    let holders = query.epolls_on(napi.id).filter(|epoll| epoll.prefers()).flat_map(EpollContext::nodes);
    wait.has_stalled().then(|| {
        let cause = cause_of_stall(query, napi);
        let is_certain = cause.is_some() || wait.stalled_polls >= STALLED_POLLS_TO_JUDGE;
        let observed = format!(
            "{} found packets after {} or more without a poll",
            counted(wait.stalled_polls, "poll"),
            time_text(STALLED_NS)
        );
        Observation {
            severity: if is_certain { Severity::Serious } else { Severity::CannotTell },
            nodes: [Node::from(device), query.napi_node(napi.id)].into_iter().chain(holders).collect(),
            observed: cause.as_ref().map_or(observed.clone(), |(cause, _)| format!("{observed}: {cause}")),
            fix: vec![cause.and_then(|(_, fix)| fix).unwrap_or_else(|| {
                Fix::advice(match is_certain {
                    true => format!(
                        "the cause is unknown; {}",
                        see_the_events(suspending_programs(query, napi).into_keys())
                    ),
                    false => "look again: a pause of the machine causes a single one (steal in `vmstat 1`)".to_owned(),
                })
            })],
        }
    })
}

/// How to see why programs do not poll.
#[must_use]
pub fn see_the_events(programs: impl Iterator<Item = Pid>) -> String {
    let pids: Vec<String> = programs.map(|pid| pid.to_string()).collect();
    format!("`{}` shows which event each call returns", strace_of_waits(&pids.join(",")))
}

/// Command that shows which events the waits of these processes return.
#[must_use]
pub fn strace_of_waits(pids: &str) -> String {
    format!("strace -f -e trace=epoll_wait,epoll_pwait,epoll_pwait2 -p {pids}")
}

/// Why the programs that suspend the queue do not poll it, and the fix.
fn cause_of_stall(query: &SnapshotQuery<'_>, napi: &SnapshotNapi) -> Option<(String, Option<Fix>)> {
    let programs = suspending_programs(query, napi);
    let cause = cause(query, &programs.keys().copied().collect(), napi.id);
    let known = |cause: &NoPollCause| Some((cause.to_string(), cause.fix()));
    match &cause {
        NoPollCause::Found(_) | NoPollCause::WatchedByAnother { .. } => known(&cause),
        _ => match starved(query, programs.into_values()) {
            Some(thread) => Some((thread.to_string(), Some(thread.fix()))),
            None => known(&cause).filter(|_| cause.explains_stall()),
        },
    }
}

/// Programs with an epoll that suspends the queue.
fn suspending_programs<'a>(query: &SnapshotQuery<'a>, napi: &SnapshotNapi) -> BTreeMap<Pid, &'a Process> {
    let suspending = query.epolls_on(napi.id).filter(|epoll| epoll.prefers());
    suspending.map(|epoll| (epoll.process.pid, epoll.process)).collect()
}

/// A suspended queue that nobody polls while its programs run.
fn of_unpolled(query: &SnapshotQuery<'_>, device: &Device, napi: &SnapshotNapi) -> Option<Observation> {
    let (sample, interval_ns) = (query.polls(napi.id)?, query.interval_ns()?);
    let programs = suspending_programs(query, napi);
    let programs_cpu_ns = saturating_sum(programs.values().map(|process| query.cpu_ns(process)));
    let seen = EffectOnQueue { programs_cpu_ns, ..EffectOnQueue::of(napi.id, interval_ns, sample) };
    let why = suspect(&seen).filter(|_| napi.suspends())?;
    let holders = query.epolls_on(napi.id).filter(|epoll| epoll.prefers()).flat_map(EpollContext::nodes);
    let (cause, fix) = starved_or_busy(query, programs.into_values());
    Some(Observation {
        severity: Severity::Warning,
        nodes: [Node::from(device), query.napi_node(napi.id)].into_iter().chain(holders).collect(),
        observed: why + &cause,
        fix: vec![fix],
    })
}

/// The end of a sentence about a stall whose programs do not poll, and the fix.
fn starved_or_busy<'a>(query: &SnapshotQuery<'a>, programs: impl IntoIterator<Item = &'a Process>) -> (String, Fix) {
    match starved(query, programs) {
        Some(thread) => (format!("; {thread}"), thread.fix()),
        None => (String::new(), Fix::advice(LET_IT_WAIT)),
    }
}

fn of_stalled(query: &SnapshotQuery<'_>, device: &Device) -> Option<Observation> {
    let suspending: Vec<&SnapshotNapi> = device.napis.known()?.iter().filter(|napi| napi.suspends()).collect();
    let longest = suspending.iter().filter_map(|napi| napi.irq_suspend_timeout_ns.known()).max()?;
    if device.has_xdp.known() != Some(&false) {
        return None;
    }
    let arrived = query.device_packets(device).filter(|&arrived| arrived >= ARRIVALS_TO_JUDGE)?;
    let namespace = query.now.namespace(device.namespace)?;
    let before = query.namespace_before(device.namespace)?;
    if namespace.ip_rx_packets.known()? != before.ip_rx_packets.known()? {
        return None;
    }
    let mut nodes = vec![Node::from(device)];
    nodes.extend(suspending.iter().map(|napi| query.napi_node(napi.id)));
    let holders = suspending.iter().flat_map(|napi| query.epolls_on(napi.id)).filter(|epoll| epoll.prefers());
    nodes.extend(holders.flat_map(EpollContext::nodes));
    nodes.dedup();
    let interval = time_text(query.interval_ns()?);
    let programs: BTreeMap<Pid, &Process> =
        suspending.iter().flat_map(|napi| suspending_programs(query, napi)).collect();
    let (cause, fix) = starved_or_busy(query, programs.into_values());
    Some(Observation {
        severity: Severity::Serious,
        nodes,
        observed: format!(
            "{} arrived in {interval}, but the stack received none; irq-suspend-timeout is {}{cause}",
            counted(arrived, "packet"),
            time_text(*longest)
        ),
        fix: vec![fix],
    })
}

static DROPS: Rule = Rule {
    id: "packets-dropped",
    severity: Severity::Serious,
    title: "a device drops received packets",
    impact: "A dropped request is retransmitted after at least 200 ms, a thousand times the latency that delivery modes \
          affect.",
    source: "net/ipv4/tcp_timer.c; veth's ring holds 255 packets and drops further ones as tx_dropped of the peer \
             (measured); net/core/dev.c, __netif_receive_skb_core",
    explanation: "Packets that a full queue lost are rx_missed_errors, overruns in the driver's queue statistics, and \
                  on veth the peer's tx_dropped, which counts those while the link was down, too: an interval in which \
                  the queues were created again is left out. They are serious if the device has a suspended or \
                  deferred queue, because its ring fills while it is not polled; otherwise a warning. Other packets in rx_dropped are \
                  a note: most are frames that no protocol wanted, and no queue setting changes them. If the queue \
                  counters cannot be read, the cause is unknown: a warning. Fix: a larger ring or a shorter \
                  suspension; on veth, whose ring is fixed at 255 packets, fewer connections per queue.",
    needs_two: true,
    judges_settings: false,
    stalls: false,
    examine: drops,
};

fn drops(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    query.now.devices.iter().filter_map(|device| of_drops(query, device)).collect()
}

fn of_drops(query: &SnapshotQuery<'_>, device: &Device) -> Option<Observation> {
    // While its link is down, the kernel drops what is sent to it. Queues that come up again are others.
    let napis = |device: &Device| device.napis.known_elements().map(|napi| napi.id).collect::<BTreeSet<_>>();
    let was_up = |before: &&Device| before.is_up && device.is_up && napis(before) == napis(device);
    let before = query.device_before(device).filter(was_up)?;
    let interval = time_text(query.interval_ns()?);
    let by_queue = device.rx_queue_dropped.known().zip(before.rx_queue_dropped.known());
    let by_queue = by_queue.and_then(|(now, before)| now.checked_sub(*before));
    let observation =
        |severity, observed, fix| Observation { severity, nodes: vec![device.into()], observed, fix: vec![fix] };
    if let Some(lost) = by_queue.filter(|&lost| lost > 0) {
        let held = device.napis.known_elements().any(|napi| napi.suspends() || napi.defers());
        let severity = if held { Severity::Serious } else { Severity::Warning };
        let lost = counted(lost, "received packet");
        return Some(observation(
            severity,
            format!("a full queue lost {lost} in {interval}"),
            larger_ring(query, device),
        ));
    }
    let dropped = device.counters.known()?.rx_dropped.checked_sub(before.counters.known()?.rx_dropped)?;
    let dropped = (dropped > 0).then(|| counted(dropped, "received packet"))?;
    Some(match by_queue {
        Some(_) => observation(
            Severity::Note,
            format!(
                "{dropped} dropped in {interval}, none by a full queue: no protocol wanted them, or the driver refused them"
            ),
            Fix::advice("see which frames arrive: tcpdump -e 'not ip and not ip6 and not arp'"),
        ),
        None => observation(
            Severity::Warning,
            format!("{dropped} dropped in {interval}; whether a queue was full is unknown"),
            larger_ring(query, device),
        ),
    })
}

fn larger_ring(query: &SnapshotQuery<'_>, device: &Device) -> Fix {
    let ring = device.rings.known().and_then(|rings| Some((rings.rx?, rings.rx_max?)));
    match ring.filter(|(now, max)| now < max) {
        Some((now, max)) => {
            let words = ["ethtool", "-G", &device.name, "rx", &max.to_string()];
            let (present, wanted) = (format!("rx {now}"), format!("rx {max}"));
            let setting = Setting::host(SettingObject::device(device), "rings", present, wanted);
            Fix::in_namespace(query, device.namespace, &words).setting_of(setting)
        }
        None => {
            let is_any = |of: fn(&SnapshotNapi) -> bool| device.napis.known_elements().any(of);
            let timer = match (is_any(SnapshotNapi::suspends), is_any(SnapshotNapi::defers)) {
                (true, _) => ", or a shorter irq-suspend-timeout",
                (false, true) => ", or a shorter gro-flush-timeout",
                (false, false) => "",
            };
            Fix::advice(format!("use fewer connections per queue, or more queues{timer}"))
        }
    }
}

static REPLACED: Rule = Rule {
    id: "napi-replaced",
    severity: Severity::Warning,
    title: "the queues of a device have new NAPI IDs",
    impact: "Drivers without persistent settings lose them, and epolls poll an ID that no longer exists until a socket \
          reports the new one.",
    source: "net/core/dev.c, napi_restore_config: only drivers that ask for it; measured on veth, link down and up",
    explanation: "Detected if the device has different NAPI IDs in the two snapshots, because its link went down and \
                  up or its channels changed. A warning if settings were lost, otherwise a note. Fix: set the queues \
                  again with the original commands.",
    needs_two: true,
    judges_settings: false,
    stalls: false,
    examine: replaced,
};

fn replaced(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let of = |device: &Device| {
        let ids = |napis: &[SnapshotNapi]| napis.iter().map(|napi| napi.id).collect::<Vec<_>>();
        let (before, now) = (query.device_before(device)?.napis.known()?, device.napis.known()?);
        let (old, new) = (ids(before), ids(now));
        // The device is or was down: no instance was replaced.
        if old.is_empty() || new.is_empty() || old.iter().all(|id| new.contains(id)) {
            return None;
        }
        let lost = lost_settings(before, now);
        Some(Observation {
            severity: if lost.is_some() { Severity::Warning } else { Severity::Note },
            nodes: vec![device.into()],
            observed: format!(
                "NAPI IDs changed from {} to {}{}",
                listed(&old),
                listed(&new),
                lost.map(|lost| format!("; lost: {lost}")).unwrap_or_default()
            ),
            fix: vec![Fix::advice("set the queues again with the original commands")],
        })
    };
    query.now.devices.iter().filter_map(of).collect()
}

/// Settings of the replaced instances that their successors do not have.
fn lost_settings(before: &[SnapshotNapi], now: &[SnapshotNapi]) -> Option<String> {
    let was_set = |napi: &&SnapshotNapi| napi.suspends() || napi.defers();
    if before.len() != now.len() {
        // Queues cannot be matched by order.
        return before.iter().any(|napi| was_set(&napi)).then(|| "settings of at least one queue".to_owned());
    }
    let mut pairs = before.iter().zip(now).filter(|(before, _)| was_set(before));
    let of_pair = |(before, now): (&SnapshotNapi, &SnapshotNapi)| {
        let now = now.settings();
        let lost = before.settings().where_present_in(&now).unlike(&now);
        (lost != PartialNapiSettings::NONE).then(|| format!("{lost}, now {}", now.where_present_in(&lost)))
    };
    pairs.find_map(of_pair)
}

fn listed(ids: &[NapiId]) -> String {
    ids.iter().map(NapiId::to_string).collect::<Vec<_>>().join(", ")
}
