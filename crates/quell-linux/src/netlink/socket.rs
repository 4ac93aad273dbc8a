//! A netlink socket and its exchange of requests and replies, up to the acknowledgement. The socket remains in the
//! network namespace of the thread that opened it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use netlink_bindings::nlctrl;
use netlink_bindings::traits::{NetlinkRequest, Protocol as RequestProtocol};
use rustix::io::Errno;
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType};
use tracing::{debug, trace};

use super::message::{HEADER_BYTES, Message, Status, next_message};
use super::{Cause, Failure, Malformed, NetlinkError, RequestTarget};
use crate::netns::Namespace;

/// Maximum number of attempts to read a dump that concurrent changes interrupt.
const DUMP_ATTEMPTS_MAX: u32 = 8;

/// A netlink socket for rtnetlink or for one generic family.
#[derive(Debug)]
pub(crate) struct NetlinkSocket {
    fd: OwnedFd,
    sequence: u32,
    /// Message type of generic requests. rtnetlink does not use it.
    family_id: u16,
    buffer: Vec<u8>,
}

enum Interruption {
    /// `NLM_F_DUMP_INTR`: objects changed during the dump, so the request must be repeated.
    Changed,
    Failed(Cause),
}

impl NetlinkSocket {
    pub(crate) fn open_route() -> Result<Self, NetlinkError> {
        // `None` means NETLINK_ROUTE, which is protocol 0.
        Self::open(None)
    }

    pub(crate) fn open_sock_diag() -> Result<Self, NetlinkError> {
        Self::open(Some(netlink::SOCK_DIAG))
    }

    /// Opens a socket for a generic family and resolves its id.
    pub(crate) fn open_generic(family: &'static str) -> Result<Self, NetlinkError> {
        let mut socket = Self::open(Some(netlink::GENERIC))?;
        let mut request = nlctrl::Request::new().op_getfamily_do();
        request.encode().push_family_name_bytes(family.as_bytes());
        let action = "look up a netlink family in";
        let id = socket.get(action, &RequestTarget::Namespace, &request, |reply| {
            nlctrl::OpGetfamilyDo::decode_reply(reply).get_family_id().map_err(|_| Malformed("a family without an id"))
        });
        match id {
            Ok(id) => socket.family_id = id,
            Err(error) if error.failure() == Failure::Absent => {
                let cause = Cause::FamilyAbsent { family };
                return Err(NetlinkError::new(action, RequestTarget::Namespace, cause));
            }
            Err(error) => return Err(error),
        }
        Ok(socket)
    }

    /// Opens a socket in another network namespace by calling `open` there.
    pub(crate) fn open_in(
        namespace: &Namespace,
        open: impl FnOnce() -> Result<Self, NetlinkError> + Send,
    ) -> Result<Self, NetlinkError> {
        namespace.run(open).map_err(|error| {
            NetlinkError::new("open a netlink socket in", RequestTarget::Namespace, Cause::Namespace(error))
        })?
    }

    fn open(protocol: Option<Protocol>) -> Result<Self, NetlinkError> {
        Self::open_socket(protocol)
            .map_err(|cause| NetlinkError::new("open a netlink socket in", RequestTarget::Namespace, cause))
    }

