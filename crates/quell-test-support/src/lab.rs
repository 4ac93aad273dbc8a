//! A veth lab of two namespaces whose server side has NAPI instances. A test program in it can keep its queue suspended
//! for as long as a test needs.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, UdpSocket};
use std::ops::ControlFlow;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use quell_change::journal::{Journal, Keeper, Purpose};
use quell_change::transaction::{ChangeStage, Transaction};
use quell_linux::address::{Addresses, InterfaceAddress};
use quell_linux::capability::{Capability, effective, in_initial_user_namespace};
use quell_linux::epoll_params::{self, EpollParams, NAPI_POLL_WEIGHT};
use quell_linux::ethtool::Ethtool;
use quell_linux::event::{Epoll, Trigger};
use quell_linux::link::{Links, VethEnd, VethPair};
use quell_linux::netdev::{Napi, Netdev, PartialNapiSettings};
use quell_linux::netns::{Namespace, NamespaceName};
use quell_linux::proc::{ProcRoot, ProcessIdentity};
use quell_linux::process::{Child, Spawn};
use quell_linux::{Ifindex, InterfaceName, NapiId, Pid};

use crate::{Lacks, skip};

/// Suspension timeout that is longer than any test.
pub const SUSPENDED_FOR: Duration = Duration::from_secs(120);
/// Time limit for a packet that nothing delays. Only an overloaded machine comes near it.
pub const ARRIVES_WITHIN: Duration = Duration::from_secs(60);
pub const WATCHED: Duration = Duration::from_millis(200);

/// Values for a suspension that lasts during a test. Deferral does not run out, and a timer poll, which would end the
/// suspension, is unlikely when it begins.
pub const SUSPENDING: PartialNapiSettings = PartialNapiSettings {
    defer_hard_irqs: Some(1_000_000),
    gro_flush_timeout_ns: Some(20_000_000),
    irq_suspend_timeout_ns: Some(SUSPENDED_FOR.as_nanos() as u64),
    threaded: None,
};
/// `prefer_busy_poll`, with otherwise default parameters except the budget.
pub const PREFER: EpollParams =
    EpollParams { busy_poll_usecs: 0, busy_poll_budget: NAPI_POLL_WEIGHT, prefer_busy_poll: true };

pub const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// Address of the server's second device, if the lab has one.
pub const SECOND_SERVER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
const SECOND_CLIENT: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
const TSO: [(&str, bool); 4] = [
    ("tx-tcp-segmentation", false),
    ("tx-tcp-ecn-segmentation", false),
    ("tx-tcp-mangleid-segmentation", false),
    ("tx-tcp6-segmentation", false),
];

/// Whether privileges for a lab are missing. If so, records the test as skipped.
pub fn skipped() -> bool {
    let lacking = lacking_privileges();
    if let Some(why) = &lacking {
        skip(Lacks::Root, why);
    }
    lacking.is_some()
}

/// Privileges for a lab that this process lacks, as a reason for a skip.
fn lacking_privileges() -> Option<String> {
    let needed = [Capability::NetAdmin, Capability::SysAdmin];
    let proc = ProcRoot::default();
    let missing = effective(&proc).unwrap().map(|have| have.missing(&needed));
    if missing.as_ref().is_none_or(|missing| !missing.is_empty()) {
        return Some(format!("needs CAP_NET_ADMIN and CAP_SYS_ADMIN, missing {missing:?}"));
    }
    // The kernel checks CAP_NET_ADMIN for `napi-set` in the initial user namespace.
    let holds = in_initial_user_namespace(&proc).unwrap();
    (!holds).then(|| "needs CAP_NET_ADMIN in the initial user namespace".to_owned())
}

