//! Public interface of the generator: threads whose connections last for several runs, runs with an observer, and a
//! report.

mod running;

use std::collections::BTreeSet;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quell_linux::clock::monotonic_ns;
use quell_linux::netns::Namespace;
use quell_linux::proc::ProcRoot;
use quell_linux::{NapiId, Pid};

use crate::arrivals::Arrivals;
use crate::drive::{Pace, Plan, WindowPort};
use crate::error::LoadError;
use crate::random::{Purpose, Stream};
use crate::report::{EngineUsed, GeneratorCpu, LoadReport, Tally};
use crate::requests::{Content, Request, Source};
use crate::spec::{LoadSpec, RunSpec, Schedule};
use crate::worker::{Assignment, Done, Ready, work};

pub use running::RunningLoad;

/// Time for the threads to receive their plans before the first request is due, ns.
const LEAD_NS: u64 = 5_000_000;

/// Interval at which an observer receives progress and can cancel.
const TICK: Duration = Duration::from_millis(20);

/// Observes a run or a window on the thread that called [`Generator::run`] or [`RunningLoad::measure`].
pub trait RunObserver {
    /// The measured window begins. Called within the scheduling latency of that time.
    fn window_started(&mut self) {}
    fn window_ended(&mut self) {}
    /// Called about every 20 ms; `Break` cancels the run or the measurement.
    fn progress(&mut self, progress: &RunProgress) -> ControlFlow<()> {
        let _ = progress;
        ControlFlow::Continue(())
    }
}

impl RunObserver for () {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunProgress {
    /// Time since the start of the warm-up, or since the call of [`RunningLoad::measure`].
    pub elapsed: Duration,
    /// Length of warm-up and measured window. The last answers arrive later.
    pub planned: Duration,
    /// Number of requests answered since the start of the load.
    pub answered: u64,
}

/// Cancels the run at a deadline. Otherwise forwards to the wrapped observer.
struct Deadline<'a> {
    observer: &'a mut dyn RunObserver,
    until: Instant,
    /// Number of answers when the deadline passed, if it did.
    answered_late: Option<u64>,
}

impl RunObserver for Deadline<'_> {
    fn progress(&mut self, progress: &RunProgress) -> ControlFlow<()> {
        if Instant::now() >= self.until {
            self.answered_late = Some(progress.answered);
            return ControlFlow::Break(());
        }
        self.observer.progress(progress)
    }
}

struct Worker {
    tid: Pid,
    engine: EngineUsed,
    plans: Option<Sender<Plan>>,
    done: Receiver<Done>,
    thread: Option<JoinHandle<()>>,
}

/// Generator threads with connections to a server. Dropping this closes the connections.
pub struct Generator {
    spec: Arc<LoadSpec>,
    content: Arc<Content>,
    workers: Vec<Worker>,
    napi_ids: BTreeSet<NapiId>,
    cancel: Arc<AtomicBool>,
    answered: Vec<Arc<AtomicU64>>,
    runs: u32,
}

impl Generator {
    /// Starts the threads and opens all connections, in `namespace` if given. No thread and no connection remains after
    /// an error.
    pub fn connect(spec: LoadSpec, namespace: Option<Arc<Namespace>>) -> Result<Self, LoadError> {
        spec.check()?;
        let content = Arc::new(Content::new(&spec));
        let answered: Vec<Arc<AtomicU64>> = (0..spec.threads).map(|_| Arc::default()).collect();
        let mut generator = Self {
            spec: Arc::new(spec),
            content,
            workers: Vec::new(),
            napi_ids: BTreeSet::new(),
            cancel: Arc::default(),
            answered,
            runs: 0,
        };
        for thread in 0..generator.spec.threads {
            generator.start_worker(thread, namespace.clone())?;
        }
        Ok(generator)
    }

    fn start_worker(&mut self, thread: u32, namespace: Option<Arc<Namespace>>) -> Result<(), LoadError> {
        let spec = &self.spec;
        let cpus = &spec.cpus;
        let assignment = Assignment {
            spec: Arc::clone(spec),
            content: Arc::clone(&self.content),
            namespace,
            cpu: cpus.get(thread as usize % cpus.len().max(1)).copied(),
            addresses: (thread..spec.connections)
                .step_by(spec.threads as usize)
                .map(|connection| spec.addresses[connection as usize % spec.addresses.len()])
                .collect(),
            cancel: Arc::clone(&self.cancel),
            answered: Arc::clone(&self.answered[thread as usize]),
        };
        let (ready_sender, ready) = channel();
        let (plans, plan_receiver) = channel();
        let (done_sender, done) = channel();
        let handle = std::thread::Builder::new()
            .name(format!("quell-load-{thread}"))
            .spawn(move || work(&assignment, &ready_sender, &plan_receiver, &done_sender))
            .map_err(LoadError::system("start a generator thread"))?;
        let Ready { tid, engine, napi_ids } = ready.recv().map_err(|_| LoadError::ThreadLost)??;
        self.napi_ids.extend(napi_ids);
        self.workers.push(Worker { tid, engine, plans: Some(plans), done, thread: Some(handle) });
        Ok(())
    }

