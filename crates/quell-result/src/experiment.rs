//! Result of a switchback experiment: design and slices. [`LoadExperiment::analyse`] derives the verdicts.

use std::collections::BTreeMap;

use quell_experiment::{
    ContrastVerdict, Criterion, ExperimentRecord, SliceFlag, SliceObservation, StopReason, SwitchbackAnalysis,
    WhyUndecided,
};
use quell_host::attach::effect::{CPU_NS_PER_PACKET, ModeVerdict};
use quell_host::switching::ReportedSettings;
use quell_linux::clock;
use quell_linux::proc::ProcRoot;
use quell_linux::sched::SchedError;
use quell_load::OfferedLoad;
use quell_mode::DeliveryMode;
use quell_stats::LatencyHistogram;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Document;
use crate::facts::{
    CommandFacts, GuestFacts, HostFacts, LabFacts, ModelFacts, OtherProgramFacts, ProgramsFacts, ServerFacts,
};
use crate::figures::{self, Work};
use crate::standing::is_no_change;

/// Result file of an experiment: the subject, the design and all slices. The verdicts are computed from the slices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ExperimentResult {
    /// `quell-experiment/1`.
    pub schema: String,
    /// Version of Quell that made the measurement.
    pub quell_version: String,
    /// Start of the measurement, in seconds since 1970-01-01 UTC.
    pub started_unix_s: u64,
    /// Machine on which the measurement was made.
    pub host: HostFacts,
    pub subject: SubjectFacts,
    pub experiments: Vec<LoadExperiment>,
    /// Reason why the result is not a measurement. Absent if it is a measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_a_measurement: Option<String>,
}

impl Document for ExperimentResult {
    const SCHEMA: &'static str = "quell-experiment/1";
}

/// Subject whose mode was switched.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum SubjectFacts {
    /// Programs of this host.
    Programs(Box<ProgramsFacts>),
    /// A command that was started for each slice.
    Command(CommandFacts),
    /// A server in a private lab.
    Veth {
        /// Description of the lab.
        lab: Box<LabFacts>,
        /// Server under test.
        server: ServerFacts,
        /// Configuration of the load generator, except for the rate.
        load: Box<quell_load::LoadSpec>,
        /// Command line of the second server on the same queues. Absent without `--beside`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        beside: Option<Vec<String>>,
    },
    /// A simulated server on the model of a host.
    Model(ModelFacts),
    /// A server in a guest of the vm lab.
    Guest(GuestFacts),
}

/// Result of the experiment under one load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct LoadExperiment<S = DeliveryMode> {
    /// Offered load. Absent if Quell's generator did not generate the load.
    pub load: Option<OfferedLoad>,
    /// Offered rate of an open loop, in requests per second.
    pub offered_per_s: Option<f64>,
    /// Design of the experiment and all measured slices.
    pub record: ExperimentRecord<S>,
    /// Reason why the experiment ended.
    pub end: EndOfExperiment,
    /// Settings as the kernel reported them. Absent if another process set them (a command), if nothing was set (a
    /// model), and in older results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<ReportedSettings>,
    /// Programs besides the server that may use its CPUs and used most CPU time during the measurement, at most three, the
    /// busiest one first. Absent if they were not observed (a model, a guest), and in older results.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_programs: Option<Vec<OtherProgramFacts>>,
    /// Whether each mode was in effect, judged by who polled the queues: the worst verdict of its slices that is certain.
    /// Only for servers that were started for each slice in a lab; a mode without counted polls is absent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub effects: BTreeMap<String, ModeVerdict>,
}

/// Reason why an experiment ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", content = "reason", rename_all = "kebab-case")]
pub enum EndOfExperiment {
    /// The stopping rule of the experiment ended it.
    Stopped(StopReason),
    /// The user or a signal interrupted the experiment.
    Interrupted,
    /// The experiment failed; the text contains the reason. The slices before the failure are valid.
    Failed(String),
}

impl<S> LoadExperiment<S> {
    /// Slices whose load, settings and disturbances are not known.
    #[must_use]
    pub const fn new(record: ExperimentRecord<S>, end: EndOfExperiment) -> Self {
        Self {
            load: None,
            offered_per_s: None,
            record,
            end,
            settings: None,
            other_programs: None,
            effects: BTreeMap::new(),
        }
    }

