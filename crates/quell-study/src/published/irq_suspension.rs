//! Published experiment (a), 2024: IRQ suspension, measured with memcached and 11 modes at 6 loads. This module
//! compares it with runs of the model.

use std::collections::BTreeMap;

use quell_mode::DeliveryMode;
use quell_published::PublishedCell;
use quell_sim::sweep::in_parallel;
use quell_sim::{Figures, HostProfile, Run, RunError, RunResult, RunScale};

use super::score::{ComparedCell, RatioCell, Scored, held_out, ratios_to_base, score, score_ratios};

/// Factor on the duration of a run under adaptive moderation.
const MODERATED_FACTOR: u64 = 5;

/// Run of a cell. Under adaptive moderation it is longer: moderation stays in one profile for up to hundreds of ms, and
/// the tail of a short run is that of one profile. Published runs last for seconds.
#[must_use]
pub fn run_of_cell(cell: &PublishedCell, host: &HostProfile, scale: RunScale) -> Run {
    let factor = if cell.mode.napi().defers() { 1 } else { MODERATED_FACTOR };
    let scale = RunScale { measured_ns: factor * scale.measured_ns, ..scale };
    Run::memcached(cell.mode, cell.load, host, scale)
}

#[derive(Debug, Clone, PartialEq)]
pub struct SuspensionComparison {
    pub cells: Vec<ComparedCell>,
    /// Ratios of all modes to `base` at the same load.
    pub ratios: Vec<RatioCell>,
    pub training: Scored,
    pub held_out: Scored,
    /// Scores of `base`, to which every other mode is compared.
    pub base: Scored,
    /// Scores of the ratios to `base`, over all modes.
    pub to_base: Scored,
    pub events: u64,
}

/// Metrics of a run, with the percentiles of latency that mutilate prints.
#[must_use]
pub fn figures_as_published(result: &RunResult, host: &HostProfile) -> Figures {
    let [p50_us, p95_us, p99_us] = mutilate_percentiles_us(result.latency.slots(), [0.50, 0.95, 0.99]);
    Figures { p50_us, p95_us, p99_us, ..result.figures(host.cpus) }
}

/// Ratio of the ends of a bucket of mutilate.
const BUCKET_RATIO: f64 = 1.1;

/// Lower end in µs of a bucket of mutilate.
fn bucket_us(bucket: u32) -> f64 {
    libm::pow(BUCKET_RATIO, bucket.into())
}

/// Percentiles in µs that mutilate prints for latencies, which are given in ns with their numbers (`get_nth` of its
/// `LogHistogramSampler`). It takes the latencies of a bucket as spread evenly. NaN without latencies.
fn mutilate_percentiles_us<const N: usize>(latencies: impl Iterator<Item = (u64, u32)>, shares: [f64; N]) -> [f64; N] {
    let mut buckets = BTreeMap::<u32, f64>::new();
    for (ns, count) in latencies {
        let bucket = libm::log(ns as f64 / 1e3) / libm::log(BUCKET_RATIO);
        *buckets.entry(bucket as u32).or_default() += f64::from(count);
    }
    let all: f64 = buckets.values().sum();
    shares.map(|share| {
        let mut left = share * all;
        for (&bucket, &count) in &buckets {
            if left < count {
                let (low, high) = (bucket_us(bucket), bucket_us(bucket + 1));
                return low + left / count * (high - low);
            }
            left -= count;
        }
        f64::NAN
    })
}

/// Simulates every cell with `seeds` consecutive seeds, on up to `threads` threads, and compares the medians. Calls
/// `progress` with the number of finished runs.
pub fn irq_suspension(
    cells: &[PublishedCell],
    host: &HostProfile,
    scale: RunScale,
    seeds: u64,
    threads: usize,
    progress: impl Fn(usize) + Sync,
) -> Result<SuspensionComparison, RunError> {
    let seeds = seeds.max(1);
    let simulate = |index: usize| {
        let scale = RunScale { seed: scale.seed + index as u64 % seeds, ..scale };
        run_of_cell(&cells[index / seeds as usize], host, scale).simulate()
    };
    let runs = cells.len() * seeds as usize;
    let results: Vec<RunResult> =
        in_parallel(runs, threads, simulate, progress).into_iter().collect::<Result<_, _>>()?;
    let events = results.iter().map(|result| result.events).sum();
    let figures: Vec<Figures> = results.iter().map(|result| figures_as_published(result, host)).collect();
    let pairs = cells.iter().zip(figures.chunks(seeds as usize));
    let cells: Vec<_> = pairs.filter_map(|(published, runs)| ComparedCell::new(published, runs.to_vec())).collect();
    let ratios = ratios_to_base(&cells);
    Ok(SuspensionComparison {
        training: score(&cells, |cell| !held_out(&cell.mode)),
        held_out: score(&cells, |cell| held_out(&cell.mode)),
        base: score(&cells, |cell| cell.mode == DeliveryMode::default()),
        to_base: score_ratios(&ratios),
        cells,
        ratios,
        events,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_of_mutilate_lies_where_an_even_spread_in_its_bucket_has_it() {
        let latencies = [(97_100, 50), (150_000, 50)].into_iter();
        let [quarter, half] = mutilate_percentiles_us(latencies, [0.25, 0.5]);
        assert_eq!((quarter, half), (f64::midpoint(bucket_us(48), bucket_us(49)), bucket_us(52)));
        assert!(mutilate_percentiles_us(std::iter::empty(), [0.5])[0].is_nan());
    }
}
