//! Runs the matrix of modes and loads, trial by trial. It finds the modes that can be set and measures the
//! throughput of `base`. It runs every trial in order and repeats disturbed trials up to a limit.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::time::Instant;

use quell_linux::bpf::{EpollWaitCounter, NapiPollCounter};
use quell_linux::kernel;
use quell_linux::proc::ProcRoot;
use quell_load::{Distribution, Generator, LoadError, LoadReport, Progress, RunObserver, RunSpec, Schedule};
use quell_mode::DeliveryMode;

use crate::counters::{Snapshot, Watched};
use crate::disturbance::{disturbances, may_pass};
use crate::lab::veth::{CLIENT_DEVICE, SERVER_DEVICE, VethLab};
use crate::offered_load::OfferedLoad;
use crate::plan::TrialId;
use crate::result::{BaseReach, BenchResult, SettingsReadBack, Trial, TrialCounters};
use crate::run::{BenchError, Event};
use crate::server::{Server, Worker};
use crate::settings;

/// Duration of the closed loop that measures the throughput of `base`, ms.
const REACH_MS: u32 = 600;
/// Maximum number of attempts per trial. Without it, one trial that is always disturbed would use up all retries.
const ATTEMPTS_MAX: u32 = 2;
/// Duration of the sample after a trial in which waits are counted, ms.
const EPOLL_SAMPLE_MS: u32 = 60;

/// State that all trials of a run share.
pub(crate) struct Matrix<'a> {
    lab: &'a mut VethLab,
    server: &'a mut Server,
    workers: &'a [Worker],
    generator: &'a mut Generator,
    watch: &'a mut dyn FnMut(Event<'_>),
    stopped: &'a dyn Fn() -> bool,
    polls: Option<NapiPollCounter>,
    began: Instant,
}

/// Observations of one generator run on the lab.
struct Observed {
    load: LoadReport,
    counters: TrialCounters,
    began_ms: u64,
}

