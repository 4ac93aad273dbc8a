//! An AF_XDP socket of one queue: its rings, its kicks (system calls that make the kernel look at a ring), its state.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING,
    XDP_UMEM_PGOFF_FILL_RING, XdpDesc, XdpDescOptions, XdpOptionsFlags, XdpRingOffset, XdpUmemReg, XdpUmemRegFlags,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with, sockopt,
};
use rustix::time::Timespec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::{XdpSocketError, refused};
use super::ring::{Consuming, Producing};
use super::umem::{Frame, Mapping, Umem};
use crate::Ifindex;

/// How frames get from the driver into the umem.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CopyMode {
    /// Zero-copy if the driver supports it, otherwise copy.
    #[default]
    Auto,
    /// The kernel copies (`XDP_COPY`).
    Copy,
    /// The device writes into the umem (`XDP_ZEROCOPY`).
    ZeroCopy,
}

/// What is fixed when a socket is bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XdpSocketSpec {
    pub interface: Ifindex,
    pub queue: u32,
    /// Entries of each of the four rings: a power of two. The umem has twice as many frames.
    pub ring_entries: u32,
    /// Maximum number of received frames that are taken before their ring entries are released, at least 1.
    pub batch: u32,
    pub copy_mode: CopyMode,
    /// Whether the kernel tells when it needs a kick (`XDP_USE_NEED_WAKEUP`). Otherwise each publication is kicked.
    pub need_wakeup: bool,
}

/// Drops and errors of a socket (`XDP_STATISTICS`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct XdpSocketStats {
    /// Received frames that were dropped for other reasons than those below, such as a frame larger than a chunk.
    pub rx_dropped: u64,
    /// Received frames that were dropped because the RX ring was full. Null before Linux 5.9.
    pub rx_ring_full: Option<u64>,
    /// Times that the kernel found no free frame in the fill ring. Null before Linux 5.9.
    pub rx_fill_ring_empty: Option<u64>,
    pub rx_invalid_descriptors: u64,
    pub tx_invalid_descriptors: u64,
}

#[derive(Debug)]
struct Endpoint {
    socket: OwnedFd,
    umem: Umem,
    needs_every_kick: bool,
}

/// The receiving half: RX ring and fill ring.
#[derive(Debug)]
pub struct XdpReceiver {
    endpoint: Arc<Endpoint>,
    received: Consuming<XdpDesc>,
    fill: Producing<u64>,
}

/// The sending half: TX ring and completion ring.
#[derive(Debug)]
pub struct XdpSender {
    endpoint: Arc<Endpoint>,
    queued: Producing<XdpDesc>,
    completions: Consuming<u64>,
}

/// A frame that the socket received.
#[derive(Debug)]
pub struct ReceivedFrame {
    pub frame: Frame,
    start: usize,
    length: usize,
}

/// Opens a socket bound to a queue, in the network namespace of the calling thread. Returns its halves and the right to
/// all of its frames. It receives nothing before an XDP program redirects frames to it.
pub fn open(spec: &XdpSocketSpec) -> Result<(XdpReceiver, XdpSender, Vec<Frame>), XdpSocketError> {
    let size = spec.ring_entries;
    let socket = socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None)
        .map_err(refused("creating a socket"))?;
    let (umem, frames) = Umem::new(size.saturating_mul(2)).map_err(|_| XdpSocketError::OutOfMemory)?;
    let registration = XdpUmemReg {
        addr: umem.start().as_ptr().expose_provenance() as u64,
        len: umem.bytes() as u64,
        chunk_size: super::FRAME_BYTES as u32,
        headroom: 0,
        flags: XdpUmemRegFlags::empty(),
        tx_metadata_len: 0,
    };
    sockopt::set_xdp_umem_reg(&socket, registration).map_err(|errno| match errno {
        Errno::NOBUFS => XdpSocketError::MemoryLimit { kib: umem.bytes() / 1024 },
        _ => refused("registering memory")(errno),
    })?;
    sockopt::set_xdp_umem_fill_ring_size(&socket, size)
        .and_then(|()| sockopt::set_xdp_umem_completion_ring_size(&socket, size))
        .and_then(|()| sockopt::set_xdp_rx_ring_size(&socket, size))
        .and_then(|()| sockopt::set_xdp_tx_ring_size(&socket, size))
        .map_err(refused("creating the rings"))?;
    let offsets = sockopt::xdp_mmap_offsets(&socket).map_err(refused("reading the layout of the rings"))?;
    let map = |ring: XdpRingOffset, entry: usize, offset| {
        let bytes = usize::try_from(ring.desc).unwrap_or(usize::MAX).saturating_add(size as usize * entry);
        Mapping::of_file(socket.as_fd(), bytes, offset).map(|mapping| (mapping, ring))
    };
    let rings = (|| {
        let (rx, rx_at) = map(offsets.rx, size_of::<XdpDesc>(), XDP_PGOFF_RX_RING)?;
        let (fill, fill_at) = map(offsets.fr, size_of::<u64>(), XDP_UMEM_PGOFF_FILL_RING)?;
        let (tx, tx_at) = map(offsets.tx, size_of::<XdpDesc>(), XDP_PGOFF_TX_RING)?;
        let (done, done_at) = map(offsets.cr, size_of::<u64>(), XDP_UMEM_PGOFF_COMPLETION_RING)?;
        Ok::<_, io::Error>((
            Consuming::new(rx, rx_at, size, spec.batch.max(1))?,
            Producing::new(fill, fill_at, size)?,
            Producing::new(tx, tx_at, size)?,
            // The kernel sends nothing while the completion ring is full, so a part of it is released early.
            Consuming::new(done, done_at, size, size.div_ceil(4))?,
        ))
    })();
    let (received, fill, queued, completions) =
        rings.map_err(|source| XdpSocketError::Refused { action: "mapping the rings", source })?;
    bind_to(&socket, spec)?;
    let endpoint = Arc::new(Endpoint { socket, umem, needs_every_kick: !spec.need_wakeup });
    let receiver = XdpReceiver { endpoint: Arc::clone(&endpoint), received, fill };
    Ok((receiver, XdpSender { endpoint, queued, completions }, frames))
}