    fn open_socket(protocol: Option<Protocol>) -> Result<Self, Cause> {
        let fd = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)
            .map_err(|errno| transport("socket", errno))?;
        // A connected socket receives messages only from the kernel, which has port 0.
        rustix::net::connect(&fd, &SocketAddrNetlink::new(0, 0)).map_err(|errno| transport("connect", errno))?;
        // Enables extended acknowledgements, disables the echo of requests, and makes the kernel reject dump filters
        // that it does not support.
        for option in [libc::NETLINK_EXT_ACK, libc::NETLINK_CAP_ACK, libc::NETLINK_GET_STRICT_CHK] {
            enable(&fd, option)?;
        }
        Ok(Self { fd, sequence: 0, family_id: 0, buffer: Vec::new() })
    }

    /// The socket, for calls that accept any socket of this namespace.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Sends a request and waits for its acknowledgement. The content of a reply is discarded.
    pub(crate) fn act<R: NetlinkRequest>(
        &mut self,
        action: &'static str,
        target: &RequestTarget,
        request: &R,
    ) -> Result<(), NetlinkError> {
        let answer = self.collect(action, target, request, |_| Ok(())).map(drop);
        match &answer {
            Ok(()) => debug!(action, %target, "netlink request acknowledged"),
            Err(error) => debug!(%error, "netlink request failed"),
        }
        answer
    }

    pub(crate) fn get<R: NetlinkRequest, T>(
        &mut self,
        action: &'static str,
        target: &RequestTarget,
        request: &R,
        decode: impl FnMut(&[u8]) -> Result<T, Malformed>,
    ) -> Result<T, NetlinkError> {
        let mut replies = self.collect(action, target, request, decode)?;
        let reply = replies.pop().filter(|_| replies.is_empty());
        reply.ok_or_else(|| {
            let cause = Cause::Malformed(Malformed("not exactly one message"));
            NetlinkError::new(action, target.clone(), cause)
        })
    }

    /// Sends a request and decodes every message of the reply. If concurrent changes interrupt a dump, it is repeated a
    /// limited number of times.
    pub(crate) fn collect<R: NetlinkRequest, T>(
        &mut self,
        action: &'static str,
        target: &RequestTarget,
        request: &R,
        mut decode: impl FnMut(&[u8]) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, NetlinkError> {
        for _ in 0..DUMP_ATTEMPTS_MAX {
            match self.exchange(request, &mut decode) {
                Ok(replies) => {
                    trace!(action, %target, replies = replies.len(), "netlink request answered");
                    return Ok(replies);
                }
                Err(Interruption::Changed) => {
                    debug!(action, %target, "the objects changed during the dump; repeating it")
                }
                Err(Interruption::Failed(cause)) => {
                    let error = NetlinkError::new(action, target.clone(), cause);
                    trace!(%error, "netlink request failed");
                    return Err(error);
                }
            }
        }
        let cause = Cause::DumpInterrupted { attempts: DUMP_ATTEMPTS_MAX };
        Err(NetlinkError::new(action, target.clone(), cause))
    }

    fn exchange<R: NetlinkRequest, T>(
        &mut self,
        request: &R,
        decode: &mut impl FnMut(&[u8]) -> Result<T, Malformed>,
    ) -> Result<Vec<T>, Interruption> {
        self.send(request).map_err(Interruption::Failed)?;
        let mut replies = Vec::new();
        let mut interrupted = false;
        let mut first_malformed = None;
        loop {
            self.receive().map_err(Interruption::Failed)?;
            let mut rest = self.buffer.as_slice();
            while let Some(message) = next_message(&mut rest) {
                let message = message.map_err(failed_malformed)?;
                if message.sequence != self.sequence {
                    continue; // The message belongs to an earlier exchange that failed.
                }
                interrupted |= message.has_flag(libc::NLM_F_DUMP_INTR);
                if let Some(status) = message.status() {
                    let status = status.map_err(failed_malformed)?;
                    return finish(request, status, interrupted, first_malformed, replies);
                }
                // Read the reply to its end even if a part is malformed. Otherwise the next exchange would receive the
                // rest.
                match decode_content(&message, decode) {
                    Ok(reply) => replies.push(reply),
                    Err(malformed) => first_malformed = first_malformed.or(Some(malformed)),
                }
            }
        }
    }

    fn send<R: NetlinkRequest>(&mut self, request: &R) -> Result<(), Cause> {
        self.sequence = self.sequence.wrapping_add(1);
        let kind = match request.protocol() {
            RequestProtocol::Raw { request_type, .. } => request_type,
            RequestProtocol::Generic(_) => self.family_id,
        };
        let flags = request.flags() | (libc::NLM_F_REQUEST | libc::NLM_F_ACK) as u16;
        let length = u32::try_from(HEADER_BYTES + request.payload().len())
            .map_err(|_| Cause::Malformed(Malformed("the request is too long")))?;
        self.buffer.clear();
        self.buffer.extend(length.to_ne_bytes());
        self.buffer.extend(kind.to_ne_bytes());
        self.buffer.extend(flags.to_ne_bytes());
        self.buffer.extend(self.sequence.to_ne_bytes());
        self.buffer.extend(0_u32.to_ne_bytes());
        self.buffer.extend(request.payload());
        // The kernel accepts a datagram completely or not at all.
        rustix::io::retry_on_intr(|| rustix::net::send(&self.fd, &self.buffer, SendFlags::empty()))
            .map(drop)
            .map_err(|errno| transport("send", errno))
    }

    /// Receives the next datagram of any length into the buffer.
    fn receive(&mut self) -> Result<(), Cause> {
        let peek = RecvFlags::PEEK | RecvFlags::TRUNC;
        let (_, length) = self.receive_into(&mut [], peek)?;
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(length, 0);
        let received = self.receive_into(&mut buffer, RecvFlags::empty());
        self.buffer = buffer;
        received.map(drop)
    }

    fn receive_into(&self, buffer: &mut [u8], flags: RecvFlags) -> Result<(usize, usize), Cause> {
        rustix::io::retry_on_intr(|| rustix::net::recv(&self.fd, &mut *buffer, flags))
            .map_err(|errno| transport("recv", errno))
    }
}

