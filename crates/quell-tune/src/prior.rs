//! What the model of a host expects of each mode. It costs no measuring time.

use quell_experiment::{LatencyCounts, SliceObservation};
use quell_mode::{DeliveryMode, Requirement, Threaded};
use quell_sim::sweep::{Point, Setup, in_parallel};
use quell_sim::{Load, RunError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::goal::{TuneGoal, TuneMetric};
use crate::plan::TunePlan;
use crate::space::TuneSpace;

/// Number of modes that are named as worth measuring.
const WORTH_MEASURING: usize = 3;
/// Number of modes whose neighbours are ranked too.
const REFINED: usize = 4;

#[derive(Debug, Clone)]
pub struct ModelPrior {
    /// Host and server. Warm-up and measured time are those of one simulated run.
    pub setup: Setup,
    pub loads: Vec<Load>,
    /// Setting that the server has now. Relative limits refer to it.
    pub present: DeliveryMode,
    /// Mode that the queues keep under modes without NAPI threads, as [`TunePlan::base_is`].
    pub base_is: Option<DeliveryMode>,
    /// Modes that are ranked.
    pub space: TuneSpace,
    pub seed: u64,
}

/// A mode with the values that the model expects.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct RankedMode {
    pub mode: DeliveryMode,
    /// Objective at each load, in its unit. Absent if the model cannot tell it.
    pub objective: Vec<Option<f64>>,
    /// Largest ratio of a limited quantity to its limit, over all limits and loads. Absent without limits.
    pub limit_ratio: Option<f64>,
    /// Largest ratio of the objective to that of `base` over all loads, as a cost: above 1 is worse than `base`.
    pub cost: f64,
}

impl RankedMode {
    /// Whether the model expects that all limits hold.
    #[must_use]
    pub fn meets_limits(&self) -> bool {
        self.limit_ratio.is_none_or(|ratio| ratio <= 1.0)
    }
}

impl TunePlan {
    /// The modes that are worth measuring by a ranking, and that need no restart of the programs: of each kind the one
    /// that the model expects to be best. Suspension comes first, because it delays nothing when idle; modes that poll
    /// at any load come last, and not at all if the goal is to save CPU time.
    #[must_use]
    pub fn worth_measuring(&self, ranked: &[RankedMode]) -> Vec<DeliveryMode> {
        let saves_cpu = matches!(self.goal.objective, TuneMetric::Cpu | TuneMetric::Busy);
        let order = |mode: &DeliveryMode| match mode.napi().irq_suspend_timeout_ns {
            1.. => 0,
            0 if !mode.polls_at_any_load() => 1,
            0 => 2,
        };
        let runs = |mode: &DeliveryMode| !mode.requirements().contains(&Requirement::SpinBeforeSleep);
        let is_sought = |mode: &DeliveryMode| *mode != self.present && runs(mode) && !(saves_cpu && order(mode) == 2);
        let mut best: Vec<DeliveryMode> = Vec::new();
        for RankedMode { mode, .. } in ranked.iter().filter(|mode| mode.meets_limits()) {
            let is_new = best.iter().all(|other| other.kind().word() != mode.kind().word());
            if is_new && is_sought(mode) {
                best.push(*mode);
            }
        }
        best.sort_by_key(order);
        best.truncate(WORTH_MEASURING);
        best
    }
}

impl ModelPrior {
    /// Ranks modes for a goal, best first: those that hold the limits by their cost, then the others by how far they
    /// miss a limit. They are a coarse grid, with `base` and the present setting, and the neighbours of its best modes;
    /// overrides change 2 or 3 % in the model. Modes that the model cannot run are left out. The result does not depend
    /// on the number of threads.
    ///
    /// # Errors
    /// When the model cannot run `base` or the present setting.
    pub fn rank(&self, goal: &TuneGoal, threads: usize) -> Result<Vec<RankedMode>, RunError> {
        let at_each_load = |mode: DeliveryMode| (0..self.loads.len()).map(move |load| self.slice(mode, load));
        let base: Vec<SliceObservation> = at_each_load(DeliveryMode::default()).collect::<Result<_, _>>()?;
        let mut modes: Vec<DeliveryMode> = self.space.coarse().into_iter().filter(|mode| !self.is_base(mode)).collect();
        let present = match self.present == DeliveryMode::default() {
            true => base.clone(),
            false => at_each_load(self.present).collect::<Result<_, _>>()?,
        };
        if !modes.contains(&self.present) {
            modes.push(self.present);
        }
        let rank = |modes: &[DeliveryMode]| self.rank_each(goal, modes, threads, &base, &present);
        let mut ranked = rank(&modes);
        sort(&mut ranked);
        let best: Vec<DeliveryMode> = ranked.iter().take(REFINED).map(|ranked| ranked.mode).collect();
        let is_new = |mode: &DeliveryMode| !modes.contains(mode) && !self.is_base(mode);
        let neighbours = self.space.neighbours(&best).into_iter().filter(is_new);
        ranked.extend(rank(&neighbours.collect::<Vec<_>>()));
        sort(&mut ranked);
        Ok(ranked)
    }