    /// Analyses the slices and decides the verdicts. Verdicts on the time of CPUs are withheld if it was mostly that of
    /// other programs, and verdicts on what clients see if these left the server no idle CPU. A change that rounds to 0 %
    /// is no difference, however certain it is.
    #[must_use]
    pub fn analyse(&self) -> SwitchbackAnalysis {
        let mut analysis = quell_experiment::analyse(&self.record);
        let (foreign, none_idle) = (self.has_foreign_cpu(), self.has_no_idle_cpu());
        let is_cpu = |criterion: &Criterion| matches!(criterion, Criterion::Metric { name, .. } if name.starts_with(figures::CPU));
        let no_difference = ContrastVerdict::NoDifferenceLargerThan { margin: self.record.design.margin };
        for contrast in analysis.contrasts.iter_mut().filter(|contrast| is_no_change(contrast)) {
            contrast.verdict = no_difference;
        }
        let is_withheld = |of: &Criterion| foreign && is_cpu(of) || none_idle && figures::is_of_clients(of);
        for contrast in analysis.contrasts.iter_mut().filter(|contrast| is_withheld(&contrast.criterion)) {
            if contrast.estimate.is_some() {
                contrast.verdict = WhyUndecided::ForeignCpu.into();
            }
        }
        analysis
    }

    /// Whether other programs used most of the busy time of the server's CPUs in most slices.
    #[must_use]
    pub fn has_foreign_cpu(&self) -> bool {
        is_mostly(self.observations(), |slice| slice.flags.contains(&SliceFlag::ForeignCpu))
    }

    /// Whether other programs left the server no idle CPU in most slices.
    #[must_use]
    pub fn has_no_idle_cpu(&self) -> bool {
        is_mostly(self.observations(), |slice| slice.flags.contains(&SliceFlag::NoIdleCpu))
    }

    /// Whether other programs used most of the time of the server's CPUs in most slices, also if no verdict is withheld.
    #[must_use]
    pub(crate) fn has_other_programs(&self) -> bool {
        let is_flagged = |of: &SliceObservation| {
            of.flags.contains(&SliceFlag::ForeignCpu) || of.flags.contains(&SliceFlag::NoIdleCpu)
        };
        is_mostly(self.observations(), |of| is_flagged(of) || of.foreign_cpu.is_some_and(|share| share > 0.5))
    }

    fn observations(&self) -> impl Iterator<Item = &SliceObservation> {
        self.record.slices.iter().map(|slice| &slice.observation)
    }

    /// The offered load, as a rate where it is known.
    #[must_use]
    pub fn offered(&self) -> Option<OfferedLoad> {
        self.offered_per_s.map(OfferedLoad::Rate).or(self.load)
    }

    /// Names of the reference and of the treatments.
    pub fn treatment_names(&self) -> impl Iterator<Item = &str> {
        let design = &self.record.design;
        std::iter::once(&design.reference).chain(&design.treatments).map(|treatment| treatment.name.as_str())
    }

    /// Quantile of all latencies of a treatment, or the median of the quantiles that a judge printed, in µs.
    #[must_use]
    pub fn latency_us(&self, analysis: &SwitchbackAnalysis, treatment: &str, quantile: f64) -> Option<f64> {
        let pooled = analysis.pooled_latency.iter().find(|pooled| pooled.treatment == treatment);
        let Some(pooled) = pooled else { return self.median(treatment, &figures::printed_latency(quantile)) };
        let found = pooled.quantiles.iter().find(|found| (found.quantile - quantile).abs() < 1e-9)?;
        Some(found.ns as f64 / 1e3)
    }

    /// Why the experiment ended before its stopping rule: a failure, or `interrupted` after a signal.
    #[must_use]
    pub fn why_incomplete(&self, interrupted: &str) -> Option<String> {
        match &self.end {
            EndOfExperiment::Stopped(_) => None,
            EndOfExperiment::Interrupted => Some(interrupted.to_owned()),
            EndOfExperiment::Failed(why) => Some(why.clone()),
        }
    }

    /// All latencies of a treatment, also of blocks that do not count.
    #[must_use]
    pub fn latencies(&self, treatment: &str) -> LatencyHistogram {
        let mut all = LatencyHistogram::new();
        for arm in self.arms_of(treatment) {
            let latencies = self.record.of_arm(arm).filter_map(|slice| slice.latency.as_ref());
            latencies.for_each(|latency| latency.add_to(&mut all));
        }
        all
    }

    #[must_use]
    pub fn arms_of(&self, treatment: &str) -> Vec<usize> {
        self.record.design.arms_of(treatment)
    }

