//! Values that `napi-set` accepts, according to the kernel's policy for the request (`CTRL_CMD_GETPOLICY`). Quell
//! queries them and does not infer them from the kernel version. The query needs no privilege and changes nothing.

use netlink_bindings::nlctrl;
use netlink_bindings::utils::find_attr;

use super::{NapiThreading, Netdev};
use crate::netlink::{Malformed, NetlinkError, RequestTarget};

// `include/uapi/linux/netdev.h`.
const NETDEV_CMD_NAPI_SET: u32 = 14;
const NETDEV_A_NAPI_THREADED: u16 = 8;
/// `CTRL_ATTR_POLICY` of `include/uapi/linux/genetlink.h`: limits by policy number and attribute number.
const CTRL_ATTR_POLICY: u16 = 8;
/// Number of the policy for the request itself. Other policies belong to nested attributes.
const OF_THE_REQUEST: u16 = 0;
/// `NL_POLICY_TYPE_ATTR_MAX_VALUE_U` of `include/uapi/linux/netlink.h`.
const NL_POLICY_TYPE_ATTR_MAX_VALUE_U: u16 = 5;
/// Size of `struct genlmsghdr` in bytes.
const GENERIC_HEADER_BYTES: usize = 4;

impl Netdev {
    /// Whether `napi-set` accepts [`NapiThreading::BusyPoll`] (Linux 6.19). Errors: `Unsupported` before Linux 6.13,
    /// which lacks `napi-set`.
    pub fn takes_threaded_busy_poll(&mut self) -> Result<bool, NetlinkError> {
        let mut request = nlctrl::Request::new().op_getpolicy_dump();
        request.encode().push_family_name_bytes(b"netdev").push_op(NETDEV_CMD_NAPI_SET);
        let limits = self.socket.collect(
            "query the limits of napi-set in",
            &RequestTarget::Namespace,
            &request,
            threaded_max,
        )?;
        Ok(limits.into_iter().flatten().any(|max| max >= u64::from(NapiThreading::BusyPoll.as_kernel())))
    }
}

/// Maximum value of `threaded`. Returns `None` if the message describes another attribute.
pub(crate) fn threaded_max(reply: &[u8]) -> Result<Option<u64>, Malformed> {
    let attributes = reply.get(GENERIC_HEADER_BYTES..).ok_or(Malformed("a policy without a header"))?;
    let path = [CTRL_ATTR_POLICY, OF_THE_REQUEST, NETDEV_A_NAPI_THREADED, NL_POLICY_TYPE_ATTR_MAX_VALUE_U];
    let Some(max) = path.into_iter().try_fold(attributes, find_attr) else { return Ok(None) };
    let max = max.try_into().map_err(|_| Malformed("a limit that is not a 64-bit number"))?;
    Ok(Some(u64::from_ne_bytes(max)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::{any_reply, push};
    use proptest::prelude::*;

    fn attribute(kind: u16, payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        push(&mut bytes, kind, payload);
        bytes
    }

    fn message(attribute_kind: u16, max: u64) -> Vec<u8> {
        const NLA_F_NESTED: u16 = 1 << 15;
        let limits = attribute(NL_POLICY_TYPE_ATTR_MAX_VALUE_U, &max.to_ne_bytes());
        let by_attribute = attribute(attribute_kind | NLA_F_NESTED, &limits);
        let by_policy = attribute(OF_THE_REQUEST | NLA_F_NESTED, &by_attribute);
        [vec![10, 2, 0, 0], attribute(CTRL_ATTR_POLICY | NLA_F_NESTED, &by_policy)].concat()
    }

    #[test]
    fn only_the_limit_of_threaded_is_read() {
        assert_eq!(threaded_max(&message(8, 1)), Ok(Some(1)));
        assert_eq!(threaded_max(&message(8, 2)), Ok(Some(2)));
        assert_eq!(threaded_max(&message(7, u64::MAX)), Ok(None));
    }

    #[test]
    fn this_kernel_replies() {
        match Netdev::open().and_then(|mut netdev| netdev.takes_threaded_busy_poll()) {
            Ok(takes) => println!("kernel accepts threaded=2: {takes}"),
            Err(error) => println!("skipped: {error}"),
        }
    }

    proptest! {
        #[test]
        fn arbitrary_replies_never_panic(bytes in any_reply(4)) {
            let _ = threaded_max(&bytes);
        }
    }
}