    fn slice(&self, mode: DeliveryMode, load: usize) -> Result<SliceObservation, RunError> {
        observe_model(&self.setup, &Point { mode: self.as_set(mode), load: self.loads[load], seed: self.seed })
    }

    /// Settings under a mode: one without NAPI threads leaves those of the queues as they are.
    fn as_set(&self, mode: DeliveryMode) -> DeliveryMode {
        let left = self.base_is.filter(|_| mode.napi().threaded == Threaded::Off && mode.poller().is_none());
        let with_threads =
            |left: DeliveryMode| format!("{mode},threaded={}", left.napi().threaded.kernel_value()).parse().ok();
        left.and_then(with_threads).unwrap_or(mode)
    }

    /// Whether a mode is another name for what `base` leaves set.
    fn is_base(&self, mode: &DeliveryMode) -> bool {
        self.base_is.is_some_and(|base| base == *mode)
    }

    fn rank_each(
        &self,
        goal: &TuneGoal,
        modes: &[DeliveryMode],
        threads: usize,
        base: &[SliceObservation],
        present: &[SliceObservation],
    ) -> Vec<RankedMode> {
        let loads = self.loads.len();
        let run = |index: usize| self.slice(modes[index / loads], index % loads);
        let slices = in_parallel(modes.len() * loads, threads, run, |_| ());
        let of_mode = |(mode, slices): (&DeliveryMode, &[Result<SliceObservation, RunError>])| {
            let slices: Vec<&SliceObservation> =
                slices.iter().map(|slice| slice.as_ref().ok()).collect::<Option<_>>()?;
            Some(ranked_mode(goal, *mode, &slices, base, present))
        };
        modes.iter().zip(slices.chunks(loads)).filter_map(of_mode).collect()
    }
}

fn sort(ranked: &mut [RankedMode]) {
    let key = |mode: &RankedMode| (mode.limit_ratio.map_or(1.0, |ratio| ratio.max(1.0)), mode.cost);
    ranked.sort_by(|a, b| {
        let (a, b) = (key(a), key(b));
        a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1))
    });
}

fn ranked_mode(
    goal: &TuneGoal,
    mode: DeliveryMode,
    slices: &[&SliceObservation],
    base: &[SliceObservation],
    present: &[SliceObservation],
) -> RankedMode {
    let objective: Vec<Option<f64>> = slices.iter().map(|slice| goal.objective.value(slice)).collect();
    let ratio = |(value, base): (&Option<f64>, &SliceObservation)| {
        let (value, base) = (*value, goal.objective.value(base));
        value.zip(base).map_or(f64::INFINITY, |(value, base)| ((value / base).ln() * goal.sign()).exp())
    };
    let of_limit = |limit: &crate::goal::TuneLimit| {
        let ratio = |(slice, present): (&&SliceObservation, &SliceObservation)| {
            let values = limit.metric.value(slice).zip(limit.metric.value(present));
            values.map_or(f64::INFINITY, |(value, present)| value / limit.bound(present))
        };
        slices.iter().zip(present).map(ratio).fold(0.0, f64::max)
    };
    RankedMode {
        mode,
        cost: objective.iter().zip(base).map(ratio).fold(0.0, f64::max),
        limit_ratio: goal.limits.iter().map(of_limit).reduce(f64::max),
        objective,
    }
}

/// Simulates a slice. The metrics have the names that `quell bench` records.
pub fn observe_model(setup: &Setup, point: &Point) -> Result<SliceObservation, RunError> {
    let result = setup.run(point).simulate()?;
    let latency = if point.load == Load::Max { &result.latency } else { &result.latency_from_due };
    let cpu = &result.cpu;
    let busy_ns = (cpu.thread_ns + cpu.softirq_ns + cpu.hardirq_ns) as f64;
    let responses = result.counters.responses as f64;
    let slice = SliceObservation {
        spent_ms: (setup.warm_up_ns + setup.measured_ns) as f64 / 1e6,
        latency: Some(LatencyCounts::from(latency)),
        ..SliceObservation::default()
    };
    Ok(slice
        .with_metric("cpu-us-per-request", (responses > 0.0).then(|| busy_ns / responses / 1e3))
        .with_metric("requests-per-s", Some(responses / result.measured_s))
        .with_metric("busy-share", Some(busy_ns / cpu.total_ns as f64))
        .with_metric("drops", Some(result.drops() as f64)))
}
