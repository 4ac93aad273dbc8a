//! What the model of a host expects of each mode. It costs no measuring time.

use std::collections::BTreeMap;

use quell_experiment::{LatencyCounts, SliceObservation};
use quell_mode::{DeliveryMode, Requirement, Threaded};
use quell_sim::sweep::{Point, Setup, in_parallel};
use quell_sim::{Load, RunError};
use schemars::JsonSchema;
use serde::Serialize;

use crate::goal::{TuneGoal, TuneMetric};
use crate::plan::TunePlan;
use crate::space::TuneSpace;

/// Number of modes that are named as worth measuring.
const WORTH_MEASURING: usize = 3;
/// Number of modes whose neighbours are ranked too.
const REFINED: usize = 4;
/// Number of runs, with different seeds, of each mode that is worth a closer look. Their range is the model's spread.
pub const RUNS: u64 = 3;
/// Number of modes that have several runs, besides `base` and the present setting.
const REPEATED: usize = 12;

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
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct RankedMode {
    pub mode: DeliveryMode,
    /// Rank, from 1. Modes have the rank of the first one whose range overlaps theirs: they are the same within the
    /// model's spread.
    pub rank: usize,
    /// Objective at each load, in its unit: the median of the runs. Absent if the model cannot tell it.
    pub objective: Vec<Option<f64>>,
    /// Largest ratio of a limited quantity to its limit, over all limits and loads. Absent without limits, and if a run
    /// has too few requests to judge one.
    #[serde(skip_serializing_if = "is_unknown")]
    pub limit_ratio: Option<RunRange>,
    /// Largest ratio of the objective to that of `base` over all loads, as a cost: above 1 is worse than `base`. Absent if
    /// the model cannot tell it.
    #[serde(skip_serializing_if = "RunRange::is_unknown")]
    #[schemars(with = "Option<RunRange>")]
    pub cost: RunRange,
}

/// Values of runs with different seeds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct RunRange {
    pub lowest: f64,
    pub median: f64,
    pub highest: f64,
}

impl RunRange {
    /// The range of values in any order; infinite if all of them are. `None` without values.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let known = values.iter().filter(|value| value.is_finite()).count();
        let values = &values[..if known > 0 { known } else { values.len() }];
        let (lowest, highest) = (*values.first()?, *values.last()?);
        Some(Self { lowest, median: values[values.len() / 2], highest })
    }

    /// Whether no run has a value.
    #[must_use]
    pub fn is_unknown(&self) -> bool {
        !self.median.is_finite()
    }
}

fn is_unknown(range: &Option<RunRange>) -> bool {
    range.is_none_or(|range| range.is_unknown())
}

/// Modes to measure next, by a ranking.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WorthMeasuring {
    /// The best mode of each kind, the best kind first.
    pub modes: Vec<DeliveryMode>,
    /// Modes with a rank as good as theirs that are not among them.
    pub left_out: Vec<(DeliveryMode, WhyNotMeasured)>,
}

/// Why a mode of a good rank is not measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhyNotMeasured {
    /// Only `quell run` can give it to a program.
    NeedsLaunch,
    /// It uses whole CPUs at any load, and the goal is to save CPU time.
    PollsAtAnyLoad,
}

impl RankedMode {
    /// Whether the model expects that all limits hold.
    #[must_use]
    pub fn meets_limits(&self) -> bool {
        self.limit_ratio.is_none_or(|ratio| ratio.median <= 1.0)
    }

    /// The value by which it is ranked: how far it misses a limit, or else its cost.
    fn ranked_by(&self) -> RunRange {
        self.limit_ratio.filter(|_| !self.meets_limits()).unwrap_or(self.cost)
    }

    /// Order among modes of one rank. Of those that hold the limits, suspension is first, because it delays nothing when
    /// idle, and modes that poll at any load are last.
    fn order_within_rank(&self) -> (u8, f64) {
        let burden = match self.mode.napi().irq_suspend_timeout_ns {
            _ if !self.meets_limits() => 0,
            1.. => 0,
            0 if !self.mode.polls_at_any_load() => 1,
            0 => 2,
        };
        (burden, self.cost.median)
    }
}

