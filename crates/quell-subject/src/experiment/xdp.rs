//! Experiments on the way in which the client of an AF_XDP load polls its queue. What a socket fixes when it is bound
//! is switched by binding another one: each slice has a socket of its own.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::time::Instant;

use quell_experiment::{ExperimentSubject, SetFailure, SliceFlag, SliceObservation};
use quell_linux::Pid;
use quell_linux::netns::{Namespace, NamespaceError};
use quell_linux::proc::ProcRoot;
use quell_load::is_backlog;
use quell_mode::{NapiSettings, Threaded};
use quell_result::figures::{POLLS, REQUESTS, Work};
use quell_result::published_xdp::{
    ANSWERED, CLIENT_CPU, FROM_SEND, NAPI_THREAD, ON_TIME, POLLER, RECEIVER, RESPONDER, SENDER, SYSTEM_CALLS,
    XdpPlacement, XdpWay, cpus_of, poll_share,
};
use quell_sampler::QueuePoller;
use quell_stats::LatencyHistogram;
use quell_xdp::{
    PollWay, XdpError, XdpLoadReport, XdpLoadSpec, XdpMoment, XdpProgress, XdpQueue, XdpSampler, XdpSchedule, XdpSpec,
};

use crate::lab::napi::{QueueError, Queues};

/// `napi_defer_hard_irqs` of the published script, if the program polls or a thread polls without end.
const DEFER_HARD_IRQS: u32 = 100;
/// `gro_flush_timeout` of the published script, in ns.
const GRO_FLUSH_TIMEOUT_NS: u64 = 15_000;
/// Priority of the client's threads under `SCHED_FIFO`, which the publication used, too: below that of NAPI threads and
/// of the responder, which share their CPUs. Under it, two threads that spin on one CPU would not take turns.
const LOAD_PRIORITY: u32 = 10;
/// Payload of a request and of its response, in bytes.
const BYTES: u32 = 64;

/// Why a way to poll was not set or not observed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum XdpSubjectError {
    #[error("the client's queue: {0}")]
    Queue(#[from] QueueError),
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    #[error(transparent)]
    Load(#[from] XdpError),
}

/// Settings of the client's queue, as in the published script, with its timeout this much longer.
fn napi(way: XdpWay, slowed_by: u32) -> NapiSettings {
    let (defer_hard_irqs, threaded) = match way.poller {
        PollWay::Interrupts => (0, Threaded::Off),
        PollWay::NapiThread => (0, Threaded::Thread),
        PollWay::ThreadedBusyPoll => (DEFER_HARD_IRQS, Threaded::BusyPoll),
        _ => (DEFER_HARD_IRQS, Threaded::Off),
    };
    let gro_flush_timeout_ns = GRO_FLUSH_TIMEOUT_NS * u64::from(slowed_by);
    NapiSettings { defer_hard_irqs, gro_flush_timeout_ns, irq_suspend_timeout_ns: 0, threaded }
}

/// Namespace and queue of a client.
pub(crate) struct XdpSide<'a> {
    pub(crate) namespace: &'a Namespace,
    pub(crate) queues: &'a mut Queues,
}

/// A client, under one rate and processing time.
pub(crate) struct XdpClient<'a> {
    side: XdpSide<'a>,
    placement: XdpPlacement,
    server: SocketAddr,
    responder: Pid,
    pub(crate) rate_kpps: f64,
    pub(crate) delay_us: f64,
    /// See [`quell_result::published_xdp::PublishedXdpRun::slowed_by`]. Such a client reports counts only.
    slowed_by: Option<u32>,
    pub(crate) stopped: &'a dyn Fn() -> bool,
    sampler: XdpSampler,
    way: XdpWay,
    queues: BTreeMap<String, XdpQueue>,
    napi_threads: Vec<Pid>,
    settle_ms: u32,
    slice_began: Instant,
}

/// A run of the load, with the run times of the threads beside it.
struct ObservedRun {
    report: XdpLoadReport,
    responder_ns: Option<u64>,
    napi_thread_ns: Option<u64>,
}

impl<'a> XdpClient<'a> {
    pub(crate) fn new(
        side: XdpSide<'a>,
        placement: XdpPlacement,
        (server, responder): (SocketAddr, Pid),
        slowed_by: Option<u32>,
        stopped: &'a dyn Fn() -> bool,
    ) -> Self {
        let (way, napi_threads, slice_began) = (XdpWay::default(), Vec::new(), Instant::now());
        Self {
            side,
            placement,
            server,
            responder,
            rate_kpps: 0.0,
            delay_us: 0.0,
            slowed_by,
            stopped,
            sampler: XdpSampler::attach(),
            way,
            queues: BTreeMap::new(),
            napi_threads,
            settle_ms: 0,
            slice_began,
        }
    }

