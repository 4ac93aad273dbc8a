//! Reads socket options through duplicates. The NAPI ID is read for every socket, other options only for some of the
//! similar connections. With thousands of connections, each option would cost thousands of system calls.

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

use quell_linux::NapiId;
use quell_linux::pidfd::{BriefDuplicate, DuplicatedFd, PidFd};
use quell_linux::sock_diag::InetSocket;
use quell_linux::socket_options;

use super::super::{Reading, Unknown, UnknownReading, UnknownReason};
use super::outcome::Outcome as _;
use super::processes::OpenProcess;

/// Number of connections of a group that are queried for all options. If one of them busy polls, all others are queried
/// too.
const ASKED_OF_A_GROUP: usize = 16;
const LEFT_OUT: &str = "only some of the connections with this address and NAPI ID were queried";

/// Options of one socket, each as in [`Socket`](super::super::Socket).
pub(super) struct Options {
    pub(super) napi: Reading<Option<NapiId>>,
    pub(super) incoming_cpu: Reading<Option<u32>>,
    pub(super) busy_poll_us: Reading<u32>,
    pub(super) prefer_busy_poll: Reading<bool>,
    pub(super) reuseport: Reading<bool>,
}

pub(super) struct Asker {
    pidfd: Reading<PidFd>,
    listened_at: HashSet<u16>,
    groups: HashMap<Group, Asked>,
}

/// Similar connections: same NAPI instance, and same local port of this server or same remote port.
#[derive(PartialEq, Eq, Hash)]
struct Group {
    napi: Option<NapiId>,
    address: SocketAddr,
}

#[derive(Default)]
struct Asked {
    connections: usize,
    polls_by_itself: bool,
}

impl Asker {
    /// Creates the reader for a process that accepts connections at these ports.
    pub(super) fn of(process: &OpenProcess, listened_at: HashSet<u16>) -> Self {
        Self { pidfd: PidFd::open(process.pid).outcome(), listened_at, groups: HashMap::new() }
    }

    pub(super) fn ask(&self, fd: i32, inode: u64) -> Options {
        match self.duplicate(fd, inode) {
            Reading::Known(socket) => Options::all(&socket, socket_options::incoming_napi_id(&socket).outcome()),
            Reading::Unknown(unknown) => Options::unknown(&unknown),
        }
    }

    /// Reads the NAPI ID of a connection. Reads the other options if few connections are similar to it.
    pub(super) fn ask_connection(&mut self, fd: i32, inode: u64, connection: &InetSocket) -> Options {
        let socket = match self.duplicate(fd, inode) {
            Reading::Known(socket) => socket,
            Reading::Unknown(unknown) => return Options::unknown(&unknown),
        };
        let napi: Reading<Option<NapiId>> = socket_options::incoming_napi_id(&socket).outcome();
        let is_accepted = self.listened_at.contains(&connection.local.port());
        let address = connection.remote.filter(|_| !is_accepted).unwrap_or(connection.local);
        let group = self.groups.entry(Group { napi: napi.known().copied().flatten(), address }).or_default();
        if group.connections >= ASKED_OF_A_GROUP && !group.polls_by_itself {
            return Options { napi, ..Options::unknown(&not_asked(LEFT_OUT)) };
        }
        group.connections += 1;
        let options = Options::all(&socket, napi);
        group.polls_by_itself |= options.poll_by_themselves();
        options
    }

    /// The descriptor of a closed connection may have been reused.
    fn duplicate(&self, fd: i32, inode: u64) -> Reading<BriefDuplicate> {
        let duplicate = match &self.pidfd {
            Reading::Known(pidfd) => pidfd.duplicate_briefly(fd).outcome(),
            Reading::Unknown(unknown) => return Reading::Unknown(unknown.clone()),
        };
        match duplicate {
            Reading::Known(socket) if socket.inode().ok() != Some(inode) => {
                Reading::unknown(UnknownReason::Absent, "the socket was closed during the inspection")
            }
            duplicate => duplicate,
        }
    }
}

fn not_asked(said: &str) -> UnknownReading {
    UnknownReading { unknown: Box::new(Unknown { reason: UnknownReason::NotAsked, message: said.to_owned() }) }
}

impl Options {
    fn all(socket: &DuplicatedFd, napi: Reading<Option<NapiId>>) -> Self {
        Self {
            napi,
            incoming_cpu: socket_options::incoming_cpu(socket).outcome(),
            busy_poll_us: socket_options::busy_poll_us(socket).outcome(),
            prefer_busy_poll: socket_options::prefer_busy_poll(socket).outcome(),
            reuseport: socket_options::reuse_port(socket).outcome(),
        }
    }

    fn unknown(reason: &UnknownReading) -> Self {
        Self {
            napi: Reading::Unknown(reason.clone()),
            incoming_cpu: Reading::Unknown(reason.clone()),
            busy_poll_us: Reading::Unknown(reason.clone()),
            prefer_busy_poll: Reading::Unknown(reason.clone()),
            reuseport: Reading::Unknown(reason.clone()),
        }
    }

    pub(super) fn outside_of_the_scope() -> Self {
        Self::unknown(&not_asked("the process that holds it is outside the scope"))
    }

    fn poll_by_themselves(&self) -> bool {
        matches!(self.busy_poll_us, Reading::Known(1..)) || self.prefer_busy_poll == Reading::Known(true)
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd as _;

    use quell_linux::Pid;

    use super::*;

    #[test]
    fn a_reused_descriptor_does_not_describe_the_listed_socket() {
        let own = Pid::of_this_process();
        let asker = Asker { pidfd: PidFd::open(own).outcome(), listened_at: HashSet::new(), groups: HashMap::new() };
        let (listed, other) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
        let inode = |socket: &UdpSocket| {
            let pidfd = PidFd::open(own).unwrap();
            pidfd.duplicate(socket.as_raw_fd()).unwrap().inode().unwrap()
        };
        assert_eq!(asker.ask(listed.as_raw_fd(), inode(&listed)).napi, Reading::Known(None));
        let swapped = asker.ask(other.as_raw_fd(), inode(&listed)).napi;
        assert!(
            matches!(&swapped, Reading::Unknown(unknown) if unknown.unknown.reason == UnknownReason::Absent),
            "{swapped:?}"
        );
    }
}
