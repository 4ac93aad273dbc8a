//! Finds the reuseport groups of a server and the workers of each socket. Pure. A snapshot provides the files of
//! processes; the socket list of the namespace provides the sockets of all processes.
//!
//! A group consists of sockets, not of processes: all nginx workers inherit all sockets, and each worker watches one.

use std::collections::{BTreeMap, BTreeSet};

use quell_change::reuseport_group::GroupKey;
use quell_linux::Pid;

use super::surroundings::Surroundings;
use crate::snapshot::{Process, Protocol, Snapshot, SnapshotEpoll, SnapshotSocket, SocketState, WatchedFile};

/// Sockets with the same key. The kernel selects one of them for each connection or datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    pub key: GroupKey,
    /// Sockets, ordered by inode. The kernel does not expose a socket's index in its reuseport group.
    pub members: Vec<Member>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub inode: u64,
    /// Epolls that watch the socket; empty if it belongs to a process outside the snapshot or is used without an epoll.
    pub workers: Vec<SteerWorker>,
}

/// An epoll that watches a socket of a group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SteerWorker {
    pub pid: Pid,
    pub epoll_fd: i32,
    pub process: String,
}

impl SteerWorker {
    pub(super) fn new(process: &Process, epoll: &SnapshotEpoll) -> Self {
        Self { pid: process.pid, epoll_fd: epoll.fd, process: process.name.clone() }
    }
}

impl Group {
    #[must_use]
    pub fn workers(&self) -> BTreeSet<&SteerWorker> {
        self.members.iter().flat_map(|member| &member.workers).collect()
    }

    pub(crate) fn look_for_workers(&mut self, snapshot: &Snapshot) {
        let workers = workers_by_socket(snapshot);
        for member in &mut self.members {
            member.workers = workers_of(member.inode, &workers);
        }
    }
}

/// Key of a socket in a snapshot. Listening sockets and unconnected UDP sockets with `SO_REUSEPORT` have one.
pub(super) fn key_of(socket: &SnapshotSocket) -> Option<GroupKey> {
    let waits = match socket.protocol {
        Protocol::Tcp => socket.state == SocketState::Listen,
        Protocol::Udp => socket.remote.is_none() && socket.reuseport.known() == Some(&true),
    };
    let (local, uid) = (socket.local.filter(|_| waits)?, socket.uid?);
    Some(GroupKey { namespace: socket.namespace, protocol: socket.protocol, local, bound_to: socket.bound_to, uid })
}

pub(super) fn has_accepted(key: &GroupKey, socket: &SnapshotSocket) -> bool {
    socket.namespace == key.namespace
        && socket.protocol == key.protocol
        && socket.remote.is_some()
        && socket.local.is_some_and(|local| key.covers(local, socket.bound_to))
}

/// Groups that contain a socket of these processes, ordered by key. A single socket at an address is a group of one.
#[must_use]
pub fn groups(snapshot: &Snapshot, surroundings: &Surroundings, pids: &[Pid]) -> Vec<Group> {
    let index = snapshot.index();
    let mine = snapshot.processes.iter().filter(|process| pids.contains(&process.pid));
    let held = mine.filter_map(|process| process.files.known()).flat_map(|files| &files.sockets);
    let keys: BTreeSet<GroupKey> = held.filter_map(|held| index.socket(held.inode)).filter_map(key_of).collect();
    let workers = workers_by_socket(snapshot);
    let group = |key: GroupKey| {
        let listed = surroundings.sockets.iter().filter(|socket| socket.key == key).map(|socket| socket.inode);
        let member = |inode| Member { inode, workers: workers_of(inode, &workers) };
        Group { key, members: listed.collect::<BTreeSet<u64>>().into_iter().map(member).collect() }
    };
    keys.into_iter().map(group).collect()
}

fn workers_of(inode: u64, workers: &BTreeMap<u64, Vec<SteerWorker>>) -> Vec<SteerWorker> {
    workers.get(&inode).cloned().unwrap_or_default()
}

pub(super) fn workers_by_socket(snapshot: &Snapshot) -> BTreeMap<u64, Vec<SteerWorker>> {
    let mut workers: BTreeMap<u64, Vec<SteerWorker>> = BTreeMap::new();
    for process in &snapshot.processes {
        for epoll in process.files.known().map_or(&[][..], |files| &files.epolls) {
            for target in epoll.targets.known_elements() {
                if let WatchedFile::Socket { inode } = target.file {
                    workers.entry(inode).or_default().push(SteerWorker::new(process, epoll));
                }
            }
        }
    }
    workers
}
