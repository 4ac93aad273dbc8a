//! Rules about the CPUs of queues with a delivery mode: idle states, frequency, and hardware threads that share a core.

use std::collections::{BTreeMap, BTreeSet};

use quell_linux::netdev::NapiThreading;
use quell_linux::{CpuList, NapiId};

use super::fix::Fix;
use super::text::time_text;
use super::{Node, Observation, Rule, Severity};
use crate::snapshot::query::{EpollContext, SnapshotQuery};
use crate::snapshot::{Cpu, CpuidleState, SnapshotNapi, Thread};

pub(super) const RULES: &[&Rule] = &[&DEEP_IDLE, &GOVERNOR, &SIBLING];

static DEEP_IDLE: Rule = Rule {
    id: "deep-idle-states",
    severity: Severity::Warning,
    title: "CPUs of a delivery mode may enter deep idle states",
    impact: "The first request after a pause waits for the exit latency of the state.",
    source: "Documentation/admin-guide/pm/cpuidle.rst, latency; drivers/cpuidle/governors",
    explanation: "Detected if a CPU has an allowed idle state whose exit latency exceeds the gro-flush-timeout of a \
                  queue that it serves, or is at least 100 µs. A warning from 100 µs, otherwise a note. Examined are \
                  the CPUs of workers that busy-poll, and those that process the packets of queues that defer or \
                  suspend, but not those of threads that never sleep. Fix: disable these states on these CPUs, which \
                  costs power.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: deep_idle,
};

const LONG_EXIT_US: u32 = 100;

/// Exit latency in microseconds, and name.
type DeepState<'a> = (u32, &'a str);

fn deep_idle(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let mut by_states: BTreeMap<(Vec<DeepState<'_>>, Option<u64>), BTreeSet<u32>> = BTreeMap::new();
    for (number, flush_ns) in sleeping_cpus(query) {
        let states = query.cpu(number).map_or(&[][..], |cpu| cpu.idle_states.known_elements().as_slice());
        let mut deep: Vec<DeepState<'_>> = states
            .iter()
            .filter(|state| is_deep(state, flush_ns))
            .map(|state| (state.exit_latency_us, &*state.name))
            .collect();
        deep.sort_unstable();
        if !deep.is_empty() {
            by_states.entry((deep, flush_ns)).or_default().insert(number);
        }
    }
    by_states.into_iter().filter_map(|((states, flush_ns), cpus)| of_deep_idle(&states, flush_ns, cpus)).collect()
}

fn is_deep(state: &CpuidleState, flush_ns: Option<u64>) -> bool {
    let exit_ns = u64::from(state.exit_latency_us) * 1_000;
    state.allowed && (state.exit_latency_us >= LONG_EXIT_US || flush_ns.is_some_and(|flush_ns| exit_ns > flush_ns))
}

fn of_deep_idle(states: &[DeepState<'_>], flush_ns: Option<u64>, cpus: BTreeSet<u32>) -> Option<Observation> {
    let (&(lightest_us, _), &(deepest_us, deepest)) = (states.first()?, states.last()?);
    let list: CpuList = cpus.iter().copied().collect();
    let timeout =
        flush_ns.map(|ns| format!("; the shortest gro-flush-timeout is {}", time_text(ns))).unwrap_or_default();
    Some(Observation {
        severity: if deepest_us >= LONG_EXIT_US { Severity::Warning } else { Severity::Note },
        nodes: nodes_of(&cpus),
        observed: format!("idle state {deepest} needs {deepest_us} µs to exit{timeout}"),
        fix: vec![Fix::command(&["cpupower", "-c", &list.to_string(), "idle-set", "-D", &lightest_us.to_string()])],
    })
}

/// CPUs that sleep between packets and then serve a queue with a mode, with the shortest gro-flush-timeout.
fn sleeping_cpus(query: &SnapshotQuery<'_>) -> BTreeMap<u32, Option<u64>> {
    let mut cpus = BTreeMap::new();
    let mut add = |list: &CpuList, napi: Option<&SnapshotNapi>| {
        let flush_ns = napi.and_then(|napi| napi.gro_flush_timeout_ns.known().copied()).filter(|&ns| ns > 0);
        for cpu in list.iter() {
            let shortest = cpus.entry(cpu).or_insert(flush_ns);
            *shortest = shortest.iter().chain(&flush_ns).min().copied();
        }
    };
    for epoll in query.epolls().filter(|epoll| epoll.polls()) {
        let napi = epoll.by_napi.keys().find_map(|&id| query.napi(id)).map(|(_, napi)| napi);
        only_worker(epoll).and_then(|thread| thread.affinity.known()).iter().for_each(|cpus| add(cpus, napi));
    }
    for (_, napi) in query.napis().filter(|(_, napi)| has_mode(napi) && !is_busy_thread(napi)) {
        query.packet_cpus(napi).iter().for_each(|cpus| add(cpus, Some(napi)));
    }
    cpus
}

fn has_mode(napi: &SnapshotNapi) -> bool {
    napi.suspends() || napi.defers()
}

fn is_busy_thread(napi: &SnapshotNapi) -> bool {
    napi.threading.known() == Some(&NapiThreading::BusyPoll)
}

/// The thread that waits on an epoll with connections, if there is exactly one.
fn only_worker<'a>(epoll: &EpollContext<'a>) -> Option<&'a Thread> {
    match epoll.waiters[..] {
        [(thread, _)] if !epoll.by_napi.is_empty() => Some(thread),
        _ => None,
    }
}