    fn spec(&self, slice_ms: u32, time_calls: bool) -> XdpLoadSpec {
        let XdpPlacement { receiver, sender, poller } = self.placement;
        let XdpWay { poller: way, sleeps, .. } = self.way;
        let socket = XdpSpec {
            way,
            spin: way.is_the_kernels() && !sleeps,
            poll_cpu: poller.filter(|_| way.has_thread()),
            cpus: vec![receiver, sender],
            time_calls,
            // In a guest, it would starve the kernel's own threads, whose CPUs are slow.
            fifo_priority: (!self.placement.is_overcommitted() && self.slowed_by.is_none()).then_some(LOAD_PRIORITY),
            ..XdpSpec::default()
        };
        XdpLoadSpec {
            server: self.server,
            socket,
            schedule: XdpSchedule::Open { period_ns: 1e6 / self.rate_kpps },
            bytes: BYTES,
            delay_us: self.delay_us,
            warm_up_ms: self.settle_ms,
            measure_ms: slice_ms,
        }
    }

    /// Runs the load. `None` if it was stopped before its end.
    fn run(&mut self, slice_ms: u32, time_calls: bool) -> Result<Option<ObservedRun>, XdpSubjectError> {
        let spec = self.spec(slice_ms, time_calls);
        let (responder, napi_threads) = (self.responder, self.napi_threads.clone());
        let run_ns = || {
            let proc = ProcRoot::default();
            let responder = proc.process(Pid::of_this_process()).thread(responder).schedstat().ok();
            let napi_threads = napi_threads.iter().map(|thread| Some(proc.process(*thread).schedstat().ok()?.run_ns));
            (responder.map(|responder| responder.run_ns), napi_threads.sum::<Option<u64>>())
        };
        let mut readings = Vec::with_capacity(2);
        let (progress, asked) = std::sync::mpsc::channel();
        let (answer, answered) = std::sync::mpsc::channel();
        // The load runs in a thread of the namespace; this one may ask `stopped`, which is not `Sync`.
        let report = std::thread::scope(|scope| {
            let (namespace, sampler) = (self.side.namespace, &mut self.sampler);
            let running = scope.spawn(move || {
                Ok::<_, XdpSubjectError>(namespace.run(move || {
                    quell_xdp::run_sampled(&spec, sampler, &mut |now: XdpProgress| {
                        let _ = progress.send(now.moment);
                        answered.recv().unwrap_or(ControlFlow::Break(()))
                    })
                })??)
            });
            for moment in asked {
                if moment != XdpMoment::Tick {
                    readings.push(run_ns());
                }
                let next = if (self.stopped)() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) };
                let _ = answer.send(next);
            }
            running.join().unwrap_or(Err(XdpError::ThreadLost.into()))
        });
        let report = match report {
            Err(XdpSubjectError::Load(XdpError::Cancelled)) => return Ok(None),
            report => report?,
        };
        self.queues.insert(self.way.to_string(), report.queue.clone());
        if (self.stopped)() {
            return Ok(None);
        }
        let [before, after] = &*readings else {
            return Ok(Some(ObservedRun { report, responder_ns: None, napi_thread_ns: None }));
        };
        let increase = |(before, after): (u64, u64)| after.saturating_sub(before);
        Ok(Some(ObservedRun {
            report,
            responder_ns: before.0.zip(after.0).map(increase),
            napi_thread_ns: before.1.zip(after.1).map(increase),
        }))
    }

    /// Durations of the receive call of a way in which the receiving thread polls.
    pub(crate) fn receive_calls(
        &mut self,
        way: XdpWay,
        slice_ms: u32,
    ) -> Result<Option<LatencyHistogram>, XdpSubjectError> {
        self.switch_to(way)?;
        Ok(self.run(slice_ms, true)?.and_then(|run| run.report.receive_calls))
    }

    /// Socket and queue of the ways since the last call.
    pub(crate) fn take_queues(&mut self) -> BTreeMap<String, XdpQueue> {
        std::mem::take(&mut self.queues)
    }

    fn switch_to(&mut self, way: XdpWay) -> Result<(), QueueError> {
        let cpu = self.placement.poller.filter(|_| way.own_cpu).unwrap_or(self.placement.receiver);
        self.napi_threads = self.side.queues.set_with_threads(&napi(way, self.slowed_by.unwrap_or(1)), cpu)?;
        self.way = way;
        Ok(())
    }
}

