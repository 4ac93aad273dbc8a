//! A process in the tree of `quell show`: threads, the epolls they wait on, watched files; sockets of one kind share a
//! line.

use std::collections::{BTreeMap, BTreeSet};

use quell_host::snapshot::{
    BoundXdpQueue, EpollWait, Files, Index, Process, Reading, SnapshotEpoll, SnapshotSocket, SnapshotXdpSocket,
    SocketState, Thread, WatchedFile, WatchedKind,
};
use quell_linux::NapiId;
use quell_linux::sched::Policy;
use quell_linux::visible::counted;

use super::number::count;
use super::show_names::{NapiNames, process, ranges, reason};
use super::tree::Meaning::{Faint, Notable, Plain, Set};
use super::tree::Node;

pub(super) struct Context<'a> {
    pub(super) index: Index<'a>,
    pub(super) names: NapiNames<'a>,
    /// Number of online CPUs; a thread allowed on all of them floats.
    pub(super) online: Option<usize>,
    pub(super) show_namespace: bool,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Kind {
    is_listening: bool,
    protocol: &'static str,
    local: String,
    what: String,
}

impl Context<'_> {
    pub(super) fn node(&self, one: &Process) -> Node {
        let mut node = Node::named(process(&one.name, one.pid));
        if let (true, Some(namespace)) = (self.show_namespace, one.namespace.known()) {
            node.add(Faint, format!("net:[{namespace}]"));
        }
        let files = match &one.files {
            Reading::Known(files) => files,
            Reading::Unknown(unknown) => {
                return node.with(Faint, format!("files unknown: {}", reason(&unknown.unknown)));
            }
        };
        let waits = self.threads(one, files, &mut node);
        for epoll in files.epolls.iter().filter(|epoll| !waits.contains(&epoll.fd)) {
            node.push(self.epoll(epoll, None).with(Faint, "no thread waits on it"));
        }
        self.other_files(files, &mut node);
        node
    }

    /// Adds the threads; returns the epolls shown below them.
    fn threads(&self, one: &Process, files: &Files, node: &mut Node) -> BTreeSet<i32> {
        let threads = one.threads.known_elements();
        let wait = |thread: &Thread| thread.epoll_wait.known().copied().flatten();
        let (waiting, others): (Vec<&Thread>, Vec<&Thread>) = threads.partition(|thread| wait(thread).is_some());
        let mut shown = BTreeSet::new();
        for thread in waiting {
            let Some(call) = wait(thread) else { continue };
            let mut line = self.thread(thread);
            match files.epolls.iter().find(|epoll| epoll.fd == call.epoll_fd) {
                Some(epoll) if shown.insert(epoll.fd) => line.push(self.epoll(epoll, Some(call))),
                _ => line.add(Plain, format!("also waits on epoll {}", call.epoll_fd)),
            }
            node.push(line);
        }
        match others.as_slice() {
            [] => {}
            [thread] => node.push(self.thread(thread)),
            more => {
                let cpus = more.iter().filter_map(|thread| thread.affinity.known()).flat_map(|cpus| cpus.iter());
                let line = Node::named(format!("{} other threads", count(more.len())));
                node.push(line.with(Plain, format!("CPU {}", ranges(cpus))));
            }
        }
        shown
    }

    fn thread(&self, thread: &Thread) -> Node {
        let mut node = Node::named(format!("thread {}", process(&thread.name, thread.tid)));
        match &thread.affinity {
            Reading::Known(cpus) if cpus.len() > 1 && Some(cpus.len()) == self.online => {
                node.add(Notable, format!("floats over CPU {cpus}"));
            }
            Reading::Known(cpus) => node.add(Plain, format!("CPU {cpus}")),
            Reading::Unknown(unknown) => node.add(Faint, format!("CPUs unknown: {}", reason(&unknown.unknown))),
        }
        let policy = thread.scheduling.known().and_then(|scheduling| match scheduling.policy {
            Policy::Other { nice: 0 } => None,
            Policy::Other { nice } => Some(format!("nice {nice}")),
            Policy::Batch { .. } => Some("batch".to_owned()),
            Policy::Idle { .. } => Some("idle class".to_owned()),
            Policy::Fifo { priority } => Some(format!("fifo {priority}")),
            Policy::RoundRobin { priority } => Some(format!("rr {priority}")),
            _ => Some("other class".to_owned()),
        });
        node.add_if(Set, policy);
        let ran = thread.run_ns.known().map(|ns| format!("ran {:.1} s", *ns as f64 / 1e9));
        node.add_if(Faint, ran);
        node.add_if(Faint, thread.last_cpu.known().map(|cpu| format!("last on CPU {cpu}")));
        node
    }

    fn epoll(&self, epoll: &SnapshotEpoll, call: Option<EpollWait>) -> Node {
        let mut node = Node::named(format!("epoll {}", epoll.fd));
        match &epoll.params {
            Reading::Known(params) => {
                let polls = params.busy_poll_usecs > 0 || params.prefer_busy_poll;
                node.add(if polls { Set } else { Plain }, format!("busy poll {}", params.short()));
            }
            Reading::Unknown(unknown) => node.add(Faint, format!("busy poll unknown: {}", reason(&unknown.unknown))),
        }
        if let Some(call) = call {
            node.add(Plain, format!("up to {}", counted(call.max_events, "event")));
            let timeout = match call.timeout_ms {
                Some(0..) => format!("timeout {} ms", call.timeout_ms.unwrap_or_default()),
                Some(_) => "no timeout".to_owned(),
                None => "timeout unknown".to_owned(),
            };
            node.add(Faint, timeout);
        }
        match &epoll.targets {
            Reading::Known(_) => {}
            Reading::Unknown(unknown) => {
                node.add(Faint, format!("watched files unknown: {}", reason(&unknown.unknown)))
            }
        }
        let sockets = epoll.targets.known_elements().filter_map(|target| match target.file {
            WatchedFile::Socket { inode } => self.index.socket(inode),
            WatchedFile::Other { .. } => None,
        });
        node.extend(self.sockets(sockets));
        node.extend(others(epoll));
        node
    }

    fn other_files(&self, files: &Files, node: &mut Node) {
        let watched = files.epolls.iter().flat_map(|epoll| epoll.targets.known_elements());
        let watched: BTreeSet<u64> = watched
            .filter_map(|target| match target.file {
                WatchedFile::Socket { inode } => Some(inode),
                WatchedFile::Other { .. } => None,
            })
            .collect();
        let unwatched: BTreeSet<u64> =
            files.sockets.iter().map(|held| held.inode).filter(|inode| !watched.contains(inode)).collect();
        let lines = self.sockets(unwatched.into_iter().filter_map(|inode| self.index.socket(inode)));
        let in_no_epoll = |line: Node| if files.epolls.is_empty() { line } else { line.with(Faint, "in no epoll") };
        node.extend(lines.into_iter().map(in_no_epoll));
        node.extend(files.xdp_details.iter().map(|socket| self.xdp_socket(socket)));
        let is_unread = |fd: &&i32| files.xdp_details.iter().all(|socket| socket.fd != **fd);
        let unread: Vec<i32> = files.xdp_sockets.iter().filter(is_unread).copied().collect();
        let kinds = [("AF_XDP socket", &unread), ("io_uring", &files.io_urings)];
        for (what, numbers) in kinds.into_iter().filter(|(_, numbers)| !numbers.is_empty()) {
            node.push(Node::named(format!("{what} {}", ranges(numbers.iter().map(|fd| fd.unsigned_abs())))));
        }
    }

    /// Mode of an AF_XDP socket, who polls for it, and what it lost.
    fn xdp_socket(&self, socket: &SnapshotXdpSocket) -> Node {
        let mut node = Node::named(format!("AF_XDP socket {}", socket.fd));
        match &socket.bound {
            Reading::Known(Some(queue)) => self.bound_queue(*queue, &mut node),
            Reading::Known(None) => node.add(Faint, "not bound"),
            Reading::Unknown(unknown) => node.add(Faint, format!("queue unknown: {}", reason(&unknown.unknown))),
        }
        node.add(Plain, if socket.zero_copy { "zero-copy" } else { "copy mode" });
        node.add_if(Plain, socket.napi.map(|napi| format!("NAPI {napi}")));
        match (socket.wants_to_poll(), socket.napi) {
            (true, None) => node.add(Notable, "asks for busy polling without NAPI ID"),
            (true, Some(_)) => node.add(Plain, format!("polled by the program, {} µs", socket.busy_poll_us)),
            (false, _) => {}
        }
        for (number, what) in socket.losses().into_iter().filter(|(number, _)| *number > 0) {
            node.add(Notable, format!("{} {what}", counted(number, "frame")));
        }
        node
    }

    fn bound_queue(&self, queue: BoundXdpQueue, node: &mut Node) {
        let BoundXdpQueue { namespace, ifindex, rx_queue, need_wakeup } = queue;
        let device = self.index.device(namespace, ifindex);
        let name = device.map_or_else(|| format!("interface {}", ifindex.get()), |device| device.name.clone());
        node.add(Plain, format!("{name} rx {rx_queue}"));
        match need_wakeup {
            Some(true) => node.add(Plain, "need-wakeup"),
            Some(false) => node.add(Plain, "no need-wakeup"),
            None => {}
        }
    }

    fn sockets<'s>(&self, sockets: impl Iterator<Item = &'s SnapshotSocket>) -> Vec<Node> {
        let mut kinds: BTreeMap<Kind, (usize, BTreeSet<NapiId>)> = BTreeMap::new();
        for socket in sockets {
            let (number, napis) = kinds.entry(kind(socket)).or_default();
            *number += 1;
            napis.extend(socket.napi.known().copied().flatten());
        }
        let line = |(kind, (number, napis)): (Kind, (usize, BTreeSet<NapiId>))| {
            let mut node = Node::named(format!("{} {} {}", count(number), kind.protocol, kind.local));
            node.add(Plain, kind.what);
            let meaning = if napis.len() > 1 { Notable } else { Plain };
            node.add_if(meaning, (!napis.is_empty()).then(|| self.names.name(&napis)));
            node
        };
        kinds.into_iter().map(line).collect()
    }
}

