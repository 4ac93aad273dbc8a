//! Sweeps over modes and loads: the rows of `quell sim run`, the syntax of ranges, and parallel runs. Each run is
//! independent and single-threaded, so its result does not depend on the number of threads.

use std::collections::VecDeque;
use std::ops::{ControlFlow, Range};
use std::str::FromStr;
use std::sync::{Condvar, Mutex, PoisonError};

use quell_mode::{DeliveryMode, InvalidLoad, Load, OfferedLoad, ParseModeError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::engine::{Digest, Ns};
use crate::figures::Figures;
use crate::host::HostProfile;
use crate::run::{Run, RunError, RunResult};
use crate::server::ServerKind;
use crate::trace::Trace;
use crate::workload::RunScale;

/// Mean number of connections per queue in the published experiment.
const CONNECTIONS_PER_QUEUE: usize = 560;
/// Maximum number of results per thread that wait for the result of an earlier job.
const AHEAD: usize = 16;
const RANGE_MAX: usize = 200;

/// Common settings of all rows in a sweep: a host with memcached; see [`Run::memcached`].
#[derive(Debug, Clone, PartialEq)]
pub struct Setup {
    /// Profile of the simulated host.
    pub host: HostProfile,
    /// Number of RX queues. The number of workers is the same, and each worker has a CPU.
    pub queues: usize,
    /// Whether each queue has an additional CPU for its interrupt, NAPI thread or polling thread. Otherwise these run
    /// on the CPUs of the workers.
    pub irqs_apart: bool,
    /// Number of connections over all queues.
    pub connections: usize,
    /// Virtual time at the start during which nothing is counted, in ns.
    pub warm_up_ns: Ns,
    /// Virtual time during which events are counted, in ns.
    pub measured_ns: Ns,
}

impl Setup {
    /// Creates the setup for memcached on all CPUs of a host, with the durations of [`RunScale::FULL`].
    #[must_use]
    pub fn new(host: HostProfile) -> Self {
        let RunScale { warm_up_ns, measured_ns, .. } = RunScale::FULL;
        let queues = host.cpus;
        let connections = CONNECTIONS_PER_QUEUE * queues;
        Self { host, queues, irqs_apart: false, connections, warm_up_ns, measured_ns }
    }

    /// Number of CPUs in every row, regardless of its mode. `cpu_pct` is relative to this number.
    #[must_use]
    pub fn cpus(&self) -> usize {
        if self.irqs_apart { 2 * self.queues } else { self.queues }
    }

    /// Changes the number of queues, and in proportion the number of workers, CPUs and connections.
    #[must_use]
    pub fn with_queues(self, queues: usize) -> Self {
        Self { queues, connections: CONNECTIONS_PER_QUEUE * queues, ..self }
    }

    /// Creates the run of one point.
    #[must_use]
    pub fn run(&self, point: &Point) -> Run {
        let scale =
            RunScale { warm_up_ns: self.warm_up_ns, measured_ns: self.measured_ns, seed: point.seed, ..RunScale::FULL };
        let run = Run::memcached(point.mode, point.load, &self.host, scale);
        Run {
            host: HostProfile { cpus: self.queues, ..run.host },
            queues: self.queues,
            server: ServerKind::one_worker_per_queue(self.queues),
            irqs_apart: self.irqs_apart,
            connections: self.connections,
            floating: self.queues > 1,
            ..run
        }
    }

    /// Simulates one row.
    ///
    /// # Errors
    ///
    /// See [`Run::simulate`].
    pub fn row(&self, point: &Point) -> Result<SweepRow, RunError> {
        Ok(self.observed(point, &self.run(point).simulate()?))
    }

    /// Simulates one row and records everything after the warm-up, up to the capacity of a [`Trace`].
    ///
    /// # Errors
    ///
    /// See [`Run::simulate`].
    pub fn recorded_row(&self, point: &Point) -> Result<(SweepRow, Trace), RunError> {
        let (result, trace) = self.run(point).simulate_recorded()?;
        Ok((self.observed(point, &result), trace))
    }

    /// Digest of short runs on the host. It changes with the model and with the host's profile.
    ///
    /// # Errors
    ///
    /// See [`Run::simulate`].
    pub fn fingerprint(&self) -> Result<String, RunError> {
        let short =
            Self { warm_up_ns: 1_000_000, measured_ns: 2_000_000, ..Self::new(self.host.clone()) }.with_queues(2);
        let mut digest = Digest::new();
        for mode in ["base", "defer20", "napibusy", "fullbusy", "suspend20", "threaded", "userbusy"] {
            let Ok(mode) = mode.parse() else { continue };
            for load in [Load::Qps(100e3), Load::Max] {
                let row = short.row(&Point { mode, load, seed: 1 })?;
                format!("{row:?}").bytes().for_each(|byte| digest.add(byte.into()));
            }
        }
        Ok(format!("{:016x}", digest.value()))
    }

    fn observed(&self, point: &Point, result: &RunResult) -> SweepRow {
        SweepRow {
            mode: point.mode,
            load: point.load,
            host: self.host.name.clone(),
            queues: self.queues,
            cpus: self.cpus(),
            connections: self.connections,
            seed: point.seed,
            figures: result.figures(self.queues),
            drops: result.drops(),
            digest: format!("{:016x}", result.digest),
        }
    }
}

/// One point of a sweep.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Delivery mode of the point.
    pub mode: DeliveryMode,
    /// Offered load of the point.
    pub load: Load,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// Result of one point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct SweepRow {
    /// Delivery mode of the row.
    pub mode: DeliveryMode,
    /// Offered load of the row.
    pub load: Load,
    /// Name of the host.
    pub host: String,
    /// Number of RX queues and of workers.
    pub queues: usize,
    /// Number of CPUs.
    pub cpus: usize,
    /// Number of connections over all queues.
    pub connections: usize,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Metrics of the run.
    pub figures: Figures,
    /// Number of packets that were dropped because a ring was full.
    pub drops: u64,
    /// Digest of the run, which is the same on every machine.
    pub digest: String,
}

