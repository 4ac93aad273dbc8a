//! Reads result files of earlier versions, which measured a matrix of modes and loads in repeats. Each repeat becomes a
//! block, and each trial becomes a slice. Fields without a counterpart in [`ExperimentResult`] are ignored.

use std::collections::BTreeMap;

use quell_experiment::{ExperimentDesign, ExperimentRecord, SliceObservation, SliceRecord, StopReason, Treatment};
use quell_load::{LoadReport, LoadSpec};
use quell_mode::DeliveryMode;
use serde::Deserialize;

use super::program::flags;
use super::{EndOfExperiment, ExperimentResult, LoadExperiment, SubjectFacts, criteria, figures};
use crate::counters::{CpuUse, TrialCounters};
use crate::facts::{HostFacts, LabFacts, ModelFacts, ServerFacts};
use quell_load::OfferedLoad;

/// Value of the `schema` field in these files.
pub const SCHEMA: &str = "quell-bench/1";

/// A result file of an earlier version.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Matrix {
    quell_version: String,
    began_unix_s: u64,
    host: HostFacts,
    lab: Lab,
    server: Option<ServerFacts>,
    load: Option<LoadSpec>,
    plan: Plan,
    trials: Vec<Trial>,
    /// Modes that could not be set, by label, with the reasons.
    refused: BTreeMap<String, String>,
    not_a_measurement: Option<String>,
    interrupted: bool,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
enum Lab {
    Veth(Box<LabFacts>),
    Sim(ModelFacts),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Plan {
    modes: Vec<ModeEntry>,
    loads: Vec<OfferedLoad>,
    measure_ms: u32,
    warm_up_ms: u32,
    seed: u64,
}

#[derive(Debug, Deserialize)]
struct ModeEntry {
    label: String,
    mode: DeliveryMode,
    /// Whether this entry is the second measurement of `base`.
    control: bool,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Trial {
    id: TrialId,
    attempt: u32,
    offered_per_s: Option<f64>,
    load: LoadReport,
    counters: TrialCounters,
    disturbances: Vec<serde_json::Value>,
}

/// Position of a trial in the plan: indices of its repeat, load and mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
struct TrialId {
    repeat: u32,
    load: usize,
    mode: usize,
}

/// Error: the file contains a lab result but does not describe the lab.
#[derive(Debug, thiserror::Error)]
#[error("the file does not describe the lab's server or load generator")]
pub struct NoServer;

impl TryFrom<Matrix> for ExperimentResult {
    type Error = NoServer;

    fn try_from(matrix: Matrix) -> Result<Self, NoServer> {
        let experiments = (0..matrix.plan.loads.len()).map(|load| matrix.experiment(load)).collect();
        let subject = match matrix.lab {
            Lab::Sim(model) => SubjectFacts::Model(model),
            Lab::Veth(lab) => {
                let (server, load) = matrix.server.zip(matrix.load).ok_or(NoServer)?;
                SubjectFacts::Veth { lab, server, load: Box::new(load), beside: None }
            }
        };
        Ok(Self {
            schema: super::SCHEMA.to_owned(),
            quell_version: matrix.quell_version,
            began_unix_s: matrix.began_unix_s,
            host: matrix.host,
            subject,
            experiments,
            not_a_measurement: matrix.not_a_measurement,
        })
    }
}

impl Matrix {
    fn experiment(&self, load: usize) -> LoadExperiment {
        let plan = &self.plan;
        let modes = || plan.modes.iter().enumerate().filter(|(_, entry)| !entry.control);
        let reference = modes().find(|(_, entry)| entry.label == "base").or(modes().next()).map_or(0, |(at, _)| at);
        let arms: BTreeMap<usize, usize> =
            modes().filter(|(at, _)| *at != reference).map(|(at, _)| at).zip(2..).collect();
        let arm_of = |mode: usize| match plan.modes.get(mode) {
            Some(entry) if entry.control => Some(1),
            _ if mode == reference => Some(0),
            _ => arms.get(&mode).copied(),
        };
        let counting = self.trials.iter().filter(|trial| trial.id.load == load && self.counts(trial));
        let slice = |trial: &Trial| {
            let observation = plan.observation(trial);
            Some(SliceRecord { block: trial.id.repeat, arm: arm_of(trial.id.mode)?, observation })
        };
        let mut slices: Vec<SliceRecord> = counting.clone().filter_map(slice).collect();
        slices.sort_by_key(|slice| slice.block);
        let refused = |(mode, arm): (&usize, &usize)| Some((*arm, self.refused.get(&plan.modes[*mode].label)?.clone()));
        let offered = quell_stats::Spread::of(counting.map(|trial| trial.offered_per_s));
        LoadExperiment {
            load: Some(plan.loads[load]),
            offered_per_s: offered.map(|per_s| per_s.median),
            record: ExperimentRecord {
                design: plan.design(load, reference, arms.keys(), slices.len()),
                slices,
                dropped: arms.iter().filter_map(refused).collect(),
            },
            end: match self.interrupted {
                true => EndOfExperiment::Interrupted,
                false => EndOfExperiment::Stopped(StopReason::BudgetSpent),
            },
        }
    }

    /// Returns whether the attempt is used: among repeated attempts, the one with the fewest disturbances, and the
    /// first of several equal ones.
    fn counts(&self, trial: &Trial) -> bool {
        let attempts = self.trials.iter().filter(|other| other.id == trial.id);
        let best = attempts.map(|other| (other.disturbances.len(), other.attempt)).min();
        best == Some((trial.disturbances.len(), trial.attempt))
    }
}

impl Plan {
    fn spent_ms(&self) -> u64 {
        u64::from(self.measure_ms) + u64::from(self.warm_up_ms)
    }

    fn design<'a>(
        &self,
        load: usize,
        reference: usize,
        treatments: impl Iterator<Item = &'a usize>,
        slices: usize,
    ) -> ExperimentDesign<DeliveryMode> {
        let treatment = |mode: usize| match self.modes.get(mode) {
            Some(entry) => Treatment { name: entry.label.clone(), setting: entry.mode },
            None => Treatment { name: String::new(), setting: DeliveryMode::default() },
        };
        let treatments = treatments.map(|mode| treatment(*mode)).collect();
        let design = ExperimentDesign::new(treatment(reference), treatments, criteria(self.loads[load]), self.seed);
        ExperimentDesign {
            slice_ms: self.measure_ms,
            settle_ms: self.warm_up_ms,
            budget_ms: self.spent_ms() * slices as u64,
            error_rate: design.error_rate / self.loads.len() as f64,
            ..design
        }
    }

    fn observation(&self, trial: &Trial) -> SliceObservation {
        let (load, counters) = (&trial.load, &trial.counters);
        let seconds = f64::from(self.measure_ms) / 1e3;
        SliceObservation {
            spent_ms: self.spent_ms() as f64,
            metrics: figures::of_counters(counters, Some(load.answered_in_window), seconds),
            latency: Some((&load.latency).into()),
            foreign_cpu: counters.server_cpus.as_ref().and_then(CpuUse::foreign_share),
            flags: flags(load),
        }
    }
}
