//! Epolls to which several queues deliver data at the same time. Their sockets alone do not show this: idle connections on
//! another queue cost nothing.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use quell_linux::pidfd::PidFd;
use quell_linux::socket_options::{incoming_napi_id, time_since_data};
use quell_linux::{NapiId, Pid};

use super::EpollKey;
use crate::snapshot::query::{EpollContext, SnapshotQuery};
use crate::snapshot::{Protocol, Snapshot, SnapshotSocket, SocketState};

/// Connections of an epoll that are examined for each queue: a busy server has data on most of them.
const EXAMINED_MAX: usize = 16;

/// TCP connections of epolls that have some on several queues, by descriptor.
#[derive(Debug)]
pub(super) struct MixedConnections(Vec<(EpollKey, i32)>);

impl MixedConnections {
    pub(super) fn of(snapshot: &Snapshot, programs: &BTreeSet<Pid>) -> Self {
        let query = SnapshotQuery::new(snapshot, None);
        let is_mixed =
            |epoll: &&EpollContext<'_>| programs.contains(&epoll.process.pid) && epoll.on_one_queue().len() > 1;
        let mut connections = Vec::new();
        for epoll in query.epolls().filter(is_mixed) {
            let held = epoll.process.files.known().into_iter().flat_map(|files| &files.sockets);
            let fds: HashMap<u64, i32> = held.map(|held| (held.inode, held.fd)).collect();
            for sockets in epoll.by_napi.values() {
                let is_connection =
                    |one: &&&SnapshotSocket| (one.protocol, one.state) == (Protocol::Tcp, SocketState::Established);
                let held = sockets.iter().filter(is_connection).filter_map(|socket| fds.get(&socket.inode));
                connections.extend(held.take(EXAMINED_MAX).map(|&fd| ((epoll.process.pid, epoll.epoll.fd), fd)));
            }
        }
        Self(connections)
    }

    /// Queues that delivered data within this time, by epoll.
    pub(super) fn received_within(&self, time: Duration) -> BTreeMap<EpollKey, BTreeSet<NapiId>> {
        let pids: BTreeSet<Pid> = self.0.iter().map(|&((pid, _), _)| pid).collect();
        let processes: HashMap<Pid, PidFd> =
            pids.into_iter().filter_map(|pid| Some((pid, PidFd::open(pid).ok()?))).collect();
        let mut received: BTreeMap<EpollKey, BTreeSet<NapiId>> = BTreeMap::new();
        for &(epoll, fd) in &self.0 {
            let duplicate = processes.get(&epoll.0).and_then(|process| process.duplicate_briefly(fd).ok());
            let Some(connection) = duplicate else { continue };
            if time_since_data(&connection).is_ok_and(|since| since < time)
                && let Ok(Some(napi)) = incoming_napi_id(&connection)
            {
                received.entry(epoll).or_default().insert(napi);
            }
        }
        received
    }
}
