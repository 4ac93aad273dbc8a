//! The threads of a load: one that receives, one that sends by a schedule, or one that does both in turn.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::time::Duration;

use quell_linux::af_xdp::{Frame, XdpReceiver, XdpSender};
use quell_linux::clock::monotonic_ns;
use quell_stats::LatencyHistogram;

use super::{DRAIN, Run};
use crate::error::XdpError;
use crate::frame::UdpFrame;
use crate::outstanding::RequestTimes;
use crate::polling::{PollFailure, Poller, publish};
use crate::report::XdpLoadReport;
use crate::request::{RequestFrame, sequence_of};
use crate::respond::work;
use crate::spec::XdpSchedule;

/// Time after which a closed loop gives a request up and sends another one.
const GIVEN_UP_NS: u64 = 100_000_000;
const ON_TIME_NS: u64 = XdpLoadReport::ON_TIME.as_nanos() as u64;

pub(super) struct Outcome {
    pub(super) sent: Sent,
    pub(super) received: Received,
    /// Its thread exists until the CPU time of all threads has been read.
    pub(super) poller: Poller,
}

/// What the sender counts. All numbers are of requests in the measured window.
#[derive(Debug, Default)]
pub(super) struct Sent {
    pub(super) sent: u64,
    pub(super) never_sent: u64,
    pub(super) given_up: u64,
    pub(super) on_time: u64,
    pub(super) lateness: LatencyHistogram,
}

/// What the receiver counts.
#[derive(Debug, Default)]
pub(super) struct Received {
    pub(super) answered: u64,
    pub(super) late: u64,
    pub(super) unexpected: u64,
    pub(super) invalid: u64,
    pub(super) latency: LatencyHistogram,
    pub(super) latency_from_send: LatencyHistogram,
}

pub(super) struct Receiving<'a> {
    run: &'a Run<'a>,
    receiver: XdpReceiver,
    poller: Poller,
    local: SocketAddr,
    number: u32,
    delay_ns: u64,
    is_open: bool,
    /// Responses in and outside the window.
    total: u64,
    received: Received,
}

impl<'a> Receiving<'a> {
    pub(super) fn new(run: &'a Run<'a>, receiver: XdpReceiver, poller: Poller, local: SocketAddr, number: u32) -> Self {
        let delay_ns = (run.spec.delay_us * 1e3) as u64;
        let is_open = matches!(run.spec.schedule, XdpSchedule::Open { .. });
        Self { run, receiver, poller, local, number, delay_ns, is_open, total: 0, received: Received::default() }
    }

    /// Receives until all requests have their responses, or the time to wait for them is over.
    pub(super) fn until_drained(mut self, period_ns: f64, device: &str) -> Result<Outcome, XdpError> {
        self.receive_all(period_ns).map_err(|failure| {
            self.run.stop();
            failure.on(device)
        })?;
        Ok(self.outcome(Sent::default()))
    }

    fn receive_all(&mut self, period_ns: f64) -> Result<(), PollFailure> {
        while !self.is_drained() {
            if self.take_batch(period_ns as u64) == 0 {
                self.poller.look(&self.receiver)?;
            } else {
                self.poller.found();
            }
        }
        Ok(())
    }

    fn is_drained(&self) -> bool {
        let run = self.run;
        if !run.sender_ended.load(Ordering::Acquire) {
            return run.is_stopped();
        }
        self.total >= run.sent.load(Ordering::Relaxed)
            || monotonic_ns() > run.until_ns() + DRAIN.as_nanos() as u64
            || run.is_stopped()
    }

    fn outcome(self, sent: Sent) -> Outcome {
        Outcome { sent, received: self.received, poller: self.poller }
    }

    /// Takes the responses of a batch. Returns the number of requests that have their response now. A response is late
    /// after `late_ns`.
    #[inline]
    fn take_batch(&mut self, late_ns: u64) -> u32 {
        let (mut taken, mut answered, mut now_ns) = (0, 0, 0);
        while taken < self.run.spec.socket.batch
            && let Some(mut frame) = self.receiver.receive()
        {
            taken += 1;
            let sequence = self.sequence_of(self.receiver.content_mut(&mut frame));
            let _ = self.receiver.give(frame.frame);
            let Some(sequence) = sequence else {
                self.received.invalid += 1;
                continue;
            };
            // A closed loop measures the rate: it reads the clock once per batch.
            if now_ns == 0 || self.is_open || self.delay_ns > 0 {
                now_ns = monotonic_ns();
            }
            let Some(times) = self.run.outstanding.remove(sequence) else {
                self.received.unexpected += 1;
                continue;
            };
            answered += 1;
            if self.run.is_measured(times.due_ns) {
                self.received.answered += 1;
                let latency_ns = now_ns.saturating_sub(times.due_ns);
                self.received.latency.record(latency_ns);
                // In a closed loop, a request is due when it is sent.
                if self.is_open {
                    self.received.latency_from_send.record(now_ns.saturating_sub(times.sent_ns));
                }
                self.received.late += u64::from(latency_ns > late_ns);
            }
            work(self.delay_ns);
        }
        if taken > 0 {
            self.receiver.publish();
            self.total += u64::from(answered);
            self.run.answered.store(self.total, Ordering::Relaxed);
        }
        answered
    }

    /// Number of the request that this frame answers.
    #[inline]
    fn sequence_of(&self, frame: &[u8]) -> Option<u64> {
        let spec = self.run.spec;
        let parsed = UdpFrame::parse(frame).ok()?;
        let is_ours = (parsed.source, parsed.destination) == (spec.server, self.local);
        is_ours.then(|| sequence_of(&frame[parsed.payload()], spec.bytes as usize, self.number))?
    }
}

