//! Programs that receive packets in another call than the one in which a mode polls: without an epoll, or without a
//! blocking receive. The mode cannot have an effect on them. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use quell_linux::{NapiId, Pid};
use quell_mode::DeliveryMode;

use super::plan::{first_of, is_receiver, watched_sockets};
use super::pollers::of_xdp_sockets;
use crate::findings::modes_without_epolls;
use crate::snapshot::query::{EpollContext, SnapshotQuery};
use crate::snapshot::{FileWait, Files, Process, Snapshot, SnapshotSocket, SnapshotXdpSocket};

/// Those of the processes that receive packets, by the reason why the mode does not poll for them, if no epoll of any of
/// them receives. Before the first packet: those that wait for their sockets, if none of them has an epoll.
pub(super) fn without_epoll<'a>(
    query: &SnapshotQuery<'a>,
    targets: &BTreeSet<Pid>,
    mode: &DeliveryMode,
) -> BTreeMap<WhyUnpolled, Vec<&'a Process>> {
    let of_targets = |epoll: &&EpollContext<'_>| targets.contains(&epoll.process.pid);
    let epolls = || query.epolls_by_descriptor.iter().filter(of_targets);
    let processes = query.now.processes.iter().filter(|process| targets.contains(&process.pid));
    let files: Vec<_> = processes.filter_map(|process| Some((process, process.files.known()?))).collect();
    let has_bound =
        |files: &Files| files.xdp_details.iter().any(|socket| query.napi_of_xdp(socket).is_ok_and(|it| it.is_some()));
    let is_xdp_alone =
        files.iter().any(|(_, files)| has_bound(files)) && epolls().all(|epoll| epoll.by_napi.is_empty());
    let has_epoll = epolls().any(|epoll| watched_sockets(epoll) > 0);
    if has_epoll && !is_xdp_alone && !receives_outside_epolls(query, targets) {
        return BTreeMap::new();
    }
    // These poll the queue, or are deferred.
    let polls = |socket: &SnapshotXdpSocket| will_poll(socket, mode);
    if files.iter().any(|(_, files)| files.xdp_details.iter().any(polls) || files.receiving_rings().next().is_some()) {
        return BTreeMap::new();
    }
    let receives = |files: &Files| !query.napis_of(files).is_empty();
    let is_idle = !files.iter().any(|(_, files)| receives(files));
    // An epoll without sockets may get them later.
    if is_idle && (epolls().next().is_some() || files.iter().any(|(_, files)| !files.xdp_sockets.is_empty())) {
        return BTreeMap::new();
    }
    let waits =
        |process, files: &Files| !files.sockets.is_empty() && waits_for_sockets(process, files).next().is_some();
    let mut receiving: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (process, files) in files {
        if if is_idle { waits(process, files) } else { receives(files) } {
            receiving.entry(WhyUnpolled::of(query, process, files, mode)).or_default().push(process);
        }
    }
    receiving
}

/// Whether the programs receive outside of their epolls: these only accept, or no thread waits in them.
pub(crate) fn receives_outside_epolls(query: &SnapshotQuery<'_>, targets: &BTreeSet<Pid>) -> bool {
    accepts_for_others(query, targets) || receives_watched(query, targets)
}

/// Whether a thread waits in a blocking receive for a socket that an epoll of the programs watches, and none in an epoll.
pub(crate) fn receives_watched(query: &SnapshotQuery<'_>, targets: &BTreeSet<Pid>) -> bool {
    let epolls = || query.epolls_by_descriptor.iter().filter(|epoll| targets.contains(&epoll.process.pid));
    if epolls().any(|epoll| !epoll.waiters.is_empty()) {
        return false;
    }
    let watched: BTreeSet<u64> = epolls().flat_map(EpollContext::sockets).collect();
    let is_watched =
        |socket: &SnapshotSocket| is_receiver(socket) && socket.has_queue() && watched.contains(&socket.inode);
    let processes = query.now.processes.iter().filter(|process| targets.contains(&process.pid));
    waits_with_files(processes).any(|(wait, files)| match wait {
        FileWait::Receive { fd } => socket_at(query, files, fd).is_some_and(is_watched),
        _ => false,
    })
}

