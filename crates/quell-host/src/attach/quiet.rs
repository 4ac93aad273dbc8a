//! Epolls of a program of which it is not known yet by which queue their packets come: those without connections, most of
//! all. An attachment sets the queues that it knows, so it must say where it knows none. Pure.

use quell_linux::Pid;
use serde::Serialize;

use super::plan::is_receiver;
use crate::findings::view::{EpollView, View};

/// An epoll of which no queue is known yet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct QuietEpoll {
    /// Whose.
    pub pid: Pid,
    /// The name of the process.
    pub process: String,
    /// The epoll's number there.
    pub fd: i32,
    /// The threads that slept on it, by their numbers.
    pub threads: Vec<Pid>,
    /// What it has instead.
    pub has: QuietWith,
}

/// What an epoll watches as long as nothing comes to it by a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum QuietWith {
    /// No network socket: a worker that waits for its first connection, or one that never gets any. It is left alone.
    NoSockets,
    /// Listening sockets alone.
    ListeningSockets,
    /// Connections, or sockets of UDP, to which no packet has come by a queue: nothing yet, or over loopback only.
    SilentSockets,
}

/// Says so when `epoll` is one. Where packets are known to come by no queue, none is to be waited for: that is a finding.
pub(super) fn look_at(view: &View<'_>, epoll: &EpollView<'_>) -> Option<QuietEpoll> {
    if !epoll.by_napi.is_empty() || !epoll.without_napi.is_empty() {
        return None;
    }
    let listens = |inode| view.socket(inode).is_some_and(|socket| !is_receiver(socket));
    let has = match epoll.sockets().next() {
        None => QuietWith::NoSockets,
        Some(_) if epoll.sockets().all(listens) => QuietWith::ListeningSockets,
        Some(_) => QuietWith::SilentSockets,
    };
    Some(QuietEpoll {
        pid: epoll.process.pid,
        process: epoll.process.name.clone(),
        fd: epoll.epoll.fd,
        threads: epoll.waiters.iter().map(|(thread, _)| thread.tid).collect(),
        has,
    })
}
