//! One experiment of a document, under one load: what charts and tables are drawn from.

use std::borrow::Cow;

use quell_cli::number;
use quell_experiment::{Criterion, SliceObservation, SwitchbackAnalysis};
use quell_linux::visible::thousands;
use quell_load::OfferedLoad;
use quell_result::experiment::{EndOfExperiment, ExperimentResult, LoadExperiment};
use quell_result::figures::{self, Work};
use quell_tune::{Confirmation, TunePlan};

use crate::draw::shown;
use crate::palette::ModeStyle;
use crate::words;

/// An experiment with its analysis.
pub(crate) struct Part<'a> {
    /// Its load in a word.
    pub(crate) load: String,
    /// Its load in words.
    pub(crate) heading: String,
    pub(crate) experiment: Cow<'a, LoadExperiment>,
    pub(crate) analysis: SwitchbackAnalysis,
}

impl<'a> Part<'a> {
    /// The parts of a result, one for each load.
    pub(crate) fn of_result(result: &'a ExperimentResult) -> Vec<Self> {
        let part = |experiment: &'a LoadExperiment| Self {
            load: experiment.load.map_or_else(|| "present load".to_owned(), load_word),
            heading: heading(experiment),
            analysis: experiment.analyse(),
            experiment: Cow::Borrowed(experiment),
        };
        result.experiments.iter().map(part).collect()
    }

    /// The parts of a confirmation, one for each load of the plan.
    pub(crate) fn of_confirmation(confirmation: &Confirmation, plan: &TunePlan) -> Vec<Self> {
        let parts = confirmation.experiments.iter().zip(&confirmation.analyses).enumerate();
        parts
            .map(|(at, (record, analysis))| {
                let load = plan.loads.get(at).map_or_else(String::new, |load| shown(load));
                let experiment = LoadExperiment {
                    load: load.parse().ok(),
                    ..LoadExperiment::new(
                        record.clone(),
                        EndOfExperiment::Stopped(quell_experiment::StopReason::BudgetSpent),
                    )
                };
                let heading = if load == "present" { "the present load".to_owned() } else { load.clone() };
                Self { load, heading, analysis: analysis.clone(), experiment: Cow::Owned(experiment) }
            })
            .collect()
    }

    pub(crate) fn reference(&self) -> &str {
        &self.experiment.record.design.reference.name
    }

    /// Whether its latency follows from its throughput.
    pub(crate) fn is_closed_loop(&self) -> bool {
        self.experiment.load == Some(OfferedLoad::Max)
    }

    /// What its costs are divided by.
    pub(crate) fn work(&self) -> Work {
        let metric = Work::Request.name(figures::CPU);
        let slices = &self.experiment.record.slices;
        let has_requests = slices.iter().any(|slice| slice.observation.metric(&metric).is_some());
        if has_requests { Work::Request } else { Work::Packet }
    }

    pub(crate) fn latency_us(&self, mode: &str, quantile: f64) -> Option<f64> {
        self.experiment.latency_us(&self.analysis, mode, quantile)
    }

    /// Value of a criterion for a mode over all its slices, in µs or the unit of the metric.
    pub(crate) fn value(&self, mode: &str, criterion: &Criterion) -> Option<f64> {
        match criterion {
            Criterion::Latency { quantile } => self.latency_us(mode, *quantile),
            Criterion::Metric { name, .. } => self.experiment.median(mode, name),
        }
    }
}

/// A load in a word: as it was asked for, with separators if it has no prefix (`20K`, `63,160`).
fn load_word(load: OfferedLoad) -> String {
    let word = load.to_string();
    if word.chars().all(|letter| letter.is_ascii_digit()) { thousands(&word) } else { word }
}

/// Value of a criterion in one slice, in µs or the unit of the metric.
pub(crate) fn slice_value(slice: &SliceObservation, criterion: &Criterion) -> Option<f64> {
    match criterion {
        Criterion::Latency { quantile } => match &slice.latency {
            Some(latency) => latency.quantile(*quantile).map(|ns| ns as f64 / 1e3),
            None => slice.metric(&figures::printed_latency(*quantile)),
        },
        Criterion::Metric { name, .. } => slice.metric(name),
    }
}

/// Unit of a criterion, where its name does not say it.
pub(crate) fn unit(criterion: &Criterion) -> &'static str {
    match criterion {
        Criterion::Latency { .. } => "µs",
        Criterion::Metric { name, .. }
            if name.starts_with(figures::CPU) || name.starts_with(figures::PROCESS_CPU) || name.ends_with("-us") =>
        {
            "µs"
        }
        Criterion::Metric { .. } => "",
    }
}

/// Number with the unit of the criterion.
pub(crate) fn with_unit(value: f64, criterion: &Criterion) -> String {
    format!("{} {}", number::short(value), unit(criterion)).trim_end().to_owned()
}

/// Styles of all modes of the parts.
pub(crate) fn styles(parts: &[Part<'_>]) -> Vec<ModeStyle> {
    ModeStyle::of_all(parts.iter().flat_map(|part| {
        let design = &part.experiment.record.design;
        let treatments = std::iter::once(&design.reference).chain(&design.treatments);
        treatments.map(|treatment| (treatment.name.as_str(), treatment.setting))
    }))
}

/// All criteria of the parts, in the order of the design.
pub(crate) fn criteria_of<'a>(parts: impl Iterator<Item = &'a Part<'a>>) -> Vec<Criterion> {
    let mut all: Vec<Criterion> = Vec::new();
    for criterion in parts.flat_map(|part| &part.experiment.record.design.criteria) {
        if !all.contains(criterion) {
            all.push(criterion.clone());
        }
    }
    all
}

fn heading(experiment: &LoadExperiment) -> String {
    let offered = experiment.offered_per_s.map(|per_s| format!(", {} requests/s", number::short(per_s)));
    match experiment.load {
        Some(load @ OfferedLoad::Percent(_)) => format!("{load} of base’s maximum{}", offered.unwrap_or_default()),
        Some(OfferedLoad::Max) => "closed loop: as much as the server answers".to_owned(),
        Some(load) => words::load_name(load),
        None => "the present load".to_owned(),
    }
}