    /// NAPI IDs of the connections on this host, if the kernel reports them. TCP connections have one once they are
    /// established, UDP sockets after the first answer.
    #[must_use]
    pub fn napi_ids(&self) -> &BTreeSet<NapiId> {
        &self.napi_ids
    }

    #[must_use]
    pub fn tids(&self) -> Vec<Pid> {
        self.workers.iter().map(|worker| worker.tid).collect()
    }

    #[must_use]
    pub fn engines(&self) -> Vec<EngineUsed> {
        self.workers.iter().map(|worker| worker.engine.clone()).collect()
    }

    #[must_use]
    pub fn spec(&self) -> &LoadSpec {
        &self.spec
    }

    /// Usual time limit for [`Generator::preload`]. A memcached on one core stores and returns ten million keys in this
    /// time.
    pub const PRELOAD_LIMIT: Duration = Duration::from_secs(120);

    /// Stores every key, then reads every key back, all within `limit`. Returns the number of keys. Does nothing for
    /// workloads without keys. Stops at the first error. Fails also if a key is missing or has a wrong value
    /// afterwards.
    pub fn preload(&mut self, limit: Duration, observer: &mut dyn RunObserver) -> Result<u64, LoadError> {
        let keys = u64::from(self.content.keys());
        if keys == 0 {
            return Ok(0);
        }
        let until = Instant::now() + limit;
        let mut ask = |request, phase| {
            let mut deadline = Deadline { observer: &mut *observer, until, answered_late: None };
            let asked = self.ask_every_key(request, &mut deadline);
            match (asked, deadline.answered_late) {
                (Err(LoadError::Cancelled), Some(done)) => Err(LoadError::PreloadTooSlow { keys, phase, done, limit }),
                (asked, _) => asked,
            }
        };
        let stored = ask(Request::Set, "stored")?;
        let read = if stored.errors.is_empty() { ask(Request::Get, "read back")? } else { Tally::default() };
        if read.hits == keys {
            return Ok(keys);
        }
        let errors = if stored.errors.is_empty() { read.errors } else { stored.errors };
        Err(LoadError::Preload { keys, present: read.hits, errors: errors.to_string() })
    }

    fn ask_every_key(
        &mut self,
        request: fn(u32) -> Request,
        observer: &mut dyn RunObserver,
    ) -> Result<Tally, LoadError> {
        let keys = u64::from(self.content.keys());
        let threads = self.workers.len() as u64;
        let share = |thread: u64| (keys * thread / threads) as u32;
        let start_ns = monotonic_ns();
        self.start(|thread| Plan {
            pace: Pace::Closed,
            source: Source::Range { next: share(thread), end: share(thread + 1), request },
            start_ns,
            window_ns: start_ns..u64::MAX,
            port: None,
            stop_at_error: true,
        })?;
        self.finish(start_ns, Duration::ZERO, observer)
    }

    /// Runs the load and returns a report. Errors of requests are in the report.
    pub fn run(&mut self, run: &RunSpec, observer: &mut dyn RunObserver) -> Result<LoadReport, LoadError> {
        self.measure(run, observer, false)
    }

    /// As [`Self::run`]. If the observer cancels during the measured window, the report is that of the window so far,
    /// without the requests that are under way.
    ///
    /// # Errors
    /// As [`Self::run`]. [`LoadError::Cancelled`] only before the window.
    pub fn run_until_cancelled(
        &mut self,
        run: &RunSpec,
        observer: &mut dyn RunObserver,
    ) -> Result<LoadReport, LoadError> {
        self.measure(run, observer, true)
    }

