//! Finds the connection of the SSH session that takes the snapshot.

use std::net::SocketAddr;

use quell_linux::proc::ProcRoot;
use quell_linux::ssh_session::{SshConnection, server_ancestors};

use super::super::{Process, Protocol, Reading, SnapshotSocket, SocketState, UnknownReason};

/// Inodes of the session's connections, in ascending order; empty for a local session.
pub(super) fn sockets(proc: &ProcRoot, processes: &[Process], sockets: &[SnapshotSocket]) -> Reading<Vec<u64>> {
    let (named, servers) = (SshConnection::of_environment(), server_ancestors(proc));
    let of_servers = processes.iter().filter(|process| servers.contains(&process.pid));
    let held: Vec<u64> = of_servers
        .filter_map(|server| server.files.known())
        .flat_map(|files| files.sockets.iter().map(|socket| socket.inode))
        .collect();
    let is_of_session = |socket: &&SnapshotSocket| {
        let is_connection = socket.protocol == Protocol::Tcp && socket.state == SocketState::Established;
        is_connection && (held.contains(&socket.inode) || named.is_some_and(|named| is_end_of(socket, named)))
    };
    let found: Vec<u64> = sockets.iter().filter(is_of_session).map(|socket| socket.inode).collect();
    match found.is_empty() && (named.is_some() || !servers.is_empty()) {
        true => Reading::unknown(
            UnknownReason::Absent,
            "find the connection of this SSH session: it is not among the sockets that were read",
        ),
        false => Reading::Known(found),
    }
}

fn is_end_of(socket: &SnapshotSocket, connection: SshConnection) -> bool {
    let plain = |address: SocketAddr| SocketAddr::new(address.ip().to_canonical(), address.port());
    socket.local.map(plain) == Some(connection.server) && socket.remote.map(plain) == Some(connection.client)
}
