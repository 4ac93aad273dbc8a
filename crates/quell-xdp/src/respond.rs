//! The responder: one thread that turns each valid datagram into its answer, in place.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use quell_linux::Pid;
use quell_linux::af_xdp::{self, XdpReceiver, XdpSender, XdpSocketStats};
use quell_linux::clock::monotonic_ns;
use quell_linux::event::WakeEvent;
use quell_linux::tcp::Blocking;
use quell_linux::udp::UdpSocket;
use quell_stats::LatencyHistogram;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::endpoint::{Attached, Endpoint};
use crate::error::XdpError;
use crate::frame::UdpFrame;
use crate::polling::{PollFailure, Poller, place, publish};
use crate::report::XdpQueue;
use crate::spec::XdpSpec;

/// Configuration of a responder.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct XdpResponderSpec {
    /// Address of a device. With port 0 the kernel selects a port.
    pub address: SocketAddr,
    pub socket: XdpSpec,
    /// Time that the thread works before each response, in µs.
    pub work_us: f64,
}

/// Counters of a responder since its start.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct XdpResponderStats {
    /// Datagrams answered.
    pub answered: u64,
    /// Frames for the address that are not a valid datagram. They are dropped.
    pub invalid: u64,
    /// Drops of the socket. Null if they could not be read.
    pub socket: Option<XdpSocketStats>,
    /// Durations of the receive calls, if they were to be measured; known at the end.
    pub receive_calls: Option<LatencyHistogram>,
}

/// A running responder. Dropping it stops it, and detaches its program.
pub struct XdpResponder {
    address: SocketAddr,
    shared: Arc<Shared>,
    attached: Arc<Attached>,
    thread: Option<JoinHandle<Option<LatencyHistogram>>>,
    tid: Pid,
    /// Keeps other programs from using the port, and receives the requests that arrive on other queues.
    reserved: UdpSocket,
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    answered: AtomicU64,
    invalid: AtomicU64,
    failure: Mutex<Option<XdpError>>,
    /// Raised when the thread has failed.
    trouble: WakeEvent,
}

impl XdpResponder {
    /// Opens the socket and starts to answer. Nothing stays attached after an error.
    pub fn start(spec: &XdpResponderSpec) -> Result<Self, XdpError> {
        let address = spec.address;
        if spec.socket.way.is_of_udp() {
            return Err(XdpError::OnlyLoads { way: spec.socket.way.name() });
        }
        let reserve = || {
            let socket = UdpSocket::bind(address, false, Blocking::No)?;
            Ok((socket.local_address()?, socket))
        };
        let (address, reserved) = reserve().map_err(|source| XdpError::Reserve { address, source })?;
        let Endpoint { receiver, sender, frames: _, attached } = Endpoint::open(&spec.socket, address)?;
        let attached = Arc::new(attached);
        let poller = Poller::start(&spec.socket, &attached, None)?;
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            answered: AtomicU64::new(0),
            invalid: AtomicU64::new(0),
            failure: Mutex::default(),
            trouble: WakeEvent::new().map_err(XdpError::system("create an eventfd"))?,
        });
        let mut serving = Serving {
            receiver,
            sender,
            poller,
            address,
            work_ns: (spec.work_us * 1e3) as u64,
            batch: spec.socket.batch,
            shared: Arc::clone(&shared),
            attached: Arc::clone(&attached),
        };
        let (started, tid) = std::sync::mpsc::channel();
        let (cpu, fifo_priority) = (spec.socket.cpu(0), spec.socket.fifo_priority);
        let thread = std::thread::Builder::new()
            .name("quell-xdp".to_owned())
            .spawn(move || {
                let _ = started.send(place(cpu, fifo_priority).map(|()| Pid::of_this_thread()));
                serving.run()
            })
            .map_err(XdpError::system("start a responder thread"))?;
        let thread = Some(thread);
        let tid = tid.recv().map_err(|_| XdpError::ThreadLost)??;
        Ok(Self { address, shared, attached, thread, tid, reserved })
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    #[must_use]
    pub fn tid(&self) -> Pid {
        self.tid
    }

    /// The queue, as the kernel reports it now.
    pub fn queue(&self) -> Result<XdpQueue, XdpError> {
        self.attached.describe()
    }

    #[must_use]
    pub fn stats(&self) -> XdpResponderStats {
        XdpResponderStats {
            answered: self.shared.answered.load(Ordering::Relaxed),
            invalid: self.shared.invalid.load(Ordering::Relaxed),
            socket: af_xdp::stats(&self.attached.handle).ok(),
            receive_calls: None,
        }
    }

    /// Becomes readable when the responder has failed.
    #[must_use]
    pub fn trouble(&self) -> &WakeEvent {
        &self.shared.trouble
    }

    /// Becomes readable when a request arrives on a queue without the socket. Nobody answers it.
    #[must_use]
    pub fn stack(&self) -> &UdpSocket {
        &self.reserved
    }

    /// Takes one of those requests. Returns what is wrong if there was one.
    #[must_use]
    pub fn take_stray(&self) -> Option<XdpError> {
        let taken = self.reserved.receive(&mut [0]).is_ok();
        taken.then(|| self.attached.other_queue("requests", self.address))
    }

    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Stops the thread, detaches the program, and returns the counters, with the failure that ended the responder before.
    #[must_use]
    pub fn stop(mut self) -> (XdpResponderStats, Option<XdpError>) {
        let receive_calls = self.end();
        let stats = XdpResponderStats { receive_calls, ..self.stats() };
        let failure = self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner).take();
        (stats, failure)
    }

    fn end(&mut self) -> Option<LatencyHistogram> {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.thread.take().and_then(|thread| thread.join().ok().flatten())
    }
}

