//! Experiments on the model. A slice is a run of `quell-sim` in virtual time with its own seed. Differences between
//! slices of the same mode are the random variation of the model.

use std::collections::VecDeque;

use quell_experiment::{ExperimentSubject, SetFailure, SliceFlag, SliceObservation, SliceStage};
use quell_linux::sched::SchedError;
use quell_mode::DeliveryMode;
use quell_result::experiment::{ExperimentResult, SubjectFacts};
use quell_result::facts::ModelFacts;
use quell_sim::sweep::{Point, Setup, in_parallel};
use quell_sim::{Load, RunError, RunResult};
use rand::Rng as _;
use rand_pcg::Pcg64;

use super::program::SubjectError;
use super::{ComparisonError, compare, figures, one_per_load};
use crate::counters::{CpuUse, TrialCounters};
use crate::question::{Comparison, Follow, report_slice};
use quell_load::OfferedLoad;

/// Reason why a result of the model is not a measurement.
const SIMULATED: &str = "the server was simulated on a model of another machine";

/// A host and a server to simulate.
#[derive(Debug, Clone)]
pub struct ModelSpec {
    /// Its warm-up and measured time are replaced by those of the question.
    pub setup: Setup,
    /// Offered loads, in percent of `base`'s maximum on the model or in requests per second.
    pub loads: Vec<OfferedLoad>,
    /// Number of threads that simulate. The result does not depend on it.
    pub threads: usize,
}

impl ModelSpec {
    /// The set-up of a run that is a slice.
    pub(crate) fn slice(&self, slice_ms: u32, settle_ms: u32) -> Setup {
        let ns = |ms: u32| u64::from(ms) * 1_000_000;
        Setup { measured_ns: ns(slice_ms), warm_up_ns: ns(settle_ms), ..self.setup.clone() }
    }
}

/// Compares modes on the model. Calls `stopped` before each slice; when it returns true, the result contains the slices
/// simulated so far.
///
/// # Errors
/// See [`ComparisonError`].
pub fn run_model(
    spec: &ModelSpec,
    comparison: &Comparison,
    follow: &mut Follow<'_>,
    stopped: &dyn Fn() -> bool,
) -> Result<ExperimentResult, ComparisonError> {
    let (ModelSpec { loads, threads, .. }, Comparison { modes, timing, .. }) = (spec, comparison);
    let setup = spec.slice(timing.slice_ms, timing.settle_ms);
    let mut result = begin(&setup)?;
    // Each load has its own stream of seeds, because the number of seeds that a load uses depends on the number of
    // threads.
    let mut streams = (0..).map(|stream| Pcg64::new(timing.seed.into(), stream));
    let mut next_stream = || streams.next().unwrap_or_else(|| unreachable!("the range of streams is infinite"));
    let needs_reach = loads.iter().any(|load| matches!(load, OfferedLoad::Percent(_)));
    let reaches_per_s = if needs_reach { base_reaches(&setup, next_stream().next_u64())? } else { 0.0 };
    result.experiments = one_per_load(loads, modes, *timing, &mut |load, design| {
        let offered_per_s = load.rate_per_s(reaches_per_s);
        let mut subject = Model {
            modes: modes.clone(),
            threads: *threads,
            ready: vec![VecDeque::new(); modes.len()],
            ..Model::with_seeds(setup.clone(), vec![offered_per_s.map_or(Load::Max, Load::Qps)], next_stream())
        };
        let mut watch = |experiment: &_, stage: SliceStage<'_>| report_slice(follow, Some(load), experiment, stage);
        compare(&mut subject, design, (Some(load), offered_per_s), &mut watch, stopped)
    })?;
    Ok(result)
}

fn begin(setup: &Setup) -> Result<ExperimentResult, SchedError> {
    let result = ExperimentResult::begin(SubjectFacts::Model(ModelFacts::of(setup)))?;
    Ok(ExperimentResult { not_a_measurement: Some(SIMULATED.to_owned()), ..result })
}

/// Returns `base`'s maximum throughput in requests per second, measured in a closed loop.
///
/// # Errors
/// When the model cannot run `base`.
pub fn base_reaches(setup: &Setup, seed: u64) -> Result<f64, ComparisonError> {
    let base = Point { mode: DeliveryMode::default(), load: Load::Max, seed };
    let failed = |error: RunError| ComparisonError::Reference { mode: "base".to_owned(), why: error.to_string() };
    Ok(setup.run(&base).simulate().map_err(failed)?.qps)
}

/// The model as the subject of an experiment.
pub struct Model {
    /// Its warm-up and measured time are those of a slice.
    setup: Setup,
    loads: Vec<Load>,
    load: usize,
    seeds: Pcg64,
    /// Modes of a block, the reference first, if slices can be simulated in advance. Empty if the mode of the next slice
    /// depends on the last one.
    modes: Vec<DeliveryMode>,
    threads: usize,
    /// Slices of each mode that were simulated in advance and not observed yet.
    ready: Vec<VecDeque<Result<SliceObservation, RunError>>>,
    /// Simulated slice of the current mode.
    current: Option<SliceObservation>,
}

