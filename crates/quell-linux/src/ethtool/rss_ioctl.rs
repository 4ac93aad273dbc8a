//! Writes RSS contexts by ioctl (`ETHTOOL_SRSSH`), for kernels before Linux 6.17 and for drivers that do not support
//! the netlink command. The table and the key must have exactly the device's lengths.

use super::ioctl::{put, u32_at};
use super::{Ethtool, RssContextId, RssRequest};
use crate::interface::Ifindex;
use crate::netlink::{Cause, NetlinkError, RequestTarget};

pub(super) const ETHTOOL_GRSSH: u32 = 0x0000_0046;
pub(super) const ETHTOOL_SRSSH: u32 = 0x0000_0047;
/// Size of `struct ethtool_rxfh` in bytes, without the table and the key that follow it.
pub(super) const HEADER_BYTES: usize = 24;
const CONTEXT: usize = 4;
pub(super) const INDIRECTION_SIZE: usize = 8;
pub(super) const KEY_SIZE: usize = 12;
const HASH_FUNCTION: usize = 16;
const INPUT_TRANSFORM: usize = 17;
/// `ETH_RXFH_CONTEXT_ALLOC`: requests a new context.
const NEW_CONTEXT: u32 = u32::MAX;
/// `ETH_RXFH_INDIR_NO_CHANGE`: leaves the indirection table unchanged.
pub(super) const SAME_TABLE: u32 = u32::MAX;
/// `RXH_XFRM_NO_CHANGE`: leaves the input transformation unchanged.
const SAME_TRANSFORM: u8 = u8::MAX;

/// Lengths of the device's indirection table (in entries) and hash key (in bytes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Lengths {
    table: u32,
    key: u32,
}

impl Ethtool {
    pub(super) fn set_rss_by_ioctl(
        &mut self,
        index: Ifindex,
        context: RssContextId,
        change: &RssRequest,
    ) -> Result<(), NetlinkError> {
        self.write_rss("change the RSS settings of", index, context.get(), change).map(drop)
    }

    pub(super) fn create_rss_context_by_ioctl(
        &mut self,
        index: Ifindex,
        new: &RssRequest,
    ) -> Result<RssContextId, NetlinkError> {
        const ACTION: &str = "create an RSS context of";
        let number = self.write_rss(ACTION, index, NEW_CONTEXT, new)?;
        let inexpressible = Cause::Inexpressible("the driver created a context with an invalid id");
        RssContextId::new(number).ok_or_else(|| NetlinkError::new(ACTION, RequestTarget::Index(index), inexpressible))
    }

    pub(super) fn delete_rss_context_by_ioctl(
        &mut self,
        index: Ifindex,
        context: RssContextId,
    ) -> Result<(), NetlinkError> {
        // A table of length zero deletes a context, unless it is the default context.
        let mut buffer = header(ETHTOOL_SRSSH, context.get(), 0, 0, 0);
        self.ioctl("delete an RSS context of", index, "ETHTOOL_SRSSH", &mut buffer)
    }

    fn write_rss(
        &mut self,
        action: &'static str,
        index: Ifindex,
        context: u32,
        change: &RssRequest,
    ) -> Result<u32, NetlinkError> {
        let failed = |cause| NetlinkError::new(action, RequestTarget::Index(index), cause);
        // If both lengths are zero, the kernel returns the device's lengths.
        let mut sizes = header(ETHTOOL_GRSSH, 0, 0, 0, 0);
        self.ioctl(action, index, "ETHTOOL_GRSSH", &mut sizes)?;
        let length = |offset| u32_at(&sizes, offset).unwrap_or(0);
        let lengths = Lengths { table: length(INDIRECTION_SIZE), key: length(KEY_SIZE) };
        let mut buffer = encode(context, change, lengths).map_err(failed)?;
        self.ioctl(action, index, "ETHTOOL_SRSSH", &mut buffer)?;
        Ok(u32_at(&buffer, CONTEXT).unwrap_or(context))
    }
}

