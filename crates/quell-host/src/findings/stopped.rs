//! Servers that do not run, and other reasons why few packets of a program are counted.

use std::collections::BTreeSet;

use quell_linux::Pid;
use quell_linux::proc::ProcessState;
use quell_linux::visible::{self, counted};

use super::fix::Fix;
use super::{Node, Observation, Rule, Severity};
use crate::snapshot::query::{SnapshotQuery, bypasses_napi};
use crate::snapshot::{Process, Snapshot};

pub(super) const RULES: &[&Rule] = &[&STOPPED];

static STOPPED: Rule = Rule {
    id: "program-stopped",
    severity: Severity::Serious,
    title: "a server is stopped",
    impact: "It answers nothing and polls nothing. Counters show the packets of its clients as those of others.",
    source: "fs/proc/array.c, task_state_array: T, t",
    explanation: "Detected if all threads of a server are stopped, by a signal (SIGSTOP, Ctrl-Z) or by a debugger. Fix: let \
                  it run.",
    needs_two: false,
    judges_settings: false,
    stalls: false,
    examine: stopped,
};

fn stopped(query: &SnapshotQuery<'_>) -> Vec<Observation> {
    let servers = query.now.processes.iter().filter(|process| query.serves(process) && is_stopped(process));
    let observation = |process: &Process| Observation {
        severity: Severity::Serious,
        nodes: vec![Node::from(process)],
        observed: "all its threads are stopped".to_owned(),
        fix: vec![Fix::command(&["kill", "-CONT", &process.pid.to_string()])],
    };
    servers.map(observation).collect()
}

fn is_stopped(process: &Process) -> bool {
    let mut threads = process.threads.known_elements().peekable();
    threads.peek().is_some() && threads.all(|thread| thread.state.known() == Some(&ProcessState::Stopped))
}

/// A server that is stopped.
#[derive(Debug, thiserror::Error)]
#[error("{} {pid} is stopped, so nothing can be observed: let it run first, `kill -CONT {pid}`", visible::name(name))]
pub struct StoppedServer {
    pub name: String,
    pub pid: Pid,
}

/// Whether none of these programs is a stopped server.
///
/// # Errors
/// The first one that is.
pub fn check_not_stopped(now: &Snapshot, programs: &BTreeSet<Pid>) -> Result<(), StoppedServer> {
    let query = SnapshotQuery::new(now, None);
    let mut theirs = now.processes.iter().filter(|process| programs.contains(&process.pid));
    match theirs.find(|process| query.serves(process) && is_stopped(process)) {
        Some(stopped) => Err(StoppedServer { name: stopped.name.clone(), pid: stopped.pid }),
        None => Ok(()),
    }
}

/// Why few packets of these programs are counted: one is stopped, or has connections whose packets pass no queue. Absent
/// without such a reason.
#[must_use]
pub fn why_few_packets(now: &Snapshot, programs: &BTreeSet<Pid>) -> Option<String> {
    let query = SnapshotQuery::new(now, None);
    let theirs = || now.processes.iter().filter(|process| programs.contains(&process.pid));
    if let Err(StoppedServer { name, pid }) = check_not_stopped(now, programs) {
        return Some(format!("{name} {pid} is stopped"));
    }
    let bypassing = theirs().flat_map(|process| query.sockets_of(process)).filter(|socket| bypasses_napi(socket));
    match bypassing.map(|socket| socket.inode).collect::<BTreeSet<u64>>().len() {
        0 => None,
        count => Some(format!("{} receive without a queue, where no mode has an effect", counted(count, "connection"))),
    }
}
