//! The first request goes through the stack, which knows the route and asks for the neighbour. Its response arrives at
//! the AF_XDP socket and has the addresses of all layers. Requests from then on are frames of this program.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::time::Duration;

use quell_linux::af_xdp::XdpReceiver;
use quell_linux::clock::monotonic_ns;
use quell_linux::socket_options::{incoming_napi_id, set_busy_polling};
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
/// Time limit for a UDP socket that receives from the queue.
const UDP_WITHIN: Duration = Duration::from_secs(2);
/// Interval between two looks whether it has received.
const UDP_LOOKS: Duration = Duration::from_micros(200);
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
        check_cancelled(observe)?;
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

/// A UDP socket with the NAPI ID of the queue: its request and its response go through the stack, because the XDP
/// program takes only those of the load's port. On a device with several queues, another port can have another queue.
pub(super) fn udp_of_queue(
    spec: &XdpLoadSpec,
    number: u32,
    attached: &Attached,
    observe: &mut dyn FnMut(XdpProgress) -> ControlFlow<()>,
) -> Result<UdpSocket, XdpError> {
    let (server, bytes) = (spec.server, spec.bytes as usize);
    let request = payload(bytes, number, FIRST);
    let unknown = || XdpError::NoNapi { device: attached.device().to_owned(), queue: spec.socket.queue };
    let napi = attached.napi()?.ok_or_else(unknown)?.id;
    let deadline_ns = monotonic_ns() + UDP_WITHIN.as_nanos() as u64;
    while monotonic_ns() < deadline_ns {
        check_cancelled(observe)?;
        let socket = UdpSocket::connect(server).map_err(|source| XdpError::Reserve { address: server, source })?;
        let _ = socket.send(&request);
        let again_ns = monotonic_ns() + AGAIN.as_nanos() as u64;
        while monotonic_ns() < again_ns && socket.receive(&mut [0]).is_err() {
            std::thread::sleep(UDP_LOOKS);
        }
        if incoming_napi_id(&socket)? == Some(napi) {
            set_busy_polling(&socket, spec.socket.busy_poll_us, spec.socket.busy_poll_budget)?;
            return Ok(socket);
        }
    }
    Err(XdpError::NoUdpSocket { device: attached.device().to_owned(), queue: spec.socket.queue, within: UDP_WITHIN })
}

fn check_cancelled(observe: &mut dyn FnMut(XdpProgress) -> ControlFlow<()>) -> Result<(), XdpError> {
    let begins = XdpProgress { moment: XdpMoment::Tick, elapsed: Duration::ZERO, planned: Duration::ZERO, answered: 0 };
    if observe(begins).is_break() { Err(XdpError::Cancelled) } else { Ok(()) }
}
