//! A veth lab of two namespaces whose server side has NAPI instances, and a program in it whose queue can be suspended
//! for as long as a test needs.

use std::net::{Ipv4Addr, UdpSocket};
use std::ops::ControlFlow;
use std::os::fd::AsRawFd as _;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quell_host::attach::keeper::this_process;
use quell_host::journal::{Journal, Keeper};
use quell_host::transaction::{ChangeStage, Transaction};
use quell_linux::address::{Addresses, InterfaceAddress};
use quell_linux::capability::{Capability, effective};
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

/// Long enough that nothing in a test ends by it.
pub const SUSPENDED_FOR: Duration = Duration::from_secs(120);
/// How long a packet may take that is not held up; none does, but for a machine that stands still.
pub const ARRIVES_WITHIN: Duration = Duration::from_secs(60);
/// How long a stalled queue is watched.
pub const WATCHED: Duration = Duration::from_millis(200);

/// Suspension that a test can hold: deferral does not run out while it looks, and the timer hardly ever polls just when
/// the suspension begins, which would end it.
pub const SUSPENDING: PartialNapiSettings = PartialNapiSettings {
    defer_hard_irqs: Some(1_000_000),
    gro_flush_timeout_ns: Some(20_000_000),
    irq_suspend_timeout_ns: Some(SUSPENDED_FOR.as_nanos() as u64),
    threaded: None,
};
/// `prefer_busy_poll`, and nothing else that differs from a new epoll but the budget.
pub const PREFER: EpollParams =
    EpollParams { busy_poll_usecs: 0, busy_poll_budget: NAPI_POLL_WEIGHT, prefer_busy_poll: true };

/// Address of the server's device.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
const CLIENT: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// Address of the server's second device, where there is one.
pub const SECOND_SERVER: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 1);
const SECOND_CLIENT: Ipv4Addr = Ipv4Addr::new(198, 51, 100, 2);
const TSO: [(&str, bool); 4] = [
    ("tx-tcp-segmentation", false),
    ("tx-tcp-ecn-segmentation", false),
    ("tx-tcp-mangleid-segmentation", false),
    ("tx-tcp6-segmentation", false),
];

/// Whether a lab cannot be raised for lack of rights; the test is recorded as skipped then.
pub fn skipped() -> bool {
    let needed = [Capability::NetAdmin, Capability::SysAdmin];
    let missing = effective(&ProcRoot::default()).unwrap().map(|have| have.missing(&needed));
    let lacking = missing.as_ref().is_none_or(|missing| !missing.is_empty());
    if lacking {
        skip(Lacks::Root, format_args!("needs CAP_NET_ADMIN and CAP_SYS_ADMIN, missing {missing:?}"));
    }
    lacking
}

/// Whether every process's network namespace may be opened. Where it may not, nothing is known to be gone: in a
/// container whose first process has more capabilities than the test.
pub fn every_namespace_is_in_sight() -> bool {
    let proc = ProcRoot::default();
    let pids = proc.pids().unwrap();
    pids.into_iter().all(|pid| {
        let is_denied = Namespace::open_pid(proc.path(), pid).is_err_and(|error| error.is_denied());
        !(is_denied && proc.path().join(pid.to_string()).exists())
    })
}

/// Looks on at changes, and stops none.
pub fn go_on(_: usize, _: ChangeStage) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// For tests in which nobody dies: this process, which undoes everything itself.
pub fn no_keeper(_: &Path) -> Result<Keeper, String> {
    this_process(&ProcRoot::default()).map_err(|error| error.to_string())
}

/// A name that no other test has.
pub fn id(test: &str) -> String {
    format!("qt-{test}-{}", std::process::id())
}

/// Labs of one test file are raised one after the other: undoing frees every queue of the program, which in all of them
/// is the tests' own process.
static TURN: Mutex<()> = Mutex::new(());

