//! The load: a first request through the stack, then requests by a schedule (open loop) or by responses (closed loop).

mod handshake;
mod threads;

use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use quell_linux::af_xdp;
use quell_linux::clock::monotonic_ns;
use quell_linux::proc::ProcRoot;
use quell_linux::sysfs::Sysfs;
use quell_linux::udp::UdpSocket;
use quell_linux::{NapiId, Pid};
use quell_sampler::{PollCounters, PollsByPoller, Sampler};

use self::threads::{ClosedLoop, Receiving, Sending};
use crate::endpoint::{Attached, Endpoint};
use crate::error::XdpError;
use crate::outstanding::{OPEN_LOOP, Outstanding};
use crate::polling::{Poller, SystemCalls, place};
use crate::report::{XdpCpu, XdpLoadReport};
use crate::spec::{XdpLoadSpec, XdpSchedule};

/// Time between the start of the threads and the first request, so that none of them is late.
const LEAD: Duration = Duration::from_millis(20);
/// Time that the program waits for responses after the last request.
const DRAIN: Duration = Duration::from_millis(200);
/// Interval at which the observer is called.
const TICK: Duration = Duration::from_millis(20);

/// When an observer is called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XdpMoment {
    /// About every 20 ms.
    Tick,
    /// The measured window has begun.
    WindowBegan,
    /// The measured window has ended; the threads still exist.
    WindowEnded,
}

/// Progress of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct XdpProgress {
    pub moment: XdpMoment,
    /// Time since the first request.
    pub elapsed: Duration,
    /// Warm-up and measured time.
    pub planned: Duration,
    /// Responses so far.
    pub answered: u64,
}

/// State that the threads of a run share.
struct Run<'a> {
    spec: &'a XdpLoadSpec,
    outstanding: Outstanding,
    /// Time of the first request.
    start_ns: u64,
    /// Start of the measured window.
    from_ns: u64,
    /// End of the measured window. It moves to the present when the run is cancelled.
    until_ns: AtomicU64,
    /// Set when a thread has failed.
    stop: AtomicBool,
    /// Requests sent, once the sender has ended.
    sent: AtomicU64,
    sender_ended: AtomicBool,
    answered: AtomicU64,
}

impl Run<'_> {
    fn until_ns(&self) -> u64 {
        self.until_ns.load(Ordering::Relaxed)
    }

    #[inline]
    fn is_measured(&self, due_ns: u64) -> bool {
        due_ns >= self.from_ns && due_ns < self.until_ns()
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Ends the run early, at the end of the window or after a failure.
    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
        self.until_ns.fetch_min(monotonic_ns(), Ordering::Relaxed);
    }
}

/// Runs a load from the network namespace of the calling thread. `observe` is called about every 20 ms, and at both
/// ends of the measured window; `Break` ends the run, whose report then covers the time so far.
pub fn run(
    spec: &XdpLoadSpec,
    observe: &mut dyn FnMut(XdpProgress) -> ControlFlow<()>,
) -> Result<XdpLoadReport, XdpError> {
    run_sampled(spec, &mut XdpSampler::attach(), observe)
}

