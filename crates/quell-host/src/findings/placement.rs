//! Rules about placement of workers, interrupts and NAPI kthreads on CPUs and NUMA nodes.

use std::collections::BTreeSet;

use quell_linux::netdev::NapiThreading;
use quell_linux::{CpuList, NapiId};

use super::mend::Mend;
use super::view::{EpollView, View, irq_of};
use super::{Node, Observation, Rule, Severity};
use crate::picture::{Device, Napi, Thread};

pub(super) const RULES: &[&Rule] = &[&FLOATING, &APART, &OTHER_NODE, &BUSY_THREAD];

static FLOATING: Rule = Rule {
    id: "floating-worker",
    severity: Severity::Warning,
    title: "a worker floats over several CPUs",
    why: "A thread that polls a queue takes the packet work along wherever the scheduler moves it, away from the interrupt, \
          the caches and sometimes onto another worker's CPU: several odd cells of published results come from that.",
    source: "the published runs of IRQ suspension: 8 threads over 8 CPUs, queues served at 72,000 to 237,000 requests a \
             second",
    explanation: "Seen: a thread that waits on an epoll with connections may run on several CPUs. A warning where the epoll \
                  busy polls, otherwise a note. Mended by pinning it to the CPU of its queue's interrupt.",
    needs_two: false,
    examine: floating,
};

fn floating(view: &View<'_>) -> Vec<Observation> {
    let with_queue = view.epolls.iter().filter(|epoll| !epoll.by_napi.is_empty());
    let of = |epoll: &EpollView<'_>| {
        let [(thread, _)] = epoll.waiters[..] else { return None };
        let cpus = thread.affinity.known().filter(|cpus| cpus.len() > 1)?;
        let at = epoll.by_napi.keys().find_map(|&id| packet_cpu(view, id));
        let mend = match at {
            Some(cpu) => Mend::pin(thread.tid, &only(cpu)),
            None => Mend::advice(format!("pin it to one CPU: taskset -cp CPU {}", thread.tid)),
        };
        let mut nodes = epoll.nodes();
        nodes.push(Node::from(thread));
        Some(Observation {
            severity: if epoll.polls() { Severity::Warning } else { Severity::Note },
            nodes,
            seen: format!("it may run on CPUs {cpus}"),
            mend: vec![mend],
        })
    };
    with_queue.filter_map(of).collect()
}

/// The single CPU that processes a queue's packets.
fn packet_cpu(view: &View<'_>, id: NapiId) -> Option<u32> {
    let cpus = view.packet_cpus(view.napi(id)?.1)?;
    cpus.iter().next().filter(|_| cpus.len() == 1)
}

fn only(cpu: u32) -> CpuList {
    [cpu].into_iter().collect()
}

static APART: Rule = Rule {
    id: "irq-away-from-worker",
    severity: Severity::Note,
    title: "a queue's interrupt and the worker that polls it are on different CPUs",
    why: "Packets that an interrupt takes in on one CPU and a program reads on another cross between their caches, and the \
          timer of a deferral runs where it was armed.",
    source: "net/core/dev.c: HRTIMER_MODE_REL_PINNED; Documentation/networking/scaling.rst",
    explanation: "Seen: the CPUs of the interrupt, or of the queue's kernel thread, and those of the thread that waits on the \
                  epoll have none in common. A note, for some place them apart on purpose, on two threads of a core. \
                  Mended by sending the interrupt to the worker's CPU.",
    needs_two: false,
    examine: apart,
};

fn apart(view: &View<'_>) -> Vec<Observation> {
    let mut observations = Vec::new();
    for epoll in view.epolls.iter().filter(|epoll| epoll.polls()) {
        let [(thread, _)] = epoll.waiters[..] else { continue };
        let Some(worker) = thread.affinity.known() else { continue };
        for (_, napi) in epoll.by_napi.keys().filter_map(|&id| view.napi(id)) {
            let Some(packets) = view.packet_cpus(napi) else { continue };
            if packets.intersection(worker).is_empty() {
                observations.push(of_apart(view, epoll, thread, napi, &packets, worker));
            }
        }
    }
    observations
}

fn of_apart(
    view: &View<'_>,
    epoll: &EpollView<'_>,
    thread: &Thread,
    napi: &Napi,
    packets: &CpuList,
    worker: &CpuList,
) -> Observation {
    let mut nodes = vec![view.napi_node(napi.id), epoll.node(), Node::from(thread)];
    let mend = match (irq_of(napi), napi.thread.known()) {
        (_, Some(Some(poller))) => {
            nodes.push(Node::from(poller));
            Mend::pin(poller.tid, worker)
        }
        (Some(number), _) => {
            nodes.push(Node::Irq { number });
            Mend::irq_affinity(number, worker)
        }
        (None, _) => Mend::pin(thread.tid, packets),
    };
    Observation {
        severity: Severity::Note,
        nodes,
        seen: format!("packet work on CPU {packets}, the worker on CPU {worker}"),
        mend: vec![mend],
    }
}

