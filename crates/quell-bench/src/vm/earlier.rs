//! Reads guest result files of earlier versions, which counted trials in repeats. Each repeat becomes a block, and each
//! trial becomes a slice. These files contain `base` only once per repeat, so no block is complete and there are no
//! verdicts.

use std::collections::BTreeMap;

use quell_experiment::{ExperimentRecord, SliceObservation, SliceRecord, StopReason};
use quell_host::snapshot::Provenance;
use quell_mode::{DeliveryMode, Nearest, ParseModeError};
use serde::Deserialize;

use super::GuestFacts;
use super::features::Feature;
use super::guest::criteria;
use crate::counters::TrialCounters;
use crate::experiment::{self, EndOfExperiment, ExperimentResult, LoadExperiment, SubjectFacts, Timing, figures};
use crate::facts::HostFacts;
use quell_load::OfferedLoad;

/// Value of the `schema` field in these files.
pub const SCHEMA: &str = "quell-interrupts/1";

/// A guest result file of an earlier version.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct InterruptCounts {
    kernel: String,
    driver: Option<String>,
    rx_irq: u32,
    #[serde(rename = "rx-irq-said-by")]
    rx_irq_provenance: Provenance,
    features: Vec<Feature>,
    load: String,
    trials: Vec<CountedTrial>,
    refused: BTreeMap<String, Refusal>,
}

#[derive(Debug, Deserialize)]
struct Refusal {
    reason: String,
    nearest: Option<Nearest>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct CountedTrial {
    mode: String,
    repeat: u32,
    answered: u64,
    duration_ns: u64,
    rx_interrupts: Option<u64>,
    net_rx_softirqs: Option<u64>,
    timer_interrupts: Option<u64>,
    /// Share of time in which the emulator's runnable threads waited for a host CPU.
    host_wait_share: Option<f64>,
}

impl TryFrom<InterruptCounts> for ExperimentResult {
    type Error = ParseModeError;

    fn try_from(counts: InterruptCounts) -> Result<Self, ParseModeError> {
        let experiment = counts.experiment()?;
        let nearest = counts.refused.into_iter().filter_map(|(mode, refusal)| Some((mode, refusal.nearest?)));
        Ok(Self {
            schema: experiment::SCHEMA.to_owned(),
            quell_version: String::new(),
            began_unix_s: 0,
            host: HostFacts { kernel_release: counts.kernel, ..HostFacts::default() },
            subject: SubjectFacts::Guest(GuestFacts {
                driver: counts.driver,
                rx_irq: counts.rx_irq,
                rx_irq_provenance: counts.rx_irq_provenance,
                features: counts.features,
                load: counts.load,
                nearest: nearest.collect(),
            }),
            experiments: vec![experiment],
            not_a_measurement: Some(super::EMULATED.to_owned()),
        })
    }
}

impl InterruptCounts {
    fn experiment(&self) -> Result<LoadExperiment, ParseModeError> {
        let mut names: Vec<&str> = Vec::new();
        for name in self.trials.iter().map(|trial| &trial.mode).chain(self.refused.keys()) {
            if !names.contains(&name.as_str()) {
                names.push(name);
            }
        }
        // The design needs the reference as its first mode.
        names.sort_by_key(|name| *name != "base");
        let modes: Vec<DeliveryMode> = names.iter().map(|name| name.parse()).collect::<Result<_, _>>()?;
        let arm = |name: &str| names.iter().position(|other| *other == name).map(|at| if at == 0 { 0 } else { at + 1 });
        let mut slices: Vec<SliceRecord> = self
            .trials
            .iter()
            .filter_map(|trial| {
                Some(SliceRecord { block: trial.repeat, arm: arm(&trial.mode)?, observation: trial.observation() })
            })
            .collect();
        slices.sort_by_key(|slice| slice.block);
        let dropped = self.refused.iter().filter_map(|(mode, refusal)| Some((arm(mode)?, refusal.reason.clone())));
        let spent_ms: f64 = slices.iter().map(|slice| slice.observation.spent_ms).sum();
        let slice_ms = self.trials.first().map_or(1, |trial| (trial.duration_ns / 1_000_000) as u32);
        let timing = Timing { budget_ms: spent_ms as u64, slice_ms, settle_ms: 0, margin: 0.05, seed: 0 };
        Ok(LoadExperiment {
            load: Some(OfferedLoad::Max),
            offered_per_s: None,
            record: ExperimentRecord {
                dropped: dropped.collect(),
                design: experiment::design(&modes, criteria(), timing, 1),
                slices,
            },
            end: EndOfExperiment::Stopped(StopReason::BudgetSpent),
        })
    }
}

impl CountedTrial {
    fn observation(&self) -> SliceObservation {
        let counters = TrialCounters {
            irqs: self.rx_interrupts,
            net_rx_softirqs: self.net_rx_softirqs,
            timer_irqs: self.timer_interrupts,
            ..TrialCounters::default()
        };
        SliceObservation {
            spent_ms: self.duration_ns as f64 / 1e6,
            metrics: figures::of_counters(&counters, Some(self.answered), self.duration_ns as f64 / 1e9),
            foreign_cpu: self.host_wait_share,
            ..SliceObservation::default()
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::experiment::figures::{IRQS, Work};

    const RECORDED: &str = include_str!("../../../quell/tests/fixtures/interrupts.json");

    pub(in super::super) fn recorded() -> ExperimentResult {
        serde_json::from_str::<InterruptCounts>(RECORDED).unwrap().try_into().unwrap()
    }

    #[test]
    fn a_trial_of_an_earlier_version_is_a_slice_with_the_same_counts() {
        let document: serde_json::Value = serde_json::from_str(RECORDED).unwrap();
        let trial = &document["trials"][0];
        assert_eq!((trial["mode"].as_str(), trial["repeat"].as_u64()), (Some("base"), Some(0)));
        let per_request = trial["rx-interrupts"].as_f64().unwrap() / trial["answered"].as_f64().unwrap();
        let experiment = &recorded().experiments[0];
        let slice = experiment.record.slices.iter().find(|slice| (slice.block, slice.arm) == (0, 0)).unwrap();
        assert_eq!(slice.observation.metrics[&Work::Request.name(IRQS)], per_request);
        assert_eq!(slice.observation.foreign_cpu, trial["host-wait-share"].as_f64());
        assert_eq!(experiment.record.slices.len(), document["trials"].as_array().unwrap().len());
    }

    #[test]
    fn refused_modes_keep_their_reason_and_their_nearest_alternative() {
        let mut document: serde_json::Value = serde_json::from_str(RECORDED).unwrap();
        document["refused"] = serde_json::json!({ "threadedbusy": { "reason": "no such mode", "nearest": null } });
        let result: ExperimentResult = serde_json::from_value::<InterruptCounts>(document).unwrap().try_into().unwrap();
        let record = &result.experiments[0].record;
        let named = |(arm, why): (&usize, &String)| (record.design.treatment(*arm).unwrap().name.clone(), why.clone());
        let dropped: Vec<_> = record.dropped.iter().map(named).collect();
        assert_eq!(dropped, [("threadedbusy".to_owned(), "no such mode".to_owned())]);
    }
}