/// As [`run`], with a sampler of polls that serves several runs: to attach one takes as long as a short run.
pub fn run_sampled(
    spec: &XdpLoadSpec,
    sampler: &mut XdpSampler,
    observe: &mut dyn FnMut(XdpProgress) -> ControlFlow<()>,
) -> Result<XdpLoadReport, XdpError> {
    spec.check()?;
    let server = spec.server;
    let reserve = || {
        let socket = UdpSocket::connect(server)?;
        Ok((socket.local_address()?, socket))
    };
    let (local, reserved) = reserve().map_err(|source| XdpError::Reserve { address: server, source })?;
    let Endpoint { mut receiver, sender, frames, attached } = Endpoint::open(&spec.socket, local)?;
    let number = monotonic_ns() as u32;
    let request = handshake::exchange(spec, local, number, &reserved, &mut receiver, &attached, observe)?;
    attached.check_busy_polling()?;
    let udp = spec.socket.way.is_of_udp().then(|| handshake::udp_of_queue(spec, number, &attached, observe));
    let poller = Poller::start(&spec.socket, &attached, udp.transpose()?)?;
    let counted = Counted { polls: sampler.select(&attached), system_calls: poller.system_calls() };

    let start_ns = monotonic_ns() + LEAD.as_nanos() as u64;
    let from_ns = start_ns + u64::from(spec.warm_up_ms) * 1_000_000;
    let until_ns = from_ns + u64::from(spec.measure_ms) * 1_000_000;
    let room = match spec.schedule {
        XdpSchedule::Open { .. } => OPEN_LOOP,
        // A lost request keeps its place while others go on.
        XdpSchedule::Closed { depth } => (8 * depth as usize).next_power_of_two(),
    };
    let run = Run {
        spec,
        outstanding: Outstanding::new(room),
        start_ns,
        from_ns,
        until_ns: AtomicU64::new(until_ns),
        stop: AtomicBool::new(false),
        sent: AtomicU64::new(0),
        sender_ended: AtomicBool::new(false),
        answered: AtomicU64::new(0),
    };
    let poll_thread = poller.tid();
    let receiving = Receiving::new(&run, receiver, poller, local, number);
    let sending = Sending::new(&run, sender, frames, request);
    let device = attached.device();
    // Threads exist until their CPU time has been read.
    let is_read = Mutex::new(());
    let until_read = || drop(is_read.lock());
    std::thread::scope(|scope| {
        let reading = is_read.lock();
        let (told, tids) = std::sync::mpsc::channel();
        let start = |name: &'static str, at: usize| {
            let (told, cpu, run) = (told.clone(), spec.socket.cpu(at), &run);
            move || {
                let _ = told.send((name, cpu, Pid::of_this_thread()));
                place(cpu, spec.socket.fifo_priority).inspect_err(|_| run.stop())
            }
        };
        let (receiver, sender) = match spec.schedule {
            XdpSchedule::Open { period_ns } => {
                let (begin, begin_sender) = (start("receiver", 0), start("sender", 1));
                let receiver = scope.spawn(move || {
                    let outcome = begin().and_then(|()| receiving.until_drained(period_ns, device));
                    until_read();
                    outcome
                });
                let sender = scope.spawn(move || {
                    let outcome = begin_sender().and_then(|()| sending.by_schedule(period_ns, device));
                    until_read();
                    outcome
                });
                (receiver, Some(sender))
            }
            XdpSchedule::Closed { depth } => {
                let begin = start("receiver", 0);
                let both = ClosedLoop { receiving, sending, depth };
                let receiver = scope.spawn(move || {
                    let outcome = begin().and_then(|()| both.run(device));
                    until_read();
                    outcome
                });
                (receiver, None)
            }
        };
        let threads = 1 + usize::from(sender.is_some());
        let mut watched: Vec<Watched> =
            tids.iter().take(threads).map(|(name, cpu, tid)| Watched::new(name, cpu, tid)).collect();
        watched.sort_by_key(|watched| watched.cpu.thread == "sender");
        watched.extend(poll_thread.map(|tid| Watched::new("poller", spec.socket.poll_cpu, tid)));
        let window = watch(&run, &mut watched, &counted, observe);
        drop(reading);
        let sent = sender.map(join).transpose();
        let mut outcome = join(receiver)?;
        if let Some(sent) = sent? {
            outcome.sent = sent;
        }
        report(&run, &attached, outcome, watched, window, counted.polls.err())
    })
}

fn join<T>(thread: ScopedJoinHandle<'_, Result<T, XdpError>>) -> Result<T, XdpError> {
    thread.join().map_err(|_| XdpError::ThreadLost)?
}

/// A thread whose CPU time is reported.
struct Watched {
    cpu: XdpCpu,
    tid: Pid,
    /// Run time and waiting time at the start of the window.
    before: Option<(u64, u64)>,
    is_known: bool,
}

impl Watched {
    fn new(thread: &str, cpu: Option<u32>, tid: Pid) -> Self {
        let cpu = XdpCpu { thread: thread.to_owned(), cpu, run_ns: 0, wait_ns: 0 };
        Self { cpu, tid, before: None, is_known: false }
    }

    fn now(&self) -> Option<(u64, u64)> {
        let process = ProcRoot::default().process(Pid::of_this_process());
        let schedstat = process.thread(self.tid).schedstat().ok()?;
        Some((schedstat.run_ns, schedstat.wait_ns))
    }

    fn begin(&mut self) {
        self.before = self.now();
    }

    fn end(&mut self) {
        if let (Some(before), Some(after)) = (self.before, self.now()) {
            (self.cpu.run_ns, self.cpu.wait_ns) = (after.0.saturating_sub(before.0), after.1.saturating_sub(before.1));
            self.is_known = true;
        }
    }
}

/// Samples the polls of a load's queue.
pub struct XdpSampler(Result<Sampler, String>);

