//! The veth lab: a namespace for the server and a namespace for the client, connected by a veth pair with N queues. A
//! veth has no interrupts. Therefore a NAPI thread polls each queue, pinned to the CPU that would handle the NIC's
//! interrupt. NAPI threads on the client's CPUs poll the client's queues. Otherwise softirqs would do the client's
//! receive work on the sending CPU, which belongs to the server. [`VethLab::take_down`] removes the lab, and so does
//! dropping the value.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::sync::Arc;

use quell_change::journal::{Journal, JournalError, Purpose};
use quell_change::recovery::Reverted;
use quell_change::transaction::{ChangeError, Transaction};
use quell_linux::address::{Addresses, InterfaceAddress};
use quell_linux::ethtool::{Ethtool, FeatureError};
use quell_linux::link::{Links, VethEnd};
use quell_linux::netdev::Netdev;
use quell_linux::netlink::NetlinkError;
use quell_linux::netns::{Namespace, NamespaceError, NamespaceName};
use quell_linux::proc::{ProcRoot, ProcWriteError, SysctlName};
use quell_linux::{Ifindex, InterfaceName, Pid, clock};
use quell_mode::NapiSettings;
use quell_result::facts::CpuLayout;

use super::napi::{QueueError, Queues};

/// TEST-NET-1 addresses, which RFC 5737 reserves for documentation. They do not conflict with real networks.
const SERVER_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const CLIENT_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
const PREFIX_BITS: u8 = 24;

/// Name of the server's device in its namespace.
pub const SERVER_DEVICE: &str = "server0";
/// Name of the client's device in its namespace.
pub const CLIENT_DEVICE: &str = "client0";

/// Offloads of both devices. GRO is on, because a veth without GRO does not use NAPI. TSO and GSO are off, because
/// packets aggregated by the sender bypass NAPI, and `SO_INCOMING_NAPI_ID` is then 0.
const FEATURES: &[(&str, bool)] = &[
    ("rx-gro", true),
    ("tx-tcp-segmentation", false),
    ("tx-tcp-ecn-segmentation", false),
    ("tx-tcp-mangleid-segmentation", false),
    ("tx-tcp6-segmentation", false),
    ("tx-generic-segmentation", false),
];

/// Parameters of a lab.
#[derive(Debug, Clone)]
pub struct VethPlan {
    /// Number of receive queues on each side. The server has one worker per queue.
    pub queues: u32,
    /// CPUs of the server and of the generator.
    pub cpus: CpuLayout,
    /// Whether NAPI threads replace the interrupts of the server's queues.
    pub interrupt_stand_in: bool,
    /// NAPI settings of the client's queues. They are the same in every trial.
    pub client_napi: NapiSettings,
}

/// A running lab.
#[derive(Debug)]
pub struct VethLab {
    /// Name of the lab. The namespaces are called `NAME-server` and `NAME-client`.
    pub name: String,
    /// Requested parameters.
    pub plan: VethPlan,
    /// Server side.
    pub server: LabSide,
    /// Client side.
    pub client: LabSide,
    /// Journal transaction that records all changes, including the start of the server.
    pub transaction: Transaction,
}

/// One side of the lab.
#[derive(Debug)]
pub struct LabSide {
    /// Network namespace.
    pub namespace: Arc<Namespace>,
    /// Interface index of the device.
    pub ifindex: Ifindex,
    /// IP address of the device.
    pub address: IpAddr,
    /// Receive queues of the device.
    pub queues: Queues,
    /// NAPI threads of the queues. Empty if softirqs poll the queues.
    pub napi_threads: Vec<Pid>,
}

/// Reason why a lab could not be set up. All changes made so far were undone.
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
    /// Creates the namespaces, the devices and their settings.
    ///
    /// # Errors
    /// See [`LabError`].
    pub fn raise(journal: &Journal, name: String, plan: VethPlan) -> Result<Self, LabError> {
        let mut transaction = Transaction::begin(journal, &name, Purpose::Lab)?;
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
        let mut server = LabSide::open(server, pair.left, SERVER_ADDRESS, SERVER_DEVICE, plan.queues)?;
        let mut client = LabSide::open(client, pair.right, CLIENT_ADDRESS, CLIENT_DEVICE, plan.queues)?;
        if plan.interrupt_stand_in {
            server.napi_threads = stand_in(&mut server, SERVER_DEVICE, &plan.cpus.server)?;
        }
        client.napi_threads = stand_in(&mut client, CLIENT_DEVICE, &plan.cpus.client)?;
        client.queues.set(&plan.client_napi)?;
        Ok(Self { name, plan, server, client, transaction })
    }

    /// Keeps the lab running after this program exits. To remove the lab, release the journal at the returned path.
    ///
    /// # Errors
    /// Fails if the journal cannot record this. The lab is then removed.
    pub fn keep(self) -> Result<PathBuf, JournalError> {
        self.transaction.persist()
    }

    /// Removes the lab: first its processes, then the link, then the namespaces.
    ///
    /// # Errors
    /// Fails if the journal cannot be written. Changes that could not be undone are in [`Reverted::failed`] and stay in
    /// the journal.
    pub fn take_down(self) -> Result<Reverted, JournalError> {
        self.transaction.revert()
    }
}

impl LabSide {
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

fn stand_in(side: &mut LabSide, name: &'static str, cpus: &[u32]) -> Result<Vec<Pid>, QueueError> {
    side.queues.stand_in_for_interrupts(&side.namespace, &device(name), cpus)
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

/// Disables TCP's rehash on retransmission (`sk_rethink_txhash`). A veth selects the receive queue by the sender's
/// hash, so a rehash would move the connection to another queue. A NIC hashes the addresses, so a connection stays on
/// its queue.
fn keep_flows_on_their_queues(sender: &Namespace) -> Result<(), LabError> {
    let name: SysctlName =
        "net.core.txrehash".parse().unwrap_or_else(|error| unreachable!("a constant name is invalid: {error}"));
    Ok(sender.run(|| ProcRoot::default().set_sysctl(&name, "0"))??)
}

fn device(name: &'static str) -> InterfaceName {
    InterfaceName::new(name).unwrap_or_else(|error| unreachable!("a constant name is invalid: {error}"))
}

/// Returns a unique name for a lab, made from the process ID and the time since boot. If a killed process with the same
/// ID and time left a journal, the lab is refused and the journal is preserved.
#[must_use]
pub fn unique_name() -> String {
    format!("quell-{:x}-{:05x}", std::process::id(), (clock::boottime_ns() >> 10) & 0xf_ffff)
}
