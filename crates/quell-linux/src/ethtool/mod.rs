//! The generic netlink family `ethtool`, as far as it decides how packets reach NAPI: offload
//! features (GRO, TSO, GSO) and the number of channels. The ioctl of the same name is not used.

mod channels;
mod features;

#[cfg(fuzzing)]
pub(crate) use {channels::decode_channels, features::decode_features};

use netlink_bindings::ethtool::PushHeader;
use netlink_bindings::traits::Pusher;

pub use channels::{ChannelRequest, Channels};
pub use features::{Feature, FeatureError, Features};

use crate::interface::Ifindex;
use crate::netlink::{NetlinkError, NetlinkSocket};
use crate::netns::Namespace;

/// `ETHTOOL_MSG_*` of `include/uapi/linux/ethtool_netlink.h`. The bindings (0.3.5) number these
/// commands wrongly, because in this family requests and answers are counted apart; each request
/// gets its number from here.
const ETHTOOL_MSG_FEATURES_GET: u8 = 11;
const ETHTOOL_MSG_FEATURES_SET: u8 = 12;
const ETHTOOL_MSG_CHANNELS_GET: u8 = 17;
const ETHTOOL_MSG_CHANNELS_SET: u8 = 18;

/// A handle on the `ethtool` family of one namespace.
#[derive(Debug)]
pub struct Ethtool {
    socket: NetlinkSocket,
}

impl Ethtool {
    /// For the namespace of the calling thread, also after the thread has moved on.
    ///
    /// # Errors
    /// [`NetlinkError`], `Unsupported` when the kernel has no such family.
    pub fn open() -> Result<Self, NetlinkError> {
        Ok(Self { socket: open_socket()? })
    }

    /// For another namespace; the calling thread stays where it is.
    ///
    /// # Errors
    /// As [`Ethtool::open`], and `Denied` without `CAP_SYS_ADMIN`.
    pub fn open_in(namespace: &Namespace) -> Result<Self, NetlinkError> {
        Ok(Self { socket: NetlinkSocket::open_in(namespace, open_socket)? })
    }
}

fn open_socket() -> Result<NetlinkSocket, NetlinkError> {
    NetlinkSocket::open_generic("ethtool")
}

/// Fills the header by which every request of the family names its interface.
fn address_to<P: Pusher>(header: PushHeader<P>, index: Ifindex) -> P {
    header.push_dev_index(index.get()).end_nested()
}
