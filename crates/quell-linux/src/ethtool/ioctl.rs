//! The ethtool ioctl, `SIOCETHTOOL`. Quell uses it for functions that netlink lacks (coalescing of single queues, flow
//! rules, driver name) or supports only since Linux 6.17 (RSS contexts).

use std::os::fd::{AsFd, AsRawFd};

use rustix::net::netdevice;

use super::driver_info::{DRVINFO_BYTES, ETHTOOL_GDRVINFO};
use super::flow_rules::{
    ETHTOOL_GRXCLSRLALL, ETHTOOL_GRXCLSRLCNT, ETHTOOL_GRXCLSRULE, ETHTOOL_SRXCLSRLDEL, ETHTOOL_SRXCLSRLINS, RULE_COUNT,
    RXNFC_BYTES,
};
use super::queue_coalescing::{
    COALESCE_BYTES, ETHTOOL_GCOALESCE, ETHTOOL_PERQUEUE, ETHTOOL_SCOALESCE, HEADER_BYTES as PERQUEUE_BYTES,
};
use super::rss_ioctl::{
    ETHTOOL_GRSSH, ETHTOOL_SRSSH, HEADER_BYTES as RXFH_BYTES, INDIRECTION_SIZE, KEY_SIZE, SAME_TABLE,
};
use crate::interface::Ifindex;
use crate::netlink::Cause;

fn failed(call: &'static str, error: &std::io::Error) -> Cause {
    Cause::Transport { call, errno: error.raw_os_error().unwrap_or(libc::EIO) }
}

/// Maximum number of bytes that the kernel reads and writes for the command in the first four bytes of `buffer`. This
/// is the size of the struct plus the array whose length the struct contains (`net/ethtool/ioctl.c`). Returns `None`
/// for commands that Quell does not use.
fn bytes_used(buffer: &[u8]) -> Option<usize> {
    let count = |offset| Some(u32_at(buffer, offset)? as usize);
    match u32_at(buffer, 0)? {
        ETHTOOL_GDRVINFO => Some(DRVINFO_BYTES),
        ETHTOOL_GRXCLSRLCNT | ETHTOOL_GRXCLSRULE | ETHTOOL_SRXCLSRLDEL | ETHTOOL_SRXCLSRLINS => Some(RXNFC_BYTES),
        ETHTOOL_GRXCLSRLALL => count(RULE_COUNT)?.checked_mul(4)?.checked_add(RXNFC_BYTES),
        ETHTOOL_PERQUEUE if !matches!(u32_at(buffer, 4)?, ETHTOOL_GCOALESCE | ETHTOOL_SCOALESCE) => None,
        ETHTOOL_PERQUEUE => {
            let queues: u32 = buffer.get(8..PERQUEUE_BYTES)?.iter().map(|byte| byte.count_ones()).sum();
            Some(PERQUEUE_BYTES + queues as usize * COALESCE_BYTES)
        }
        ETHTOOL_GRSSH | ETHTOOL_SRSSH => {
            let (table, key) = (u32_at(buffer, INDIRECTION_SIZE)?, count(KEY_SIZE)?);
            let entries = match table {
                SAME_TABLE => 0,
                // If there is a key but no table, the location of the key depends on the kernel version.
                0 if key > 0 => return None,
                entries => entries as usize,
            };
            entries.checked_mul(4)?.checked_add(key)?.checked_add(RXFH_BYTES)
        }
        _ => None,
    }
}

/// Runs the command in the first four bytes of `buffer` on an interface of the socket's network namespace. The socket
/// may be of any type. The kernel writes its reply to `buffer`. A buffer that is shorter than the kernel's access is
/// rejected.
pub(super) fn call(socket: impl AsFd, index: Ifindex, command: &'static str, buffer: &mut [u8]) -> Result<(), Cause> {
    if bytes_used(buffer).is_none_or(|used| used > buffer.len()) {
        return Err(Cause::Inexpressible("the request is shorter than its command requires"));
    }
    let socket = socket.as_fd();
    let name = netdevice::index_to_name(socket, index.get()).map_err(|errno| failed("SIOCGIFNAME", &errno.into()))?;
    let mut request = libc::ifreq {
        ifr_name: [0; libc::IFNAMSIZ],
        ifr_ifru: libc::__c_anonymous_ifr_ifru { ifru_data: buffer.as_mut_ptr().cast() },
    };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    // SAFETY: `request` is a complete ifreq with a terminated name (at most 15 bytes). Its pointer refers to
    // `buffer`, which is exclusively borrowed during the call, and at least as long as the kernel's access.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCETHTOOL as libc::Ioctl, &raw mut request) };
    if result < 0 {
        return Err(failed(command, &std::io::Error::last_os_error()));
    }
    Ok(())
}

pub(super) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

pub(super) fn u64_at(bytes: &[u8], offset: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(*bytes.get(offset..)?.first_chunk()?))
}

/// Writes `value` at `offset`. The caller guarantees that it is within bounds.
pub(super) fn put(bytes: &mut [u8], offset: usize, value: &[u8]) {
    bytes[offset..offset + value.len()].copy_from_slice(value);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(bytes: usize, words: &[(usize, u32)]) -> Vec<u8> {
        let mut buffer = vec![0; bytes];
        words.iter().for_each(|(offset, word)| put(&mut buffer, *offset, &word.to_ne_bytes()));
        buffer
    }

    fn refused(buffer: &mut [u8]) -> bool {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        matches!(call(&socket, Ifindex::new(1).unwrap(), "test", buffer), Err(Cause::Inexpressible(_)))
    }

    #[test]
    fn a_buffer_that_is_shorter_than_the_kernels_access_is_refused() {
        for (needed, words) in [
            (196, &[(0, ETHTOOL_GDRVINFO)][..]),
            (RXNFC_BYTES, &[(0, ETHTOOL_GRXCLSRULE)]),
            (RXNFC_BYTES + 5 * 4, &[(0, ETHTOOL_GRXCLSRLALL), (RULE_COUNT, 5)]),
            (520 + 3 * 92, &[(0, ETHTOOL_PERQUEUE), (4, ETHTOOL_GCOALESCE), (8, 0b101), (516, 1 << 31)]),
            (24 + 8 * 4 + 40, &[(0, ETHTOOL_SRSSH), (INDIRECTION_SIZE, 8), (KEY_SIZE, 40)]),
            (24 + 40, &[(0, ETHTOOL_SRSSH), (INDIRECTION_SIZE, SAME_TABLE), (KEY_SIZE, 40)]),
        ] {
            assert_eq!(bytes_used(&request(needed, words)), Some(needed), "{words:?}");
            assert!(refused(&mut request(needed - 1, words)), "{words:?}");
            assert!(!refused(&mut request(needed, words)), "{words:?}");
        }
    }

    #[test]
    fn an_unknown_command_is_refused() {
        assert!(refused(&mut request(4096, &[(0, 0x1)])));
        assert!(refused(&mut request(4096, &[(0, ETHTOOL_PERQUEUE), (4, 0x1)])));
        assert!(refused(&mut [0; 3]));
    }

    proptest! {
        #[test]
        fn the_length_never_overflows(command in 0_u32..0x60, bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let mut buffer = command.to_ne_bytes().to_vec();
            buffer.extend(bytes);
            let _ = bytes_used(&buffer);
        }
    }
}
