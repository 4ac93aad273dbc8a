//! Compares both rules on result files of `quell bench`: how many comparisons each decides, and whether two files contradict
//! each other.

use std::collections::{BTreeMap, BTreeSet};

use quell_experiment::{ContrastVerdict, Criterion, ExperimentRecord, SliceObservation, analyse};
use quell_stats::LatencyHistogram;
use serde_json::Value;

use crate::TRIAL_SLICES;
use crate::paired_rule::{difference, log_ratios};

/// Signs of the decided comparisons of all files, by name of the comparison: 1 is lower than the reference, -1 higher.
type Decided = BTreeMap<String, BTreeSet<i8>>;

/// Prints a line per file, then the contradictions.
pub(crate) fn compare(files: impl Iterator<Item = String>) {
    println!("{:>11} {:>10} {:>8}   file", "comparisons", "switchback", "paired");
    let mut decided = [Decided::new(), Decided::new()];
    let mut sums = [0; 3];
    for file in files {
        let result: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
        let mut counts = [0; 3];
        for experiment in result["experiments"].as_array().unwrap() {
            let record: ExperimentRecord<Value> = serde_json::from_value(experiment["record"].clone()).unwrap();
            for (name, signs) in comparisons(&record) {
                counts[0] += 1;
                for (rule, sign) in signs.into_iter().enumerate() {
                    let Some(sign) = sign else { continue };
                    counts[rule + 1] += 1;
                    let load = &experiment["load"];
                    decided[rule].entry(format!("{load} {name}")).or_default().insert(sign);
                }
            }
        }
        println!("{:>11} {:>10} {:>8}   {file}", counts[0], counts[1], counts[2]);
        sums = [0, 1, 2].map(|at| sums[at] + counts[at]);
    }
    println!("{:>11} {:>10} {:>8}   all", sums[0], sums[1], sums[2]);
    for (rule, decided) in ["switchback", "paired"].into_iter().zip(decided) {
        let contradicted = decided.iter().filter(|(_, signs)| signs.contains(&1) && signs.contains(&-1));
        let contradicted: Vec<&String> = contradicted.map(|(name, _)| name).collect();
        println!("{rule}: {} contradicted: {contradicted:?}", contradicted.len());
    }
}

/// Name of each comparison with its sign by both rules. Absent: undecided. 0: no relevant difference.
fn comparisons(record: &ExperimentRecord<Value>) -> Vec<(String, [Option<i8>; 2])> {
    let of = |contrast: &quell_experiment::ContrastResult| {
        let lower = if contrast.estimate.is_some_and(|estimate| estimate.ratio < 1.0) { 1 } else { -1 };
        let switchback = match contrast.verdict {
            ContrastVerdict::Better | ContrastVerdict::Worse => Some(lower),
            ContrastVerdict::NoDifferenceLargerThan { .. } => Some(0),
            ContrastVerdict::Undecided { .. } => None,
        };
        let arm = (2..record.design.arms())
            .find(|arm| record.design.treatment(*arm).is_some_and(|treatment| treatment.name == contrast.treatment));
        let paired = arm.and_then(|arm| {
            let trials = [0, 1, arm].map(|arm| trials(record, arm, &contrast.criterion));
            difference(&log_ratios(&trials[0], &trials[2]), &log_ratios(&trials[0], &trials[1]))
        });
        let paired = paired.map(|difference| if difference < 0.0 { 1 } else { -1 });
        (format!("{} {:?}", contrast.treatment, contrast.criterion), [switchback, paired])
    };
    analyse(record).contrasts.iter().map(of).collect()
}

/// Values of a criterion in trials as long as those of earlier versions: slices of consecutive blocks together.
fn trials(record: &ExperimentRecord<Value>, arm: usize, criterion: &Criterion) -> Vec<f64> {
    let slices: Vec<&SliceObservation> = record.of_arm(arm).collect();
    let value = |slices: &[&SliceObservation]| match criterion {
        Criterion::Metric { name, .. } => {
            let values: Vec<f64> = slices.iter().filter_map(|slice| slice.metric(name)).collect();
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        }
        Criterion::Latency { quantile } => {
            let mut pooled = LatencyHistogram::new();
            slices.iter().filter_map(|slice| slice.latency.as_ref()).for_each(|latency| latency.add_to(&mut pooled));
            pooled.quantile(*quantile).map(|latency| latency.as_secs_f64())
        }
    };
    slices.chunks_exact(TRIAL_SLICES).filter_map(value).collect()
}
