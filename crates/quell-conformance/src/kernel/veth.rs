//! A site made of a veth pair in two private namespaces. The journal records it, and it is undone like every change to
//! the host. A veth has no interrupt: the sender's CPU tests a flag, then runs the softirq or wakes the queue's thread.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use quell_change::journal::{Journal, JournalError, Purpose};
use quell_change::recovery::Reverted;
use quell_change::transaction::{ChangeError, Transaction};
use quell_linux::address::{Addresses, InterfaceAddress};
use quell_linux::ethtool::{Ethtool, FeatureError};
use quell_linux::link::{Links, VethEnd};
use quell_linux::netlink::NetlinkError;
use quell_linux::netns::{Namespace, NamespaceError, NamespaceName};
use quell_linux::proc::{InvalidSysctlName, ProcRoot, ProcWriteError, SysctlName};
use quell_linux::sched::{self, SchedError};
use quell_linux::{Ifindex, InterfaceName, Pid, clock};

use super::{Control, Side, Site};

/// Addresses of TEST-NET-1, which RFC 5737 reserves for documentation.
const APPLICATION_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
const PEER_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 2));
const PREFIX_BITS: u8 = 24;

/// If any of these features is on, packets bypass the NAPI instance of the other end (`veth_skb_is_eligible_for_napi`).
const TSO: [&str; 4] =
    ["tx-tcp-segmentation", "tx-tcp-ecn-segmentation", "tx-tcp-mangleid-segmentation", "tx-tcp6-segmentation"];

#[derive(Debug)]
pub struct VethSite {
    pub site: Site,
    transaction: Transaction,
}

/// Reason why a site could not be set up. The changes made so far were undone.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SiteError {
    #[error(transparent)]
    Change(#[from] ChangeError),
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// IPv6 could not be disabled in a namespace. It would send packets of its own, which would be counted.
    #[error(transparent)]
    Ipv6(#[from] ProcWriteError),
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    #[error(transparent)]
    Feature(#[from] FeatureError),
    #[error(transparent)]
    Sched(#[from] SchedError),
}

impl VethSite {
    /// Sets up a site with `queues` queues. With `peer_tso`, packets bypass NAPI.
    pub fn raise(journal: &Journal, queues: u32, peer_tso: bool) -> Result<Self, SiteError> {
        let name = unique_name();
        let mut transaction = Transaction::begin(journal, &name, Purpose::Lab)?;
        let application_name = NamespaceName::new(format!("{name}-app"))?;
        let peer_name = NamespaceName::new(format!("{name}-peer"))?;
        let application = transaction.create_namespace(&application_name)?;
        let peer = transaction.create_namespace(&peer_name)?;
        for namespace in [&application, &peer] {
            disable_ipv6(namespace)?;
        }
        let left = VethEnd { namespace: &application, name: device("app0"), mac: None, queues };
        let right = VethEnd { namespace: &peer, name: device("peer0"), mac: None, queues };
        let pair = transaction.create_veth(&application_name, &left, &right)?;
        configure(&application, pair.left, APPLICATION_ADDRESS, &[("rx-gro", true)])?;
        configure(&peer, pair.right, PEER_ADDRESS, &TSO.map(|feature| (feature, peer_tso)))?;
        let cpus = sched::affinity(Pid::of_this_thread())?.iter().collect();
        let side = |namespace, ifindex, address| Side { namespace: Arc::new(namespace), ifindex, address };
        let application = side(application, pair.left, APPLICATION_ADDRESS);
        let peer = side(peer, pair.right, PEER_ADDRESS);
        let control = Control::EachByNetlink;
        let (has, spare_cpu, rx_irq) = (Vec::new(), None, None);
        let site = Site { application, peer, cpus, spare_cpu, has, control, rx_irq, epoll_parameters: true };
        Ok(Self { site, transaction })
    }

    /// Removes the site. Fails if the journal cannot be removed. Changes that could not be undone are in
    /// [`Reverted::failed`].
    pub fn take_down(self) -> Result<Reverted, JournalError> {
        drop(self.site);
        self.transaction.revert()
    }
}

/// Prevents packets that no program sends. A kernel without IPv6 needs no change.
fn disable_ipv6(namespace: &Namespace) -> Result<(), SiteError> {
    let name: SysctlName = "net.ipv6.conf.all.disable_ipv6"
        .parse()
        .unwrap_or_else(|error: InvalidSysctlName| unreachable!("a valid constant: {error}"));
    match namespace.run(|| ProcRoot::default().set_sysctl(&name, "1"))? {
        Err(error) if error.is_absent() => Ok(()),
        written => Ok(written?),
    }
}

fn configure(
    namespace: &Namespace,
    ifindex: Ifindex,
    address: IpAddr,
    features: &[(&str, bool)],
) -> Result<(), SiteError> {
    Ethtool::open_in(namespace)?.set_features(ifindex, features)?;
    let address =
        InterfaceAddress::new(address, PREFIX_BITS).unwrap_or_else(|| unreachable!("24 bits fit any address"));
    Addresses::open_in(namespace)?.add(ifindex, address)?;
    Links::open_in(namespace)?.set_up(ifindex)?;
    Ok(())
}

fn device(name: &'static str) -> InterfaceName {
    InterfaceName::new(name).unwrap_or_else(|error| unreachable!("a valid constant: {error}"))
}

fn unique_name() -> String {
    format!("quell-conf-{:x}-{:06x}", std::process::id(), (clock::boottime_ns() >> 10) & 0xff_ffff)
}
