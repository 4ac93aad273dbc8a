//! Rules about the placement of workers, interrupts and NAPI kthreads on CPUs and NUMA nodes.

use std::collections::{BTreeMap, BTreeSet};

use quell_linux::netdev::NapiThreading;
use quell_linux::{CpuList, NapiId, Pid};

use super::fix::Fix;
use super::sorting::{can_come_to_mix, has_reuseport_group, to_steer};
use super::{Node, Observation, Rule, Severity};
use crate::snapshot::query::{EpollContext, SnapshotQuery};
use crate::snapshot::{Device, SnapshotNapi, Thread};
use crate::steer::{Spread, can_pin};

pub(super) const RULES: &[&Rule] = &[&FLOATING, &APART, &OTHER_NODE, &BUSY_THREAD];

/// ID of the rule about workers that are allowed on several CPUs.
pub(super) const FLOATING_WORKER: &str = "floating-worker";

static FLOATING: Rule = Rule {
    id: FLOATING_WORKER,
    severity: Severity::Warning,
    title: "a worker floats over several CPUs",
    impact: "The packet work of a polling thread moves with the thread, away from the interrupt and the caches, and \
          sometimes onto another worker's CPU. Several outliers in published results are due to this.",
    source: "the published runs of IRQ suspension: 8 threads over 8 CPUs, queues served at 72,000 to 237,000 requests \
             per second",
    explanation: "Detected if a thread that waits on an epoll with connections is allowed on several CPUs. A warning \
                  if the epoll busy-polls, otherwise a note. Fix: pin the thread to the CPU of its queue's interrupt or \
                  kernel thread, or to a CPU of its own if that CPU has several workers. Not detected if all its queues \
                  have neither, as on veth: the CPU that sends handles the packets.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: floating,
};

fn floating(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let mut epolls_of: BTreeMap<Pid, usize> = BTreeMap::new();
    query.epolls().for_each(|epoll| *epolls_of.entry(epoll.process.pid).or_default() += 1);
    let alike_threads = |epoll: &EpollContext<'_>, thread: &Thread| {
        epoll.process.threads.known_elements().filter(|other| other.name == thread.name).count()
    };
    let with_queue = || query.epolls().filter(|epoll| !epoll.by_napi.is_empty());
    let places: Vec<(&CpuList, CpuList)> = with_queue().filter_map(|epoll| placed(query, epoll)).collect();
    let spread = Spread::of(places.iter().map(|(present, queue)| (*present, queue)));
    let of = |epoll: &EpollContext<'_>| {
        let [(thread, _)] = epoll.waiters[..] else { return None };
        let cpus = thread.affinity.known().filter(|cpus| cpus.len() > 1)?;
        let have_no_cpu = epoll.by_napi.keys().all(|&id| query.napi(id).is_some_and(|(_, napi)| has_no_cpu(napi)));
        // Any of Go's threads may wait next.
        if have_no_cpu || alike_threads(epoll, thread) > epolls_of[&epoll.process.pid] {
            return None;
        }
        let at = epoll.by_napi.keys().find_map(|&id| packet_cpu(query, id));
        let steered = |first: &str| Fix::Mode {
            first: first.to_owned(),
            command: to_steer(query, epoll.process),
            otherwise: None,
        };
        let queues: BTreeSet<NapiId> = epoll.by_napi.keys().copied().collect();
        let has_its_cpus = |&id: &NapiId| {
            query.napi(id).and_then(|(_, napi)| query.packet_cpus(napi)).is_some_and(|of_queue| of_queue == *cpus)
        };
        let by_hand = || Fix::advice(format!("pin it to one CPU: taskset -cp CPU {}", thread.tid));
        let fix = match at {
            // `--pin` finds no CPU, or would change nothing.
            _ if !can_pin(query.now, &queues) || queues.iter().all(has_its_cpus) => by_hand(),
            _ if epoll.by_napi.len() > 1 => match has_reuseport_group(query, epoll.process) {
                true => steered("pin it when it polls one queue:"),
                false => Fix::advice("pin it when it polls one queue (epoll-mixes-napis)"),
            },
            _ if can_come_to_mix(query, epoll.process) => steered("pin it to the CPU of its queue:"),
            Some(cpu) => match spread.crowd(&only(cpu)) {
                Some(workers) => Fix::advice(format!(
                    "the queues of {workers} workers have CPU {cpu}: use as many queues as workers, or pin each to a \
                     CPU of its own: taskset -cp CPU {}",
                    thread.tid
                )),
                None => Fix::pin(thread, &only(cpu)),
            },
            None => by_hand(),
        };
        let mut nodes = epoll.nodes();
        nodes.push(Node::from(thread));
        Some(Observation {
            severity: if epoll.polls() { Severity::Warning } else { Severity::Note },
            nodes,
            observed: format!("it is allowed on CPUs {cpus}"),
            fix: vec![fix],
        })
    };
    with_queue().filter_map(of).collect()
}