/// A lab that goes when it is dropped.
pub struct TestLab {
    /// Where the program runs.
    pub server: Namespace,
    /// Where its packets come from.
    pub client: Namespace,
    /// Device of the server's side.
    pub server_index: Ifindex,
    /// NAPI instances of that device, in the order of its queues.
    pub napis: Vec<NapiId>,
    /// Name for `quell show --netns`.
    pub server_name: String,
    transaction: Transaction,
    _journal_dir: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl TestLab {
    /// A pair with as many queues at each end; `None`, and the test recorded as skipped, where the kernel has no
    /// suspension.
    pub fn raise(test: &str, queues: u32) -> Option<Self> {
        if skipped() {
            return None;
        }
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let journal_dir = tempfile::tempdir().unwrap();
        let id = id(test);
        let mut transaction = Transaction::begin(&Journal::in_dir(journal_dir.path()), &id, "test").unwrap();
        let name = |end: &str| NamespaceName::new(format!("{id}-{end}")).unwrap();
        let (server_name, client_name) = (name("server"), name("client"));
        let server = transaction.create_namespace(&server_name).unwrap();
        let client = transaction.create_namespace(&client_name).unwrap();
        let pair = create_pair(&mut transaction, &server_name, [&server, &client], 0, queues);
        give_addresses([&server, &client], &pair, [SERVER, CLIENT]);
        keep_flows_on_their_queues(&client);
        let napis = Netdev::open_in(&server).unwrap().napis(pair.left).unwrap();
        if napis.iter().any(|napi| napi.settings.irq_suspend_timeout_ns.is_none()) {
            skip(Lacks::KernelFeature, "this kernel does not suspend interrupts (Linux 6.13 and newer do)");
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

    /// A second pair beside the first; returns the server's end.
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

    /// Current state of the first instance.
    pub fn napi(&self) -> Napi {
        Netdev::open_in(&self.server).unwrap().napi(self.napis[0]).unwrap()
    }

    /// Changes settings of the first instance behind every journal's back, in whatever order.
    pub fn set_napi(&self, change: &PartialNapiSettings) {
        Netdev::open_in(&self.server).unwrap().set_napi(self.napis[0], change).unwrap();
    }

    /// A transaction of its own with a journal in `dir`.
    pub fn transaction(&self, dir: &tempfile::TempDir, test: &str) -> Transaction {
        Transaction::begin(&Journal::in_dir(dir.path()), &id(test), "test").unwrap()
    }
}

/// A pair `server…`, `client…` with as many queues at each end, ready for NAPI.
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

/// As on a NIC. TCP that sends again chooses another hash, and with it another queue of a veth, unless told not to.
fn keep_flows_on_their_queues(sender: &Namespace) {
    let name = "net.core.txrehash".parse().unwrap();
    sender.run(|| ProcRoot::default().set_sysctl(&name, "0")).unwrap().unwrap();
}

/// Gives both ends their addresses and sets them up.
fn give_addresses([server, client]: [&Namespace; 2], pair: &VethPair, [left, right]: [Ipv4Addr; 2]) {
    for (namespace, index, address) in [(server, pair.left, left), (client, pair.right, right)] {
        let address = InterfaceAddress::new(address.into(), 24).unwrap();
        Addresses::open_in(namespace).unwrap().add(index, address).unwrap();
        Links::open_in(namespace).unwrap().set_up(index).unwrap();
    }
}

/// A program with one datagram socket in one epoll, and somebody who sends to it.
pub struct UdpProgram {
    /// Its socket.
    pub socket: UdpSocket,
    /// The epoll that watches the socket.
    pub epoll: Epoll,
    trigger: Trigger,
    /// Sends to the socket from the client's side.
    pub sender: UdpSocket,
}

impl UdpProgram {
    /// A program that has heard from the sender once and knows its NAPI.
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

    /// Who this is: the tests' own process, looked into as another would be.
    pub fn process() -> ProcessIdentity {
        ProcessIdentity::of(&ProcRoot::default(), Pid::of_this_process()).unwrap()
    }

    /// The number of its epoll.
    pub fn epoll_fd(&self) -> i32 {
        std::os::fd::AsFd::as_fd(&self.epoll).as_raw_fd()
    }

    /// Sends a datagram that says `word`.
    pub fn send(&self, word: u8) {
        // A notification of the kernel's, of an io_uring's work for one, interrupts it too.
        while let Err(error) = self.sender.send(&[word]) {
            assert_eq!(error.kind(), std::io::ErrorKind::Interrupted, "{error}");
        }
    }

    /// What the socket receives, whatever the epoll says.
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

    /// Takes events of datagram 1 and does not come back, so that the queue is suspended; datagram 2 arrives then. The
    /// epoll's and the queue's settings are there already.
    pub fn hold(&mut self) {
        self.send(1);
        self.epoll.wait(Some(ARRIVES_WITHIN)).unwrap();
        assert_eq!(self.epoll.len(), 1, "the event by which the queue is suspended");
        assert_eq!(self.receives_within(ARRIVES_WITHIN), Some(1));
        if self.trigger == Trigger::OneShot {
            self.epoll.rearm(&self.socket, 1, self.trigger).unwrap();
        }
        self.send(2);
    }

    /// Whether the epoll reports something.
    pub fn has_event_within(&mut self, within: Duration) -> bool {
        self.epoll.wait(Some(within)).unwrap();
        !self.epoll.is_empty()
    }

    /// Sets the epoll's parameters behind every journal's back.
    pub fn set_epoll(&self, params: EpollParams) {
        epoll_params::set(&self.epoll, params).unwrap();
    }
}