fn bind_to(socket: &OwnedFd, spec: &XdpSocketSpec) -> Result<(), XdpSocketError> {
    let queue = spec.queue;
    let mut flags = match spec.copy_mode {
        CopyMode::Auto => SocketAddrXdpFlags::empty(),
        CopyMode::Copy => SocketAddrXdpFlags::XDP_COPY,
        CopyMode::ZeroCopy => SocketAddrXdpFlags::XDP_ZEROCOPY,
    };
    flags.set(SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP, spec.need_wakeup);
    bind(socket, &SocketAddrXdp::new(flags, spec.interface.get(), queue)).map_err(|errno| match errno {
        Errno::BUSY => XdpSocketError::QueueInUse { queue },
        Errno::INVAL => XdpSocketError::NoSuchQueue { queue },
        Errno::OPNOTSUPP => XdpSocketError::NoZeroCopy { queue },
        _ => refused("binding the socket")(errno),
    })
}

impl Endpoint {
    /// Whether a failed kick only means that there is nothing to do now.
    fn kicked(result: Result<(), Errno>) -> Result<(), XdpSocketError> {
        match result {
            Ok(()) | Err(Errno::AGAIN | Errno::BUSY | Errno::NOBUFS | Errno::INTR) => Ok(()),
            Err(errno) => Err(refused("kicking the kernel")(errno)),
        }
    }
}

impl XdpReceiver {
    /// Gives a frame to the kernel, to receive into it. The kernel sees it after [`Self::publish`]. Returns the frame if
    /// the fill ring is full.
    #[inline]
    pub fn give(&mut self, frame: Frame) -> Result<(), Frame> {
        if self.fill.write(self.endpoint.umem.address(&frame)) { Ok(()) } else { Err(frame) }
    }

    #[inline]
    pub fn publish(&self) {
        self.fill.publish();
    }

    #[inline]
    pub fn receive(&mut self) -> Option<ReceivedFrame> {
        let descriptor = self.received.read()?;
        let frame = self.endpoint.umem.frame_at(descriptor.addr)?;
        let start = descriptor.addr as usize % super::FRAME_BYTES;
        let length = (descriptor.len as usize).min(super::FRAME_BYTES - start);
        Some(ReceivedFrame { frame, start, length })
    }

    #[inline]
    #[must_use]
    pub fn content_mut<'a>(&'a self, received: &'a mut ReceivedFrame) -> &'a mut [u8] {
        let ReceivedFrame { frame, start, length } = received;
        &mut self.endpoint.umem.content_mut(frame)[*start..*start + *length]
    }

    /// Whether the kernel waits for a kick before it takes frames from the fill ring.
    #[inline]
    #[must_use]
    pub fn needs_wakeup(&self) -> bool {
        self.fill.needs_wakeup()
    }

