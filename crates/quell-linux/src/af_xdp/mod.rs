//! AF_XDP sockets (`Documentation/networking/af_xdp.rst`): a socket that receives and sends whole frames of one device
//! queue, through rings that it shares with the kernel.
//!
//! A [`Frame`] is the exclusive right to one chunk of the socket's memory (umem). It moves: to the kernel by
//! [`XdpReceiver::give`], back by [`XdpReceiver::receive`], to the kernel by [`XdpSender::queue`], back by
//! [`XdpSender::completed`]. The two halves of a socket can be in different threads.
//!
//! `rustix` has the socket options of AF_XDP. The rings are here, because each call of `xsk-rs` that moves a frame is
//! `unsafe`.

mod error;
mod ring;
mod socket;
mod umem;

pub use error::XdpSocketError;
pub use socket::{
    CopyMode, ReceivedFrame, XdpHandle, XdpReceiver, XdpSender, XdpSocketSpec, XdpSocketStats, is_zero_copy, open,
    stats,
};
pub use umem::{FRAME_BYTES, Frame};
