//! Many runs: the rows of `quell sim run`, ranges of modes and loads, and runs in parallel. Each
//! run is single-threaded and independent, so that results do not depend on how many run at once.

use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use quell_mode::{DeliveryMode, ParseModeError};
use serde::Serialize;

use crate::host::HostProfile;
use crate::published::{Figures, IrqSuspension, Load, LoadError, RunScale};
use crate::run::RunError;

/// Schema of a [`Row`].
pub const ROW_SCHEMA: &str = "quell-sim-row-1";

/// The result of one run of the published server shape on a host.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// [`ROW_SCHEMA`].
    pub schema: &'static str,
    /// The delivery mode.
    pub mode: DeliveryMode,
    /// The offered load.
    pub load: Load,
    /// The host's name.
    pub host: String,
    /// Where random numbers came from.
    pub seed: u64,
    /// What was observed.
    pub figures: Figures,
    /// Packets that found no place in a ring.
    pub drops: u64,
    /// Digest of the run: equal on every machine.
    pub digest: String,
}

/// Simulates one row.
///
/// # Errors
///
/// A run that is not possible.
pub fn row(mode: DeliveryMode, load: Load, host: &HostProfile, scale: RunScale) -> Result<Row, RunError> {
    let result = IrqSuspension::run(mode, load, host, scale).simulate()?;
    Ok(Row {
        schema: ROW_SCHEMA,
        mode,
        load,
        host: host.name.clone(),
        seed: scale.seed,
        figures: result.figures(host.cpus),
        drops: result.drops(),
        digest: format!("{:016x}", result.digest),
    })
}

/// Does `jobs` jobs on up to `threads` threads, results in the order of the jobs. `progress` hears
/// how many are done, from any of the threads.
pub fn in_parallel<T: Send>(
    jobs: usize,
    threads: usize,
    job: impl Fn(usize) -> T + Sync,
    progress: impl Fn(usize) + Sync,
) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    let results: Mutex<Vec<(usize, T)>> = Mutex::new(Vec::with_capacity(jobs));
    let work = || {
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= jobs {
                break;
            }
            let result = job(index);
            results.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
            progress(done.fetch_add(1, Ordering::Relaxed) + 1);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.clamp(1, jobs.max(1)) {
            scope.spawn(work);
        }
        work();
    });
    let mut results = results.into_inner().unwrap_or_else(PoisonError::into_inner);
    results.sort_by_key(|(index, _)| *index);
    results.into_iter().map(|(_, result)| result).collect()
}

/// A list of modes, or a range over the number in a mode's name: `suspend10..200` is 10, 20, 50,
/// 100 and 200.
///
/// # Errors
///
/// What is no mode.
pub fn modes(text: &str) -> Result<Vec<DeliveryMode>, ParseModeError> {
    let Some((first, last)) = text.split_once("..") else { return DeliveryMode::parse_list(text) };
    let digits = first.find(|letter: char| letter.is_ascii_digit()).unwrap_or(first.len());
    let (word, from) = first.split_at(digits);
    let (Ok(from), Ok(to)) = (from.parse::<u64>(), last.parse::<u64>()) else {
        return DeliveryMode::parse_list(text);
    };
    series(from, to).map(|number| format!("{word}{number}").parse()).collect()
}

/// 1, 2, 5, 10, … within the bounds, which are always there themselves.
fn series(from: u64, to: u64) -> impl Iterator<Item = u64> {
    let decades = (0..19).flat_map(|decade| [1, 2, 5].map(|digit| digit * 10u64.pow(decade)));
    let between = decades.filter(move |&number| number > from && number < to);
    std::iter::once(from).chain(between).chain(Some(to).filter(|&to| to > from))
}

/// Loads of a sweep, before it is known what the host can do.
#[derive(Debug, Clone, PartialEq)]
pub enum Loads {
    /// These.
    Given(Vec<Load>),
    /// Shares of what `base` reaches on the host in a closed loop, in percent.
    Percent(Vec<f64>),
}

impl FromStr for Loads {
    type Err = LoadError;

    /// Reads `600K`, `200K,600K,MAX`, `50%` or `10%..100%` (in steps of 10 %).
    fn from_str(text: &str) -> Result<Self, LoadError> {
        let refused = || LoadError::new(text);
        let percent = |text: &str| {
            let share: f64 = text.strip_suffix('%')?.parse().ok()?;
            Some(share).filter(|share| (0.1..=200.0).contains(share))
        };
        if let Some((from, to)) = text.split_once("..") {
            let (Some(from), Some(to)) = (percent(from), percent(to)) else { return Err(refused()) };
            let steps = ((to - from) / 10.0).floor().max(0.0) as usize;
            return Ok(Self::Percent((0..=steps).map(|step| from + 10.0 * step as f64).collect()));
        }
        if text.ends_with('%') {
            return text
                .split(',')
                .map(|part| percent(part).ok_or_else(refused))
                .collect::<Result<_, _>>()
                .map(Self::Percent);
        }
        text.split(',').map(str::parse).collect::<Result<_, _>>().map(Self::Given)
    }
}

impl Loads {
    /// The loads as rates; where they are shares, what `base` can do is simulated first.
    ///
    /// # Errors
    ///
    /// A run that is not possible.
    pub fn resolve(&self, host: &HostProfile, scale: RunScale) -> Result<Vec<Load>, RunError> {
        match self {
            Self::Given(loads) => Ok(loads.clone()),
            Self::Percent(shares) => {
                let most = row(DeliveryMode::default(), Load::Max, host, scale)?.figures.qps;
                Ok(shares.iter().map(|share| Load::Qps((most * share / 100.0).round())).collect())
            }
        }
    }
}

/// Every mode at every load, in parallel.
pub fn sweep(
    modes: &[DeliveryMode],
    loads: &[Load],
    host: &HostProfile,
    scale: RunScale,
    threads: usize,
    progress: impl Fn(usize) + Sync,
) -> Vec<Result<Row, RunError>> {
    let jobs: Vec<_> = modes.iter().flat_map(|&mode| loads.iter().map(move |&load| (mode, load))).collect();
    in_parallel(jobs.len(), threads, |index| row(jobs[index].0, jobs[index].1, host, scale), progress)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_modes_goes_by_1_2_5() {
        let names: Vec<_> = modes("suspend10..200").expect("a range").iter().map(ToString::to_string).collect();
        assert_eq!(names, ["suspend10", "suspend20", "suspend50", "suspend100", "suspend200"]);
        assert_eq!(modes("base,fullbusy").expect("a list").len(), 2);
        assert!(modes("suspend10..fast").is_err());
    }

    #[test]
    fn loads_are_rates_or_shares() {
        assert_eq!("200K,MAX".parse(), Ok(Loads::Given(vec![Load::Qps(200e3), Load::Max])));
        assert_eq!("80%..100%".parse(), Ok(Loads::Percent(vec![80.0, 90.0, 100.0])));
        assert!("10%..fast".parse::<Loads>().is_err());
    }

    #[test]
    fn results_do_not_depend_on_the_number_of_threads() {
        let squares = |threads| in_parallel(20, threads, |index| index * index, |_| ());
        assert_eq!(squares(1), squares(3));
    }
}
