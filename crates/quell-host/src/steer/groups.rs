//! The reuseport groups of a server, and who works at each of their sockets. Pure: from a picture, which knows the files
//! of processes, and from what the namespace lists, which knows the sockets of all of them.
//!
//! A group is of sockets, not of processes: the workers of nginx all inherit the sockets of all, and each watches one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use quell_linux::{Ifindex, Pid};
use serde::{Deserialize, Serialize};

use super::surroundings::Surroundings;
use crate::picture::{Epoll, Picture, Process, Protocol, Socket, SocketState, WatchedFile};

/// What the sockets of one group have in common (`inet_reuseport_add_sock` of `net/ipv4/inet_hashtables.c`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct GroupKey {
    /// The inode of their namespace.
    pub namespace: u64,
    /// What they speak.
    pub protocol: Protocol,
    /// Their address and port.
    pub local: SocketAddr,
    /// The device that they are bound to (`SO_BINDTODEVICE`): a server that does so has a group for each.
    pub bound_to: Option<Ifindex>,
    /// The user that made them.
    pub uid: u32,
}

/// The sockets at one address, of which the kernel picks one for what arrives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// What they have in common.
    pub key: GroupKey,
    /// The sockets, in the order of their inodes. Which index in the group each has, the kernel does not tell.
    pub members: Vec<Member>,
}

/// One socket of a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its inode.
    pub inode: u64,
    /// Who takes what arrives: none where it is held outside of the picture, or received from without an epoll.
    pub workers: Vec<Worker>,
}

/// An epoll that watches a socket of a group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Worker {
    /// Whose epoll.
    pub pid: Pid,
    /// Its number there.
    pub epoll_fd: i32,
    /// The name of the process.
    pub process: String,
}

impl Worker {
    pub(super) fn new(process: &Process, epoll: &Epoll) -> Self {
        Self { pid: process.pid, epoll_fd: epoll.fd, process: process.name.clone() }
    }
}

impl Group {
    /// The epolls that watch its sockets, each once.
    #[must_use]
    pub fn workers(&self) -> BTreeSet<&Worker> {
        self.members.iter().flat_map(|member| &member.workers).collect()
    }

    /// Who works at its sockets in a later picture, in which these are the same.
    pub(crate) fn look_for_workers(&mut self, picture: &Picture) {
        let workers = workers_by_socket(picture);
        for member in &mut self.members {
            member.workers = workers_of(member.inode, &workers);
        }
    }
}

impl GroupKey {
    /// The key of a socket in a picture: of those that wait for connections, and of those UDP sockets with `SO_REUSEPORT`
    /// that are connected to nobody.
    pub(super) fn of(socket: &Socket) -> Option<Self> {
        let waits = match socket.protocol {
            Protocol::Tcp => socket.state == SocketState::Listen,
            Protocol::Udp => socket.remote.is_none() && socket.reuseport.known() == Some(&true),
        };
        let (local, uid) = (socket.local.filter(|_| waits)?, socket.uid?);
        Some(Self { namespace: socket.namespace, protocol: socket.protocol, local, bound_to: socket.bound_to, uid })
    }

    /// Whether a socket of the picture is a connection that a socket with this key accepted.
    pub(super) fn accepted(&self, socket: &Socket) -> bool {
        socket.namespace == self.namespace
            && socket.protocol == self.protocol
            && socket.remote.is_some()
            && socket.local.is_some_and(|local| self.covers(local, socket.bound_to))
    }

    /// Whether what arrives at this address, on a socket that is bound so, is for the sockets with this key.
    pub(super) fn covers(&self, local: SocketAddr, bound_to: Option<Ifindex>) -> bool {
        local.port() == self.local.port()
            && (self.local.ip().is_unspecified() || local.ip() == self.local.ip())
            && self.bound_to.is_none_or(|bound| bound_to == Some(bound))
    }
}

/// The groups of which these processes hold a socket, in the order of their keys; a socket that is alone at its address
/// is a group of one.
#[must_use]
pub fn groups(picture: &Picture, surroundings: &Surroundings, pids: &[Pid]) -> Vec<Group> {
    let index = picture.index();
    let mine = picture.processes.iter().filter(|process| pids.contains(&process.pid));
    let held = mine.filter_map(|process| process.files.known()).flat_map(|files| &files.sockets);
    let keys: BTreeSet<GroupKey> = held.filter_map(|held| index.socket(held.inode)).filter_map(GroupKey::of).collect();
    let workers = workers_by_socket(picture);
    let group = |key: GroupKey| {
        let listed = surroundings.sockets.iter().filter(|socket| socket.key == key).map(|socket| socket.inode);
        let member = |inode| Member { inode, workers: workers_of(inode, &workers) };
        Group { key, members: listed.collect::<BTreeSet<u64>>().into_iter().map(member).collect() }
    };
    keys.into_iter().map(group).collect()
}

fn workers_of(inode: u64, workers: &BTreeMap<u64, Vec<Worker>>) -> Vec<Worker> {
    workers.get(&inode).cloned().unwrap_or_default()
}

/// The epolls of the picture by the sockets that they watch.
pub(super) fn workers_by_socket(picture: &Picture) -> BTreeMap<u64, Vec<Worker>> {
    let mut workers: BTreeMap<u64, Vec<Worker>> = BTreeMap::new();
    for process in &picture.processes {
        for epoll in process.files.known().map_or(&[][..], |files| &files.epolls) {
            for target in epoll.targets.known_elements() {
                if let WatchedFile::Socket { inode } = target.file {
                    workers.entry(inode).or_default().push(Worker::new(process, epoll));
                }
            }
        }
    }
    workers
}
