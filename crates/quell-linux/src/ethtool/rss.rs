//! Receive-side scaling (RSS): the device selects a packet's queue by a hash of its addresses and ports. Context 0
//! applies to the interface, and flow rules can select other contexts. This module uses netlink for reading, and for
//! writing since Linux 6.17. Older kernels write via `rss_ioctl`.

use std::fmt;

use netlink_bindings::ethtool as bindings;
use netlink_bindings::traits::NetlinkRequest;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    ETHTOOL_MSG_RSS_CREATE_ACT, ETHTOOL_MSG_RSS_DELETE_ACT, ETHTOOL_MSG_RSS_GET, ETHTOOL_MSG_RSS_SET, Ethtool,
    address_to,
};
use crate::interface::Ifindex;
use crate::netlink::{Failure, Malformed, NetlinkError, RequestTarget};

/// Id of an RSS context of an interface. 0 is the default context.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct RssContextId(u32);

impl RssContextId {
    /// The default context, for all packets that no flow rule sends to another context.
    pub const MAIN: Self = Self(0);

    /// Creates an id. Returns `None` for 2³²−1, which the kernel uses to request a new context.
    #[must_use]
    pub const fn new(number: u32) -> Option<Self> {
        if number == u32::MAX { None } else { Some(Self(number)) }
    }

    #[must_use]
    pub const fn get(self) -> u32 {
        self.0
    }
}

