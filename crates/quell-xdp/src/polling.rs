//! What the receiving thread does when the RX ring is empty, and the thread that polls for it.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use quell_linux::af_xdp::{XdpReceiver, XdpSender, XdpSocketError};
use quell_linux::clock::monotonic_ns;
use quell_linux::io_uring::NapiPoller;
use quell_linux::sched::{Policy, Scheduling, set_affinity, set_scheduling};
use quell_linux::udp::UdpSocket;
use quell_linux::{CpuList, Pid};
use quell_stats::LatencyHistogram;

use crate::endpoint::Attached;
use crate::error::XdpError;
use crate::spec::{PollWay, XdpSpec};

/// Longest sleep of a receiving thread. Then it looks whether it has to stop, and whether the device is still there.
const SLEEP: Duration = Duration::from_millis(20);
/// Time without a frame after which a thread that never sleeps looks whether the device is still there.
const QUIET_NS: u64 = 100_000_000;
/// Empty looks at the ring between two readings of the clock.
const LOOKS_PER_CLOCK: u32 = 4_096;
/// Time of one call of the thread that polls by an io_uring.
const RING_CALL: Duration = Duration::from_millis(1);

/// The way to poll of one receiving thread.
pub(crate) struct Poller {
    way: PollWay,
    spins: bool,
    ring: Option<NapiPoller>,
    udp: Option<UdpSocket>,
    thread: Option<PollThread>,
    calls: Option<LatencyHistogram>,
    system_calls: SystemCalls,
    looks: u32,
    /// Start of the time without frames.
    quiet_since_ns: u64,
}

impl Poller {
    /// Starts polling in the way of the socket's specification. `udp` is a UDP socket that has received from the queue,
    /// for the ways that poll by one.
    pub(crate) fn start(spec: &XdpSpec, attached: &Attached, mut udp: Option<UdpSocket>) -> Result<Self, XdpError> {
        let ring = || -> Result<NapiPoller, XdpError> {
            let in_thread = spec.way == PollWay::IoUringThread;
            let poller = NapiPoller::new(if in_thread { RING_CALL } else { Duration::ZERO })?;
            let unknown = || XdpError::NoNapi { device: attached.device().to_owned(), queue: spec.queue };
            poller.add(attached.napi()?.ok_or_else(unknown)?.id)?;
            Ok(poller)
        };
        let (mut of_receiver, mut thread) = (None, None);
        let system_calls = SystemCalls::default();
        match spec.way {
            PollWay::IoUring => of_receiver = Some(ring()?),
            PollWay::IoUringThread => {
                let ring = ring()?;
                thread = Some(PollThread::start(spec, &system_calls, move || ring.poll().map_err(XdpError::from))?);
            }
            PollWay::UdpBusyPollThread => {
                let udp = udp.take();
                let poll = move || udp.as_ref().map_or(Ok(()), poll_udp);
                thread = Some(PollThread::start(spec, &system_calls, poll)?);
            }
            PollWay::BusyPollThread => {
                let (handle, device) = (attached.handle.clone(), attached.device().to_owned());
                let poll = move || or_down(handle.kick()).map_err(XdpError::socket(&device));
                thread = Some(PollThread::start(spec, &system_calls, poll)?);
            }
            PollWay::UdpBusyPoll
            | PollWay::Interrupts
            | PollWay::BusyPoll
            | PollWay::NapiThread
            | PollWay::ThreadedBusyPoll => {}
        }
        let calls = spec.time_calls.then(LatencyHistogram::new);
        let spins = spec.spin || !spec.way.is_the_kernels();
        let quiet_since_ns = monotonic_ns();
        Ok(Self { way: spec.way, spins, ring: of_receiver, udp, thread, calls, system_calls, looks: 0, quiet_since_ns })
    }

    /// Thread that polls.
    pub(crate) fn tid(&self) -> Option<Pid> {
        self.thread.as_ref().map(|thread| thread.tid)
    }

    /// Counter of the system calls of the receiving thread and of the thread that polls.
    pub(crate) fn system_calls(&self) -> SystemCalls {
        self.system_calls.clone()
    }

    /// Frames were received.
    #[inline]
    pub(crate) fn found(&mut self) {
        self.looks = 0;
        self.quiet_since_ns = 0;
    }

    /// The RX ring is empty: polls, or sleeps, or returns at once so that the caller looks again.
    ///
    /// Errors: the device is gone, or the kernel refuses to poll.
    #[inline]
    pub(crate) fn look(&mut self, receiver: &XdpReceiver) -> Result<(), PollFailure> {
        match self.way {
            PollWay::BusyPoll => self.timed(|_| or_down(receiver.kick()).map_err(PollFailure::Socket)),
            PollWay::UdpBusyPoll => {
                self.timed(|poller| poller.udp.as_ref().map_or(Ok(()), poll_udp).map_err(PollFailure::Other))?;
                self.check_quiet(receiver)
            }
            PollWay::IoUring => {
                self.timed(|poller| {
                    let ring = poller.ring.as_ref();
                    ring.map_or(Ok(()), NapiPoller::poll).map_err(|error| PollFailure::Other(error.into()))
                })?;
                self.check_quiet(receiver)
            }
            _ if self.spins => {
                if receiver.needs_wakeup() {
                    self.system_calls.add();
                    or_down(receiver.kick())?;
                }
                std::hint::spin_loop();
                self.check_quiet(receiver)
            }
            _ => {
                self.system_calls.add();
                receiver.wait(SLEEP)?;
                self.looks += LOOKS_PER_CLOCK;
                self.check_quiet(receiver)
            }
        }
    }