fn nodes_of(cpus: &BTreeSet<u32>) -> Vec<Node> {
    cpus.iter().map(|&number| Node::Cpu { number }).collect()
}

static GOVERNOR: Rule = Rule {
    id: "slow-cpu-frequency",
    severity: Severity::Warning,
    title: "the frequency governor slows down CPUs of a delivery mode",
    impact: "A governor that follows the load raises the frequency only after some milliseconds of work.",
    source: "Documentation/admin-guide/pm/cpufreq.rst, generic scaling governors; \
             Documentation/admin-guide/pm/intel_pstate.rst and amd-pstate.rst, powersave",
    explanation: "Detected if the governor of a CPU that serves a queue with a mode is `powersave`, `conservative`, \
                  `ondemand` or `schedutil`. A warning for `powersave` of a driver for which it means the lowest \
                  frequency, otherwise a note: `powersave` of intel_pstate and amd-pstate-epp follows the load. Fix: \
                  `performance`, which costs power.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: governor,
};

fn governor(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let mut cpus: BTreeSet<u32> = sleeping_cpus(query).into_keys().collect();
    cpus.extend(
        spinning_threads(query).iter().filter_map(|spinning| spinning.thread.affinity.known()).flat_map(CpuList::iter),
    );
    let mut by_governor: BTreeMap<(&str, &str, Severity), BTreeSet<u32>> = BTreeMap::new();
    for cpu in cpus.into_iter().filter_map(|number| query.cpu(number)) {
        let (Some(governor), Some(driver)) = (cpu.governor.known(), cpu.scaling_driver.known()) else { continue };
        if let Some(severity) = slowness(governor, driver) {
            by_governor.entry((governor, driver, severity)).or_default().insert(cpu.number);
        }
    }
    let of = |((governor, driver, severity), cpus): ((&str, &str, Severity), BTreeSet<u32>)| {
        let list: CpuList = cpus.iter().copied().collect();
        Observation {
            severity,
            nodes: nodes_of(&cpus),
            observed: format!("governor {governor} of driver {driver}"),
            fix: vec![Fix::command(&["cpupower", "-c", &list.to_string(), "frequency-set", "-g", "performance"])],
        }
    };
    by_governor.into_iter().map(of).collect()
}

