//! The sockets and events of a scenario on the kernel. Each socket has a flow from the peer that uses the required
//! queue. A hash selects the queue of a flow, so several flows are tried until one matches.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use quell_linux::NapiId;
use quell_linux::event::{Epoll, Trigger, WakeEvent};
use quell_linux::socket_options;
use quell_linux::tcp::Blocking;
use quell_linux::udp::UdpSocket;

use super::{PlayError, Site, failed};
use crate::scenario::{Descriptor, DescriptorKind, Scenario, ScenarioSocket};

/// Maximum number of flows tried per socket. With two queues, all of them miss with a probability of 2^-32.
const FLOWS_MAX: u32 = 32;
/// Time limit for the first datagram of a flow, including address resolution.
const WAY_MAX: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(super) struct Sockets(Vec<Opened>);

#[derive(Debug)]
enum Opened {
    Socket { receiver: UdpSocket, sender: UdpSocket },
    Event(WakeEvent),
}

impl Sockets {
    pub(super) fn open(site: &Site, scenario: &Scenario, napis: &[NapiId]) -> Result<Self, PlayError> {
        let open = |descriptor: &Descriptor| match descriptor.kind {
            DescriptorKind::Socket(socket) => {
                let wanted = (!scenario.past_napi).then(|| napis[socket.queue]);
                let opened = flow_by(site, descriptor, socket, wanted)?;
                configure(&opened.0, socket)?;
                Ok(Opened::Socket { receiver: opened.0, sender: opened.1 })
            }
            DescriptorKind::Event => Ok(Opened::Event(WakeEvent::new().map_err(failed("create an eventfd"))?)),
        };
        scenario.descriptors.iter().map(open).collect::<Result<_, PlayError>>().map(Self)
    }

    /// Adds the descriptors of an epoll to it, in file order. A descriptor's index is its token.
    pub(super) fn add_to(&self, epoll: &Epoll, index: usize, scenario: &Scenario) -> Result<(), PlayError> {
        for (token, (descriptor, opened)) in scenario.descriptors.iter().zip(&self.0).enumerate() {
            if descriptor.epoll != Some(index) {
                continue;
            }
            let edge = matches!(descriptor.kind, DescriptorKind::Socket(ScenarioSocket { edge_triggered: true, .. }));
            let trigger = if edge { Trigger::ReadEdge } else { Trigger::Level };
            let added = match opened {
                Opened::Socket { receiver, .. } => epoll.add(receiver, token as u64, trigger),
                Opened::Event(event) => epoll.add(event, token as u64, trigger),
            };
            added.map_err(failed("add a descriptor to an epoll"))?;
        }
        Ok(())
    }

    pub(super) fn receiver(&self, descriptor: usize) -> Option<&UdpSocket> {
        match &self.0[descriptor] {
            Opened::Socket { receiver, .. } => Some(receiver),
            Opened::Event(_) => None,
        }
    }

    pub(super) fn sender(&self, descriptor: usize) -> Option<&UdpSocket> {
        match &self.0[descriptor] {
            Opened::Socket { sender, .. } => Some(sender),
            Opened::Event(_) => None,
        }
    }

    pub(super) fn event(&self, descriptor: usize) -> Option<&WakeEvent> {
        match &self.0[descriptor] {
            Opened::Event(event) => Some(event),
            Opened::Socket { .. } => None,
        }
    }

    /// Queue that corresponds to the `SO_INCOMING_NAPI_ID` of each descriptor.
    pub(super) fn incoming_napi(&self, napis: &[NapiId]) -> Result<Vec<Option<usize>>, PlayError> {
        let of = |opened: &Opened| match opened {
            Opened::Socket { receiver, .. } => {
                let id = socket_options::incoming_napi_id(receiver)?;
                Ok(napis.iter().position(|&napi| Some(napi) == id))
            }
            Opened::Event(_) => Ok(None),
        };
        self.0.iter().map(of).collect()
    }
}

fn configure(receiver: &UdpSocket, socket: ScenarioSocket) -> Result<(), PlayError> {
    if socket.gro {
        socket_options::set_udp_gro(receiver, true)?;
    }
    if socket.busy_poll_usecs > 0 {
        socket_options::set_busy_poll_us(receiver, socket.busy_poll_usecs)?;
    }
    if socket.prefer_busy_poll {
        socket_options::set_prefer_busy_poll(receiver, true)?;
    }
    Ok(())
}

/// Creates a socket and a flow to it that uses the required NAPI instance, or bypasses NAPI.
fn flow_by(
    site: &Site,
    descriptor: &Descriptor,
    socket: ScenarioSocket,
    wanted: Option<NapiId>,
) -> Result<(UdpSocket, UdpSocket), PlayError> {
    for _ in 0..FLOWS_MAX {
        // A socket in an epoll is read until it is empty. A read from any other socket waits for one message.
        let blocking = if descriptor.epoll.is_some() { Blocking::No } else { Blocking::Yes };
        let address = SocketAddr::new(site.application.address, 0);
        let receiver = site.application.namespace.run(|| UdpSocket::bind(address, false, blocking))?;
        let receiver = receiver.map_err(failed("create the application's socket"))?;
        let address = receiver.local_address().map_err(failed("read a socket's port"))?;
        let sender = site.peer.namespace.run(|| UdpSocket::connect(address))?;
        let sender = sender.map_err(failed("create the peer's socket"))?;
        find_the_way(&descriptor.name, &sender, &receiver)?;
        if socket_options::incoming_napi_id(&receiver)? == wanted {
            return Ok((receiver, sender));
        }
    }
    Err(PlayError::NoFlow { socket: descriptor.name.clone(), queue: socket.queue, tries: FLOWS_MAX })
}

fn find_the_way(name: &str, sender: &UdpSocket, receiver: &UdpSocket) -> Result<(), PlayError> {
    receiver.set_receive_timeout(Duration::from_millis(100)).map_err(failed("set a timeout"))?;
    sender.send(b"way").map_err(failed("send a datagram"))?;
    let began = Instant::now();
    while began.elapsed() < WAY_MAX {
        match receiver.receive(&mut [0; 8]) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(error) => return Err(failed("receive a datagram")(error)),
        }
    }
    Err(PlayError::NoWay { socket: name.to_owned(), waited: WAY_MAX })
}