    /// Returns the median of a metric over the slices of a treatment. `None` if no slice has the metric.
    #[must_use]
    pub fn median(&self, treatment: &str, metric: &str) -> Option<f64> {
        let arms = self.arms_of(treatment);
        median(arms.iter().flat_map(|arm| self.record.values(*arm, metric)).flatten().collect())
    }

    /// Whether running programs cannot have received what was measured.
    pub(crate) fn shows_others(&self, subject: &SubjectFacts) -> bool {
        let reference = &self.record.design.reference.name;
        let of = |work: Work| self.median(reference, &work.name(figures::PROCESS_CPU));
        let cpu_us = of(Work::Packet).or_else(|| of(Work::Request));
        matches!(subject, SubjectFacts::Programs(_)) && cpu_us.is_some_and(|us| us * 1e3 < CPU_NS_PER_PACKET as f64)
    }
}

/// Whether this holds for more than half of the slices.
pub(crate) fn is_mostly<'a>(
    slices: impl Iterator<Item = &'a SliceObservation>,
    holds: impl Fn(&SliceObservation) -> bool,
) -> bool {
    let (count, of) = slices.fold((0, 0), |(count, of), slice| (count + usize::from(holds(slice)), of + 1));
    count * 2 > of
}

pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        count if count % 2 == 1 => Some(values[middle]),
        _ => Some((values[middle - 1] + values[middle]) / 2.0),
    }
}

impl ExperimentResult {
    /// Creates a result without experiments that begins now, on this host.
    pub fn begin(subject: SubjectFacts) -> Result<Self, SchedError> {
        Ok(Self {
            schema: Self::SCHEMA.to_owned(),
            quell_version: env!("CARGO_PKG_VERSION").to_owned(),
            started_unix_s: clock::realtime_ns() / 1_000_000_000,
            host: HostFacts::read(&ProcRoot::default())?,
            subject,
            experiments: Vec::new(),
            not_a_measurement: None,
        })
    }

    #[must_use]
    pub fn was_interrupted(&self) -> bool {
        self.experiments.iter().any(|experiment| experiment.end == EndOfExperiment::Interrupted)
    }

    /// Whether a mode of this name could not be set at any load.
    #[must_use]
    pub fn has_dropped(&self, mode: &str) -> bool {
        self.experiments.iter().all(|experiment| experiment.record.has_dropped(mode))
    }

    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.experiments.iter().find_map(|experiment| match &experiment.end {
            EndOfExperiment::Failed(why) => Some(why.as_str()),
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_experiment::{ContrastVerdict, ExperimentDesign, Goal, SliceObservation, Switchback, Treatment};

    /// Two modes, of which the second needs half the CPU time.
    fn experiment(flags: &[SliceFlag]) -> LoadExperiment {
        let treatment = |name: &str| Treatment { name: name.to_owned(), setting: DeliveryMode::default() };
        let criteria =
            ["cpu-us-per-packet", "p99-us"].map(|name| Criterion::Metric { name: name.to_owned(), goal: Goal::Lowest });
        let mut design = ExperimentDesign::new(treatment("base"), vec![treatment("other")], criteria.to_vec(), 1);
        design.budget_ms = 10 * design.block_ms();
        let mut switchback = Switchback::new(design).unwrap();
        while let Some(next) = switchback.next_slice() {
            let value = Some(if next.arm == 2 { 5.0 } else { 10.0 } + f64::from(next.block % 3) / 10.0);
            let slice =
                SliceObservation { spent_ms: 210.0, flags: flags.iter().copied().collect(), ..Default::default() };
            switchback.record(slice.with_metric("cpu-us-per-packet", value).with_metric("p99-us", value)).unwrap();
        }
        let (record, _) = switchback.finish();
        let end = EndOfExperiment::Interrupted;
        LoadExperiment::new(record, end)
    }

    #[test]
    fn a_verdict_on_cpu_time_is_withheld_if_it_is_mostly_that_of_other_programs() {
        let verdicts = |flags: &[SliceFlag]| {
            let contrasts = experiment(flags).analyse().contrasts;
            contrasts.into_iter().map(|contrast| contrast.verdict).collect::<Vec<_>>()
        };
        assert_eq!(verdicts(&[]), [ContrastVerdict::Better, ContrastVerdict::Better]);
        assert_eq!(verdicts(&[SliceFlag::ForeignCpu]), [WhyUndecided::ForeignCpu.into(), ContrastVerdict::Better]);
        assert_eq!(verdicts(&[SliceFlag::NoIdleCpu]), [ContrastVerdict::Better, WhyUndecided::ForeignCpu.into()]);
    }
}