impl TunePlan {
    /// What is worth measuring by a ranking, besides the present setting: of each kind the best mode, in order of rank, as
    /// long as it has no worse rank than the present setting. If no mode holds the limits, the closest ones. Modes that
    /// poll at any load are left out if the goal is to save CPU time and others can be measured.
    #[must_use]
    pub fn worth_measuring(&self, ranked: &[RankedMode]) -> WorthMeasuring {
        let is_any_within = ranked.iter().any(RankedMode::meets_limits);
        let is_known = |one: &&RankedMode| !one.ranked_by().is_unknown();
        let present = ranked.iter().find(|one| one.mode == self.present && one.meets_limits() == is_any_within);
        let worst_rank = present.map_or(usize::MAX, |present| present.rank);
        let is_candidate = |one: &&RankedMode| {
            one.mode != self.present && one.meets_limits() == is_any_within && one.rank <= worst_rank
        };
        let mut best: Vec<DeliveryMode> = Vec::new();
        for RankedMode { mode, .. } in ranked.iter().filter(is_known).filter(is_candidate) {
            if best.iter().all(|other| other.kind().word() != mode.kind().word()) {
                best.push(*mode);
            }
        }
        let saves_cpu = matches!(self.goal.objective, TuneMetric::Cpu | TuneMetric::Busy);
        let needs_launch = |mode: &DeliveryMode| mode.requirements().contains(&Requirement::SpinBeforeSleep);
        let sleeps = |mode: &DeliveryMode| !mode.polls_at_any_load() && !needs_launch(mode);
        let prefers_sleep = is_any_within && saves_cpu && best.iter().any(sleeps);
        let mut worth = WorthMeasuring::default();
        for mode in best {
            match mode {
                _ if worth.modes.len() == WORTH_MEASURING => break,
                mode if needs_launch(&mode) => worth.left_out.push((mode, WhyNotMeasured::NeedsLaunch)),
                mode if prefers_sleep && mode.polls_at_any_load() => {
                    worth.left_out.push((mode, WhyNotMeasured::PollsAtAnyLoad));
                }
                mode => worth.modes.push(mode),
            }
        }
        worth
    }
}

impl ModelPrior {
    /// Ranks modes for a goal, best first: those that hold the limits by their cost, then the others by how far they
    /// miss a limit. They are a coarse grid, with `base` and the present setting, and the neighbours of its best modes;
    /// overrides change 2 or 3 % in the model. The best of them run again with other seeds. Modes that the model cannot
    /// run are left out. The result does not depend on the number of threads.
    ///
    /// # Errors
    /// When the model cannot run `base` or the present setting.
    pub fn rank(&self, goal: &TuneGoal, threads: usize) -> Result<Vec<RankedMode>, RunError> {
        let first = self.reference(self.seed)?;
        let mut modes: Vec<DeliveryMode> = self.space.coarse().into_iter().filter(|mode| !self.is_base(mode)).collect();
        if !modes.contains(&self.present) {
            modes.push(self.present);
        }
        let run = |modes: &[DeliveryMode], reference: &Reference| self.run_each(goal, modes, threads, reference);
        let mut runs = run(&modes, &first);
        let ranked = ranking(&runs);
        let best: Vec<DeliveryMode> = ranked.iter().take(REFINED).map(|ranked| ranked.mode).collect();
        let is_new = |mode: &DeliveryMode| !modes.contains(mode) && !self.is_base(mode);
        let neighbours: Vec<DeliveryMode> = self.space.neighbours(&best).into_iter().filter(is_new).collect();
        runs.extend(run(&neighbours, &first));
        let is_compared = |mode: &DeliveryMode| [self.present, DeliveryMode::default()].contains(mode);
        let in_order = ranking(&runs).into_iter().map(|ranked| ranked.mode).enumerate();
        let repeated = in_order.filter(|(at, mode)| *at < REPEATED || is_compared(mode));
        let repeated: Vec<DeliveryMode> = repeated.map(|(_, mode)| mode).collect();
        for seed in 1..RUNS {
            runs.extend(run(&repeated, &self.reference(self.seed.wrapping_add(seed))?));
        }
        Ok(ranking(&runs))
    }

    /// `base` and the present setting with a seed.
    fn reference(&self, seed: u64) -> Result<Reference, RunError> {
        let at_each_load = |mode: DeliveryMode| {
            let slices = (0..self.loads.len()).map(|load| self.slice(mode, load, seed));
            slices.collect::<Result<Vec<SliceObservation>, _>>()
        };
        let base = at_each_load(DeliveryMode::default())?;
        let present = match self.present == DeliveryMode::default() {
            true => base.clone(),
            false => at_each_load(self.present)?,
        };
        Ok(Reference { seed, base, present })
    }

