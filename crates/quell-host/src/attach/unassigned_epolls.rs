//! Lists epolls of a program whose receive queue is still unknown, mostly because they have no connections. An
//! attachment can only set known queues, so it reports these epolls. Pure.

use quell_linux::Pid;
use schemars::JsonSchema;
use serde::Serialize;

use super::plan::is_receiver;
use crate::snapshot::WatchedKind;
use crate::snapshot::query::{EpollContext, SnapshotQuery};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct UnassignedEpoll {
    pub pid: Pid,
    pub process: String,
    pub fd: i32,
    pub threads: Vec<Pid>,
    pub watches: UnassignedFiles,
    /// Epoll of the program that watches it. Threads wait on that one, so a mode that polls has no effect on this one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub watched_by: Option<i32>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum UnassignedFiles {
    /// No network sockets: a worker before its first connection, or one that never receives any. The epoll is not set.
    NoSockets,
    ListeningSockets,
    /// Connections or UDP sockets that have received no packets, or only packets over loopback.
    IdleSockets,
}

/// Returns the epoll if its queue is unknown. Omits sockets that are known to receive without a queue, which a finding
/// reports, epolls that watch only other epolls, and epolls that only accept: these never have a queue.
pub(super) fn look_at(query: &SnapshotQuery<'_>, epoll: &EpollContext<'_>) -> Option<UnassignedEpoll> {
    if !epoll.by_napi.is_empty() || !epoll.without_napi.is_empty() {
        return None;
    }
    let listens = |inode| query.socket(inode).is_some_and(|socket| !is_receiver(socket));
    let outer = query.outer(epoll);
    let watches_epoll = epoll.others.iter().any(|(_, kind, _)| **kind == WatchedKind::Epoll);
    let watches = match epoll.sockets().next() {
        None if watches_epoll => return None,
        None => UnassignedFiles::NoSockets,
        Some(_) if epoll.sockets().all(listens) => match outer {
            None if only_accepts(query, epoll.process.pid) => return None,
            _ => UnassignedFiles::ListeningSockets,
        },
        Some(_) => UnassignedFiles::IdleSockets,
    };
    Some(UnassignedEpoll {
        pid: epoll.process.pid,
        process: epoll.process.name.clone(),
        fd: epoll.epoll.fd,
        threads: epoll.waiters.iter().map(|(thread, _)| thread.tid).collect(),
        watches,
        watched_by: outer.map(|outer| outer.epoll.fd),
    })
}

/// Whether epolls of the process that watch only listeners never get connections: those with connections watch no listener,
/// as of a thread that accepts for others. A worker that accepts for itself has both in one epoll.
fn only_accepts(query: &SnapshotQuery<'_>, pid: Pid) -> bool {
    let is_receiving = |epoll: &&EpollContext<'_>| epoll.process.pid == pid && !epoll.by_napi.is_empty();
    let mut receiving = query.epolls_by_descriptor.iter().filter(is_receiving).peekable();
    let listens = |inode| query.socket(inode).is_some_and(|socket| !is_receiver(socket));
    receiving.peek().is_some() && !receiving.any(|epoll| epoll.sockets().any(listens))
}