impl XdpSampler {
    /// Attaches a sampler. If the kernel refuses it, the reason is in the reports.
    #[must_use]
    pub fn attach() -> Self {
        Self(Sampler::attach(Sysfs::default().path()).map_err(|error| error.to_string()))
    }

    fn select(&mut self, attached: &Attached) -> Result<(&Sampler, NapiId), String> {
        let napi = attached.napi().map_err(|error| error.to_string())?;
        let napi = napi.ok_or("the NAPI instance of the queue is unknown")?.id;
        let sampler = self.0.as_mut().map_err(|why| why.clone())?;
        sampler.select_all([napi].into()).map_err(|error| error.to_string())?;
        Ok((sampler, napi))
    }
}

/// What is counted at both ends of the window.
struct Counted<'a> {
    /// Sampler of the queue's polls, or the reason why polls cannot be sampled.
    polls: Result<(&'a Sampler, NapiId), String>,
    system_calls: SystemCalls,
}

impl Counted<'_> {
    fn read(&self) -> (Option<PollCounters>, u64) {
        let of_queue = |(sampler, napi): &(&Sampler, NapiId)| sampler.read().ok()?.remove(napi);
        (self.polls.as_ref().ok().and_then(of_queue), self.system_calls.so_far())
    }
}

/// Polls and system calls in the window.
#[derive(Default)]
struct Window {
    polls: Option<PollsByPoller>,
    system_calls: u64,
}

/// Waits for the end of the run. Reads what is to be compared at both ends of the window.
fn watch(
    run: &Run<'_>,
    watched: &mut [Watched],
    counted: &Counted<'_>,
    observe: &mut dyn FnMut(XdpProgress) -> ControlFlow<()>,
) -> Window {
    let progress = |moment, now_ns: u64| XdpProgress {
        moment,
        elapsed: Duration::from_nanos(now_ns.saturating_sub(run.start_ns)),
        planned: Duration::from_nanos(run.until_ns().saturating_sub(run.start_ns)),
        answered: run.answered.load(Ordering::Relaxed),
    };
    let mut before = None;
    loop {
        let now_ns = monotonic_ns();
        let has_begun = now_ns >= run.from_ns;
        let mut moment = XdpMoment::Tick;
        if has_begun && before.is_none() {
            before = Some(counted.read());
            watched.iter_mut().for_each(Watched::begin);
            moment = XdpMoment::WindowBegan;
        }
        if now_ns >= run.until_ns() {
            watched.iter_mut().for_each(Watched::end);
            let _ = observe(progress(XdpMoment::WindowEnded, now_ns));
            let Some((polls, system_calls)) = before else { return Window::default() };
            let (polls_now, system_calls_now) = counted.read();
            return Window {
                polls: polls_now.map(|now| now.since(polls.as_ref()).polls),
                system_calls: system_calls_now - system_calls,
            };
        }
        if observe(progress(moment, now_ns)).is_break() {
            run.until_ns.fetch_min(monotonic_ns(), Ordering::Relaxed);
            continue;
        }
        let boundary_ns = if has_begun { run.until_ns() } else { run.from_ns };
        std::thread::sleep(TICK.min(Duration::from_nanos(boundary_ns.saturating_sub(now_ns))));
    }
}

fn report(
    run: &Run<'_>,
    attached: &Attached,
    outcome: threads::Outcome,
    watched: Vec<Watched>,
    window: Window,
    polls_missing: Option<String>,
) -> Result<XdpLoadReport, XdpError> {
    let duration_ns = run.until_ns().saturating_sub(run.from_ns).max(1);
    let lost = run.outstanding.all().filter(|times| run.is_measured(times.due_ns)).count() as u64;
    let threads::Outcome { sent, received, mut poller } = outcome;
    Ok(XdpLoadReport {
        queue: attached.describe()?,
        duration_ns,
        sent: sent.sent,
        never_sent: sent.never_sent,
        answered: received.answered,
        answered_per_s: received.answered as f64 * 1e9 / duration_ns as f64,
        lost: lost + sent.given_up,
        late: received.late,
        unexpected: received.unexpected,
        invalid: received.invalid,
        latency: received.latency,
        latency_from_send: received.latency_from_send,
        lateness: sent.lateness,
        on_time: sent.on_time,
        receive_calls: poller.take_calls(),
        cpu: watched.into_iter().filter(|watched| watched.is_known).map(|watched| watched.cpu).collect(),
        polls: window.polls,
        polls_missing,
        system_calls: window.system_calls,
        socket: af_xdp::stats(&attached.handle).ok(),
    })
}