/// Runs `jobs` jobs on up to `threads` threads, and returns their results in the order of the jobs. Calls `progress` with
/// the number of finished jobs.
pub fn in_parallel<T: Send>(
    jobs: usize,
    threads: usize,
    job: impl Fn(usize) -> T + Sync,
    progress: impl Fn(usize) + Sync,
) -> Vec<T> {
    let mut results = Vec::with_capacity(jobs);
    let emit = |result| {
        results.push(result);
        progress(results.len());
        ControlFlow::<()>::Continue(())
    };
    let _ = in_order(0..jobs, threads, job, emit);
    results
}

struct Pending<T> {
    next: usize,
    /// First job whose result was not passed on, and the results from there.
    first: usize,
    results: VecDeque<Option<T>>,
    /// Whether no more jobs are started, because a consumer or a job gave up.
    stopped: bool,
}

/// Stops all workers when the thread leaves its scope, also by a panic. Otherwise they would wait for its result.
struct StopOnExit<'a, T>(&'a Mutex<Pending<T>>, &'a Condvar);

impl<T> Drop for StopOnExit<'_, T> {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).stopped = true;
        self.1.notify_all();
    }
}

/// Runs jobs on up to `threads` threads, and passes each result to `emit` in the order of the jobs, as soon as the
/// results before it are there. At most `AHEAD` results per thread wait. `emit` can end the remaining work.
pub fn in_order<T: Send, B>(
    jobs: Range<usize>,
    threads: usize,
    job: impl Fn(usize) -> T + Sync,
    mut emit: impl FnMut(T) -> ControlFlow<B>,
) -> ControlFlow<B> {
    let threads = threads.clamp(1, jobs.len().max(1));
    let pending = Mutex::new(Pending { next: jobs.start, first: jobs.start, results: VecDeque::new(), stopped: false });
    let changed = Condvar::new();
    let lock = || pending.lock().unwrap_or_else(PoisonError::into_inner);
    let wait = |guard| changed.wait(guard).unwrap_or_else(PoisonError::into_inner);
    let start = || {
        let mut state = lock();
        while !state.stopped && state.next < jobs.end {
            if state.results.len() < AHEAD * threads {
                state.results.push_back(None);
                state.next += 1;
                return Some(state.next - 1);
            }
            state = wait(state);
        }
        None
    };
    let work = || {
        while let Some(index) = start() {
            let panicked = StopOnExit(&pending, &changed);
            let result = job(index);
            std::mem::forget(panicked);
            let mut state = lock();
            let place = index - state.first;
            state.results[place] = Some(result);
            changed.notify_all();
        }
    };
    std::thread::scope(|scope| {
        let _ended = StopOnExit(&pending, &changed);
        for _ in 0..threads {
            scope.spawn(work);
        }
        for _ in jobs.clone() {
            let mut state = lock();
            while !state.stopped && state.results.front().is_none_or(Option::is_none) {
                state = wait(state);
            }
            let Some(Some(result)) = state.results.pop_front() else { break };
            state.first += 1;
            drop(state);
            changed.notify_all();
            emit(result)?;
        }
        ControlFlow::Continue(())
    })
}

