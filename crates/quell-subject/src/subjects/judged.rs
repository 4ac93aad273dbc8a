//! The first run of judges: whether they work, and whether their requests reach the measured programs through a queue.

use std::collections::{BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use quell_host::snapshot::{Protocol, Snapshot, SnapshotScope, SnapshotSocket, SocketState, take};
use quell_linux::Pid;
use quell_linux::proc::ProcRoot;

use super::programs::ProgramsSpec;
use super::{Operator, Unanswered};
use crate::counters::{CpuUse, Instruments, Watched};
use crate::experiment::judge::{JudgeOutcome, look_while};
use crate::question::SubjectStep;

/// Interval between two looks at the connections of the programs.
const LOOK_EVERY: Duration = Duration::from_millis(150);

/// Where connections to the programs have come from that a judge may have opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reached {
    /// No new connection was seen, or none is to be expected.
    Unknown,
    /// No new connection to programs that accept some was seen.
    NotSeen,
    /// None of them came through a queue.
    WithoutQueue,
    Queue,
}

/// The first run of the judges, before any change. It detects commands that fail or are slow, and shows the names of their
/// figures.
pub(super) struct FirstRun {
    pub(super) outcome: JudgeOutcome,
    pub(super) took_ms: f64,
    /// Use of the CPUs of the programs.
    pub(super) used: Option<CpuUse>,
}

/// Runs the judges, except for a dry run. `before_it` is a snapshot from before this run.
pub(super) fn first_run(
    spec: &ProgramsSpec,
    (watched, before_it): (&Watched, &Snapshot),
    slice_ms: u32,
    (stopped, operator): (&dyn Fn() -> bool, &mut dyn Operator),
) -> Result<Option<FirstRun>, Unanswered> {
    let ProgramsSpec { judges, is_dry_run, .. } = spec;
    if judges.is_empty() || *is_dry_run {
        return Ok(None);
    }
    operator.follow(SubjectStep::Doing("running the command that measures"));
    let (proc, mut none) = (ProcRoot::default(), Instruments::default());
    let before = watched.snapshot(&proc, &mut none);
    let began = Instant::now();
    let (ran, reached) = judge_and_look(&spec.targets.pids(), before_it, || judges.run(slice_ms, stopped));
    let outcome = ran?.ok_or(Unanswered::Interrupted)?;
    match judges.latency.as_ref().map(|judge| (judge.command(), reached)) {
        Some((command, Reached::WithoutQueue)) => return Err(Unanswered::JudgeWithoutQueue(command)),
        Some((command, Reached::NotSeen)) => {
            let note = format!(
                "no new connection to these programs was seen while `{command}` ran: does it measure another server?"
            );
            operator.follow(SubjectStep::Note(&note));
        }
        _ => {}
    }
    outcome.without_latency.iter().for_each(|why| operator.follow(SubjectStep::Note(why)));
    let took_ms = began.elapsed().as_secs_f64() * 1e3;
    let used = watched.between(&before, &watched.snapshot(&proc, &mut none)).server_cpus;
    Ok(Some(FirstRun { outcome, took_ms, used }))
}

/// Runs a judge, and looks at new connections of the programs until it ends. `before` is from before its run.
fn judge_and_look<T>(programs: &BTreeSet<Pid>, before: &Snapshot, run: impl FnOnce() -> T) -> (T, Reached) {
    let scope = SnapshotScope { pids: programs.iter().copied().collect(), ..SnapshotScope::default() };
    let known: HashSet<u64> = before.sockets.iter().map(|socket| socket.inode).collect();
    let look = |is_over: &AtomicBool| {
        let mut reached = Reached::Unknown;
        while reached < Reached::Queue && !is_over.load(Ordering::Relaxed) {
            thread::park_timeout(LOOK_EVERY);
            // A failed look shows nothing; the next one may.
            if let Ok((now, _)) = take(&scope) {
                reached = reached.max(by_connections(programs, &known, &now));
            }
        }
        reached
    };
    let (done, reached) = look_while(run, look);
    (done, reached.unwrap_or(Reached::Unknown))
}

/// `known` are the inodes of the sockets from before.
fn by_connections(programs: &BTreeSet<Pid>, known: &HashSet<u64>, now: &Snapshot) -> Reached {
    let its: Vec<&SnapshotSocket> =
        now.sockets_of(programs).filter(|socket| socket.protocol == Protocol::Tcp).collect();
    let is_new = |socket: &&&SnapshotSocket| socket.remote.is_some() && !known.contains(&socket.inode);
    let new: Vec<bool> = its.iter().filter(is_new).map(|socket| socket.has_queue()).collect();
    match new.is_empty() {
        false if new.contains(&true) => Reached::Queue,
        false => Reached::WithoutQueue,
        true if its.iter().any(|socket| socket.state == SocketState::Listen) => Reached::NotSeen,
        true => Reached::Unknown,
    }
}