impl Model {
    /// Creates a subject whose slices are simulated one after another. `setup` has the warm-up and the measured time of a
    /// slice. Equal seeds and equal modes give equal results.
    #[must_use]
    pub fn new(setup: Setup, loads: Vec<Load>, seed: u64) -> Self {
        Self::with_seeds(setup, loads, Pcg64::new(seed.into(), 0))
    }

    fn with_seeds(setup: Setup, loads: Vec<Load>, seeds: Pcg64) -> Self {
        Self { setup, loads, load: 0, seeds, modes: Vec::new(), threads: 1, ready: Vec::new(), current: None }
    }

    /// Simulates a slice, or takes one that was simulated in advance.
    fn slice(&mut self, mode: &DeliveryMode) -> Result<SliceObservation, RunError> {
        let Some(index) = self.modes.iter().position(|other| other == mode) else {
            let point = Point { mode: *mode, load: self.loads[self.load], seed: self.seeds.next_u64() };
            return observe(&self.setup, &point);
        };
        if self.ready[index].is_empty() {
            self.simulate_blocks();
        }
        self.ready[index].pop_front().unwrap_or_else(|| unreachable!("each block has a slice of every mode"))
    }

    /// Simulates as many blocks at once as there are threads to keep busy. Each seed belongs to one block and arm, so
    /// the results do not depend on the number of threads.
    fn simulate_blocks(&mut self) {
        let arms = self.modes.len() + 1;
        let blocks = self.threads.div_ceil(arms);
        let arms = std::iter::once(0).chain(0..self.modes.len());
        let load = self.loads[self.load];
        let points: Vec<(usize, Point)> = std::iter::repeat_n(arms, blocks)
            .flatten()
            .map(|mode| (mode, Point { mode: self.modes[mode], load, seed: self.seeds.next_u64() }))
            .collect();
        let simulate = |index: usize| observe(&self.setup, &points[index].1);
        let slices = in_parallel(points.len(), self.threads, simulate, |_| ());
        for ((mode, _), slice) in points.iter().zip(slices) {
            self.ready[*mode].push_back(slice);
        }
    }
}

impl ExperimentSubject for Model {
    type Setting = DeliveryMode;
    type Error = SubjectError;

    fn offer(&mut self, load: usize) -> Result<(), SubjectError> {
        self.load = load;
        Ok(())
    }

    fn set(&mut self, mode: &DeliveryMode) -> Result<(), SetFailure<SubjectError>> {
        match self.slice(mode) {
            Ok(slice) => self.current = Some(slice),
            Err(RunError::Setting(why)) => {
                return Err(SetFailure::NotSettable(SubjectError::Impossible(why.to_owned())));
            }
            Err(error) => return Err(SetFailure::SubjectFailed(error.into())),
        }
        Ok(())
    }

    /// Does nothing, because each simulated run has its own warm-up.
    fn settle(&mut self, _: u32) -> Result<(), SubjectError> {
        Ok(())
    }

    fn observe(&mut self, _: u32) -> Result<Option<SliceObservation>, SubjectError> {
        Ok(self.current.take())
    }

    /// Does nothing, because simulated runs share no state.
    fn restore(&mut self) -> Result<(), SubjectError> {
        Ok(())
    }
}

fn observe(setup: &Setup, point: &Point) -> Result<SliceObservation, RunError> {
    Ok(observation(setup, point, &setup.run(point).simulate()?))
}

fn observation(setup: &Setup, point: &Point, result: &RunResult) -> SliceObservation {
    let latency = if point.load == Load::Max { &result.latency } else { &result.latency_from_due };
    let is_saturated = quell_load::is_backlog(result.latency.count(), result.never_sent);
    SliceObservation {
        spent_ms: (setup.warm_up_ns + setup.measured_ns) as f64 / 1e6,
        metrics: figures::of_counters(&counters(result), Some(result.counters.responses), result.measured_s),
        latency: Some(latency.into()),
        foreign_cpu: None,
        flags: is_saturated.then_some(SliceFlag::Saturated).into_iter().collect(),
    }
}

/// Converts the model's counters to those of a lab. All threads of the modelled CPUs belong to the server. Softirqs and
/// hard interrupts count as time of its queues.
fn counters(result: &RunResult) -> TrialCounters {
    let (cpu, counted) = (&result.cpu, &result.counters);
    let busy_ns = cpu.thread_ns + cpu.softirq_ns + cpu.hardirq_ns;
    TrialCounters {
        server_run_ns: Some(cpu.thread_ns),
        napi_run_ns: Some(cpu.softirq_ns + cpu.hardirq_ns),
        server_cpus: Some(CpuUse {
            capacity_ns: cpu.total_ns,
            idle_ns: cpu.total_ns.saturating_sub(busy_ns),
            steal_ns: 0,
            lab_ns: busy_ns,
            tasks_ns: busy_ns,
        }),
        irqs: Some(counted.irqs),
        polls: Some(counted.polls),
        empty_polls: Some(counted.empty_polls),
        polled_packets: Some(counted.polled_packets),
        drops: Some(counted.drops),
        ..TrialCounters::default()
    }
}
