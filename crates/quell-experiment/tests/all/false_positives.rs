//! Experiments without a difference, replayed from recorded noise. Only a few of them may report a difference. The
//! seeds are fixed, so the result is reproducible. `cargo bench -p quell-experiment --bench method` runs more of these
//! experiments and measures the power.

use crate::replay::{Recording, cpu, design, latency};
use quell_experiment::ContrastVerdict;

const EXPERIMENTS_PER_RECORDING: u64 = 10;

#[test]
fn experiments_on_recorded_noise_report_no_difference() {
    let design = design(&[1.0; 4], vec![cpu(), latency(0.5), latency(0.99), latency(0.999)], 30);
    let is_difference = |verdict: ContrastVerdict| matches!(verdict, ContrastVerdict::Better | ContrastVerdict::Worse);
    let mut false_positives = Vec::new();
    let recordings = Recording::all();
    for recording in &recordings {
        for seed in 0..EXPERIMENTS_PER_RECORDING {
            let analysis = recording.experiment(&design, seed);
            if analysis.contrasts.iter().any(|contrast| is_difference(contrast.verdict)) {
                false_positives.push(format!("{} {seed}", recording.name));
            }
        }
    }
    let experiments = recordings.len() as u64 * EXPERIMENTS_PER_RECORDING;
    assert_eq!(recordings.len(), 7);
    assert!(false_positives.len() as f64 <= 0.05 * experiments as f64, "{false_positives:?} of {experiments}");
}