    fn slice(&self, mode: DeliveryMode, load: usize, seed: u64) -> Result<SliceObservation, RunError> {
        observe_model(&self.setup, &Point { mode: self.as_set(mode), load: self.loads[load], seed })
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

    fn run_each(&self, goal: &TuneGoal, modes: &[DeliveryMode], threads: usize, reference: &Reference) -> Vec<ModeRun> {
        let loads = self.loads.len();
        let run = |index: usize| self.slice(modes[index / loads], index % loads, reference.seed);
        let slices = in_parallel(modes.len() * loads, threads, run, |_| ());
        let of_mode = |(mode, slices): (&DeliveryMode, &[Result<SliceObservation, RunError>])| {
            let slices: Vec<&SliceObservation> =
                slices.iter().map(|slice| slice.as_ref().ok()).collect::<Option<_>>()?;
            Some(mode_run(goal, *mode, &slices, reference))
        };
        modes.iter().zip(slices.chunks(loads)).filter_map(of_mode).collect()
    }
}

/// Slices with which those of other modes are compared, one per load.
struct Reference {
    seed: u64,
    base: Vec<SliceObservation>,
    present: Vec<SliceObservation>,
}

/// A mode in runs with one seed, as [`RankedMode`].
#[derive(Debug, Clone)]
struct ModeRun {
    mode: DeliveryMode,
    objective: Vec<Option<f64>>,
    limit_ratio: Option<f64>,
    cost: f64,
}

/// Ranks the modes of these runs.
fn ranking(runs: &[ModeRun]) -> Vec<RankedMode> {
    let mut by_mode: BTreeMap<DeliveryMode, Vec<&ModeRun>> = BTreeMap::new();
    runs.iter().for_each(|run| by_mode.entry(run.mode).or_default().push(run));
    let of_mode = |runs: Vec<&ModeRun>| {
        let first = runs.first()?;
        let median = |load: usize| Some(RunRange::of(runs.iter().filter_map(|run| run.objective[load]))?.median);
        Some(RankedMode {
            mode: first.mode,
            rank: 0,
            objective: (0..first.objective.len()).map(median).collect(),
            limit_ratio: RunRange::of(runs.iter().filter_map(|run| run.limit_ratio)),
            cost: RunRange::of(runs.iter().map(|run| run.cost))?,
        })
    };
    let mut ranked: Vec<RankedMode> = by_mode.into_values().filter_map(of_mode).collect();
    ranked.sort_by(|a, b| {
        let misses = a.meets_limits().cmp(&b.meets_limits()).reverse();
        misses.then(a.ranked_by().median.total_cmp(&b.ranked_by().median)).then(a.cost.median.total_cmp(&b.cost.median))
    });
    let mut first = 0;
    for at in 0..ranked.len() {
        let (leads, one) = (&ranked[first], &ranked[at]);
        if leads.meets_limits() != one.meets_limits() || one.ranked_by().lowest > leads.ranked_by().highest {
            first = at;
        }
        ranked[at].rank = first + 1;
    }
    ranked.sort_by(|a, b| {
        let ((a_burden, a_cost), (b_burden, b_cost)) = (a.order_within_rank(), b.order_within_rank());
        a.rank.cmp(&b.rank).then(a_burden.cmp(&b_burden)).then(a_cost.total_cmp(&b_cost))
    });
    ranked
}

fn mode_run(goal: &TuneGoal, mode: DeliveryMode, slices: &[&SliceObservation], reference: &Reference) -> ModeRun {
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
        slices.iter().zip(&reference.present).map(ratio).fold(0.0, f64::max)
    };
    ModeRun {
        mode,
        cost: objective.iter().zip(&reference.base).map(ratio).fold(0.0, f64::max),
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

#[cfg(test)]
mod tests {
    use super::*;

    fn run(mode: &str, limit_ratio: Option<f64>, cost: f64) -> ModeRun {
        let mode = mode.parse().unwrap_or_else(|why| panic!("{why}"));
        ModeRun { mode, objective: vec![Some(cost)], limit_ratio, cost }
    }

    fn ranks(runs: &[ModeRun]) -> Vec<(String, usize)> {
        ranking(runs).into_iter().map(|one| (one.mode.to_string(), one.rank)).collect()
    }

    fn expected<const N: usize>(ranks: [(&str, usize); N]) -> Vec<(String, usize)> {
        ranks.map(|(mode, rank)| (mode.to_owned(), rank)).to_vec()
    }

    #[test]
    fn modes_whose_ranges_overlap_that_of_the_first_have_its_rank() {
        let of = |mode, costs: [f64; 3]| costs.map(|cost| run(mode, None, cost));
        let runs = [of("defer20", [0.8, 0.9, 1.0]), of("suspend20", [0.95, 0.95, 1.1]), of("base", [1.05; 3])].concat();
        assert_eq!(ranks(&runs), expected([("suspend20", 1), ("defer20", 1), ("base", 3)]));
    }

    #[test]
    fn modes_that_miss_a_limit_are_ranked_by_how_far_and_within_the_spread_by_their_cost() {
        let of = |mode, limits: [f64; 2], cost| limits.map(|limit| run(mode, Some(limit), cost));
        let runs =
            [of("fullbusy", [1.2, 1.4], 5.0), of("suspend20", [1.3, 1.5], 0.9), of("base", [2.0, 2.1], 1.0)].concat();
        assert_eq!(ranks(&runs), expected([("suspend20", 1), ("fullbusy", 1), ("base", 3)]));
        let holds = [runs, of("defer640", [0.5, 0.6], 9.0).to_vec()].concat();
        assert_eq!(ranks(&holds)[0], ("defer640".to_owned(), 1), "whatever it costs");
    }

    #[test]
    fn a_mode_without_a_value_has_no_range_and_is_ranked_last() {
        let unknown = |mode| run(mode, Some(f64::INFINITY), 0.5);
        let ranked = ranking(&[unknown("defer20"), run("base", Some(3.0), 1.0)]);
        assert_eq!(ranked[1].mode.to_string(), "defer20");
        let json = serde_json::to_value(&ranked).unwrap_or_else(|why| panic!("{why}"));
        assert!(json[1].get("limit-ratio").is_none() && json[0]["limit-ratio"]["median"] == 3.0, "{json}");
    }
}