    #[inline]
    fn timed(&mut self, poll: impl FnOnce(&Self) -> Result<(), PollFailure>) -> Result<(), PollFailure> {
        self.system_calls.add();
        if self.calls.is_none() {
            return poll(self);
        }
        let began_ns = monotonic_ns();
        let polled = poll(self);
        let took_ns = monotonic_ns() - began_ns;
        if let Some(calls) = &mut self.calls {
            calls.record(took_ns);
        }
        polled
    }

    /// Kicks if there was no frame for a while, because only a kick tells that the device is gone.
    #[inline]
    fn check_quiet(&mut self, receiver: &XdpReceiver) -> Result<(), PollFailure> {
        self.looks += 1;
        if self.looks < LOOKS_PER_CLOCK {
            return Ok(());
        }
        self.looks = 0;
        let now_ns = monotonic_ns();
        if self.quiet_since_ns == 0 {
            self.quiet_since_ns = now_ns;
        }
        if now_ns - self.quiet_since_ns > QUIET_NS {
            self.quiet_since_ns = now_ns;
            self.system_calls.add();
            or_down(receiver.kick())?;
            if let Some(failure) = self.thread.as_mut().and_then(PollThread::failure) {
                return Err(PollFailure::Other(failure));
            }
        }
        Ok(())
    }

    /// Durations of the receive calls, if they are measured.
    pub(crate) fn take_calls(&mut self) -> Option<LatencyHistogram> {
        self.calls.take()
    }
}

/// Number of system calls by which threads receive and poll.
#[derive(Debug, Clone, Default)]
pub(crate) struct SystemCalls(Arc<AtomicU64>);

impl SystemCalls {
    #[inline]
    fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn so_far(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Polls the queue once, and takes a datagram that nobody waits for. `__skb_recv_udp` (`net/ipv4/udp.c`) polls without
/// sleeping, as `xsk_recvmsg` does.
fn poll_udp(udp: &UdpSocket) -> Result<(), XdpError> {
    match udp.receive(&mut [0]) {
        Err(error)
            if !matches!(
                error.kind(),
                ErrorKind::WouldBlock | ErrorKind::ConnectionRefused | ErrorKind::Interrupted
            ) =>
        {
            Err(XdpError::system("poll by a UDP socket")(error))
        }
        _ => Ok(()),
    }
}

/// A device that is down can come up again; until then nothing arrives.
fn or_down(kicked: Result<(), XdpSocketError>) -> Result<(), XdpSocketError> {
    match kicked {
        Err(XdpSocketError::DeviceDown) => Ok(()),
        other => other,
    }
}

/// Publishes queued frames. While the device is down, they wait.
#[inline]
pub(crate) fn publish(sender: &XdpSender) -> Result<(), PollFailure> {
    Ok(or_down(sender.publish())?)
}

/// Why a thread cannot go on.
#[derive(Debug)]
pub(crate) enum PollFailure {
    Socket(XdpSocketError),
    Other(XdpError),
}

impl From<XdpSocketError> for PollFailure {
    fn from(error: XdpSocketError) -> Self {
        Self::Socket(error)
    }
}

impl PollFailure {
    pub(crate) fn on(self, device: &str) -> XdpError {
        match self {
            Self::Socket(source) => XdpError::socket(device)(source),
            Self::Other(error) => error,
        }
    }
}

/// A thread that polls without end, until this value is dropped.
struct PollThread {
    tid: Pid,
    stop: Arc<AtomicBool>,
    handle: Option<JoinHandle<Result<(), XdpError>>>,
}

impl PollThread {
    fn start(
        spec: &XdpSpec,
        system_calls: &SystemCalls,
        mut poll: impl FnMut() -> Result<(), XdpError> + Send + 'static,
    ) -> Result<Self, XdpError> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (sender, started) = channel();
        let (cpu, fifo_priority, system_calls) = (spec.poll_cpu, spec.fifo_priority, system_calls.clone());
        let handle = std::thread::Builder::new()
            .name("quell-xdp-poll".to_owned())
            .spawn(move || {
                let _ = sender.send(place(cpu, fifo_priority).map(|()| Pid::of_this_thread()));
                while !stopped.load(Ordering::Relaxed) {
                    system_calls.add();
                    poll()?;
                }
                Ok(())
            })
            .map_err(XdpError::system("start a thread that polls"))?;
        let tid = started.recv().map_err(|_| XdpError::ThreadLost)?;
        Ok(Self { tid: tid?, stop, handle: Some(handle) })
    }

    /// Why the thread has ended, if it has.
    fn failure(&mut self) -> Option<XdpError> {
        let ended = self.handle.take_if(|handle| handle.is_finished())?;
        Some(ended.join().ok().and_then(Result::err).unwrap_or(XdpError::ThreadLost))
    }
}

impl Drop for PollThread {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(handle) = self.handle.take() {
            let _ = handle.join();
        }
    }
}

/// Pins the calling thread, and sets its priority.
pub(crate) fn place(cpu: Option<u32>, fifo_priority: Option<u32>) -> Result<(), XdpError> {
    let this = Pid::of_this_thread();
    if let Some(priority) = fifo_priority {
        set_scheduling(this, Scheduling { policy: Policy::Fifo { priority }, reset_on_fork: false })?;
    }
    let pinned = cpu.map(|cpu| set_affinity(this, &CpuList::from_iter([cpu])));
    Ok(pinned.transpose().map(drop)?)
}
