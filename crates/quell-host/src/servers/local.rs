//! Programs that listen for clients of this host only, which have no queue. Pure.

use std::collections::BTreeMap;

use quell_linux::Pid;
use schemars::JsonSchema;
use serde::Serialize;

use super::{ProcessOrigin, by_root, is_left_out, receives};
use crate::snapshot::query::{SnapshotQuery, is_loopback};
use crate::snapshot::{OtherSocket, Process, Snapshot, SocketState};

/// A program that listens on loopback or Unix sockets only, whose data passes no queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LocalServer {
    /// Its first process.
    pub pid: Pid,
    pub name: String,
    /// Whether it listens on a loopback address.
    pub loopback: bool,
}

/// Programs of a snapshot that are no [`HostServer`](super::HostServer) because they listen on loopback or Unix sockets
/// only: first those on loopback.
#[must_use]
pub fn local_servers(now: &Snapshot, origins: &BTreeMap<Pid, ProcessOrigin>) -> Vec<LocalServer> {
    let query = SnapshotQuery::new(now, None);
    let on_loopback = |process: &&Process| {
        let mut sockets = query.sockets_of(process);
        sockets.any(|socket| socket.state == SocketState::Listen && is_loopback(socket))
    };
    let on_unix = |process: &&Process| {
        process.files.known().is_some_and(|files| files.other_sockets.contains(&OtherSocket::UnixListener))
    };
    let of_root = |processes: Vec<&Process>| {
        let loopback = processes.iter().any(on_loopback);
        let is_local = (loopback || processes.iter().any(on_unix)) && !receives(&query, &processes);
        let first = processes.iter().min_by_key(|process| process.start_time_ticks)?;
        let server = LocalServer { pid: first.pid, name: first.name.clone(), loopback };
        (is_local && !is_left_out(&query, &processes)).then_some(server)
    };
    let mut servers: Vec<LocalServer> = by_root(now, origins).into_values().filter_map(of_root).collect();
    servers.sort_by_key(|server| !server.loopback);
    servers
}
