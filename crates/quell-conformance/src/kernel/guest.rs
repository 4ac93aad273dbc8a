//! A site made of the two NICs of a vm lab guest: one queue with a real interrupt, on any kernel. Missing kernel
//! features are detected, and scenarios that need them are reported as not possible.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quell_linux::epoll_params;
use quell_linux::event::Epoll;
use quell_linux::netdev::Netdev;
use quell_linux::socket_options;
use quell_linux::tcp::Blocking;
use quell_linux::udp::UdpSocket;
use quell_linux::{InterfaceName, NapiId, Pid, kernel, sched};
use quell_sampler::Sampler;
use quell_vm::nic::{End, GuestNic, NicError};

use super::{Control, PlayError, Side, Site, failed};
use crate::scenario::Need;

/// CPU of the applications and of their NIC's interrupts.
const APPLICATION_CPU: u32 = 0;
/// CPU of the sender and of its NIC's interrupts.
const PEER_CPU: u32 = 1;
/// Number of virtual CPUs of the guest. One of them is reserved for a NAPI thread that polls continuously.
pub const CPUS: u32 = 3;
/// Time limit for the first datagram, including address resolution.
const WAY_MAX: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GuestSiteError {
    #[error(transparent)]
    Nic(#[from] NicError),
    #[error(transparent)]
    Play(#[from] PlayError),
    #[error("a datagram arrived without a NAPI ID: the queue of this NIC cannot be identified")]
    PastNapi,
}

#[derive(Debug)]
pub struct GuestSite {
    pub site: Site,
    /// Keeps the tracepoints enabled, so that the kernel does not patch their branches or calls while polls execute them.
    /// One reader is not enough: the kernel switches from a direct call to a list when a second reader appears. Under
    /// QEMU's emulation, a CPU can hit the breakpoint of such a patch (`text_poke_bp`) after the kernel has removed it,
    /// which causes a panic in the guest.
    _tracepoint_stays_on: [Sampler; 2],
}

pub fn raise() -> Result<GuestSite, GuestSiteError> {
    let application = GuestNic::raise(End::Server, APPLICATION_CPU)?;
    let rx_irq = application.rx_irq()?;
    let peer = GuestNic::raise(End::Client, PEER_CPU)?;
    let (application, peer) = (side(application), side(peer));
    let napi = napi_of_the_queue(&application, &peer)?.ok_or(GuestSiteError::PastNapi)?;
    let reader = || Sampler::of(kernel::sysfs(), [napi]).map_err(PlayError::from);
    let site = Site {
        control: control(&application, napi),
        application,
        peer,
        cpus: vec![APPLICATION_CPU, PEER_CPU],
        spare_cpu: sched::affinity(Pid::of_this_thread()).ok().and_then(|cpus| cpus.iter().find(|cpu| *cpu > PEER_CPU)),
        has: rx_irq.map(|_| Need::Interrupt).into_iter().collect(),
        rx_irq,
        epoll_parameters: Epoll::new(1).is_ok_and(|epoll| epoll_params::get(&epoll).is_ok()),
    };
    Ok(GuestSite { site, _tracepoint_stays_on: [reader()?, reader()?] })
}

fn side(nic: GuestNic) -> Side {
    Side { namespace: Arc::new(nic.namespace), ifindex: nic.ifindex, address: nic.address }
}

/// Selects netlink if the kernel reports per-NAPI settings, and sysfs otherwise.
fn control(application: &Side, napi: NapiId) -> Control {
    let napi_info = Netdev::open_in(&application.namespace).and_then(|mut netdev| netdev.napi(napi));
    if napi_info.is_ok_and(|napi| napi.settings.irq_suspend_timeout_ns.is_some()) {
        return Control::EachByNetlink;
    }
    let device =
        InterfaceName::new(End::Server.name()).unwrap_or_else(|error| unreachable!("a name of quell_vm's: {error}"));
    Control::DeviceBySysfs { device, napi }
}

/// NAPI instance on which a datagram arrives.
fn napi_of_the_queue(application: &Side, peer: &Side) -> Result<Option<NapiId>, PlayError> {
    let address = SocketAddr::new(application.address, 0);
    let receiver = application.namespace.run(|| UdpSocket::bind(address, false, Blocking::Yes))?;
    let receiver = receiver.map_err(failed("create a socket"))?;
    receiver.set_receive_timeout(Duration::from_millis(100)).map_err(failed("set a timeout"))?;
    let address = receiver.local_address().map_err(failed("read a socket's port"))?;
    let sender = peer.namespace.run(|| UdpSocket::connect(address))?.map_err(failed("create a socket"))?;
    let began = Instant::now();
    while began.elapsed() < WAY_MAX {
        sender.send(b"way").map_err(failed("send a datagram"))?;
        if receiver.receive(&mut [0; 8]).is_ok() {
            return Ok(socket_options::incoming_napi_id(&receiver)?);
        }
    }
    Err(PlayError::NoWay { socket: "the first".to_owned(), waited: WAY_MAX })
}