pub(super) struct Sending<'a> {
    run: &'a Run<'a>,
    sender: XdpSender,
    /// Frames that can be sent.
    frames: Vec<Frame>,
    request: RequestFrame,
    /// Number of the next request.
    next: u64,
    sent: Sent,
    /// Requests that were given up for later ones, in and outside the window.
    displaced: u32,
}

impl<'a> Sending<'a> {
    pub(super) fn new(run: &'a Run<'a>, sender: XdpSender, frames: Vec<Frame>, request: RequestFrame) -> Self {
        Self { run, sender, frames, request, next: 0, sent: Sent::default(), displaced: 0 }
    }

    /// Sends until the end of the window. Late requests are sent at once, one after the other.
    pub(super) fn by_schedule(mut self, period_ns: f64, device: &str) -> Result<Sent, XdpError> {
        let run = self.run;
        let due_ns = |number: u64| run.start_ns + (number as f64 * period_ns) as u64;
        let mut failed = Ok(());
        while failed.is_ok() && !run.is_stopped() {
            let now_ns = monotonic_ns();
            if now_ns >= run.until_ns() {
                break;
            }
            let due = due_ns(self.next);
            if now_ns < due {
                std::hint::spin_loop();
                continue;
            }
            let is_queued = self.queue(due, now_ns);
            if is_queued || self.sender.waiting() > 0 {
                failed = publish(&self.sender);
            }
        }
        let first = self.next;
        while due_ns(self.next) < run.until_ns() {
            self.sent.never_sent += u64::from(run.is_measured(due_ns(self.next)));
            self.next += 1;
        }
        run.sent.store(first, Ordering::Relaxed);
        run.sender_ended.store(true, Ordering::Release);
        failed.map_err(|failure| {
            run.stop();
            failure.on(device)
        })?;
        Ok(self.sent)
    }

    /// Queues the next request. Returns `false` if there is no frame for it.
    #[inline]
    fn queue(&mut self, due_ns: u64, now_ns: u64) -> bool {
        // Sent frames first: the kernel sends nothing while the completion ring is full.
        let Some(mut frame) = self.sender.completed().or_else(|| self.frames.pop()) else { return false };
        let length = self.request.write(self.next, self.sender.content_mut(&mut frame));
        if let Err(frame) = self.sender.queue(frame, length) {
            self.frames.push(frame);
            return false;
        }
        let times = RequestTimes { due_ns, sent_ns: now_ns };
        if let Some(given_up) = self.run.outstanding.enter(self.next, times) {
            self.displaced += 1;
            self.sent.given_up += u64::from(self.run.is_measured(given_up.due_ns));
        }
        if self.run.is_measured(due_ns) {
            self.sent.sent += 1;
            let late_ns = now_ns.saturating_sub(due_ns);
            self.sent.lateness.record(late_ns);
            self.sent.on_time += u64::from(late_ns <= ON_TIME_NS);
        }
        self.next += 1;
        true
    }
}

/// One thread that keeps a number of requests outstanding.
pub(super) struct ClosedLoop<'a> {
    pub(super) receiving: Receiving<'a>,
    pub(super) sending: Sending<'a>,
    pub(super) depth: u32,
}

impl ClosedLoop<'_> {
    pub(super) fn run(mut self, device: &str) -> Result<Outcome, XdpError> {
        self.send_and_receive().map_err(|failure| {
            self.receiving.run.stop();
            failure.on(device)
        })?;
        let mut sent = self.sending.sent;
        // A closed loop has no due times.
        (sent.lateness, sent.on_time) = (LatencyHistogram::new(), 0);
        self.receiving.received.latency_from_send = self.receiving.received.latency.clone();
        Ok(self.receiving.outcome(sent))
    }

    fn send_and_receive(&mut self) -> Result<(), PollFailure> {
        let run = self.receiving.run;
        let (mut outstanding, mut oldest) = (0_u32, 0_u64);
        let drained_ns = || run.until_ns() + DRAIN.as_nanos() as u64;
        std::thread::sleep(Duration::from_nanos(run.start_ns.saturating_sub(monotonic_ns())));
        loop {
            let now_ns = monotonic_ns();
            let goes_on = now_ns < run.until_ns();
            if !goes_on && (outstanding == 0 || now_ns > drained_ns()) {
                return Ok(());
            }
            let mut is_queued = false;
            while goes_on && outstanding < self.depth && self.sending.queue(now_ns, now_ns) {
                outstanding += 1;
                is_queued = true;
            }
            outstanding -= std::mem::take(&mut self.sending.displaced);
            if is_queued || self.sending.sender.waiting() > 0 {
                publish(&self.sending.sender)?;
            }
            let answered = self.receiving.take_batch(u64::MAX);
            outstanding = outstanding.saturating_sub(answered);
            if answered > 0 {
                self.receiving.poller.found();
                continue;
            }
            while oldest < self.sending.next {
                match run.outstanding.times(oldest) {
                    Some(times) if now_ns.saturating_sub(times.sent_ns) < GIVEN_UP_NS => break,
                    Some(times) if goes_on => {
                        run.outstanding.remove(oldest);
                        outstanding = outstanding.saturating_sub(1);
                        self.sending.sent.given_up += u64::from(run.is_measured(times.due_ns));
                    }
                    Some(_) => break,
                    None => {}
                }
                oldest += 1;
            }
            self.receiving.poller.look(&self.receiving.receiver)?;
        }
    }
}
