//! Programs that receive packets without an epoll, which no mode that polls in `epoll_wait` can help. Pure.

use std::collections::{BTreeMap, BTreeSet};

use quell_linux::Pid;

use super::plan::{is_receiver, queues_of, watched_sockets};
use crate::snapshot::query::{EpollContext, SnapshotQuery};
use crate::snapshot::{FileWait, Files, Process, SnapshotSocket};

/// Those of the processes that receive packets, by how they receive, if no epoll of any of them receives.
pub(super) fn without_epoll<'a>(
    query: &SnapshotQuery<'a>,
    targets: &BTreeSet<Pid>,
) -> BTreeMap<&'static str, Vec<&'a Process>> {
    let of_targets = |epoll: &&EpollContext<'_>| targets.contains(&epoll.process.pid);
    let has_epoll = query.epolls_by_descriptor.iter().filter(of_targets).any(|epoll| watched_sockets(epoll) > 0);
    if has_epoll && !accepts_for_others(query, targets) {
        return BTreeMap::new();
    }
    let processes = query.now.processes.iter().filter(|process| targets.contains(&process.pid));
    let files: Vec<_> = processes.filter_map(|process| Some((process, process.files.known()?))).collect();
    // These wait in other ways, which poll or are deferred.
    if files.iter().any(|(_, files)| !files.xdp_sockets.is_empty() || files.receiving_rings().next().is_some()) {
        return BTreeMap::new();
    }
    let mut receiving: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (process, files) in files.into_iter().filter(|(_, files)| !queues_of(query, files).is_empty()) {
        receiving.entry(how_it_waits(process, files)).or_default().push(process);
    }
    receiving
}

/// Whether the epolls of the programs watch listening sockets only, and connections that these accepted receive packets
/// outside of every epoll: in a thread or a process for each.
pub(super) fn accepts_for_others(query: &SnapshotQuery<'_>, targets: &BTreeSet<Pid>) -> bool {
    let epolls = query.epolls_by_descriptor.iter().filter(|epoll| targets.contains(&epoll.process.pid));
    let watched: BTreeSet<u64> = epolls.flat_map(EpollContext::sockets).collect();
    let watched: Vec<&SnapshotSocket> = watched.into_iter().filter_map(|inode| query.socket(inode)).collect();
    if watched.iter().any(|socket| is_receiver(socket)) {
        return false;
    }
    let ports: BTreeSet<u16> = watched.iter().filter_map(|listener| Some(listener.local?.port())).collect();
    let files = query.now.processes.iter().filter(|process| targets.contains(&process.pid));
    let held = files.filter_map(|process| process.files.known()).flat_map(|files| &files.sockets);
    let is_accepted = |socket: &SnapshotSocket| {
        is_receiver(socket)
            && socket.remote.is_some()
            && matches!(socket.napi.known(), Some(Some(_)))
            && socket.local.is_some_and(|local| ports.contains(&local.port()))
    };
    held.filter_map(|held| query.socket(held.inode)).any(is_accepted)
}

/// The call in which a thread of the process waits for its sockets, as far as that is visible.
fn how_it_waits(process: &Process, files: &Files) -> &'static str {
    let is_socket = |fd: i32| files.sockets.iter().any(|held| held.fd == fd);
    let is_on_socket = |wait: &FileWait| match *wait {
        FileWait::Receive { fd } | FileWait::Accept { fd } => is_socket(fd),
        FileWait::Poll | FileWait::Select => true,
    };
    let waits = process.threads.known_elements().filter_map(|thread| thread.file_wait).filter(is_on_socket);
    // A thread that accepts connections leaves the receiving to others.
    match waits.min_by_key(|wait| matches!(wait, FileWait::Accept { .. })) {
        Some(FileWait::Receive { .. }) => "it waits in recv(2)",
        Some(FileWait::Poll) => "it waits in poll(2)",
        Some(FileWait::Select) => "it waits in select(2)",
        Some(FileWait::Accept { .. }) => "it waits in accept(2)",
        None => "no epoll watches its sockets",
    }
}