fn header(command: u32, context: u32, table: u32, key: u32, hash_function: u8) -> Vec<u8> {
    let mut buffer = vec![0; HEADER_BYTES];
    for (offset, value) in [(0, command), (CONTEXT, context), (INDIRECTION_SIZE, table), (KEY_SIZE, key)] {
        put(&mut buffer, offset, &value.to_ne_bytes());
    }
    buffer[HASH_FUNCTION] = hash_function;
    if command == ETHTOOL_SRSSH {
        buffer[INPUT_TRANSFORM] = SAME_TRANSFORM;
    }
    buffer
}

fn encode(context: u32, change: &RssRequest, lengths: Lengths) -> Result<Vec<u8>, Cause> {
    let table = change.indirection.as_deref().map(|table| whole_table(table, lengths)).transpose()?;
    let key = change.key.as_deref().unwrap_or_default();
    if !key.is_empty() && key.len() != lengths.key as usize {
        return Err(Cause::Inexpressible("the key does not have the device's key length"));
    }
    let function = u8::try_from(change.hash_function.map_or(0, super::HashFunction::as_kernel))
        .map_err(|_| Cause::Inexpressible("this ioctl does not support the hash function"))?;
    let table_length = table.as_ref().map_or(SAME_TABLE, |table| table.len() as u32);
    let mut buffer = header(ETHTOOL_SRSSH, context, table_length, key.len() as u32, function);
    buffer.extend(table.unwrap_or_default().into_iter().flat_map(u32::to_ne_bytes));
    buffer.extend(key);
    Ok(buffer)
}

/// Repeats a table up to the device's table length, as the kernel does via netlink.
fn whole_table(table: &[u32], lengths: Lengths) -> Result<Vec<u32>, Cause> {
    let device = lengths.table as usize;
    if !table.is_empty() && !device.is_multiple_of(table.len()) {
        return Err(Cause::Inexpressible("the table length does not divide the device's table length"));
    }
    Ok(table.iter().copied().cycle().take(if table.is_empty() { 0 } else { device }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTHS: Lengths = Lengths { table: 8, key: 40 };

    #[test]
    fn a_short_table_is_repeated_to_the_devices_length() {
        let change = RssRequest { indirection: Some(vec![4, 5]), ..RssRequest::default() };
        let bytes = encode(NEW_CONTEXT, &change, LENGTHS).unwrap();
        assert_eq!((u32_at(&bytes, INDIRECTION_SIZE), u32_at(&bytes, KEY_SIZE)), (Some(8), Some(0)));
        assert_eq!(bytes.len(), HEADER_BYTES + 8 * 4);
        assert_eq!((u32_at(&bytes, 24), u32_at(&bytes, 28), u32_at(&bytes, 52)), (Some(4), Some(5), Some(5)));
    }

    #[test]
    fn unrequested_values_are_unchanged() {
        let change = RssRequest { key: Some(vec![7; 40]), ..RssRequest::default() };
        let bytes = encode(0, &change, LENGTHS).unwrap();
        assert_eq!(u32_at(&bytes, INDIRECTION_SIZE), Some(SAME_TABLE));
        assert_eq!((bytes[HASH_FUNCTION], bytes[INPUT_TRANSFORM]), (0, SAME_TRANSFORM));
        assert_eq!(&bytes[HEADER_BYTES..], [7; 40]);
    }

    #[test]
    fn a_table_or_key_of_a_wrong_length_is_refused_before_sending() {
        let table = RssRequest { indirection: Some(vec![0, 1, 2]), ..RssRequest::default() };
        assert!(encode(0, &table, LENGTHS).is_err());
        let key = RssRequest { key: Some(vec![0; 39]), ..RssRequest::default() };
        assert!(encode(0, &key, LENGTHS).is_err());
    }
}
