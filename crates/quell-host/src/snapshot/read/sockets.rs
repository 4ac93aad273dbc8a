//! Lists all sockets of a namespace with few messages through sock_diag. `socket_options` reads further options once
//! per socket, even if several processes hold it.

use std::collections::{HashMap, HashSet};

use quell_linux::proc::{EpollTarget, FdKind};
use quell_linux::sock_diag::{InetFamily, InetProtocol, InetSocket, SockDiag};

use super::super::{Protocol, Reading, SnapshotSocket, SocketState, Unknown};
use super::namespaces::Space;
use super::outcome::Outcome as _;
use super::processes::OpenProcess;
use super::socket_options::{Asker, Options};

const KINDS: [(InetProtocol, InetFamily); 4] = [
    (InetProtocol::Tcp, InetFamily::V4),
    (InetProtocol::Tcp, InetFamily::V6),
    (InetProtocol::Udp, InetFamily::V4),
    (InetProtocol::Udp, InetFamily::V6),
];

struct Listed {
    protocol: InetProtocol,
    namespace: u64,
    socket: InetSocket,
    options: Option<Options>,
}

/// TCP and UDP sockets that processes hold, by inode.
#[derive(Default)]
pub(super) struct SocketTable {
    by_inode: HashMap<u64, Listed>,
    /// Protocols that could not be listed, by inode of the namespace.
    pub(super) unlisted: HashMap<u64, Vec<Unknown>>,
}

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
                    self.by_inode.insert(inode, Listed { protocol, namespace, socket, options: None });
                }
            });
            if let Reading::Unknown(unknown) = listed.outcome() {
                self.unlisted.entry(namespace).or_default().push(*unknown.unknown);
            }
        }
        Reading::Known(())
    }

    pub(super) fn contains(&self, inode: u64) -> bool {
        self.by_inode.contains_key(&inode)
    }

    /// Returns the socket that an epoll watches, identified by its inode. Kernels that do not report the inode leave
    /// only the descriptor, which may have been reused.
    pub(super) fn of_target(&self, target: &EpollTarget, kind: Option<&FdKind>) -> Option<u64> {
        let inode = match (target.inode, kind) {
            (Some(inode), _) => inode,
            (None, Some(FdKind::Socket { inode })) => *inode,
            (None, _) => return None,
        };
        self.by_inode.contains_key(&inode).then_some(inode)
    }

    pub(super) fn ask(&mut self, processes: &[OpenProcess]) {
        for process in processes {
            let mut asker = Asker::of(process, self.ports_listened_at(process));
            for (fd, inode) in process.sockets() {
                let Some(listed) = self.by_inode.get_mut(&inode).filter(|listed| listed.options.is_none()) else {
                    continue;
                };
                let is_connection = listed.protocol == InetProtocol::Tcp && !listed.is_listening();
                let options = match is_connection {
                    true => asker.ask_connection(fd, inode, &listed.socket),
                    false => asker.ask(fd, inode),
                };
                listed.options = Some(options);
            }
        }
    }

    fn ports_listened_at(&self, process: &OpenProcess) -> HashSet<u16> {
        let held = process.sockets().filter_map(|(_, inode)| self.by_inode.get(&inode));
        held.filter(|listed| listed.is_listening()).map(|listed| listed.socket.local.port()).collect()
    }

    pub(super) fn into_sorted(self) -> Vec<SnapshotSocket> {
        let mut sockets: Vec<SnapshotSocket> = self.by_inode.into_values().map(Listed::into_socket).collect();
        sockets.sort_unstable_by_key(|socket| socket.inode);
        sockets
    }
}

impl Listed {
    fn into_socket(self) -> SnapshotSocket {
        let Self { protocol, namespace, socket, options } = self;
        let options = options.unwrap_or_else(Options::outside_of_the_scope);
        SnapshotSocket {
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
            napi: options.napi,
            incoming_cpu: options.incoming_cpu,
            busy_poll_us: options.busy_poll_us,
            prefer_busy_poll: options.prefer_busy_poll,
            reuseport: options.reuseport,
            steered_queues: None,
        }
    }

    fn is_listening(&self) -> bool {
        SocketState::from_kernel(self.socket.state) == SocketState::Listen
    }
}
