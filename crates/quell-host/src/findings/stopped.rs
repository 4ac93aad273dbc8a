//! Servers that do not run, and other reasons why a mode reaches few packets of a program.

use std::collections::BTreeSet;
use std::fmt;

use quell_linux::Pid;
use quell_linux::proc::ProcessState;
use quell_linux::visible::{self, counted};

use super::fix::Fix;
use super::polling::PART_WITHOUT_NAPI;
use super::{Node, Observation, Rule, Severity, WITHOUT_NAPI_ID};
use crate::snapshot::query::{SnapshotQuery, bypasses_napi, is_connection_to_another_host};
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

/// Why a mode reaches few packets of some programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unreached {
    /// A server is stopped.
    Stopped { name: String, pid: Pid },
    /// The packets of some connections to other hosts pass no queue.
    WithoutQueue { connections: usize, of: usize },
}

impl Unreached {
    /// Absent without such a reason.
    #[must_use]
    pub fn of(now: &Snapshot, programs: &BTreeSet<Pid>) -> Option<Self> {
        if let Err(StoppedServer { name, pid }) = check_not_stopped(now, programs) {
            return Some(Self::Stopped { name, pid });
        }
        let connections = || now.sockets_of(programs).filter(|socket| is_connection_to_another_host(socket));
        match connections().filter(|socket| bypasses_napi(socket)).count() {
            0 => None,
            without => Some(Self::WithoutQueue { connections: without, of: connections().count() }),
        }
    }

    /// Whether it is so much that another judgement of the mode means little.
    #[must_use]
    pub fn is_much(&self) -> bool {
        match self {
            Self::Stopped { .. } => true,
            Self::WithoutQueue { connections, of } => connections * PART_WITHOUT_NAPI >= *of,
        }
    }
}

impl fmt::Display for Unreached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped { name, pid } => write!(f, "{} {pid} is stopped", visible::name(name)),
            Self::WithoutQueue { connections, of } => write!(
                f,
                "{connections} of {} receive without a queue ({WITHOUT_NAPI_ID}), where no mode has an effect",
                counted(*of, "connection")
            ),
        }
    }
}