    fn measure(
        &mut self,
        run: &RunSpec,
        observer: &mut dyn RunObserver,
        reports_a_part: bool,
    ) -> Result<LoadReport, LoadError> {
        run.check()?;
        let start_ns = monotonic_ns() + LEAD_NS;
        let window_start_ns = start_ns + u64::from(run.warm_up_ms) * 1_000_000;
        let window_ns = window_start_ns..window_start_ns + u64::from(run.measure_ms) * 1_000_000;
        let planned = Duration::from_nanos(window_ns.end - start_ns);
        self.start_run(run.schedule, start_ns, &window_ns, || None)?;

        let watched = self.watch_window(&window_ns, start_ns, planned, observer);
        let (end_ns, cpu) = match watched {
            ControlFlow::Continue(cpu) => (window_ns.end, cpu),
            ControlFlow::Break(()) => {
                let now_ns = monotonic_ns();
                if !reports_a_part || now_ns <= window_ns.start {
                    return Err(self.cancel_plans());
                }
                self.cancel.store(true, Ordering::Relaxed);
                (now_ns.min(window_ns.end), None)
            }
        };
        // After the window, only the last responses are missing.
        let mut nobody = ();
        let tally = self.finish(start_ns, planned, if reports_a_part { &mut nobody } else { observer })?;
        Ok(tally.into_report(end_ns - window_ns.start, cpu, self.engines()))
    }

    /// Each run uses its own random streams, so a second run does not repeat the first. Two generators with the same
    /// seed have identical first runs.
    fn start_run(
        &mut self,
        schedule: Schedule,
        start_ns: u64,
        window_ns: &Range<u64>,
        mut port: impl FnMut() -> Option<WindowPort>,
    ) -> Result<(), LoadError> {
        self.runs += 1;
        let LoadSpec { threads, first_thread, batched_sends, .. } = *self.spec;
        let seed = self.spec.seed.wrapping_add(u64::from(self.runs) << 32);
        let content = Arc::clone(&self.content);
        self.start(|thread| {
            let thread = first_thread + thread as u32;
            let pace = match schedule {
                Schedule::Closed if batched_sends => Pace::ClosedBatched,
                Schedule::Closed => Pace::Closed,
                Schedule::Open { rate_per_s, gaps } => {
                    let stream = Stream::new(seed, Purpose::Arrivals, thread);
                    Pace::Open(Arrivals::new(gaps, rate_per_s / f64::from(threads), start_ns, stream))
                }
            };
            let source = Source::drawn(&content, seed, thread);
            Plan { pace, source, start_ns, window_ns: window_ns.clone(), port: port(), stop_at_error: false }
        })
    }

    fn start(&mut self, mut plan: impl FnMut(u64) -> Plan) -> Result<(), LoadError> {
        self.cancel.store(false, Ordering::Relaxed);
        for (thread, worker) in (0..).zip(&self.workers) {
            let plans = worker.plans.as_ref().ok_or(LoadError::ThreadLost)?;
            plans.send(plan(thread)).map_err(|_| LoadError::ThreadLost)?;
        }
        Ok(())
    }

    /// Sleeps until the end of the window and reports its start, progress and end. Returns the CPU cost of the window,
    /// if /proc could be read.
    fn watch_window(
        &self,
        window_ns: &Range<u64>,
        start_ns: u64,
        planned: Duration,
        observer: &mut dyn RunObserver,
    ) -> ControlFlow<(), Option<GeneratorCpu>> {
        self.watch_until(window_ns.start, start_ns, planned, observer)?;
        let before = self.cpu();
        observer.window_started();
        self.watch_until(window_ns.end, start_ns, planned, observer)?;
        let after = self.cpu();
        observer.window_ended();
        ControlFlow::Continue(before.zip(after).map(|(before, after)| after.since(before)))
    }

    fn watch_until(
        &self,
        until_ns: u64,
        start_ns: u64,
        planned: Duration,
        observer: &mut dyn RunObserver,
    ) -> ControlFlow<()> {
        loop {
            let left = Duration::from_nanos(until_ns.saturating_sub(monotonic_ns()));
            if left.is_zero() {
                return ControlFlow::Continue(());
            }
            std::thread::sleep(left.min(TICK));
            self.tick(start_ns, planned, observer)?;
        }
    }

    fn tick(&self, start_ns: u64, planned: Duration, observer: &mut dyn RunObserver) -> ControlFlow<()> {
        let elapsed = Duration::from_nanos(monotonic_ns().saturating_sub(start_ns));
        let answered = self.answered.iter().map(|count| count.load(Ordering::Relaxed)).sum();
        observer.progress(&RunProgress { elapsed, planned, answered })
    }

