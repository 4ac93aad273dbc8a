//! A socket on the device that has an address: reserved port, socket, redirect program, NAPI instance.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use quell_linux::address::Addresses;
use quell_linux::af_xdp::{self, Frame, XdpHandle, XdpReceiver, XdpSender, XdpSocketError, XdpSocketSpec};
use quell_linux::link::{Link, Links};
use quell_linux::netdev::{Napi, Netdev, QueueKind};
use quell_linux::netlink::Failure;
use quell_linux::socket_options::{incoming_napi_id, set_busy_polling};
use quell_mode::NapiThreading;
use quell_sampler::{XdpRedirect, XdpRedirectError};

use crate::error::XdpError;
use crate::report::XdpQueue;
use crate::spec::{PollWay, XdpSpec};

const FREED_WITHIN: Duration = Duration::from_secs(1);
const FREED_AGAIN: Duration = Duration::from_millis(5);

/// An open socket. Its parts go to the threads that use them.
pub(crate) struct Endpoint {
    pub(crate) receiver: XdpReceiver,
    pub(crate) sender: XdpSender,
    /// Frames for sending. The others are in the fill ring.
    pub(crate) frames: Vec<Frame>,
    pub(crate) attached: Attached,
}

/// What exists once per socket, beside its rings.
pub(crate) struct Attached {
    pub(crate) handle: XdpHandle,
    pub(crate) link: Link,
    spec: XdpSpec,
    redirect: XdpRedirect,
}

impl Endpoint {
    /// Opens a socket on the device with the address of `local`, and directs datagrams for `local` to it.
    pub(crate) fn open(spec: &XdpSpec, local: SocketAddr) -> Result<Self, XdpError> {
        spec.check()?;
        let link = device_with(local)?;
        let device = link.name.as_str();
        if link.mac.is_none() {
            return Err(XdpError::NotEthernet { device: device.to_owned() });
        }
        let in_program = |source| XdpError::Program { device: device.to_owned(), source };
        if link.has_xdp == Some(true) {
            return Err(in_program(XdpRedirectError::Occupied));
        }
        let socket = XdpSocketSpec {
            interface: link.index,
            queue: spec.queue,
            ring_entries: spec.ring_entries,
            batch: spec.batch,
            copy_mode: spec.copy_mode,
            need_wakeup: spec.need_wakeup,
        };
        let (mut receiver, sender, mut frames) = open_free(&socket).map_err(XdpError::socket(device))?;
        for frame in frames.drain(spec.ring_entries as usize..) {
            // The fill ring has room for all of them.
            let _ = receiver.give(frame);
        }
        receiver.publish();
        let handle = receiver.handle();
        if spec.way.is_the_sockets() {
            set_busy_polling(&handle, spec.busy_poll_us, spec.busy_poll_budget)?;
        }
        let redirect = XdpRedirect::attach(link.index, spec.queue, &handle, local).map_err(in_program)?;
        let attached = Attached { handle, link, spec: spec.clone(), redirect };
        // What the way needs is checked before anything is sent, as far as the kernel reports it by now.
        attached.check_way(attached.napi()?.as_ref())?;
        Ok(Self { receiver, sender, frames, attached })
    }
}

impl Attached {
    pub(crate) fn device(&self) -> &str {
        &self.link.name
    }

    /// The NAPI instance of the queue. Without a report of the driver, a veth's instances are in the order of its queues.
    pub(crate) fn napi(&self) -> Result<Option<Napi>, XdpError> {
        let index = self.link.index;
        let mut netdev = Netdev::open()?;
        if let Some(id) = incoming_napi_id(&self.handle)? {
            return Ok(netdev.napi(id).ok());
        }
        let queues = match netdev.queues(index) {
            Ok(queues) => queues,
            Err(error) if error.failure() == Failure::Unsupported => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let queue = queues.into_iter().find(|queue| queue.kind == QueueKind::Rx && queue.id == self.spec.queue);
        if let Some(id) = queue.and_then(|queue| queue.napi_id) {
            return Ok(Some(netdev.napi(id)?));
        }
        if self.link.kind.as_deref() == Some("veth") {
            return Ok(netdev.napis(index)?.into_iter().nth(self.spec.queue as usize));
        }
        Ok(None)
    }

    fn check_way(&self, napi: Option<&Napi>) -> Result<(), XdpError> {
        let (device, queue) = (self.device().to_owned(), self.spec.queue);
        let threaded = napi.and_then(|napi| napi.settings.threaded);
        match self.spec.way {
            PollWay::NapiThread if threaded != Some(NapiThreading::Enabled) => {
                Err(XdpError::NoNapiThread { device, queue })
            }
            PollWay::ThreadedBusyPoll if threaded != Some(NapiThreading::BusyPoll) => {
                Err(XdpError::NoThreadedBusyPoll { device, queue })
            }
            way if (way.is_of_udp() || matches!(way, PollWay::IoUring | PollWay::IoUringThread)) && napi.is_none() => {
                Err(XdpError::NoNapi { device, queue })
            }
            _ => Ok(()),
        }
    }

    /// Whether the socket can busy poll; known once a frame has arrived.
    pub(crate) fn check_busy_polling(&self) -> Result<(), XdpError> {
        if self.spec.way.is_the_sockets() && incoming_napi_id(&self.handle)?.is_none() {
            return Err(XdpError::CannotBusyPoll { device: self.device().to_owned(), queue: self.spec.queue });
        }
        Ok(())
    }

    /// Datagrams for `local` reach the stack, because they arrive on a queue without the socket.
    pub(crate) fn other_queue(&self, what: &'static str, local: SocketAddr) -> XdpError {
        XdpError::OtherQueue {
            what,
            device: self.device().to_owned(),
            queue: self.spec.queue,
            port: local.port(),
            flow: if local.is_ipv4() { "udp4" } else { "udp6" },
        }
    }

    /// Facts about the socket for reports.
    pub(crate) fn describe(&self) -> Result<XdpQueue, XdpError> {
        let napi = self.napi()?;
        let settings = napi.as_ref().map(|napi| napi.settings);
        Ok(XdpQueue {
            device: self.device().to_owned(),
            queue: self.spec.queue,
            hook: self.redirect.hook(),
            zero_copy: af_xdp::is_zero_copy(&self.handle)
                .map_err(XdpError::system("read the options of the socket"))?,
            socket_napi: incoming_napi_id(&self.handle)?,
            napi: napi.map(|napi| napi.id),
            defers: settings
                .and_then(|settings| Some(settings.defer_hard_irqs? > 0 && settings.gro_flush_timeout_ns? > 0)),
        })
    }
}

/// Opens a socket. A queue stays in use for a moment after its socket was closed, because the kernel frees it in a work
/// item (`xp_put_pool` in `net/xdp/xsk_buff_pool.c`).
fn open_free(spec: &XdpSocketSpec) -> Result<(XdpReceiver, XdpSender, Vec<Frame>), XdpSocketError> {
    let deadline = Instant::now() + FREED_WITHIN;
    loop {
        match af_xdp::open(spec) {
            Err(XdpSocketError::QueueInUse { .. }) if Instant::now() < deadline => std::thread::sleep(FREED_AGAIN),
            opened => return opened,
        }
    }
}

fn device_with(local: SocketAddr) -> Result<Link, XdpError> {
    let addresses = Addresses::open()?.list()?;
    let owner = addresses.iter().find(|(_, address)| address.ip() == local.ip()).map(|(index, _)| *index);
    let owner = owner.ok_or(XdpError::NoDevice(local.ip()))?;
    Ok(Links::open()?.by_index(owner)?)
}