/// CPUs that the only thread of an epoll may use at present, and the CPU of its queue.
fn placed<'a>(query: &SnapshotQuery<'_>, epoll: &EpollContext<'a>) -> Option<(&'a CpuList, CpuList)> {
    let [(thread, _)] = epoll.waiters[..] else { return None };
    let cpu = epoll.by_napi.keys().find_map(|&id| packet_cpu(query, id))?;
    Some((thread.affinity.known()?, only(cpu)))
}

/// Whether the CPU that sends a packet of the queue handles it, as on a veth device.
fn has_no_cpu(napi: &SnapshotNapi) -> bool {
    napi.irq.known() == Some(&None) && napi.thread.known().is_some_and(Option::is_none)
}

/// The single CPU that processes a queue's packets.
fn packet_cpu(query: &SnapshotQuery<'_>, id: NapiId) -> Option<u32> {
    let cpus = query.packet_cpus(query.napi(id)?.1)?;
    cpus.iter().next().filter(|_| cpus.len() == 1)
}

fn only(cpu: u32) -> CpuList {
    [cpu].into_iter().collect()
}

static APART: Rule = Rule {
    id: "irq-away-from-worker",
    severity: Severity::Note,
    title: "a queue's interrupt and the worker that polls it are on different CPUs",
    impact: "The packets move between caches, and the deferral timer runs on the CPU that armed it.",
    source: "net/core/dev.c: HRTIMER_MODE_REL_PINNED; Documentation/networking/scaling.rst",
    explanation: "Detected if the CPUs of the interrupt, or of the queue's kernel thread, and those of the thread that \
                  waits on the epoll do not overlap. Only a note, because separating them can be intended. Fix: move \
                  the interrupt to the worker's CPU.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: apart,
};

fn apart(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let mut observations = Vec::new();
    // No CPU is right for an epoll with several queues, until it has one.
    for epoll in query.epolls().filter(|epoll| epoll.polls() && epoll.by_napi.len() == 1) {
        let [(thread, _)] = epoll.waiters[..] else { continue };
        let Some(worker) = thread.affinity.known() else { continue };
        for (_, napi) in epoll.by_napi.keys().filter_map(|&id| query.napi(id)) {
            let Some(packets) = query.packet_cpus(napi) else { continue };
            if packets.intersection(worker).is_empty() {
                observations.push(of_apart(query, epoll, thread, napi, &packets, worker));
            }
        }
    }
    observations
}

fn of_apart(
    query: &SnapshotQuery<'_>,
    epoll: &EpollContext<'_>,
    thread: &Thread,
    napi: &SnapshotNapi,
    packets: &CpuList,
    worker: &CpuList,
) -> Observation {
    let mut nodes = vec![query.napi_node(napi.id), epoll.node(), Node::from(thread)];
    let fix = match (napi.irq_number(), napi.thread.known()) {
        (_, Some(Some(poller))) => {
            nodes.push(Node::from(poller));
            Fix::pin(poller, worker)
        }
        (Some(number), _) => {
            nodes.push(Node::Irq { number });
            Fix::irq_affinity(query, number, worker)
        }
        (None, _) => Fix::pin(thread, packets),
    };
    Observation {
        severity: Severity::Note,
        nodes,
        observed: format!("packet work on CPU {packets}, worker on CPU {worker}"),
        fix: vec![fix],
    }
}

static OTHER_NODE: Rule = Rule {
    id: "other-numa-node",
    severity: Severity::Warning,
    title: "a device's packets are processed in another NUMA node",
    impact: "Every packet, descriptor and cache line then crosses the interconnect.",
    source: "Documentation/networking/scaling.rst, suggested configuration of interrupt affinity",
    explanation: "Detected if the CPUs of a queue's interrupt, of its kernel thread, or of the only thread that waits \
                  for it are all in other nodes than the device. Fix: use CPUs of the device's node.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: other_node,
};