    /// `recvfrom` without a buffer. With `SO_BUSY_POLL` it polls the socket's NAPI instance once (`xsk_recvmsg`).
    ///
    /// Errors: `DeviceDown`, `DeviceGone`.
    #[inline]
    pub fn kick(&self) -> Result<(), XdpSocketError> {
        Endpoint::kicked(recv(&self.endpoint.socket, &mut [0_u8; 0], RecvFlags::DONTWAIT).map(|_| ()))
    }

    /// Sleeps in `poll` until a frame is received or the timeout ends.
    pub fn wait(&self, timeout: Duration) -> Result<(), XdpSocketError> {
        let timeout = Timespec::try_from(timeout).map_err(|_| refused("waiting for frames")(Errno::INVAL))?;
        let mut polled = [PollFd::new(&self.endpoint.socket, PollFlags::IN)];
        match poll(&mut polled, Some(&timeout)) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(errno) => Err(refused("waiting for frames")(errno)),
        }
    }

    /// Another thread's access to the socket, without its rings.
    #[must_use]
    pub fn handle(&self) -> XdpHandle {
        XdpHandle(Arc::clone(&self.endpoint))
    }
}

impl XdpSender {
    #[inline]
    #[must_use]
    pub fn content_mut<'a>(&'a self, frame: &'a mut Frame) -> &'a mut [u8] {
        self.endpoint.umem.content_mut(frame)
    }

    /// Queues the first `length` bytes of a frame. Returns the frame if the TX ring is full.
    #[inline]
    pub fn queue(&mut self, frame: Frame, length: usize) -> Result<(), Frame> {
        self.queue_part(frame, 0, length)
    }

    /// Queues a received frame as it is now.
    #[inline]
    pub fn queue_received(&mut self, received: ReceivedFrame) -> Result<(), Frame> {
        self.queue_part(received.frame, received.start, received.length)
    }

    fn queue_part(&mut self, frame: Frame, start: usize, length: usize) -> Result<(), Frame> {
        debug_assert!(start + length <= super::FRAME_BYTES);
        let descriptor = XdpDesc {
            addr: self.endpoint.umem.address(&frame) + start as u64,
            len: length as u32,
            options: XdpDescOptions::empty(),
        };
        if self.queued.write(descriptor) { Ok(()) } else { Err(frame) }
    }

    /// Publishes queued frames, and kicks the kernel if it has to be (`sendto`). In copy mode the kernel sends within
    /// this call, 32 frames at most; [`Self::waiting`] tells whether frames are left.
    ///
    /// Errors: `DeviceDown`, `DeviceGone`.
    #[inline]
    pub fn publish(&self) -> Result<(), XdpSocketError> {
        self.queued.publish();
        if self.endpoint.needs_every_kick || self.queued.needs_wakeup() {
            return Endpoint::kicked(send(&self.endpoint.socket, &[], SendFlags::DONTWAIT).map(|_| ()));
        }
        Ok(())
    }

    /// Number of published frames that the kernel has not taken.
    #[inline]
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.queued.waiting()
    }

    /// Takes back a frame that was sent.
    #[inline]
    pub fn completed(&mut self) -> Option<Frame> {
        let address = self.completions.read()?;
        self.endpoint.umem.frame_at(address)
    }
}

/// Access to a socket from any thread, without its rings.
#[derive(Debug, Clone)]
pub struct XdpHandle(Arc<Endpoint>);

impl XdpHandle {
    /// As [`XdpReceiver::kick`].
    #[inline]
    pub fn kick(&self) -> Result<(), XdpSocketError> {
        Endpoint::kicked(recv(&self.0.socket, &mut [0_u8; 0], RecvFlags::DONTWAIT).map(|_| ()))
    }
}

/// Statistics of an AF_XDP socket, also of another program.
pub fn stats(socket: impl AsFd) -> io::Result<XdpSocketStats> {
    let stats = sockopt::xdp_statistics(socket)?;
    Ok(XdpSocketStats {
        rx_dropped: stats.rx_dropped,
        rx_ring_full: stats.rx_ring_full,
        rx_fill_ring_empty: stats.rx_fill_ring_empty_descs,
        rx_invalid_descriptors: stats.rx_invalid_descs,
        tx_invalid_descriptors: stats.tx_invalid_descs,
    })
}

/// Whether the device of an AF_XDP socket, also of another program, writes into the umem.
pub fn is_zero_copy(socket: impl AsFd) -> io::Result<bool> {
    Ok(sockopt::xdp_options(socket)?.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY))
}

impl AsFd for XdpHandle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.socket.as_fd()
    }
}

/// For maps of sockets.
impl AsRawFd for XdpHandle {
    fn as_raw_fd(&self) -> RawFd {
        self.0.socket.as_raw_fd()
    }
}