/// Decodes a message with content. `NLMSG_NOOP` and other control messages (types below `NLMSG_MIN_TYPE`) have none.
fn decode_content<T>(
    message: &Message<'_>,
    decode: &mut impl FnMut(&[u8]) -> Result<T, Malformed>,
) -> Result<T, Malformed> {
    if i32::from(message.kind) < libc::NLMSG_MIN_TYPE {
        return Err(Malformed("an unexpected control message"));
    }
    decode(message.payload)
}

fn finish<R: NetlinkRequest, T>(
    request: &R,
    status: Status,
    interrupted: bool,
    malformed: Option<Malformed>,
    replies: Vec<T>,
) -> Result<Vec<T>, Interruption> {
    if status.errno != 0 {
        return Err(Interruption::Failed(refusal(request, status)));
    }
    if interrupted {
        return Err(Interruption::Changed);
    }
    match malformed {
        Some(malformed) => Err(failed_malformed(malformed)),
        None => Ok(replies),
    }
}

fn refusal<R: NetlinkRequest>(request: &R, status: Status) -> Cause {
    let attribute = blamed_attribute::<R>(request.payload(), &status);
    Cause::Refused { errno: status.errno, message: status.message, attribute, range: status.range }
}

fn blamed_attribute<R: NetlinkRequest>(payload: &[u8], status: &Status) -> Option<String> {
    let in_payload = |offset: usize| offset.checked_sub(HEADER_BYTES);
    if let Some((kind, nest)) = status.missing {
        let (_, name) = R::lookup(payload, in_payload(nest.unwrap_or(HEADER_BYTES))?, Some(kind));
        let name = name.map_or_else(|| kind.to_string(), kernel_spelling);
        return Some(format!("{name}, missing"));
    }
    let (trace, _) = R::lookup(payload, in_payload(status.offset?)?, None);
    trace.first().map(|(name, _)| kernel_spelling(name))
}

/// Converts an attribute name of the bindings (`DeferHardIrqs`) to the kernel's specification name (`defer-hard-irqs`).
fn kernel_spelling(name: &str) -> String {
    let mut spelled = String::with_capacity(name.len() + 4);
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !spelled.is_empty() {
            spelled.push('-');
        }
        spelled.push(letter.to_ascii_lowercase());
    }
    spelled
}

fn failed_malformed(malformed: Malformed) -> Interruption {
    Interruption::Failed(Cause::Malformed(malformed))
}

fn transport(call: &'static str, errno: Errno) -> Cause {
    Cause::Transport { call, errno: errno.raw_os_error() }
}

/// Sets a boolean option at level `SOL_NETLINK`. rustix does not support these options.
fn enable(fd: &OwnedFd, option: i32) -> Result<(), Cause> {
    let on: libc::c_int = 1;
    // SAFETY: pointer and length describe `on`, which outlives the call.
    let result = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_NETLINK,
            option,
            std::ptr::from_ref(&on).cast(),
            size_of_val(&on) as libc::socklen_t,
        )
    };
    if result == 0 {
        return Ok(());
    }
    let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    Err(Cause::Transport { call: "setsockopt", errno })
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_bindings::netdev;
    use proptest::prelude::*;

    #[test]
    fn attribute_names_are_those_of_the_kernels_specifications() {
        assert_eq!(kernel_spelling("DeferHardIrqs"), "defer-hard-irqs");
        assert_eq!(kernel_spelling("Id"), "id");
    }

    fn outcome(errno: i32, interrupted: bool, malformed: Option<Malformed>) -> Result<Vec<u8>, Interruption> {
        let request = netdev::Request::new().op_napi_get_dump();
        finish(&request, Status { errno, ..Status::default() }, interrupted, malformed, vec![1])
    }

    #[test]
    fn an_interrupted_dump_is_not_a_result() {
        assert!(matches!(outcome(0, false, None), Ok(replies) if replies == [1]));
        assert!(matches!(outcome(0, true, None), Err(Interruption::Changed)));
    }

    #[test]
    fn a_refusal_has_precedence_over_an_interruption_and_a_malformed_reply() {
        let refused = outcome(libc::EPERM, true, Some(Malformed("odd")));
        assert!(matches!(refused, Err(Interruption::Failed(Cause::Refused { errno: libc::EPERM, .. }))));
        let odd = outcome(0, false, Some(Malformed("odd")));
        assert!(matches!(odd, Err(Interruption::Failed(Cause::Malformed(_)))));
    }

    proptest! {
        #[test]
        fn any_attribute_offset_is_looked_up_without_panic(
            offset: Option<usize>,
            missing: Option<(u16, Option<usize>)>,
        ) {
            let mut request = netdev::Request::new().op_napi_set_do();
            drop(request.encode().push_id(1).push_defer_hard_irqs(2));
            let status = Status { offset, missing, ..Status::default() };
            let _ = blamed_attribute::<netdev::OpNapiSetDo<'_>>(request.payload(), &status);
        }
    }
}