fn kind(socket: &SnapshotSocket) -> Kind {
    let is_listening = socket.state == SocketState::Listen;
    let is_unconnected = socket.state == SocketState::Close;
    let protocol = match socket.protocol {
        quell_host::snapshot::Protocol::Udp => "udp",
        _ => "tcp",
    };
    let mut what = match socket.state {
        SocketState::Listen => "listening".to_owned(),
        SocketState::Established => "connected".to_owned(),
        _ if is_unconnected && protocol == "udp" => "bound".to_owned(),
        other => format!("{other:?}").to_lowercase(),
    };
    if socket.reuseport.known() == Some(&true) && (is_listening || is_unconnected) {
        what.push_str(", reuseport");
    }
    match &socket.napi {
        Reading::Known(None) if socket.state == SocketState::Established => what.push_str(", no NAPI"),
        Reading::Known(None) if !is_listening => what.push_str(", no NAPI yet"),
        Reading::Unknown(unknown) => what.push_str(&format!(", NAPI unknown: {}", reason(&unknown.unknown))),
        Reading::Known(_) => {}
    }
    if let Some(us @ 1..) = socket.busy_poll_us.known() {
        what.push_str(&format!(", SO_BUSY_POLL {us} µs"));
    }
    if socket.prefer_busy_poll.known() == Some(&true) {
        what.push_str(", SO_PREFER_BUSY_POLL");
    }
    // Shows the local port, which connections share; remote ports all differ.
    let local = socket.local.map(|address| address.to_string()).unwrap_or_default();
    Kind { is_listening, protocol, local, what }
}