/// Whether the epolls of the programs watch listening sockets only, and connections that these accepted receive packets
/// outside of every epoll: in a thread or a process for each.
pub(crate) fn accepts_for_others(query: &SnapshotQuery<'_>, targets: &BTreeSet<Pid>) -> bool {
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
            && socket.has_queue()
            && socket.local.is_some_and(|local| ports.contains(&local.port()))
    };
    held.filter_map(|held| query.socket(held.inode)).any(is_accepted)
}

/// Whether an AF_XDP socket polls its queue under the mode.
pub(super) fn will_poll(socket: &SnapshotXdpSocket, mode: &DeliveryMode) -> bool {
    socket.napi.is_some() && (socket.wants_to_poll() || of_xdp_sockets(mode).is_some())
}

/// Why no epoll polls for a process: the call in which its threads wait for packets, as far as that is visible.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum WhyUnpolled {
    Receive,
    Accept,
    Poll,
    Select,
    /// In no call that is known.
    NotWatched,
    ReadsNothing,
    Xdp,
    XdpWithoutNapi,
}

impl WhyUnpolled {
    fn of(query: &SnapshotQuery<'_>, process: &Process, files: &Files, mode: &DeliveryMode) -> Self {
        if !files.xdp_sockets.is_empty() {
            return if of_xdp_sockets(mode).is_some() { Self::XdpWithoutNapi } else { Self::Xdp };
        }
        match wait_outside_epolls(query, &[process]) {
            Some(OutsideWait::In(FileWait::Receive { .. })) => Self::Receive,
            Some(OutsideWait::In(FileWait::Accept { .. })) => Self::Accept,
            Some(OutsideWait::In(FileWait::Poll)) => Self::Poll,
            Some(OutsideWait::In(FileWait::Select)) => Self::Select,
            Some(OutsideWait::ReadsNothing) => Self::ReadsNothing,
            None => Self::NotWatched,
        }
    }

    /// Whether a mode of sockets polls where the program waits: in the blocking receives that follow an accept, too.
    pub(super) fn is_for_sockets(self) -> bool {
        matches!(self, Self::Receive | Self::Accept)
    }
}

impl fmt::Display for WhyUnpolled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Receive => "it waits in recv(2): only epoll polls a queue",
            Self::Accept => "it waits in accept(2): only epoll polls a queue",
            Self::Poll => "it waits in poll(2): only epoll polls a queue",
            Self::Select => "it waits in select(2): only epoll polls a queue",
            Self::NotWatched => "no epoll watches its sockets: only epoll polls a queue",
            Self::ReadsNothing => "it does not read the connections that it accepts",
            Self::Xdp => "it receives through AF_XDP: only epoll suspends interrupts",
            Self::XdpWithoutNapi => "its AF_XDP sockets have no NAPI ID, so that they cannot busy poll",
        })
    }
}

/// How processes without an epoll that receives wait for packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OutsideWait {
    In(FileWait),
    /// They accept connections, and did not read them between the snapshots.
    ReadsNothing,
}