impl fmt::Display for RssContextId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Hash function that the device applies to packet addresses (`ETH_RSS_HASH_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum HashFunction {
    Toeplitz,
    Xor,
    Crc32,
    /// A hash function with this bit, which Quell does not know.
    Other(u32),
}

impl HashFunction {
    #[must_use]
    pub const fn as_kernel(self) -> u32 {
        match self {
            Self::Toeplitz => 1,
            Self::Xor => 2,
            Self::Crc32 => 4,
            Self::Other(bits) => bits,
        }
    }

    #[must_use]
    pub const fn from_kernel(bits: u32) -> Option<Self> {
        match bits {
            0 => None,
            1 => Some(Self::Toeplitz),
            2 => Some(Self::Xor),
            4 => Some(Self::Crc32),
            other => Some(Self::Other(other)),
        }
    }
}

/// An RSS context. A field is `None` if the driver does not report the value.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
#[non_exhaustive]
pub struct RssContext {
    pub id: RssContextId,
    pub hash_function: Option<HashFunction>,
    /// Indirection table. An entry is the queue for one hash value, taken modulo the table's length.
    pub indirection: Option<Vec<u32>>,
    /// Key of the hash function.
    pub key: Option<Vec<u8>>,
}

/// Changes to an RSS context, or the parameters of a new one. `None` leaves a value unchanged, or selects the driver's
/// default for a new context.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RssRequest {
    pub hash_function: Option<HashFunction>,
    /// Indirection table to use. Via netlink, the kernel repeats a table whose length divides that of the device's
    /// table. An empty table restores the default, which assigns all queues in turn.
    pub indirection: Option<Vec<u32>>,
    /// Hash key to use. It must have the device's key length.
    pub key: Option<Vec<u8>>,
}

impl Ethtool {
    /// Reads an RSS context of an interface. Errors: `Unsupported` if the driver has no RSS (veth), `Absent` if the
    /// context or interface does not exist.
    pub fn rss(&mut self, index: Ifindex, context: RssContextId) -> Result<RssContext, NetlinkError> {
        let mut request = bindings::Request::new().op_rss_get_do();
        request.header_mut().cmd = ETHTOOL_MSG_RSS_GET;
        drop(push_context(address_to(request.encode().nested_header(), index), context));
        self.socket.get("read the RSS settings of", &RequestTarget::Index(index), &request, decode_rss)
    }

    /// Reads all RSS contexts of an interface, in ascending order. Kernels before 6.12 cannot list them; then only
    /// the default context is returned.
    pub fn rss_contexts(&mut self, index: Ifindex) -> Result<Vec<RssContext>, NetlinkError> {
        let mut request = bindings::Request::new().op_rss_get_dump();
        request.header_mut().cmd = ETHTOOL_MSG_RSS_GET;
        drop(address_to(request.encode().nested_header(), index));
        let listed =
            self.socket.collect("list the RSS contexts of", &RequestTarget::Index(index), &request, decode_rss);
        match listed {
            // The list is empty for a driver without RSS; reading the default context returns the reason.
            Ok(contexts) if contexts.is_empty() => {}
            Ok(mut contexts) => {
                contexts.sort_unstable_by_key(|context| context.id);
                return Ok(contexts);
            }
            Err(error) if error.failure() == Failure::Unsupported => {}
            Err(error) => return Err(error),
        }
        Ok(vec![self.rss(index, RssContextId::MAIN)?])
    }

    /// Changes an RSS context. Not tested on hardware. Errors: `Invalid` if a queue does not exist, or the table or key
    /// does not have the device's length. `Unsupported` without RSS, `Absent` if the context does not exist, `Denied`
    /// without `CAP_NET_ADMIN`.
    pub fn set_rss(&mut self, index: Ifindex, context: RssContextId, change: &RssRequest) -> Result<(), NetlinkError> {
        let mut request = bindings::Request::new().op_rss_set_do();
        request.header_mut().cmd = ETHTOOL_MSG_RSS_SET;
        let attributes = push_context(address_to(request.encode().nested_header(), index), context);
        push_request(attributes, change);
        match self.socket.act("change the RSS settings of", &RequestTarget::Index(index), &request) {
            Err(error) if error.failure() == Failure::Unsupported => self.set_rss_by_ioctl(index, context, change),
            result => result,
        }
    }

    /// Creates an RSS context and returns its id. Not tested on hardware.
    pub fn create_rss_context(&mut self, index: Ifindex, new: &RssRequest) -> Result<RssContextId, NetlinkError> {
        let mut request = bindings::Request::new().op_rss_create_act_do();
        request.header_mut().cmd = ETHTOOL_MSG_RSS_CREATE_ACT;
        push_request(address_to(request.encode().nested_header(), index), new);
        let created = self.socket.get("create an RSS context of", &RequestTarget::Index(index), &request, decode_rss);
        match created {
            Err(error) if error.failure() == Failure::Unsupported => self.create_rss_context_by_ioctl(index, new),
            created => created.map(|context| context.id),
        }
    }

    /// Deletes an RSS context. Flow rules that use it must be deleted first. Not tested on hardware. Errors: those of
    /// [`Ethtool::set_rss`], and `Busy` while a flow rule uses the context.
    pub fn delete_rss_context(&mut self, index: Ifindex, context: RssContextId) -> Result<(), NetlinkError> {
        let mut request = bindings::Request::new().op_rss_delete_act_do();
        request.header_mut().cmd = ETHTOOL_MSG_RSS_DELETE_ACT;
        drop(address_to(request.encode().nested_header(), index).push_context(context.get()));
        match self.socket.act("delete an RSS context of", &RequestTarget::Index(index), &request) {
            Err(error) if error.failure() == Failure::Unsupported => self.delete_rss_context_by_ioctl(index, context),
            result => result,
        }
    }
}

type RssAttributes<'a> = bindings::PushRss<&'a mut Vec<u8>>;

/// Omits the context attribute for the default context, because drivers that support only the default context reject
/// the attribute.
fn push_context(attributes: RssAttributes<'_>, context: RssContextId) -> RssAttributes<'_> {
    match context {
        RssContextId::MAIN => attributes,
        RssContextId(number) => attributes.push_context(number),
    }
}

fn push_request(mut attributes: RssAttributes<'_>, request: &RssRequest) {
    if let Some(function) = request.hash_function {
        attributes = attributes.push_hfunc(function.as_kernel());
    }
    if let Some(table) = &request.indirection {
        let bytes: Vec<u8> = table.iter().copied().flat_map(u32::to_ne_bytes).collect();
        attributes = attributes.push_indir(&bytes);
    }
    if let Some(key) = &request.key {
        attributes = attributes.push_hkey(key);
    }
    drop(attributes);
}

pub(crate) fn decode_rss(reply: &[u8]) -> Result<RssContext, Malformed> {
    let attributes = bindings::OpRssGetDo::decode_reply(reply);
    let id = RssContextId::new(attributes.get_context().unwrap_or(0))
        .ok_or(Malformed("an RSS context with an invalid id"))?;
    let indirection = attributes.get_indir().ok().map(queues).transpose()?;
    Ok(RssContext {
        id,
        hash_function: attributes.get_hfunc().ok().and_then(HashFunction::from_kernel),
        indirection,
        key: attributes.get_hkey().ok().map(<[u8]>::to_vec),
    })
}

fn queues(bytes: &[u8]) -> Result<Vec<u32>, Malformed> {
    let (words, rest) = bytes.as_chunks();
    if !rest.is_empty() {
        return Err(Malformed("a truncated indirection table"));
    }
    Ok(words.iter().copied().map(u32::from_ne_bytes).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{any_reply, push};
    use proptest::prelude::*;

    /// Reply of virtio_net without RSS, recorded on Linux 6.18. The last attribute (hashed fields per protocol) is
    /// removed.
    const WITHOUT_RSS: &[u8] = &[
        38, 1, 0, 0, 24, 0, 1, 128, 8, 0, 1, 0, 4, 0, 0, 0, 9, 0, 2, 0, 101, 116, 104, 48, 0, 0, 0, 0, 8, 0, 3, 0, 1,
        0, 0, 0,
    ];

    #[test]
    fn a_driver_that_reports_only_its_hash_function_has_no_table_and_no_key() {
        let context = decode_rss(WITHOUT_RSS).unwrap();
        assert_eq!(context.id, RssContextId::MAIN);
        assert_eq!(context.hash_function, Some(HashFunction::Toeplitz));
        assert_eq!((context.indirection, context.key), (None, None));
    }

    #[test]
    fn a_context_has_a_table_of_queues_and_a_key() {
        let mut bytes = WITHOUT_RSS.to_vec();
        push(&mut bytes, 2, &3_u32.to_ne_bytes());
        push(&mut bytes, 4, &[4_u32, 5, 4, 5].map(u32::to_ne_bytes).concat());
        push(&mut bytes, 5, &[0x6d; 40]);
        let context = decode_rss(&bytes).unwrap();
        assert_eq!(context.id.get(), 3);
        assert_eq!(context.indirection, Some(vec![4, 5, 4, 5]));
        assert_eq!(context.key, Some(vec![0x6d; 40]));
    }

    #[test]
    fn a_table_with_a_truncated_number_is_refused() {
        let mut bytes = WITHOUT_RSS.to_vec();
        push(&mut bytes, 4, &[1, 0, 0, 0, 2]);
        assert!(decode_rss(&bytes).is_err());
    }

    proptest! {
        #[test]
        fn a_request_has_the_attributes_of_a_context(
            bits in 1_u32..16,
            table in prop::option::of(prop::collection::vec(any::<u32>(), 0..64)),
            key in prop::option::of(prop::collection::vec(any::<u8>(), 1..64)),
        ) {
            let request = RssRequest { hash_function: HashFunction::from_kernel(bits), indirection: table, key };
            let mut message = bindings::Request::new().op_rss_set_do();
            push_request(message.encode(), &request);
            let read = decode_rss(message.payload()).unwrap();
            prop_assert_eq!(read.hash_function, request.hash_function);
            prop_assert_eq!(read.indirection, request.indirection);
            prop_assert_eq!(read.key, request.key);
        }

        #[test]
        fn arbitrary_replies_never_panic(bytes in any_reply(4)) {
            let _ = decode_rss(&bytes);
        }
    }
}