/// Files other than sockets that an epoll watches, one line per kind.
fn others(epoll: &SnapshotEpoll) -> Vec<Node> {
    let mut kinds: BTreeMap<(String, bool), Vec<u32>> = BTreeMap::new();
    for target in epoll.targets.known_elements() {
        let WatchedFile::Other { kind, ready } = &target.file else { continue };
        let is_ready = ready.known() == Some(&true);
        kinds.entry((watched(kind), is_ready)).or_default().push(target.fd.unsigned_abs());
    }
    let line = |((kind, is_ready), numbers): ((String, bool), Vec<u32>)| {
        let mut node = Node::named(format!("{kind} {}", ranges(numbers)));
        node.add_if(Notable, is_ready.then(|| "ready".to_owned()));
        node
    };
    kinds.into_iter().map(line).collect()
}

fn watched(kind: &WatchedKind) -> String {
    match kind {
        WatchedKind::EventFd => "eventfd".to_owned(),
        WatchedKind::TimerFd => "timerfd".to_owned(),
        WatchedKind::SignalFd => "signalfd".to_owned(),
        WatchedKind::Pipe => "pipe".to_owned(),
        WatchedKind::Epoll => "nested epoll".to_owned(),
        WatchedKind::OtherSocket => "other socket".to_owned(),
        WatchedKind::Named(name) => name.clone(),
        _ => "closed file".to_owned(),
    }
}
