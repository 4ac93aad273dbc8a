//! The first request goes through the stack, which knows the route and asks for the neighbour. Its response arrives at
//! the AF_XDP socket and has the addresses of all layers. Requests from then on are frames of this program.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::time::Duration;

use quell_linux::af_xdp::XdpReceiver;
use quell_linux::clock::monotonic_ns;
use quell_linux::udp::UdpSocket;

use super::{XdpMoment, XdpProgress};
use crate::endpoint::Attached;
use crate::error::XdpError;
use crate::frame::UdpFrame;
use crate::request::{RequestFrame, payload, sequence_of};
use crate::spec::XdpLoadSpec;

/// Time limit: some drivers restart the device when a program is attached, which takes seconds.
const WITHIN: Duration = Duration::from_secs(10);
/// Time after which a request is repeated.
const AGAIN: Duration = Duration::from_millis(100);
/// Number that no request of the load has.
const FIRST: u64 = u64::MAX;

/// Sends requests through the stack until a response arrives at the AF_XDP socket.
pub(super) fn exchange(
    spec: &XdpLoadSpec,
    local: SocketAddr,
    number: u32,
    stack: &UdpSocket,
    receiver: &mut XdpReceiver,
    attached: &Attached,
    observe: &mut dyn FnMut(XdpProgress) -> ControlFlow<()>,
) -> Result<RequestFrame, XdpError> {
    let (server, bytes) = (spec.server, spec.bytes as usize);
    let device = attached.device();
    let request = payload(bytes, number, FIRST);
    let mut buffer = vec![0; bytes];
    let deadline_ns = monotonic_ns() + WITHIN.as_nanos() as u64;
    while monotonic_ns() < deadline_ns {
        let begins =
            XdpProgress { moment: XdpMoment::Tick, elapsed: Duration::ZERO, planned: Duration::ZERO, answered: 0 };
        if observe(begins).is_break() {
            return Err(XdpError::Cancelled);
        }
        // Errors are those of earlier requests, such as a port without a server; the server may still start.
        let _ = stack.send(&request);
        receiver.wait(AGAIN).map_err(XdpError::socket(device))?;
        let mut answer = None;
        while let Some(mut received) = receiver.receive() {
            let frame = receiver.content_mut(&mut received);
            if let Ok(parsed) = UdpFrame::parse(frame)
                && (parsed.source, parsed.destination) == (server, local)
                && sequence_of(&frame[parsed.payload()], bytes, number) == Some(FIRST)
            {
                answer = Some(RequestFrame::answering(frame, &parsed));
            }
            let _ = receiver.give(received.frame);
        }
        receiver.publish();
        if let Some(request) = answer {
            return Ok(request);
        }
        if stack.receive(&mut buffer).is_ok_and(|length| length == bytes) {
            return Err(attached.other_queue("responses", local));
        }
    }
    Err(XdpError::NoAnswer { server, within: WITHIN })
}
