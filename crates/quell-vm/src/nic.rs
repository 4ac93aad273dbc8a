//! Configures a NIC inside a guest. The NIC is moved to a network namespace and gets an address, and all its interrupts
//! go to one CPU. The server and the client of a guest then behave like two hosts on one link. Nothing is recorded in
//! the journal, because the machine ends together with the lab.

use std::net::{IpAddr, Ipv4Addr};

use quell_linux::address::{Addresses, InterfaceAddress};
use quell_linux::link::Links;
use quell_linux::netlink::NetlinkError;
use quell_linux::netns::{Namespace, NamespaceError, NamespaceName};
use quell_linux::proc::{InvalidSysctlName, ProcError, ProcRoot, ProcWriteError, SysctlName};
use quell_linux::sysfs::{Sysfs, SysfsError};
use quell_linux::{CpuList, Ifindex, InterfaceName, MacAddress};
use thiserror::Error;

/// MAC addresses of the guest's two NICs: the server's, then the client's. They are locally administered. The guest
/// identifies its NICs by them.
pub(crate) const MAC_ADDRESSES: [[u8; 6]; 2] = [[0x52, 0x54, 0, 0, 0, 1], [0x52, 0x54, 0, 0, 0, 2]];
/// Addresses of TEST-NET-1, which RFC 5737 reserves for documentation.
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(192, 0, 2, 1), Ipv4Addr::new(192, 0, 2, 2)];
const PREFIX_BITS: u8 = 24;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Server,
    Client,
}

impl End {
    /// Name of both the network namespace and the device.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
        }
    }
}

#[derive(Debug)]
pub struct GuestNic {
    pub namespace: Namespace,
    pub ifindex: Ifindex,
    pub address: IpAddr,
    /// Interrupts of the device in ascending order, all on the requested CPU. One of them belongs to the first receive
    /// queue.
    pub irqs: Vec<u32>,
}

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NicError {
    #[error("no NIC for the {0}: this command runs only in a guest of the vm lab")]
    Absent(&'static str),
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    #[error(transparent)]
    Netlink(#[from] NetlinkError),
    /// IPv6 could not be disabled in the namespace. Its packets would be counted in the measurement.
    #[error(transparent)]
    Sysctl(#[from] ProcWriteError),
    #[error(transparent)]
    Irqs(#[from] SysfsError),
    #[error(transparent)]
    Proc(#[from] ProcError),
}

impl GuestNic {
    pub fn raise(end: End, cpu: u32) -> Result<Self, NicError> {
        let name = end.name();
        let (mac, address) = (MacAddress::new(MAC_ADDRESSES[end as usize]), IpAddr::V4(ADDRESSES[end as usize]));
        let device = InterfaceName::new(name).unwrap_or_else(|error| unreachable!("the name is a constant: {error}"));
        let mut links = Links::open()?;
        let nic = links.list()?.into_iter().find(|link| link.mac == mac).ok_or(NicError::Absent(name))?;
        let namespace = Namespace::create_named(&NamespaceName::new(name)?)?;
        disable_ipv6(&namespace)?;
        links.move_to(nic.index, &namespace, &device)?;

        let mut links = Links::open_in(&namespace)?;
        let ifindex = links.by_name(&device)?.index;
        let with_prefix =
            InterfaceAddress::new(address, PREFIX_BITS).unwrap_or_else(|| unreachable!("24 bits fit any address"));
        Addresses::open_in(&namespace)?.add(ifindex, with_prefix)?;
        links.set_up(ifindex)?;
        let irqs = Sysfs::of(&namespace)?.net_class(&device).irqs()?.unwrap_or_default();
        let cpus: CpuList = [cpu].into_iter().collect();
        for &irq in &irqs {
            ProcRoot::default().set_irq_affinity(irq, &cpus)?;
        }
        Ok(Self { namespace, ifindex, address, irqs })
    }

    /// Interrupt of the first receive queue, found by its name: `virtio0-input.0` or `server-rx-0`.
    pub fn rx_irq(&self) -> Result<Option<u32>, NicError> {
        let interrupts = ProcRoot::default().interrupts()?;
        let named = |irq: &u32| interrupts.irq(*irq).is_some_and(|line| is_first_rx(line.name()));
        Ok(self.irqs.iter().copied().find(named))
    }
}

fn is_first_rx(name: &str) -> bool {
    name.ends_with("-input.0") || name.ends_with("-rx-0")
}

/// Disables IPv6, which would send packets that do not belong to the measurement. A kernel without IPv6 needs no
/// change.
fn disable_ipv6(namespace: &Namespace) -> Result<(), NicError> {
    let name: SysctlName = "net.ipv6.conf.all.disable_ipv6"
        .parse()
        .unwrap_or_else(|error: InvalidSysctlName| unreachable!("the name is a constant: {error}"));
    match namespace.run(|| ProcRoot::default().set_sysctl(&name, "1"))? {
        Err(error) if error.is_absent() => Ok(()),
        written => Ok(written?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interrupt_of_a_receive_queue_is_distinguished_from_others_of_its_device() {
        assert!(is_first_rx("virtio0-input.0") && is_first_rx("server-rx-0"));
        assert!(!is_first_rx("virtio0-output.0") && !is_first_rx("virtio0-config") && !is_first_rx("server-tx-0"));
        assert!(!is_first_rx("server"));
    }
}