fn other_node(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let mut observations = Vec::new();
    for (device, napi) in query.napis() {
        let Some(&Some(node)) = device.numa_node.known() else { continue };
        if let Some(cpus) = query.packet_cpus(napi).filter(|cpus| is_in_other_namespace(query, cpus, node)) {
            let irq = napi.irq_number().map(|number| Node::Irq { number });
            let nodes = [Some(query.napi_node(napi.id)), irq].into_iter().flatten().collect();
            observations.push(of_other_node(query, device, nodes, "packet work", &cpus, node, |cpus| {
                napi.irq_number().map(|irq| Fix::irq_affinity(query, irq, cpus))
            }));
        }
        for epoll in query.epolls_on(napi.id) {
            let [(thread, _)] = epoll.waiters[..] else { continue };
            let Some(cpus) = thread.affinity.known().filter(|cpus| is_in_other_namespace(query, cpus, node)) else {
                continue;
            };
            let nodes = vec![query.napi_node(napi.id), epoll.node(), Node::from(thread)];
            observations.push(of_other_node(query, device, nodes, "the worker", cpus, node, |cpus| {
                Some(Fix::pin(thread, cpus))
            }));
        }
    }
    observations
}

fn of_other_node(
    query: &SnapshotQuery<'_>,
    device: &Device,
    nodes: Vec<Node>,
    what: &str,
    cpus: &CpuList,
    node: u32,
    fix: impl FnOnce(&CpuList) -> Option<Fix>,
) -> Observation {
    let local: CpuList =
        query.now.cpus.each.iter().map(|cpu| cpu.number).filter(|&cpu| query.node_of_cpu(cpu) == Some(node)).collect();
    let fix = if local.is_empty() { None } else { fix(&local) };
    Observation {
        severity: Severity::Warning,
        nodes,
        observed: format!("{} is in node {node}, {what} on CPU {cpus}", device.name),
        fix: vec![fix.unwrap_or_else(|| Fix::advice(format!("use CPUs of node {node}")))],
    }
}

/// Whether every CPU of the list is known to be on another node.
fn is_in_other_namespace(query: &SnapshotQuery<'_>, cpus: &CpuList, node: u32) -> bool {
    !cpus.is_empty() && cpus.iter().all(|cpu| query.node_of_cpu(cpu).is_some_and(|other| other != node))
}

static BUSY_THREAD: Rule = Rule {
    id: "busy-napi-thread-without-cpu",
    severity: Severity::Serious,
    title: "a busy-polling NAPI thread has no CPU of its own",
    impact: "The thread uses a whole CPU; other threads on that CPU get at most half of it.",
    source: "threaded NAPI busy polling, Linux 6.19 (threaded = 2)",
    explanation: "Detected if the thread of a queue with threaded busy polling may run on several CPUs, or on a CPU \
                  that a worker or another such thread may use. Fix: pin it to an otherwise unused, isolated CPU.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: busy_thread,
};

fn busy_thread(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let busy = query.napis().filter(|(_, napi)| napi.threading.known() == Some(&NapiThreading::BusyPoll));
    let threads: Vec<(&SnapshotNapi, &Thread)> =
        busy.filter_map(|(_, napi)| Some((napi, napi.thread.known()?.as_ref()?))).collect();
    let of = |&(napi, thread): &(&SnapshotNapi, &Thread)| {
        let cpus = thread.affinity.known()?;
        let others = threads.iter().map(|(_, other)| *other).filter(|other| other.tid != thread.tid);
        let workers = query.epolls().flat_map(|epoll| epoll.waiters.iter().map(|(worker, _)| *worker));
        let pinned_here = |other: &Thread| other.affinity.known().is_some_and(|its| !its.intersection(cpus).is_empty());
        let sharing: BTreeSet<Node> =
            others.chain(workers).filter(|other| pinned_here(other)).map(Node::from).collect();
        let observed = match (cpus.len(), sharing.len()) {
            (0 | 1, 0) => return None,
            (0 | 1, _) => format!("CPU {cpus} is available to other threads"),
            _ => format!("its thread is allowed on CPUs {cpus}"),
        };
        let mut nodes = vec![query.napi_node(napi.id), Node::from(thread)];
        nodes.extend(sharing);
        let advice = format!("pin it to an otherwise unused CPU: taskset -cp CPU {}", thread.tid);
        Some(Observation { severity: Severity::Serious, nodes, observed, fix: vec![Fix::advice(advice)] })
    };
    threads.iter().filter_map(of).collect()
}