static OTHER_NODE: Rule = Rule {
    id: "other-numa-node",
    severity: Severity::Warning,
    title: "a device's packets are worked on in another NUMA node",
    why: "Every packet, descriptor and cache line then crosses the interconnect, once or more.",
    source: "Documentation/networking/scaling.rst, suggested configuration of interrupt affinity",
    explanation: "Seen: the NUMA node of a device is known, and the CPUs of a queue's interrupt, of its kernel thread or of \
                  the only thread that waits for it are all in other nodes. Mended by CPUs of the device's node.",
    needs_two: false,
    examine: other_node,
};

fn other_node(view: &View<'_>) -> Vec<Observation> {
    let mut observations = Vec::new();
    for (device, napi) in view.napis() {
        let Some(&Some(node)) = device.numa_node.known() else { continue };
        if let Some(cpus) = view.packet_cpus(napi).filter(|cpus| is_elsewhere(view, cpus, node)) {
            let irq = irq_of(napi).map(|number| Node::Irq { number });
            let nodes = [Some(view.napi_node(napi.id)), irq].into_iter().flatten().collect();
            observations.push(of_other_node(view, device, nodes, "packet work", &cpus, node, |cpus| {
                irq_of(napi).map(|irq| Mend::irq_affinity(irq, cpus))
            }));
        }
        for epoll in view.epolls_on(napi.id) {
            let [(thread, _)] = epoll.waiters[..] else { continue };
            let Some(cpus) = thread.affinity.known().filter(|cpus| is_elsewhere(view, cpus, node)) else { continue };
            let nodes = vec![view.napi_node(napi.id), epoll.node(), Node::from(thread)];
            observations.push(of_other_node(view, device, nodes, "the worker", cpus, node, |cpus| {
                Some(Mend::pin(thread.tid, cpus))
            }));
        }
    }
    observations
}

fn of_other_node(
    view: &View<'_>,
    device: &Device,
    nodes: Vec<Node>,
    what: &str,
    cpus: &CpuList,
    node: u32,
    mend: impl FnOnce(&CpuList) -> Option<Mend>,
) -> Observation {
    let local: CpuList =
        view.now.cpus.each.iter().map(|cpu| cpu.number).filter(|&cpu| view.node_of_cpu(cpu) == Some(node)).collect();
    let mend = if local.is_empty() { None } else { mend(&local) };
    Observation {
        severity: Severity::Warning,
        nodes,
        seen: format!("{} is in node {node}, {what} on CPU {cpus}", device.name),
        mend: vec![mend.unwrap_or_else(|| Mend::advice(format!("use CPUs of node {node}")))],
    }
}

/// Whether every CPU of the list is known to be on another node.
fn is_elsewhere(view: &View<'_>, cpus: &CpuList, node: u32) -> bool {
    !cpus.is_empty() && cpus.iter().all(|cpu| view.node_of_cpu(cpu).is_some_and(|other| other != node))
}

static BUSY_THREAD: Rule = Rule {
    id: "busy-napi-thread-without-cpu",
    severity: Severity::Serious,
    title: "a NAPI thread that never stops polling has no CPU of its own",
    why: "Such a thread takes a whole CPU; whatever else is to run there gets half of it at best.",
    source: "threaded NAPI busy polling, Linux 6.19 (threaded = 2)",
    explanation: "Seen: a queue with threaded busy polling whose thread may run on several CPUs, or on one that a worker or \
                  another such thread may use too. Mended by pinning it to a CPU that nothing else uses, and isolating \
                  that CPU.",
    needs_two: false,
    examine: busy_thread,
};

fn busy_thread(view: &View<'_>) -> Vec<Observation> {
    let busy = view.napis().filter(|(_, napi)| napi.threading.known() == Some(&NapiThreading::BusyPoll));
    let threads: Vec<(&Napi, &Thread)> =
        busy.filter_map(|(_, napi)| Some((napi, napi.thread.known()?.as_ref()?))).collect();
    let of = |&(napi, thread): &(&Napi, &Thread)| {
        let cpus = thread.affinity.known()?;
        let others = threads.iter().map(|(_, other)| *other).filter(|other| other.tid != thread.tid);
        let workers = view.epolls.iter().flat_map(|epoll| epoll.waiters.iter().map(|(worker, _)| *worker));
        let pinned_here = |other: &Thread| other.affinity.known().is_some_and(|its| !its.intersection(cpus).is_empty());
        let sharing: BTreeSet<Node> =
            others.chain(workers).filter(|other| pinned_here(other)).map(Node::from).collect();
        let seen = match (cpus.len(), sharing.len()) {
            (0 | 1, 0) => return None,
            (0 | 1, _) => format!("CPU {cpus} is open to others"),
            _ => format!("its thread may run on CPUs {cpus}"),
        };
        let mut nodes = vec![view.napi_node(napi.id), Node::from(thread)];
        nodes.extend(sharing);
        let advice = format!("pin it to a CPU that nothing else uses: taskset -cp CPU {}", thread.tid);
        Some(Observation { severity: Severity::Serious, nodes, seen, mend: vec![Mend::advice(advice)] })
    };
    threads.iter().filter_map(of).collect()
}