impl ExperimentSubject for XdpClient<'_> {
    type Setting = XdpWay;
    type Error = XdpSubjectError;

    fn set(&mut self, way: &XdpWay) -> Result<(), SetFailure<XdpSubjectError>> {
        self.slice_began = Instant::now();
        self.switch_to(*way).map_err(|error| SetFailure::NotSettable(error.into()))
    }

    /// The load warms up instead, because its socket is bound for the slice.
    fn settle(&mut self, settle_ms: u32) -> Result<(), XdpSubjectError> {
        self.settle_ms = settle_ms;
        Ok(())
    }

    fn observe(&mut self, slice_ms: u32) -> Result<Option<SliceObservation>, XdpSubjectError> {
        let Some(run) = self.run(slice_ms, false)? else { return Ok(None) };
        let spent_ms = self.slice_began.elapsed().as_secs_f64() * 1e3;
        let observed = if self.slowed_by.is_some() { counts(&run.report) } else { observation(&run) };
        Ok(Some(SliceObservation { spent_ms, ..observed }))
    }

    fn leaves_out_setting(&self, error: &XdpSubjectError) -> bool {
        matches!(error, XdpSubjectError::Load(error) if error.is_unsupported())
    }

    /// On a busy machine, a response can take longer than a load waits for the first one.
    fn repeats_slice(&self, error: &XdpSubjectError) -> bool {
        matches!(error, XdpSubjectError::Load(XdpError::NoAnswer { .. }))
    }

    fn restore(&mut self) -> Result<(), XdpSubjectError> {
        Ok(self.side.queues.set_with_threads(&NapiSettings::default(), self.placement.receiver).map(drop)?)
    }
}

/// Counts of a run, without its times.
#[expect(clippy::cast_precision_loss, reason = "counts of one slice are far below 2^53")]
fn counts(report: &XdpLoadReport) -> SliceObservation {
    let per_request = |count: u64| (report.answered > 0).then(|| count as f64 / report.answered as f64);
    let requests = report.sent + report.never_sent;
    let answered = (requests > 0).then(|| report.answered as f64 / requests as f64);
    let mut slice = SliceObservation::default()
        .with_metric(ANSWERED, answered)
        .with_metric(SYSTEM_CALLS, per_request(report.system_calls));
    if let Some(polls) = report.polls.as_ref().filter(|polls| polls.total() > 0) {
        slice = slice.with_metric(&Work::Request.name(POLLS), per_request(polls.total()));
        for poller in QueuePoller::ALL {
            let share = poller.polls(polls) as f64 / polls.total() as f64;
            slice = slice.with_metric(&poll_share(poller), Some(share));
        }
    }
    slice
}

#[expect(clippy::cast_precision_loss, reason = "counts of one slice are far below 2^53")]
fn observation(run: &ObservedRun) -> SliceObservation {
    let ObservedRun { report, responder_ns, napi_thread_ns } = run;
    let of_thread = |name: &str| report.cpu.iter().find(|cpu| cpu.thread == name);
    let run_ns = |name: &str| of_thread(name).map(|cpu| cpu.run_ns);
    let share = |ns: u64| ns as f64 / report.duration_ns.max(1) as f64;
    let per_request = |count: f64| (report.answered > 0).then(|| count / report.answered as f64);
    let client_ns = run_ns(RECEIVER).map(|ns| ns + run_ns(POLLER).unwrap_or(0) + napi_thread_ns.unwrap_or(0));
    let requests = report.sent + report.never_sent;
    let from_send = report.latency_from_send.p50().map(|latency| latency.as_secs_f64() * 1e6);
    let mut slice = SliceObservation {
        latency: Some((&report.latency).into()),
        foreign_cpu: foreign_cpu(report, responder_ns.unwrap_or(0) + napi_thread_ns.unwrap_or(0)),
        flags: flags(report),
        ..counts(report)
    }
    .with_metric(REQUESTS, Some(report.answered_per_s))
    .with_metric(CLIENT_CPU, client_ns.and_then(|ns| per_request(ns as f64 / 1e3)))
    .with_metric(ON_TIME, (requests > 0).then(|| report.on_time as f64 / requests as f64))
    .with_metric(FROM_SEND, from_send);
    let threads = [
        (RECEIVER, run_ns(RECEIVER)),
        (SENDER, run_ns(SENDER)),
        (POLLER, run_ns(POLLER)),
        (NAPI_THREAD, napi_thread_ns.filter(|ns| *ns > 0)),
        (RESPONDER, *responder_ns),
    ];
    for (name, ns) in threads {
        slice = slice.with_metric(&cpus_of(name), ns.map(share));
    }
    slice
}

/// Share of the client's CPUs that others used: the time that its threads waited, without that of the responder and the
/// NAPI threads (`own_ns`), which share the CPUs by design.
#[expect(clippy::cast_precision_loss, reason = "nanoseconds of a slice are far below 2^53")]
fn foreign_cpu(report: &XdpLoadReport, own_ns: u64) -> Option<f64> {
    let waited_ns: u64 = report.cpu.iter().map(|cpu| cpu.wait_ns).sum();
    let all_ns = report.duration_ns * report.cpu.len() as u64;
    (all_ns > 0).then(|| (waited_ns.saturating_sub(own_ns) as f64 / all_ns as f64).min(1.0))
}

fn flags(report: &XdpLoadReport) -> std::collections::BTreeSet<SliceFlag> {
    let flags = [
        is_backlog(report.sent, report.never_sent).then_some(SliceFlag::Saturated),
        (report.lost > 0).then_some(SliceFlag::RequestsFailed),
        report.was_late().then_some(SliceFlag::LoadWasLate),
    ];
    flags.into_iter().flatten().collect()
}