    fn cancel_plans(&self) -> LoadError {
        self.cancel.store(true, Ordering::Relaxed);
        for worker in &self.workers {
            let _ = worker.done.recv();
        }
        LoadError::Cancelled
    }

    fn finish(&mut self, start_ns: u64, planned: Duration, observer: &mut dyn RunObserver) -> Result<Tally, LoadError> {
        let mut total = Tally::default();
        let mut failure = None;
        let mut cancelled = false;
        for worker in 0..self.workers.len() {
            let done = loop {
                match self.workers[worker].done.recv_timeout(TICK) {
                    Ok(done) => break done,
                    Err(RecvTimeoutError::Disconnected) => return Err(LoadError::ThreadLost),
                    Err(RecvTimeoutError::Timeout) if cancelled => {}
                    Err(RecvTimeoutError::Timeout) => {
                        cancelled = self.tick(start_ns, planned, observer).is_break();
                        // Never cleared here: the run may have been cancelled during its window.
                        self.cancel.fetch_or(cancelled, Ordering::Relaxed);
                    }
                }
            };
            self.napi_ids.extend(done.napi_ids);
            match done.result {
                Ok(tally) => total.add(&tally),
                Err(error) => failure = Some(error),
            }
        }
        match failure {
            Some(error) => Err(error),
            None if cancelled => Err(LoadError::Cancelled),
            None => Ok(total),
        }
    }

    /// CPU cost of the threads since they started. `None` if /proc could not be read.
    fn cpu(&self) -> Option<GeneratorCpu> {
        let process = ProcRoot::default().process(Pid::of_this_process());
        self.workers.iter().try_fold(GeneratorCpu::default(), |total, worker| {
            let thread = process.thread(worker.tid);
            let (schedstat, stat) = (thread.schedstat().ok()?, thread.stat().ok()?);
            let ns = |duration: Duration| duration.as_nanos() as u64;
            Some(total.plus(GeneratorCpu {
                run_ns: schedstat.run_ns,
                user_ns: ns(stat.utime.duration()),
                system_ns: ns(stat.stime.duration()),
                wait_ns: schedstat.wait_ns,
            }))
        })
    }
}

impl GeneratorCpu {
    fn since(self, earlier: Self) -> Self {
        Self {
            run_ns: self.run_ns.saturating_sub(earlier.run_ns),
            user_ns: self.user_ns.saturating_sub(earlier.user_ns),
            system_ns: self.system_ns.saturating_sub(earlier.system_ns),
            wait_ns: self.wait_ns.saturating_sub(earlier.wait_ns),
        }
    }
}

impl Drop for Generator {
    fn drop(&mut self) {
        self.cancel.store(true, Ordering::Relaxed);
        for worker in &mut self.workers {
            worker.plans = None;
            if let Some(thread) = worker.thread.take() {
                // A thread that panicked has already printed its message to stderr.
                let _ = thread.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Engine;
    use crate::spec::{RequestResponse, Transport, Workload};

    /// Reports that the only thread is done at the second tick.
    struct DoneLate {
        ticks: u32,
        done: Sender<Done>,
    }

    impl RunObserver for DoneLate {
        fn progress(&mut self, _: &RunProgress) -> ControlFlow<()> {
            self.ticks += 1;
            if self.ticks == 2 {
                self.done.send(Done { result: Ok(Tally::default()), napi_ids: Vec::new() }).unwrap();
            }
            ControlFlow::Continue(())
        }
    }

    #[test]
    fn a_thread_that_stops_late_is_still_cancelled() {
        let workload =
            Workload::RequestResponse(RequestResponse { request_bytes: 8, response_bytes: 8, check_content: false });
        let spec = LoadSpec::new(([127, 0, 0, 1], 1).into(), Transport::Tcp, workload);
        let (sender, done) = channel();
        let engine = EngineUsed { engine: Engine::Epoll, fallback_reason: None };
        let worker = Worker { tid: Pid::of_this_thread(), engine, plans: None, done, thread: None };
        let mut generator = Generator {
            content: Arc::new(Content::new(&spec)),
            spec: Arc::new(spec),
            workers: vec![worker],
            napi_ids: BTreeSet::new(),
            cancel: Arc::new(AtomicBool::new(true)),
            answered: Vec::new(),
            runs: 0,
        };
        generator.finish(0, Duration::ZERO, &mut DoneLate { ticks: 0, done: sender }).unwrap();
        assert!(generator.cancel.load(Ordering::Relaxed), "the thread would go on until the end of the run");
    }
}
