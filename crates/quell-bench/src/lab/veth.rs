//! The veth lab: a server's and a client's network namespace with one veth pair of N queues between them. veth has no
//! interrupt: as stand-in each queue is polled by a thread of its own, pinned to the CPU where a NIC's interrupt would
//! land. The client's queues always are, on the client's CPUs; otherwise the softirq of the client's receive work would
//! run on the CPU that sends, the server's. Everything is journalled and goes with [`VethLab::take_down`], or with the
//! value.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;

use quell_host::journal::{Journal, JournalError};
use quell_host::recovery::Reverted;
use quell_host::transaction::{ChangeError, Transaction};
use quell_linux::address::{Addresses, InterfaceAddress};
use quell_linux::ethtool::{Ethtool, FeatureError};
use quell_linux::link::{Links, VethEnd};
use quell_linux::netdev::Netdev;
use quell_linux::netlink::NetlinkError;
use quell_linux::netns::{Namespace, NamespaceError, NamespaceName};
use quell_linux::proc::{ProcRoot, ProcWriteError, SysctlName};
use quell_linux::{Ifindex, InterfaceName, Pid, clock};
use quell_mode::NapiSettings;

use super::napi::{QueueError, Queues};
use crate::cpus::CpuLayout;

/// Addresses of the network that RFC 5737 sets aside for documentation: nothing else has them.
const SERVER_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const CLIENT_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
const PREFIX_BITS: u8 = 24;

/// What the server's end is called in its namespace.
pub const SERVER_DEVICE: &str = "server0";
/// What the client's end is called in its namespace.
pub const CLIENT_DEVICE: &str = "client0";

/// On at the receiver: without GRO a veth has no NAPI. Off at the sender: a packet that was put together before it is
/// sent bypasses NAPI, and `SO_INCOMING_NAPI_ID` then reads 0.
const FEATURES: &[(&str, bool)] = &[
    ("rx-gro", true),
    ("tx-tcp-segmentation", false),
    ("tx-tcp-ecn-segmentation", false),
    ("tx-tcp-mangleid-segmentation", false),
    ("tx-tcp6-segmentation", false),
    ("tx-generic-segmentation", false),
];

/// What the journal of a veth lab says that it is for.
pub const PURPOSE: &str = "veth lab";

/// What the lab is to be like.
#[derive(Debug, Clone)]
pub struct VethPlan {
    /// Receive queues on either side; one server worker each.
    pub queues: u32,
    /// Which CPU does what.
    pub cpus: CpuLayout,
    /// Whether NAPI threads stand in for the interrupts of the server's queues.
    pub interrupt_stand_in: bool,
    /// What the client's queues are told, in every trial.
    pub client_napi: NapiSettings,
}

/// A lab that is up.
#[derive(Debug)]
pub struct VethLab {
    /// Its name; its namespaces are called `NAME-server` and `NAME-client`.
    pub name: String,
    /// What it was asked to be like.
    pub plan: VethPlan,
    /// The server's end.
    pub server: End,
    /// The client's end.
    pub client: End,
    /// What it takes to undo it, and to start the server in it.
    pub transaction: Transaction,
}

/// One end of the lab.
#[derive(Debug)]
pub struct End {
    /// Its network.
    pub namespace: Arc<Namespace>,
    /// Its device's index.
    pub ifindex: Ifindex,
    /// Its address.
    pub address: IpAddr,
    /// Its queues.
    pub queues: Queues,
    /// The NAPI threads of its queues; none when softirqs poll them.
    pub napi_threads: Vec<Pid>,
}

