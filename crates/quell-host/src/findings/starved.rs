//! Threads that want a CPU and do not get one: then nobody polls the queue that the thread suspends.

use std::collections::BTreeSet;

use quell_linux::{CpuList, Pid};

use super::fix::Fix;
use crate::snapshot::query::SnapshotQuery;
use crate::snapshot::{Process, Snapshot, Thread};

/// Share of the time in which a thread wants a CPU and has none, from which this is a cause.
const STARVED_SHARE: f64 = 0.5;
/// Minimum share of the interval in which it wants a CPU and has none.
const WAITED_SHARE: f64 = 0.1;
/// Minimum share of the interval for which a thread runs that is named as the user of the CPU.
const USER_SHARE: f64 = 0.1;

/// A thread that hardly gets a CPU.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct StarvedThread {
    process: String,
    tid: Pid,
    /// Share of the time in which it wanted a CPU and had none.
    share: f64,
    cpu: Option<u32>,
    /// Whether it may run on this CPU only.
    is_bound: bool,
    /// Name and TID of the thread that ran most on this CPU, with its share of the interval.
    user: Option<(String, Pid, f64)>,
}

/// Finds the thread of these processes that waited longest for a CPU, if it waited longer than it ran.
pub(crate) fn starved<'a>(
    query: &SnapshotQuery<'a>,
    processes: impl IntoIterator<Item = &'a Process>,
) -> Option<StarvedThread> {
    let threads = processes
        .into_iter()
        .flat_map(|process| process.threads.known_elements().map(move |thread| (process, thread)))
        .filter_map(|(process, thread)| {
            let ran = query.busy_share(process, thread)?;
            let waited = query.runnable_share(process, thread)? - ran;
            (waited >= WAITED_SHARE && waited >= STARVED_SHARE * (ran + waited)).then_some((
                process,
                thread,
                waited,
                waited / (ran + waited),
            ))
        });
    let (process, thread, _, share) = threads.max_by(|one, other| one.2.total_cmp(&other.2))?;
    let bound_to = thread.affinity.known().and_then(only);
    let cpu = bound_to.or(thread.last_cpu.known().copied());
    let user = cpu.and_then(|cpu| user_of(query, cpu, thread));
    Some(StarvedThread {
        process: process.name.clone(),
        tid: thread.tid,
        share,
        cpu,
        is_bound: bound_to.is_some(),
        user,
    })
}

/// Describes the thread of these programs that waited longest for a CPU between the snapshots, if it waited longer than it
/// ran.
pub(crate) fn starved_program(now: &Snapshot, before: &Snapshot, programs: &BTreeSet<Pid>) -> Option<String> {
    let query = SnapshotQuery::new(now, Some(before));
    let processes = now.processes.iter().filter(|process| programs.contains(&process.pid));
    starved(&query, processes).map(|thread| format!("{thread}: {}", thread.fix()))
}

fn only(cpus: &CpuList) -> Option<u32> {
    let mut cpus = cpus.iter();
    cpus.next().filter(|_| cpus.next().is_none())
}

/// The other thread that ran most, of those that ran on the CPU last.
fn user_of(query: &SnapshotQuery<'_>, cpu: u32, starved: &Thread) -> Option<(String, Pid, f64)> {
    let processes = query.now.processes.iter();
    let threads = processes.flat_map(|process| process.threads.known_elements().map(move |thread| (process, thread)));
    let on_it = threads.filter(|(_, one)| one.tid != starved.tid && one.last_cpu.known() == Some(&cpu));
    let shares = on_it.filter_map(|(process, one)| Some((one.name.clone(), one.tid, query.busy_share(process, one)?)));
    shares.filter(|(_, _, share)| *share >= USER_SHARE).max_by(|one, other| one.2.total_cmp(&other.2))
}

impl StarvedThread {
    pub(crate) fn fix(&self) -> Fix {
        let Self { tid, cpu, is_bound, user, .. } = self;
        let who_uses = |cpu| format!("who uses CPU {cpu}: ps -eLo psr,cls,pcpu,tid,comm --sort -pcpu");
        Fix::advice(match (user, cpu) {
            (Some((name, user, _)), _) => {
                format!("let {name} {user} and thread {tid} run on different CPUs: taskset -cp CPU {user}")
            }
            (None, Some(cpu)) if *is_bound => format!(
                "thread {tid} may run on CPU {cpu} only: give it this CPU, or let it run on others (without --pin, if quell \
                 attach has pinned it); {}",
                who_uses(cpu)
            ),
            // A snapshot has programs with sockets only.
            (None, Some(cpu)) => format!(
                "let thread {tid} run on another CPU than {cpu}, or with a higher CPU limit of its cgroup; {}",
                who_uses(cpu)
            ),
            (None, None) => format!("give thread {tid} a CPU of its own, or its cgroup a higher CPU limit"),
        })
    }
}

impl std::fmt::Display for StarvedThread {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { process, tid, share, cpu, user, .. } = self;
        let share = share * 100.0;
        write!(f, "thread {tid} of {process} had no CPU {share:.0} % of the time in which it wanted one")?;
        if let (Some(cpu), Some((name, user, ran))) = (cpu, user) {
            write!(f, "; {name} {user} used CPU {cpu} {:.0} % of the time", ran * 100.0)?;
        }
        Ok(())
    }
}
