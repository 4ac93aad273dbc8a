//! Compares the bound of the wait in the ring, which the sampler computes, with the latency that the generator measures.
//!
//! quell bench --modes base,defer40,defer200,defer1000,suspend200,napibusy --loads 10K,20K --slice 500 -o wait.json
//! cargo bench -p quell-subject --bench wait_bound -- wait.json
//!
//! Without deferral, almost no packet waits in the ring for a timer. So the mean latency of a mode minus that of the
//! reference in the same block is the wait, and what the wait causes: requests that arrive together are served one after
//! the other.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints, and fails by panicking")]

use std::collections::BTreeMap;

use quell_experiment::SliceObservation;
use quell_result::experiment::{ExperimentResult, LoadExperiment};
use quell_result::figures::WAIT_MEAN;
use quell_stats::LatencyHistogram;

fn main() {
    let Some(path) = std::env::args().skip(1).find(|argument| !argument.starts_with("--")) else { return };
    let result: ExperimentResult = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    println!("| load | mode | slices | bound, mean µs | half of it | latency added, mean µs | added / bound |");
    println!("| --- | --- | --- | --- | --- | --- | --- |");
    for experiment in &result.experiments {
        print(experiment);
    }
}

fn print(experiment: &LoadExperiment) {
    let record = &experiment.record;
    let mut references: BTreeMap<u32, Vec<f64>> = BTreeMap::new();
    for slice in record.slices.iter().filter(|slice| slice.arm < 2) {
        references.entry(slice.block).or_default().extend(mean_us(&slice.observation));
    }
    for arm in 0..record.design.arms() {
        let (mut bounds, mut added, mut shares) = (Vec::new(), Vec::new(), Vec::new());
        for slice in record.slices.iter().filter(|slice| slice.arm == arm) {
            let (Some(bound), Some(latency)) = (slice.observation.metric(WAIT_MEAN), mean_us(&slice.observation))
            else {
                continue;
            };
            let reference = &references[&slice.block];
            bounds.push(bound);
            added.push(latency - reference.iter().sum::<f64>() / reference.len() as f64);
            shares.push(added.last().unwrap() / bound);
        }
        let name = &record.design.treatment(arm).unwrap().name;
        let (load, slices) = (experiment.load.map_or_else(String::new, |load| load.to_string()), bounds.len());
        let (bound, half) = (interval(&bounds), median(&mut bounds.clone()) / 2.0);
        let (added, share) = (interval(&added), if arm < 2 { String::new() } else { interval(&shares) });
        println!("| {load} | {name} | {slices} | {bound} | {half:.0} | {added} | {share} |");
    }
}

fn mean_us(slice: &SliceObservation) -> Option<f64> {
    let mut histogram = LatencyHistogram::new();
    slice.latency.as_ref()?.add_to(&mut histogram);
    histogram.mean().map(|mean| mean.as_secs_f64() * 1e6)
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Median, with its distribution-free 95 % interval: order statistics around the middle, by the binomial distribution.
fn interval(values: &[f64]) -> String {
    let mut values = values.to_vec();
    let median = median(&mut values);
    let half_width = 0.98 * (values.len() as f64).sqrt();
    let place = |at: f64| values[(at.max(0.0) as usize).min(values.len() - 1)];
    let middle = values.len() as f64 / 2.0;
    let (low, high) = (place(middle - half_width), place(middle + half_width));
    let digits = if median.abs() < 10.0 { 2 } else { 0 };
    format!("{median:.digits$} ({low:.digits$} to {high:.digits$})")
}