/// Whether every process is in a network namespace of which one process can be opened. In a container whose first process
/// has more capabilities than the test and a namespace of its own, it is not, and no object is known to be gone.
pub fn every_namespace_is_in_sight() -> bool {
    let proc = ProcRoot::default();
    let inode = |pid: &Pid| proc.process(*pid).net_dev_inode().ok();
    // A zombie has no namespace any more.
    let is_hidden = |pid: &Pid| Namespace::open_pid(proc.path(), *pid).is_err_and(|error| error.is_denied());
    let (hidden, open): (Vec<Pid>, Vec<Pid>) = proc.pids().unwrap().into_iter().partition(is_hidden);
    let searched: BTreeSet<u64> = open.iter().filter_map(inode).collect();
    let is_there = |pid: &&Pid| proc.path().join(pid.to_string()).exists();
    hidden.iter().filter(is_there).all(|pid| inode(pid).is_some_and(|inode| searched.contains(&inode)))
}

pub fn go_on(_: usize, _: ChangeStage) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// For tests without crashes: names this process as keeper, which undoes everything itself.
pub fn no_keeper(_: &Path) -> Result<Keeper, String> {
    Keeper::this_process(&ProcRoot::default()).map_err(|error| error.to_string())
}

pub fn id(test: &str) -> String {
    format!("qt-{test}-{}", std::process::id())
}

/// The labs of one test binary. An attachment to the test process would change the queues of every lab in which this process
/// has sockets, and an undo would free them.
static LABS: RwLock<()> = RwLock::new(());