/// How these processes wait for packets, other than in an epoll. The threads that wait for the data of clients decide;
/// those that accept connections leave the receiving to others, and one in `poll` may only accept, too. `None` if no
/// thread waits for a socket.
pub(crate) fn wait_outside_epolls(query: &SnapshotQuery<'_>, processes: &[&Process]) -> Option<OutsideWait> {
    let namespace_and_port = |socket: &SnapshotSocket| Some((socket.namespace, socket.local?.port()));
    let is_served = |socket: &&SnapshotSocket| !is_receiver(socket) || socket.records_first_napi();
    let served: BTreeSet<_> = query.now.sockets.iter().filter(is_served).filter_map(namespace_and_port).collect();
    let is_of_client = |socket: &SnapshotSocket| {
        is_receiver(socket) && namespace_and_port(socket).is_some_and(|port| served.contains(&port))
    };
    let waits = waits_with_files(processes.iter().copied());
    let rank = |(wait, files): &(FileWait, &Files)| match *wait {
        FileWait::Receive { fd } if socket_at(query, files, fd).is_some_and(is_of_client) => 0,
        FileWait::Poll | FileWait::Select => 1,
        FileWait::Receive { .. } => 2,
        FileWait::Accept { .. } => 3,
    };
    let wait = waits.min_by_key(rank).map(|(wait, _)| wait);
    if matches!(wait, Some(FileWait::Receive { .. })) {
        return wait.map(OutsideWait::In);
    }
    let connections = processes
        .iter()
        .flat_map(|process| query.sockets_of(process))
        .filter(|socket| socket.remote.is_some() && socket.has_queue() && is_of_client(socket));
    match !works(query, processes) && reads_nothing(query, connections) {
        true => Some(OutsideWait::ReadsNothing),
        false => wait.map(OutsideWait::In),
    }
}

/// Share of the time between two snapshots from which on a program works: its connections can have data in both because
/// the next request is already there.
const WORKS: f64 = 0.02;

fn works(query: &SnapshotQuery<'_>, processes: &[&Process]) -> bool {
    let ran_ns: u64 = processes.iter().filter_map(|process| query.cpu_ns(process)).sum();
    query.interval_ns().is_some_and(|interval_ns| ran_ns as f64 > interval_ns as f64 * WORKS)
}

/// Whether all these connections have data now, and those of the earlier snapshot had no more then.
fn reads_nothing<'a>(query: &SnapshotQuery<'a>, connections: impl Iterator<Item = &'a SnapshotSocket>) -> bool {
    let mut was_unread = false;
    for socket in connections {
        let Some(queued) = socket.receive_queue.filter(|&queued| queued > 0) else { return false };
        if let Some(before) = query.socket_before(socket.inode).and_then(|before| before.receive_queue) {
            if before == 0 || before > queued {
                return false;
            }
            was_unread = true;
        }
    }
    was_unread
}

/// Names of the modes that work without an epoll, as [`quell`](crate::servers::HostServer::modes) has them.
pub(super) fn names_without_epolls(query: &SnapshotQuery<'_>, targets: &BTreeSet<Pid>) -> String {
    let its = query.now.processes.iter().filter(|process| targets.contains(&process.pid));
    let queues: BTreeSet<NapiId> =
        its.filter_map(|process| process.files.known()).flat_map(|files| query.napis_of(files)).collect();
    let modes = modes_without_epolls(query, targets, queues.len());
    let names = modes.iter().filter(|mode| **mode != DeliveryMode::default()).map(ToString::to_string);
    names.collect::<Vec<_>>().join(", ")
}

fn socket_at<'a>(query: &SnapshotQuery<'a>, files: &Files, fd: i32) -> Option<&'a SnapshotSocket> {
    let held = files.sockets.iter().find(|held| held.fd == fd)?;
    query.socket(held.inode)
}

/// [`waits_for_sockets`] of processes whose files are known, with these.
fn waits_with_files<'a>(processes: impl Iterator<Item = &'a Process>) -> impl Iterator<Item = (FileWait, &'a Files)> {
    processes
        .filter_map(|process| Some((process, process.files.known()?)))
        .flat_map(|(process, files)| waits_for_sockets(process, files).map(move |wait| (wait, files)))
}

