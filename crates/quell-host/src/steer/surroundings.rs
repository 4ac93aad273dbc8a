//! Reads the data that steering needs besides a snapshot: all sockets of a namespace, and their filters.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use quell_change::namespaces::{self, SearchError};
use quell_change::reuseport_group::{GroupKey, GroupSocket, waiting_sockets};
use quell_linux::Pid;
use quell_linux::netlink::NetlinkError;
use quell_linux::netns::NamespaceError;
use quell_linux::proc::{ProcError, ProcRoot};
use quell_linux::sock_diag::{InetFamily, InetProtocol, SockDiag};

use super::programs::KnownPrograms;
use crate::snapshot::{Protocol, Snapshot};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Surroundings {
    pub sockets: Vec<GroupSocket>,
    pub programs: KnownPrograms,
}

/// A connection to a group: accepted, waiting to be accepted, or in the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    /// Address and port of the server.
    pub local: SocketAddr,
    /// Address and port of the client.
    pub remote: SocketAddr,
    /// Socket inode; absent before it is accepted.
    pub inode: Option<u64>,
}

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LookError {
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    #[error(transparent)]
    Search(#[from] SearchError),
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error(transparent)]
    Proc(#[from] ProcError),
    #[error("network namespace {inode} of the sockets has no name and no process")]
    NamespaceLost { inode: u64 },
}

pub fn look(snapshot: &Snapshot, pids: &[Pid]) -> Result<Surroundings, LookError> {
    let index = snapshot.index();
    let mine = snapshot.processes.iter().filter(|process| pids.contains(&process.pid));
    let held = mine.filter_map(|process| process.files.known()).flat_map(|files| &files.sockets);
    let inodes: BTreeSet<u64> =
        held.filter_map(|held| index.socket(held.inode)).map(|socket| socket.namespace).collect();
    let mut surroundings = Surroundings::default();
    for inode in inodes {
        let namespace = namespaces::by_inode(&ProcRoot::default(), inode)?.ok_or(LookError::NamespaceLost { inode })?;
        surroundings.sockets.extend(waiting_sockets(&namespace)?);
        surroundings.programs.read(&namespace);
    }
    Ok(surroundings)
}

pub fn connections(key: &GroupKey) -> Result<Vec<Connection>, LookError> {
    let inode = key.namespace;
    let mut found = Vec::new();
    if key.protocol == Protocol::Udp {
        return Ok(found);
    }
    let namespace = namespaces::by_inode(&ProcRoot::default(), inode)?.ok_or(LookError::NamespaceLost { inode })?;
    // IPv4 clients of an IPv6 socket have IPv4-mapped IPv6 addresses.
    let family = if key.local.is_ipv4() { InetFamily::V4 } else { InetFamily::V6 };
    SockDiag::open_in(&namespace)?.for_each(InetProtocol::Tcp, family, |socket| {
        if let Some(remote) = socket.remote.filter(|_| key.covers(socket.local, socket.bound_to)) {
            let inode = (socket.inode != 0).then_some(u64::from(socket.inode));
            found.push(Connection { local: socket.local, remote, inode });
        }
    })?;
    Ok(found)
}