enum Turn {
    Alone { _guard: RwLockWriteGuard<'static, ()> },
    BesideOthers { _guard: RwLockReadGuard<'static, ()> },
}

pub struct TestLab {
    pub server: Namespace,
    pub client: Namespace,
    pub server_index: Ifindex,
    /// NAPI instances of that device, in the order of its queues.
    pub napis: Vec<NapiId>,
    pub server_name: String,
    transaction: Transaction,
    _journal_dir: tempfile::TempDir,
    _turn: Turn,
}

impl TestLab {
    /// Creates a lab with this number of queues at each end, while there is no other lab of this test binary. Returns `None`,
    /// and records the test as skipped, if the kernel does not support suspension.
    pub fn raise(test: &str, queues: u32) -> Option<Self> {
        let alone = || Turn::Alone { _guard: LABS.write().unwrap_or_else(PoisonError::into_inner) };
        Self::raise_in(alone, test, queues)
    }

    /// Creates a lab as [`Self::raise`] does, also beside others that are created so: for programs that are not the test
    /// process.
    pub fn raise_beside_others(test: &str, queues: u32) -> Option<Self> {
        let beside = || Turn::BesideOthers { _guard: LABS.read().unwrap_or_else(PoisonError::into_inner) };
        Self::raise_in(beside, test, queues)
    }

    fn raise_in(turn: impl FnOnce() -> Turn, test: &str, queues: u32) -> Option<Self> {
        static RAISED: AtomicU32 = AtomicU32::new(0);
        if skipped() {
            return None;
        }
        let turn = turn();
        let journal_dir = tempfile::tempdir().unwrap();
        let id = format!("{}-{}", id(test), RAISED.fetch_add(1, Ordering::Relaxed));
        let mut transaction = Transaction::begin(&Journal::in_dir(journal_dir.path()), &id, Purpose::Lab).unwrap();
        let name = |end: &str| NamespaceName::new(format!("{id}-{end}")).unwrap();
        let (server_name, client_name) = (name("server"), name("client"));
        let server = transaction.create_namespace(&server_name).unwrap();
        let client = transaction.create_namespace(&client_name).unwrap();
        let pair = create_pair(&mut transaction, &server_name, [&server, &client], 0, queues);
        give_addresses([&server, &client], &pair, [SERVER, CLIENT]);
        keep_flows_on_their_queues(&client);
        let napis = Netdev::open_in(&server).unwrap().napis(pair.left).unwrap();
        if napis.iter().any(|napi| napi.settings.irq_suspend_timeout_ns.is_none()) {
            skip(Lacks::KernelFeature, "this kernel does not support IRQ suspension (Linux 6.13)");
            return None;
        }
        let napis = napis.iter().map(|napi| napi.id).collect();
        let server_index = pair.left;
        Some(Self {
            server,
            client,
            server_index,
            napis,
            server_name: server_name.to_string(),
            transaction,
            _journal_dir: journal_dir,
            _turn: turn,
        })
    }

    /// Adds a second veth pair and returns the server's end.
    pub fn add_device(&mut self, queues: u32) -> Ifindex {
        let (name, ends) = (NamespaceName::new(self.server_name.clone()).unwrap(), [&self.server, &self.client]);
        let pair = create_pair(&mut self.transaction, &name, ends, 1, queues);
        give_addresses(ends, &pair, [SECOND_SERVER, SECOND_CLIENT]);
        pair.left
    }

    /// Starts a program on the server's side; it ends with the lab.
    pub fn start(&mut self, program: Spawn<'static>) -> Child {
        let program: Spawn<'_> = program;
        self.transaction.spawn(&["program".to_owned()], program.netns(&self.server)).unwrap()
    }

    /// Leaves the queues without an interrupt, with one timer poll a second: the rings fill.
    pub fn poll_every_second(&self) {
        self.set_napi(&PartialNapiSettings {
            defer_hard_irqs: Some(100),
            gro_flush_timeout_ns: Some(1_000_000_000),
            ..PartialNapiSettings::NONE
        });
    }

    /// Sends frames with an ethertype that no protocol receives from the client's device. Returns `None`, and records the
    /// test as skipped, without python3.
    pub fn send_unwanted_frames(&self, count: u32) -> Option<()> {
        let script = "import socket, sys\n\
                      s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)\n\
                      s.bind(('client0', 0x88b5))\n\
                      frame = b'\\xff' * 6 + b'\\x02' + b'\\0' * 5 + b'\\x88\\xb5' + b'x' * 46\n\
                      for _ in range(int(sys.argv[1])): s.send(frame)";
        let mut python = std::process::Command::new("python3");
        python.args(["-c", script, &count.to_string()]);
        let Ok(status) = self.client.run(|| python.status()).unwrap() else {
            skip(Lacks::Tool("python3"), "python3 is not installed");
            return None;
        };
        assert!(status.success(), "{status}");
        Some(())
    }

    pub fn napi(&self) -> Napi {
        Netdev::open_in(&self.server).unwrap().napi(self.napis[0]).unwrap()
    }

    /// Changes settings of the first instance without a journal.
    pub fn set_napi(&self, change: &PartialNapiSettings) {
        Netdev::open_in(&self.server).unwrap().set_napi(self.napis[0], change).unwrap();
    }

    pub fn transaction(&self, dir: &tempfile::TempDir, test: &str) -> Transaction {
        Transaction::begin(&Journal::in_dir(dir.path()), &id(test), Purpose::Lab).unwrap()
    }
}

/// Creates a pair `server…`, `client…` with this number of queues at each end, with NAPI enabled.
fn create_pair(
    transaction: &mut Transaction,
    server_name: &NamespaceName,
    [server, client]: [&Namespace; 2],
    number: usize,
    queues: u32,
) -> VethPair {
    let device = |end: &str| InterfaceName::new(format!("{end}{number}")).unwrap();
    let left = VethEnd { namespace: server, name: device("server"), mac: None, queues };
    let right = VethEnd { namespace: client, name: device("client"), mac: None, queues };
    let pair = transaction.create_veth(server_name, &left, &right).unwrap();
    for (namespace, index) in [(server, pair.left), (client, pair.right)] {
        let mut ethtool = Ethtool::open_in(namespace).unwrap();
        ethtool.set_features(index, &[("rx-gro", true)]).unwrap();
        ethtool.set_features(index, &TSO).unwrap();
    }
    pair
}

/// As on a NIC. Otherwise, a TCP retransmission selects another hash, and with it another queue of a veth.
fn keep_flows_on_their_queues(sender: &Namespace) {
    let name = "net.core.txrehash".parse().unwrap();
    sender.run(|| ProcRoot::default().set_sysctl(&name, "0")).unwrap().unwrap();
}

fn give_addresses([server, client]: [&Namespace; 2], pair: &VethPair, [left, right]: [Ipv4Addr; 2]) {
    for (namespace, index, address) in [(server, pair.left, left), (client, pair.right, right)] {
        let address = InterfaceAddress::new(address.into(), 24).unwrap();
        Addresses::open_in(namespace).unwrap().add(index, address).unwrap();
        Links::open_in(namespace).unwrap().set_up(index).unwrap();
    }
}

/// A program with one datagram socket in one epoll, and a sender.
pub struct UdpProgram {
    pub socket: UdpSocket,
    pub epoll: Epoll,
    trigger: Trigger,
    /// Socket on the client's side that sends to it.
    pub sender: UdpSocket,
}

impl UdpProgram {
    /// Starts a program that has received one datagram, so that its NAPI ID is known.
    pub fn start(lab: &TestLab, trigger: Trigger) -> Self {
        let bind = |address: Ipv4Addr| move || UdpSocket::bind((address, 0)).unwrap();
        let socket = lab.server.run(bind(SERVER)).unwrap();
        let sender = lab.client.run(bind(CLIENT)).unwrap();
        sender.connect(socket.local_addr().unwrap()).unwrap();
        let epoll = Epoll::new(8).unwrap();
        epoll.add(&socket, 1, Trigger::Level).unwrap();
        let program = Self { socket, epoll, trigger, sender };
        program.send(0);
        assert_eq!(program.receives_within(ARRIVES_WITHIN), Some(0));
        let epoll = Epoll::new(8).unwrap();
        epoll.add(&program.socket, 1, trigger).unwrap();
        Self { epoll, ..program }
    }

    /// Identity of the test process, which other processes would inspect.
    pub fn process() -> ProcessIdentity {
        ProcessIdentity::of(&ProcRoot::default(), Pid::of_this_process()).unwrap()
    }

    pub fn epoll_fd(&self) -> i32 {
        std::os::fd::AsFd::as_fd(&self.epoll).as_raw_fd()
    }

    pub fn send(&self, word: u8) {
        // A notification from the kernel, for example about work of an io_uring, also interrupts the call.
        while let Err(error) = self.sender.send(&[word]) {
            assert_eq!(error.kind(), std::io::ErrorKind::Interrupted, "{error}");
        }
    }

    /// Receives from the socket directly, whatever the epoll reports.
    pub fn receives_within(&self, within: Duration) -> Option<u8> {
        self.socket.set_read_timeout(Some(within)).unwrap();
        let mut word = [0];
        loop {
            return match self.socket.recv(&mut word) {
                Ok(_) => Some(word[0]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
                // As in `send`.
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(error) => panic!("{error}"),
            };
        }
    }

    /// Suspends the queue with datagram 2 in it. The settings of the epoll and the queue must be in place.
    ///
    /// A NAPI poll that ends after `epoll_wait` has suspended the queue sets the timer back to `gro_flush_timeout`
    /// (`napi_complete_done`), and the next timer poll delivers the datagram. A program would suspend the queue again with
    /// its next `epoll_wait`, and so does this function.
    pub fn hold(&mut self) {
        const WAITS_MAX: u32 = 10;
        let is_held = (0..WAITS_MAX).any(|_| {
            self.suspend_and_send();
            self.receives_within(WATCHED).is_none()
        });
        assert!(is_held, "none of {WAITS_MAX} waits suspended the queue");
    }

    /// Takes the events of datagram 1, which suspends the queue, and sends datagram 2.
    fn suspend_and_send(&mut self) {
        // A datagram that was received directly can have left an event, which would suspend the queue before datagram 1.
        self.epoll.wait(Some(Duration::ZERO)).unwrap();
        self.send(1);
        self.epoll.wait(Some(ARRIVES_WITHIN)).unwrap();
        assert_eq!(self.epoll.len(), 1, "the event that suspends the queue");
        assert_eq!(self.receives_within(ARRIVES_WITHIN), Some(1));
        if self.trigger == Trigger::OneShot {
            self.epoll.rearm(&self.socket, 1, self.trigger).unwrap();
        }
        self.send(2);
    }

    pub fn has_event_within(&mut self, within: Duration) -> bool {
        self.epoll.wait(Some(within)).unwrap();
        !self.epoll.is_empty()
    }

    /// Sets the parameters of the epoll without a journal.
    pub fn set_epoll(&self, params: EpollParams) {
        epoll_params::set(&self.epoll, params).unwrap();
    }
}
