//! The older half of ethtool, `SIOCETHTOOL`: used only for what netlink does not have (single
//! queues' coalescing, flow rules, the driver's name) or has only since 6.17 (RSS contexts). One
//! call, on bytes; what they mean is said by the modules that make them.

use std::os::fd::{AsFd, AsRawFd};

use rustix::net::netdevice;

use crate::interface::Ifindex;
use crate::netlink::Cause;

/// The error of a command on an interface. `call` is the command by its kernel name.
fn failed(call: &'static str, error: &std::io::Error) -> Cause {
    Cause::Transport { call, errno: error.raw_os_error().unwrap_or(libc::EIO) }
}

/// Runs the command in the first four bytes of `buffer` on an interface of the namespace that the
/// socket belongs to; any socket serves. The kernel's answer is in `buffer` afterwards.
///
/// `buffer` must be as long as the command's struct, with the array behind it that the struct's
/// counts announce: the kernel reads and writes that much. The callers take both from one length.
pub(super) fn call(socket: impl AsFd, index: Ifindex, command: &'static str, buffer: &mut [u8]) -> Result<(), Cause> {
    let socket = socket.as_fd();
    let name = netdevice::index_to_name(socket, index.get()).map_err(|errno| failed("SIOCGIFNAME", &errno.into()))?;
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_data: buffer.as_mut_ptr().cast() },
    };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    // SAFETY: `request` is a whole ifreq with a terminated name (names have at most 15 bytes), and
    // its pointer leads to `buffer`, which is exclusively borrowed during the call and as long as
    // the command says, which the callers see to.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as libc::Ioctl, &raw mut request) };
    if result < 0 {
        return Err(failed(command, &std::io::Error::last_os_error()));
    }
    Ok(())
}

/// Reads the native-endian number at `offset`; `None` behind the end.
pub(super) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

/// As [`u32_at`].
pub(super) fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

/// Writes a part of a struct; it is inside by construction.
pub(super) fn put(bytes: &mut [u8], offset: usize, value: &[u8]) {
    bytes[offset..offset + value.len()].copy_from_slice(value);
}