impl Drop for XdpResponder {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

struct Serving {
    receiver: XdpReceiver,
    sender: XdpSender,
    poller: Poller,
    address: SocketAddr,
    work_ns: u64,
    batch: u32,
    shared: Arc<Shared>,
    attached: Arc<Attached>,
}

impl Serving {
    fn run(&mut self) -> Option<LatencyHistogram> {
        if let Err(error) = self.serve() {
            *self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            let _ = self.shared.trouble.raise();
        }
        self.poller.take_calls()
    }

    fn serve(&mut self) -> Result<(), XdpError> {
        let mut is_first = true;
        while !self.shared.stop.load(Ordering::Relaxed) {
            let answered = self.answer_batch();
            if answered > 0 && std::mem::take(&mut is_first) {
                self.attached.check_busy_polling()?;
            }
            self.turn_rings(answered > 0).map_err(|failure| failure.on(self.attached.device()))?;
        }
        Ok(())
    }

    /// Publishes responses, and gives sent frames to the fill ring. Polls if there was nothing to answer.
    #[inline]
    fn turn_rings(&mut self, found: bool) -> Result<(), PollFailure> {
        if self.sender.waiting() > 0 || found {
            publish(&self.sender)?;
        }
        while let Some(frame) = self.sender.completed() {
            // The fill ring has room for all frames that do not wait for it.
            let _ = self.receiver.give(frame);
        }
        self.receiver.publish();
        if found {
            self.poller.found();
            return Ok(());
        }
        self.poller.look(&self.receiver)
    }

    /// Answers the frames of a batch. Returns their number.
    #[inline]
    fn answer_batch(&mut self) -> u32 {
        let (mut answered, mut invalid) = (0, 0);
        while answered + invalid < self.batch
            && let Some(mut received) = self.receiver.receive()
        {
            let frame = self.receiver.content_mut(&mut received);
            match UdpFrame::parse(frame) {
                Ok(request) if request.destination == self.address => {
                    work(self.work_ns);
                    request.turn(frame);
                    answered += 1;
                    // The TX ring has room for all frames that can be received.
                    let _ = self.sender.queue_received(received);
                }
                _ => {
                    invalid += 1;
                    let _ = self.receiver.give(received.frame);
                }
            }
        }
        if answered > 0 {
            self.shared.answered.fetch_add(answered.into(), Ordering::Relaxed);
        }
        if invalid > 0 {
            self.shared.invalid.fetch_add(invalid.into(), Ordering::Relaxed);
        }
        answered
    }
}

/// Uses the CPU for this time.
#[inline]
pub(crate) fn work(ns: u64) {
    if ns == 0 {
        return;
    }
    let until = monotonic_ns() + ns;
    while monotonic_ns() < until {
        std::hint::spin_loop();
    }
}