fn slowness(governor: &str, driver: &str) -> Option<Severity> {
    // In these drivers, the CPU itself selects the frequency.
    const FOLLOWS_LOAD: [&str; 2] = ["intel_pstate", "amd-pstate-epp"];
    match governor {
        "powersave" if !FOLLOWS_LOAD.contains(&driver) => Some(Severity::Warning),
        "powersave" | "conservative" | "ondemand" | "schedutil" => Some(Severity::Note),
        _ => None,
    }
}

static SIBLING: Rule = Rule {
    id: "spinning-beside-worker",
    severity: Severity::Warning,
    title: "a spinning thread shares its core with a worker",
    impact: "Two hardware threads of a core share its execution units and caches, also with a thread that spins without \
          packets.",
    source: "net/core/dev.c, napi_busy_loop and napi_threaded_poll_loop; \
             Documentation/ABI/stable/sysfs-devices-system-cpu, thread_siblings_list",
    explanation: "Detected if a worker with busy_poll_usecs above 0, or a busy-polling NAPI thread, is pinned to one \
                  CPU, and another worker or NAPI thread, except that of the worker's own queue, is pinned to other \
                  hardware threads of that core. Fix: one core for each spinning thread.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: sibling,
};

struct QueueThread<'a> {
    thread: &'a Thread,
    queues: Vec<NapiId>,
}

/// Workers that spin in `epoll_wait`, and NAPI threads that busy-poll.
fn spinning_threads<'a>(query: &SnapshotQuery<'a>) -> Vec<QueueThread<'a>> {
    let spins = |epoll: &&EpollContext<'a>| epoll.params.is_some_and(|params| params.busy_poll_usecs > 0);
    let workers = query.epolls().filter(spins).filter_map(worker);
    workers.chain(napi_threads(query, is_busy_thread)).collect()
}

fn worker<'a>(epoll: &EpollContext<'a>) -> Option<QueueThread<'a>> {
    Some(QueueThread { thread: only_worker(epoll)?, queues: epoll.by_napi.keys().copied().collect() })
}

fn napi_threads<'a>(
    query: &SnapshotQuery<'a>,
    is_wanted: fn(&SnapshotNapi) -> bool,
) -> impl Iterator<Item = QueueThread<'a>> {
    let of =
        |napi: &'a SnapshotNapi| Some(QueueThread { thread: napi.thread.known()?.as_ref()?, queues: vec![napi.id] });
    query.napis().filter(move |(_, napi)| is_wanted(napi)).filter_map(move |(_, napi)| of(napi))
}

fn sibling(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let all: Vec<QueueThread<'_>> = query.epolls().filter_map(worker).chain(napi_threads(query, |_| true)).collect();
    spinning_threads(query).iter().filter_map(|spinning| of_sibling(query, spinning, &all)).collect()
}

fn of_sibling(query: &SnapshotQuery<'_>, spinning: &QueueThread<'_>, all: &[QueueThread<'_>]) -> Option<Observation> {
    let cpus = spinning.thread.affinity.known().filter(|cpus| cpus.len() == 1)?;
    let cpu: &Cpu = query.cpu(cpus.iter().next()?)?;
    let beside = cpu.smt_siblings.known()?.without(cpus);
    let is_beside = |other: &&QueueThread<'_>| {
        let pinned = other.thread.affinity.known().filter(|its| !its.is_empty());
        pinned.is_some_and(|its| its.without(&beside).is_empty())
            && other.queues.iter().all(|queue| !spinning.queues.contains(queue))
    };
    let sharing: BTreeSet<Node> = all.iter().filter(is_beside).map(|other| Node::from(other.thread)).collect();
    let names = sharing.iter().map(Node::to_string).collect::<Vec<_>>().join(", ");
    let mut nodes = vec![Node::from(spinning.thread), Node::Cpu { number: cpu.number }];
    nodes.extend(sharing.iter().cloned());
    (!sharing.is_empty()).then(|| Observation {
        severity: Severity::Warning,
        nodes,
        observed: format!("it spins on CPU {}; CPU {beside} of the same core serves {names}", cpu.number),
        fix: vec![Fix::advice(format!("pin it to a core of its own: taskset -cp CPU {}", spinning.thread.tid))],
    })
}