impl<'a> Matrix<'a> {
    pub(crate) fn new(
        lab: &'a mut VethLab,
        server: &'a mut Server,
        workers: &'a [Worker],
        generator: &'a mut Generator,
        watch: &'a mut dyn FnMut(Event<'_>),
        stopped: &'a dyn Fn() -> bool,
    ) -> Self {
        // If polls cannot be counted, that column stays empty.
        let polls = NapiPollCounter::attach(kernel::sysfs(), lab.server.queues.ids()).ok();
        Self { lab, server, workers, generator, watch, stopped, polls, began: Instant::now() }
    }

    /// Measures the whole plan into `result`. If it is stopped early, `result` holds the trials finished by then.
    pub(crate) fn measure(mut self, result: &mut BenchResult) -> Result<(), BenchError> {
        self.refuse(result)?;
        self.run_every_trial(result)?;
        if result.trials.is_empty() { Err(BenchError::Interrupted) } else { Ok(()) }
    }

    /// Sets every mode once. Modes that cannot be set here are reported with the reason before the measurement starts.
    fn refuse(&mut self, result: &mut BenchResult) -> Result<(), BenchError> {
        for entry in &result.plan.modes {
            if let Err(error) = settings::set(self.lab, self.workers, &entry.mode) {
                let reason = error.to_string();
                (self.watch)(Event::Refused { label: &entry.label, reason: &reason });
                result.refused.insert(entry.label.clone(), reason);
            }
        }
        match result.refused.iter().next() {
            Some((label, reason)) if result.refused.len() == result.plan.modes.len() => {
                Err(BenchError::NoModeLeft(format!("{label}: {reason}")))
            }
            _ => Ok(()),
        }
    }

    fn run_every_trial(&mut self, result: &mut BenchResult) -> Result<(), BenchError> {
        let refused = |id: &TrialId| result.refused.contains_key(&result.plan.modes[id.mode].label);
        let mut queue: VecDeque<(TrialId, u32)> =
            result.plan.order().into_iter().filter(|id| !refused(id)).map(|id| (id, 0)).collect();
        let (mut done, mut retries) = (0, result.plan.retries);
        while let Some((id, attempt)) = queue.pop_front() {
            (self.watch)(Event::TrialBegins { done, total: done + queue.len() + 1, id });
            let Some(trial) = self.trial(result, id, attempt)? else {
                result.interrupted = true;
                return Ok(());
            };
            let again = may_pass(&trial.disturbances) && retries > 0 && attempt + 1 < ATTEMPTS_MAX;
            (self.watch)(Event::TrialEnds { trial: &trial, again });
            result.trials.push(trial);
            done += 1;
            if again {
                retries -= 1;
                queue.push_front((id, attempt + 1));
            }
        }
        Ok(())
    }

    /// Measures the throughput of `base` at the start of each block of trials. `None` if stopped.
    fn what_base_reaches(&mut self, result: &mut BenchResult, id: TrialId) -> Result<Option<f64>, BenchError> {
        let known = |reach: &&BaseReach| (reach.repeat, reach.load) == (id.repeat, id.load);
        if let Some(reach) = result.base_reaches.iter().find(known) {
            return Ok(Some(reach.per_s));
        }
        self.set("base", &DeliveryMode::default())?;
        let warm_up_ms = result.plan.warm_up_ms;
        let run = RunSpec { schedule: Schedule::Closed, warm_up_ms, measure_ms: REACH_MS };
        let Some(observed) = self.observe(&run)? else { return Ok(None) };
        let per_s = observed.load.qps;
        result.base_reaches.push(BaseReach { repeat: id.repeat, load: id.load, per_s });
        Ok(Some(per_s))
    }

    /// Runs one trial. `None` if stopped.
    fn trial(&mut self, result: &mut BenchResult, id: TrialId, attempt: u32) -> Result<Option<Trial>, BenchError> {
        let load = result.plan.loads[id.load];
        let offered_per_s = match load {
            OfferedLoad::Percent(_) => match self.what_base_reaches(result, id)? {
                Some(reaches_per_s) => load.rate_per_s(reaches_per_s),
                None => return Ok(None),
            },
            // These loads do not depend on the throughput of `base`.
            OfferedLoad::Rate(_) | OfferedLoad::Max => load.rate_per_s(0.0),
        };
        let plan = &result.plan;
        let entry = &plan.modes[id.mode];
        let settings = self.set(&entry.label, &entry.mode)?;
        let schedule = match offered_per_s {
            Some(rate_per_s) => Schedule::Open { rate_per_s, gaps: Distribution::FACEBOOK_GAPS },
            None => Schedule::Closed,
        };
        let run = RunSpec { schedule, warm_up_ms: plan.warm_up_ms, measure_ms: plan.measure_ms };
        let Some(observed) = self.observe(&run)? else { return Ok(None) };
        let Observed { load, mut counters, began_ms } = observed;
        self.sample_epoll_waits(&run, &mut counters)?;
        let disturbances = disturbances(&load, &counters);
        Ok(Some(Trial { id, attempt, began_ms, settings, offered_per_s, load, counters, disturbances }))
    }

    fn set(&mut self, label: &str, mode: &DeliveryMode) -> Result<SettingsReadBack, BenchError> {
        settings::set(self.lab, self.workers, mode)
            .map_err(|source| BenchError::Set { label: label.to_owned(), source })
    }

    /// Runs the generator once and reads the counters at the start and end of its measured time. `None` if stopped.
    fn observe(&mut self, run: &RunSpec) -> Result<Option<Observed>, BenchError> {
        let mut observer = Observer {
            watched: self.watched()?,
            proc: ProcRoot::default(),
            polls: self.polls.as_ref(),
            server: self.server,
            stopped: self.stopped,
            began_ms: 0,
            began: self.began,
            first: None,
            last: None,
        };
        let load = self.generator.run(run, &mut observer);
        if !observer.server.is_running()? {
            return Err(BenchError::ServerEnded);
        }
        match load {
            Ok(load) => Ok(Some(Observed { load, counters: observer.counters(), began_ms: observer.began_ms })),
            Err(LoadError::Cancelled) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Continues the same load for a short time and counts waits. Counting would disturb the measurement, so it runs
    /// afterwards. If waits cannot be counted, that column stays empty.
    fn sample_epoll_waits(&mut self, run: &RunSpec, counters: &mut TrialCounters) -> Result<(), BenchError> {
        let Ok(counter) = EpollWaitCounter::attach(kernel::sysfs(), &self.server.processes()?) else { return Ok(()) };
        let sample = RunSpec { warm_up_ms: 0, measure_ms: EPOLL_SAMPLE_MS, ..run.clone() };
        match self.generator.run(&sample, &mut ()) {
            Ok(_) | Err(LoadError::Cancelled) => {}
            Err(error) => return Err(error.into()),
        }
        let Ok(waits) = counter.read() else { return Ok(()) };
        counters.epoll_waits = Some(waits.values().map(|waits| waits.successful).sum());
        counters.epoll_events = Some(waits.values().map(|waits| waits.events).sum());
        Ok(())
    }

    fn watched(&self) -> Result<Watched, BenchError> {
        Ok(Watched {
            server: self.server.processes()?,
            server_napi: self.lab.server.napi_threads.clone(),
            generator: self.generator.tids(),
            client_napi: self.lab.client.napi_threads.clone(),
            server_cpus: self.lab.plan.cpus.server_cpus().into_iter().collect(),
            client_cpus: self.lab.plan.cpus.client_cpus().into_iter().collect(),
            devices: (SERVER_DEVICE, CLIENT_DEVICE),
        })
    }
}

/// Reads the counters at the start and end of the measured time. Aborts the run if the server has exited.
struct Observer<'a> {
    watched: Watched,
    proc: ProcRoot,
    polls: Option<&'a NapiPollCounter>,
    server: &'a mut Server,
    stopped: &'a dyn Fn() -> bool,
    began: Instant,
    began_ms: u64,
    first: Option<Snapshot>,
    last: Option<Snapshot>,
}

impl Observer<'_> {
    fn counters(&self) -> TrialCounters {
        match (&self.first, &self.last) {
            (Some(first), Some(last)) => self.watched.between(first, last),
            _ => TrialCounters::default(),
        }
    }
}

impl RunObserver for Observer<'_> {
    fn window_started(&mut self) {
        self.began_ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.first = Some(self.watched.snapshot(&self.proc, self.polls));
    }

    fn window_ended(&mut self) {
        self.last = Some(self.watched.snapshot(&self.proc, self.polls));
    }

    fn progress(&mut self, _: &Progress) -> ControlFlow<()> {
        let server_has_ended = matches!(self.server.is_running(), Ok(false));
        if server_has_ended || (self.stopped)() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}
