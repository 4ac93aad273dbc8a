//! Reading sockets: all of a namespace in a few messages by sock_diag, and what only the socket itself tells by a
//! duplicate of it. Each socket is asked once, however many processes hold it.

use std::collections::{HashMap, HashSet};

use quell_linux::pidfd::PidFd;
use quell_linux::proc::{EpollTarget, FdKind};
use quell_linux::sock_diag::{InetFamily, InetProtocol, InetSocket, SockDiag};
use quell_linux::socket_options::{self, SocketOptionError};

use super::super::{Protocol, Reading, Socket, SocketState, Unknown, Why};
use super::namespaces::Space;
use super::outcome::Outcome as _;
use super::processes::OpenProcess;

const KINDS: [(InetProtocol, InetFamily); 4] = [
    (InetProtocol::Tcp, InetFamily::V4),
    (InetProtocol::Tcp, InetFamily::V6),
    (InetProtocol::Udp, InetFamily::V4),
    (InetProtocol::Udp, InetFamily::V6),
];

/// The TCP and UDP sockets that processes hold, by inode.
#[derive(Default)]
pub(super) struct SocketTable {
    by_inode: HashMap<u64, Socket>,
    /// What could not be listed, by the inode of the namespace.
    pub(super) unlisted: HashMap<u64, Vec<Unknown>>,
}

/// Lists the sockets of the namespaces, and keeps those that these processes hold.
pub(super) fn read(spaces: &[Space], processes: &[OpenProcess]) -> SocketTable {
    let held: HashSet<u64> = processes.iter().flat_map(OpenProcess::sockets).map(|(_, inode)| inode).collect();
    let mut table = SocketTable::default();
    for space in spaces {
        let namespace = space.namespace.inode();
        if let Reading::Unknown(unknown) = table.list(space, namespace, &held) {
            table.unlisted.entry(namespace).or_default().push(*unknown.unknown);
        }
    }
    table
}

impl SocketTable {
    fn list(&mut self, space: &Space, namespace: u64, held: &HashSet<u64>) -> Reading<()> {
        let mut diag = match space.open(SockDiag::open, SockDiag::open_in).outcome() {
            Reading::Known(diag) => diag,
            Reading::Unknown(unknown) => return Reading::Unknown(unknown),
        };
        for (protocol, family) in KINDS {
            let listed = diag.for_each(protocol, family, |socket| {
                let inode = u64::from(socket.inode);
                if held.contains(&inode) {
                    self.by_inode.insert(inode, unasked(protocol, namespace, &socket));
                }
            });
            if let Reading::Unknown(unknown) = listed.outcome() {
                self.unlisted.entry(namespace).or_default().push(*unknown.unknown);
            }
        }
        Reading::Known(())
    }

    pub(super) fn get(&self, inode: u64) -> Option<&Socket> {
        self.by_inode.get(&inode)
    }

    /// The socket that an epoll watches. Its inode says it for sure; kernels that do not tell that leave the number, under
    /// which the process may have another file by now.
    pub(super) fn of_target(&self, target: &EpollTarget, kind: Option<&FdKind>) -> Option<u64> {
        let inode = match (target.inode, kind) {
            (Some(inode), _) => inode,
            (None, Some(FdKind::Socket { inode })) => *inode,
            (None, _) => return None,
        };
        self.by_inode.contains_key(&inode).then_some(inode)
    }

    /// Asks every socket of these processes what only it can tell.
    pub(super) fn ask(&mut self, processes: &[OpenProcess]) {
        let mut asked = HashSet::new();
        for process in processes {
            let mut pidfd = None;
            for (fd, inode) in process.sockets() {
                let Some(socket) = self.by_inode.get_mut(&inode) else { continue };
                if asked.insert(inode) {
                    let pidfd = pidfd.get_or_insert_with(|| PidFd::open(process.pid).outcome());
                    ask(socket, pidfd, fd);
                }
            }
        }
    }

    /// The sockets, in ascending order of their inodes.
    pub(super) fn into_sorted(self) -> Vec<Socket> {
        let mut sockets: Vec<Socket> = self.by_inode.into_values().collect();
        sockets.sort_unstable_by_key(|socket| socket.inode);
        sockets
    }
}

fn unasked(protocol: InetProtocol, namespace: u64, socket: &InetSocket) -> Socket {
    fn not_asked<T>() -> Reading<T> {
        Reading::unknown(Why::NotAsked, "the process that holds it is outside of the scope")
    }
    Socket {
        inode: socket.inode.into(),
        protocol: match protocol {
            InetProtocol::Tcp => Protocol::Tcp,
            InetProtocol::Udp => Protocol::Udp,
        },
        namespace,
        local: Some(socket.local),
        remote: socket.remote,
        state: SocketState::from_kernel(socket.state),
        bound_to: socket.bound_to,
        uid: Some(socket.uid),
        receive_queue: Some(socket.receive_queue),
        send_queue: Some(socket.send_queue),
        napi: not_asked(),
        incoming_cpu: not_asked(),
        busy_poll_us: not_asked(),
        prefer_busy_poll: not_asked(),
        reuseport: not_asked(),
    }
}

fn ask(socket: &mut Socket, pidfd: &Reading<PidFd>, fd: i32) {
    let duplicate = match pidfd {
        Reading::Known(pidfd) => pidfd.duplicate(fd).outcome(),
        Reading::Unknown(unknown) => Reading::Unknown(unknown.clone()),
    };
    let duplicate = match duplicate {
        Reading::Known(duplicate) => duplicate,
        Reading::Unknown(unknown) => {
            socket.napi = Reading::Unknown(unknown.clone());
            socket.incoming_cpu = Reading::Unknown(unknown.clone());
            socket.busy_poll_us = Reading::Unknown(unknown.clone());
            socket.prefer_busy_poll = Reading::Unknown(unknown.clone());
            socket.reuseport = Reading::Unknown(unknown);
            return;
        }
    };
    fn option<T>(value: Result<T, SocketOptionError>) -> Reading<T> {
        value.outcome()
    }
    socket.napi = option(socket_options::incoming_napi_id(&duplicate));
    socket.incoming_cpu = option(socket_options::incoming_cpu(&duplicate));
    socket.busy_poll_us = option(socket_options::busy_poll_us(&duplicate));
    socket.prefer_busy_poll = option(socket_options::prefer_busy_poll(&duplicate));
    socket.reuseport = option(socket_options::reuse_port(&duplicate));
}