/// Calls other than `epoll_wait` in which threads of the process wait for its sockets.
fn waits_for_sockets<'a>(process: &'a Process, files: &'a Files) -> impl Iterator<Item = FileWait> + 'a {
    let is_socket = |fd: i32| files.sockets.iter().any(|held| held.fd == fd);
    let is_on_socket = move |wait: &FileWait| match *wait {
        FileWait::Receive { fd } | FileWait::Accept { fd } => is_socket(fd),
        FileWait::Poll | FileWait::Select => true,
    };
    process.threads.known_elements().filter_map(|thread| thread.file_wait).filter(is_on_socket)
}

/// Why busy polling sockets have no effect on these programs, which wait for packets elsewhere. Absent if one of them may
/// wait in a blocking receive.
#[must_use]
pub fn why_sockets_do_not_poll(now: &Snapshot, programs: &BTreeSet<Pid>) -> Option<String> {
    let query = SnapshotQuery::new(now, None);
    let (why, processes) = without_blocking_receive(&query, programs).pop_first()?;
    Some(format!("{}: {}", first_of(&processes), in_receives_only(&query, programs, why)))
}

/// Follows the call in which programs wait.
pub(super) fn in_receives_only(query: &SnapshotQuery<'_>, programs: &BTreeSet<Pid>, why: &str) -> String {
    let others = names_without_epolls(query, programs);
    format!("{why}: sockets poll in blocking receives only; modes of queues ({others}) work")
}

/// Those of the processes that receive packets, by the call in which they wait for them, if none of them can wait in a
/// blocking receive. Only there does a socket with `SO_BUSY_POLL` wait for packets by polling its queue. Before the first
/// packet: those that wait for any socket.
pub(super) fn without_blocking_receive<'a>(
    query: &SnapshotQuery<'a>,
    targets: &BTreeSet<Pid>,
) -> BTreeMap<&'static str, Vec<&'a Process>> {
    let processes = query.now.processes.iter().filter(|process| targets.contains(&process.pid));
    let is_idle = !processes.filter_map(|process| process.files.known()).any(|files| !query.napis_of(files).is_empty());
    let epolls = query.epolls_by_descriptor.iter().filter(|epoll| targets.contains(&epoll.process.pid));
    let watched: BTreeSet<u64> = epolls.flat_map(EpollContext::sockets).collect();
    let polls_sockets = query.now.sysctls.busy_poll_us.known() != Some(&0);
    let receives = |inode: &u64| {
        let receives = |socket: &SnapshotSocket| is_idle || (is_receiver(socket) && socket.has_queue());
        query.socket(*inode).is_some_and(receives)
    };
    let mut receiving: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for process in query.now.processes.iter().filter(|process| targets.contains(&process.pid)) {
        let Some(files) = process.files.known() else { return BTreeMap::new() };
        let waits: Vec<FileWait> = waits_for_sockets(process, files).collect();
        let blocks = waits.iter().any(|wait| matches!(wait, FileWait::Receive { .. }));
        if blocks || !files.xdp_sockets.is_empty() || files.receiving_rings().next().is_some() {
            return BTreeMap::new();
        }
        let sockets: Vec<u64> = files.sockets.iter().map(|held| held.inode).filter(receives).collect();
        // A thread that waits for connections leaves the receiving to others.
        let only_accepts = !sockets.iter().filter_map(|inode| query.socket(*inode)).any(is_receiver);
        let why = match (sockets.iter().all(|inode| watched.contains(inode)), &waits[..]) {
            _ if sockets.is_empty() => continue,
            (true, _) => "it waits in epoll_wait(2)",
            (false, _) if only_accepts => return BTreeMap::new(),
            (false, waits) if !polls_sockets && waits.contains(&FileWait::Poll) => "it waits in poll(2)",
            (false, waits) if !polls_sockets && waits.contains(&FileWait::Select) => "it waits in select(2)",
            // A thread may receive from these sockets in a blocking call.
            (false, _) => return BTreeMap::new(),
        };
        receiving.entry(why).or_default().push(process);
    }
    receiving
}