/// Simulates all points in parallel; rows are in the order of the points.
///
/// # Errors
///
/// The error of the first run that failed.
pub fn sweep(
    setup: &Setup,
    points: &[Point],
    threads: usize,
    progress: impl Fn(usize) + Sync,
) -> Result<Vec<SweepRow>, RunError> {
    in_parallel(points.len(), threads, |index| setup.row(&points[index]), progress).into_iter().collect()
}

/// An invalid range of modes or loads.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid range `{text}`: {why}")]
pub struct RangeError {
    text: String,
    why: &'static str,
}

impl RangeError {
    fn new(text: &str, why: &'static str) -> Self {
        Self { text: text.to_owned(), why }
    }
}

/// Why a list of modes is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModesError {
    /// An invalid mode.
    #[error(transparent)]
    Mode(#[from] ParseModeError),
    /// An invalid range.
    #[error(transparent)]
    Range(#[from] RangeError),
}

/// Parses a list of modes. A range covers the number in a mode's name: `base,suspend10..200` stands for `base`, and for
/// `suspend` with 10, 20, 50, 100 and 200. Overrides after a range apply to all its modes.
///
/// # Errors
///
/// When a mode or a range is invalid.
pub fn modes(text: &str) -> Result<Vec<DeliveryMode>, ModesError> {
    if !text.contains("..") {
        return Ok(DeliveryMode::parse_list(text)?);
    }
    let mut listed: Vec<String> = Vec::new();
    let mut items = text.split(',').peekable();
    while let Some(item) = items.next() {
        let mut overrides = String::new();
        while let Some(item) = items.next_if(|item| item.contains('=')) {
            overrides.push(',');
            overrides.push_str(item);
        }
        match item.split_once("..") {
            Some((first, last)) => {
                listed.extend(range_of_modes(item, first, last)?.into_iter().map(|mode| mode + &overrides));
            }
            None => listed.push(format!("{item}{overrides}")),
        }
    }
    Ok(DeliveryMode::parse_list(&listed.join(","))?)
}

fn range_of_modes(item: &str, first: &str, last: &str) -> Result<Vec<String>, RangeError> {
    let digits = first.find(|letter: char| letter.is_ascii_digit()).unwrap_or(first.len());
    let (word, from) = first.split_at(digits);
    let (Ok(from), Ok(to)) = (from.parse::<u64>(), last.parse::<u64>()) else {
        return Err(RangeError::new(item, "use whole numbers of microseconds, as in suspend10..200"));
    };
    if from == 0 || from > to {
        return Err(RangeError::new(item, "it must begin above 0 and must not decrease, as in suspend10..200"));
    }
    Ok(series(from, to).map(|number| format!("{word}{number}")).collect())
}

/// The series 1, 2, 5, 10, … between the bounds, and the bounds themselves.
fn series(from: u64, to: u64) -> impl Iterator<Item = u64> {
    let decades = (0..19).flat_map(|decade| [1, 2, 5].map(|digit| digit * 10u64.pow(decade)));
    let between = decades.filter(move |&number| number > from && number < to);
    std::iter::once(from).chain(between).chain(Some(to).filter(|&to| to > from))
}

/// Why a list of loads is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoadsError {
    /// The text is neither a rate, nor a percentage, nor `max`.
    #[error(transparent)]
    Load(#[from] InvalidLoad),
    /// A percentage is invalid.
    #[error("invalid percentage `{0}` of base's maximum: expected 0.1% to 200%")]
    Share(String),
    /// An invalid range.
    #[error(transparent)]
    Range(#[from] RangeError),
}

/// Loads of a sweep. Percentages are not yet converted to rates.
#[derive(Debug, Clone, PartialEq)]
pub struct Loads(Vec<OfferedLoad>);

impl FromStr for Loads {
    type Err = LoadsError;

    /// Parses a list of rates (`600K`), `max`, percentages (`50%`) and ranges. `10%..100%` has steps of 10 %, and
    /// `200K..1M` has steps of the first rate.
    fn from_str(text: &str) -> Result<Self, LoadsError> {
        let mut loads = Vec::new();
        for item in text.split(',') {
            match item.split_once("..") {
                Some((from, to)) => loads.extend(range_of_loads(item, requested(from)?, requested(to)?)?),
                None => loads.push(requested(item)?),
            }
        }
        Ok(Self(loads))
    }
}

/// A load with a share of the maximum that the model can have.
fn requested(text: &str) -> Result<OfferedLoad, LoadsError> {
    match text.parse()? {
        OfferedLoad::Percent(share) if !(0.1..=200.0).contains(&share) => Err(LoadsError::Share(text.to_owned())),
        load => Ok(load),
    }
}

fn range_of_loads(item: &str, from: OfferedLoad, to: OfferedLoad) -> Result<Vec<OfferedLoad>, RangeError> {
    match (from, to) {
        (OfferedLoad::Percent(from), OfferedLoad::Percent(to)) => {
            Ok(steps(item, from, to, 10.0)?.into_iter().map(OfferedLoad::Percent).collect())
        }
        (OfferedLoad::Rate(from), OfferedLoad::Rate(to)) => {
            Ok(steps(item, from, to, from)?.into_iter().map(OfferedLoad::Rate).collect())
        }
        _ => Err(RangeError::new(item, "both ends must be rates, as in 200K..1M, or percentages, as in 10%..100%")),
    }
}

/// Values from the first to the last in equal steps. The last value is always included.
fn steps(item: &str, from: f64, to: f64, step: f64) -> Result<Vec<f64>, RangeError> {
    if from > to {
        return Err(RangeError::new(item, "its end is below its start"));
    }
    let whole = ((to - from) / step) as usize;
    if whole >= RANGE_MAX {
        return Err(RangeError::new(item, "it has more than 200 steps"));
    }
    let inner = (0..=whole).map(|count| from + step * count as f64).filter(|&load| load < to * 0.999_999);
    Ok(inner.chain([to]).collect())
}

impl Loads {
    /// Converts the loads to rates. If some are percentages, it first simulates the maximum throughput of `base`.
    ///
    /// # Errors
    ///
    /// When that run is not possible.
    pub fn resolve(&self, setup: &Setup, seed: u64) -> Result<Vec<Load>, RunError> {
        self.rates(&mut BaseMaximum::new(setup, seed))
    }

    pub(crate) fn rates(&self, maximum: &mut BaseMaximum<'_>) -> Result<Vec<Load>, RunError> {
        let load = |load: &OfferedLoad| match *load {
            OfferedLoad::Rate(rate) => Ok(Load::Qps(rate)),
            OfferedLoad::Max => Ok(Load::Max),
            OfferedLoad::Percent(share) => Ok(Load::Qps((maximum.qps()? * share / 100.0).round().max(1.0))),
        };
        self.0.iter().map(load).collect()
    }
}

/// Throughput of `base` in a closed loop, which is simulated when it is first needed.
pub(crate) struct BaseMaximum<'a> {
    setup: &'a Setup,
    seed: u64,
    qps: Option<f64>,
}

impl<'a> BaseMaximum<'a> {
    pub(crate) fn new(setup: &'a Setup, seed: u64) -> Self {
        Self { setup, seed, qps: None }
    }

    fn qps(&mut self) -> Result<f64, RunError> {
        match self.qps {
            Some(qps) => Ok(qps),
            None => {
                let base = Point { mode: DeliveryMode::default(), load: Load::Max, seed: self.seed };
                Ok(*self.qps.insert(self.setup.row(&base)?.figures.qps))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn results_are_passed_on_in_order_and_few_wait_for_an_earlier_one() {
        let (started, mut passed_on) = (AtomicUsize::new(0), Vec::new());
        let job = |index| {
            started.fetch_add(1, Ordering::SeqCst);
            index
        };
        let emit = |index| {
            assert!(started.load(Ordering::SeqCst) <= index + 1 + 2 * AHEAD);
            passed_on.push(index);
            if index == 99 { ControlFlow::Break("enough") } else { ControlFlow::Continue(()) }
        };
        assert_eq!(in_order(10..1_000_000, 2, job, emit), ControlFlow::Break("enough"));
        assert_eq!(passed_on, (10..100).collect::<Vec<_>>());
    }

    #[test]
    #[should_panic(expected = "a scoped thread panicked")]
    fn a_job_that_panics_ends_the_others() {
        in_parallel(1000, 2, |index| assert_ne!(index, 50), |_| ());
    }

    fn names(text: &str) -> Vec<String> {
        modes(text).expect("modes").iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_range_of_modes_has_steps_of_1_2_5() {
        assert_eq!(names("suspend10..200"), ["suspend10", "suspend20", "suspend50", "suspend100", "suspend200"]);
        assert_eq!(names("base,defer10..20,fullbusy"), ["base", "defer10", "defer20", "fullbusy"]);
    }

    #[test]
    fn overrides_after_a_range_apply_to_all_its_modes() {
        let both = names("suspend10..20,defer-hard-irqs=7,base");
        assert_eq!(both, ["suspend10,defer-hard-irqs=7", "suspend20,defer-hard-irqs=7", "base"]);
    }

    #[test]
    fn an_invalid_range_is_refused_with_an_example() {
        for text in ["suspend10..fast", "suspend200..10", "suspend0..10", "suspend..200"] {
            let error = modes(text).expect_err(text).to_string();
            assert!(error.contains(text) && error.contains("suspend10..200"), "{error}");
        }
        assert!(matches!(modes("suspnd10..20"), Err(ModesError::Mode(_))));
    }

    #[test]
    fn loads_are_rates_percentages_and_ranges_of_both() {
        let loads = |text: &str| text.parse::<Loads>().expect("loads").0;
        let rate = OfferedLoad::Rate;
        assert_eq!(loads("200K,max"), [rate(200e3), OfferedLoad::Max]);
        assert_eq!(loads("80%..100%"), [80.0, 90.0, 100.0].map(OfferedLoad::Percent));
        assert_eq!(loads("50%..75%"), [50.0, 60.0, 70.0, 75.0].map(OfferedLoad::Percent));
        assert_eq!(
            loads("250K..1M,95%"),
            [rate(250e3), rate(500e3), rate(750e3), rate(1e6), OfferedLoad::Percent(95.0)]
        );
    }

    #[test]
    fn an_invalid_load_is_refused() {
        for text in ["10%..fast", "0%", "100%..10%", "200K..50%", "max..1M", "1..1M", "", "200K,"] {
            assert!(text.parse::<Loads>().is_err(), "{text}");
        }
    }

    #[test]
    fn results_do_not_depend_on_the_number_of_threads() {
        let squares = |threads| in_parallel(20, threads, |index| index * index, |_| ());
        assert_eq!(squares(1), squares(3));
    }
}