/// Why a lab could not be set up. What had been set up is taken down.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// A change to the host failed.
    #[error(transparent)]
    Change(#[from] ChangeError),
    /// A namespace could not be entered.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// A link or address could not be configured.
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// GRO, TSO or GSO could not be set.
    #[error(transparent)]
    Feature(#[from] FeatureError),
    /// A sysctl of a namespace could not be set.
    #[error(transparent)]
    Sysctl(#[from] ProcWriteError),
    /// The queues could not be set up.
    #[error(transparent)]
    Queue(#[from] QueueError),
}

impl VethLab {
    /// Sets the lab up.
    ///
    /// # Errors
    /// See [`LabError`].
    pub fn raise(journal: &Journal, name: String, plan: VethPlan) -> Result<Self, LabError> {
        let mut transaction = Transaction::begin(journal, &name, PURPOSE)?;
        let server_name = NamespaceName::new(format!("{name}-server"))?;
        let client_name = NamespaceName::new(format!("{name}-client"))?;
        let server = transaction.create_namespace(&server_name)?;
        let client = transaction.create_namespace(&client_name)?;
        let left = VethEnd { namespace: &server, name: device(SERVER_DEVICE), mac: None, queues: plan.queues };
        let right = VethEnd { namespace: &client, name: device(CLIENT_DEVICE), mac: None, queues: plan.queues };
        let pair = transaction.create_veth(&server_name, &left, &right)?;
        configure(&server, pair.left, SERVER_ADDRESS)?;
        configure(&client, pair.right, CLIENT_ADDRESS)?;
        keep_flows_on_their_queues(&client)?;
        let mut server = End::open(server, pair.left, SERVER_ADDRESS, SERVER_DEVICE, plan.queues)?;
        let mut client = End::open(client, pair.right, CLIENT_ADDRESS, CLIENT_DEVICE, plan.queues)?;
        if plan.interrupt_stand_in {
            server.napi_threads = stand_in(&mut server, SERVER_DEVICE, &plan.cpus.server)?;
        }
        client.napi_threads = stand_in(&mut client, CLIENT_DEVICE, &plan.cpus.client)?;
        client.queues.set(&plan.client_napi)?;
        Ok(Self { name, plan, server, client, transaction })
    }

    /// Leaves it up when this program ends; it is taken down by releasing its journal, whose path is returned.
    ///
    /// # Errors
    /// When that cannot be written down; the lab is taken down then.
    pub fn keep(self) -> Result<PathBuf, JournalError> {
        self.transaction.keep()
    }

    /// Takes the lab down: processes, link and namespaces, in this order.
    ///
    /// # Errors
    /// When the journal cannot be written; what could not be undone is in [`Reverted::failed`] and stays in the journal.
    pub fn take_down(self) -> Result<Reverted, JournalError> {
        self.transaction.revert()
    }
}

impl End {
    fn open(
        namespace: Namespace,
        ifindex: Ifindex,
        address: IpAddr,
        name: &str,
        queues: u32,
    ) -> Result<Self, LabError> {
        let queues = Queues::of(Netdev::open_in(&namespace)?, ifindex, name, queues)?;
        Ok(Self { namespace: Arc::new(namespace), ifindex, address, queues, napi_threads: Vec::new() })
    }
}

fn stand_in(end: &mut End, name: &'static str, cpus: &[u32]) -> Result<Vec<Pid>, QueueError> {
    end.queues.stand_in_for_interrupts(&end.namespace, &device(name), cpus)
}

fn configure(namespace: &Namespace, ifindex: Ifindex, address: IpAddr) -> Result<(), LabError> {
    let mut links = Links::open_in(namespace)?;
    let loopback = links.by_name(&device("lo"))?.index;
    links.set_up(loopback)?;
    Ethtool::open_in(namespace)?.set_features(ifindex, FEATURES)?;
    let address =
        InterfaceAddress::new(address, PREFIX_BITS).unwrap_or_else(|| unreachable!("24 bits fit any address"));
    Addresses::open_in(namespace)?.add(ifindex, address)?;
    links.set_up(ifindex)?;
    Ok(())
}

/// A veth delivers by the queue that the sender's hash chose, and TCP chooses another hash when it has to send again
/// (`sk_rethink_txhash`). A NIC hashes addresses: there a connection stays where it is.
fn keep_flows_on_their_queues(sender: &Namespace) -> Result<(), LabError> {
    let name: SysctlName =
        "net.core.txrehash".parse().unwrap_or_else(|error| unreachable!("a name that this file gives: {error}"));
    Ok(sender.run(|| ProcRoot::default().set_sysctl(&name, "0"))??)
}

fn device(name: &'static str) -> InterfaceName {
    InterfaceName::new(name).unwrap_or_else(|error| unreachable!("a name that this file gives: {error}"))
}

/// A name for a lab that nobody else uses. Process ids are unique while their process lives, and times since boot within a
/// process; a journal that a killed process left under the same name is not replaced but refused.
#[must_use]
pub fn unique_name() -> String {
    format!("quell-{:x}-{:05x}", std::process::id(), (clock::boottime_ns() >> 10) & 0xf_ffff)
}
