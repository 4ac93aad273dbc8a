//! Experiments on simulated subjects: the order of calls, failures, and the differences that are found. They use no
//! clock and do not depend on the kernel.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::ControlFlow;

use proptest::prelude::*;
use quell_experiment::{
    ContrastSet, ContrastVerdict, Criterion, Driven, ExperimentDesign, ExperimentEnd, ExperimentRecord,
    ExperimentSubject, Goal, LatencyCounts, SetFailure, SliceFlag, SliceObservation, SliceStage, StopReason,
    Switchback, SwitchbackAnalysis, Treatment, WhyUndecided, analyse, drive,
};
use quell_stats::LatencyHistogram;
use rand::SeedableRng as _;
use rand_pcg::Pcg64;

/// Factors by which a treatment changes CPU time and latency.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Effect {
    cpu: f64,
    latency: f64,
}

const NONE: Effect = Effect { cpu: 1.0, latency: 1.0 };

#[derive(Debug, Clone, PartialEq, Eq)]
struct Died;

impl fmt::Display for Died {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it died")
    }
}

/// A server on a machine whose speed drifts and that other programs occasionally disturb.
struct Simulated {
    random: Pcg64,
    drift: f64,
    effect: Option<Effect>,
    slices: u32,
    calls: Vec<&'static str>,
    /// A CPU factor that cannot be set, and the slice from which on it fails.
    not_settable: Option<(f64, u32)>,
    /// The slice in which the subject fails.
    dies_at: Option<u32>,
    /// Whether a failure concerns only the treatment.
    fails_with_treatment: bool,
    panics_at: Option<u32>,
    /// Whether the failure is that of a slice for which no time was left.
    fails_by_budget: bool,
    flag_below_cpu: Option<(f64, SliceFlag)>,
}

impl Simulated {
    fn new(seed: u64) -> Self {
        Self {
            random: Pcg64::seed_from_u64(seed),
            drift: 0.0,
            effect: None,
            slices: 0,
            calls: Vec::new(),
            not_settable: None,
            dies_at: None,
            fails_with_treatment: false,
            panics_at: None,
            fails_by_budget: false,
            flag_below_cpu: None,
        }
    }

    /// Approximately normal noise: the sum of 12 uniform numbers.
    fn noise(&mut self, deviation: f64) -> f64 {
        let sum: f64 = (0..12).map(|_| self.random.random::<f64>()).sum();
        (sum - 6.0) * deviation
    }
}

impl ExperimentSubject for Simulated {
    type Setting = Effect;
    type Error = Died;

    fn set(&mut self, effect: &Effect) -> Result<(), SetFailure<Died>> {
        self.calls.push("set");
        if self.not_settable.is_some_and(|(cpu, from)| cpu == effect.cpu && self.slices >= from) {
            return Err(SetFailure::NotSettable(Died));
        }
        self.effect = Some(*effect);
        Ok(())
    }

    fn settle(&mut self, _: u32) -> Result<(), Died> {
        self.calls.push("settle");
        Ok(())
    }

    fn observe(&mut self, slice_ms: u32) -> Result<Option<SliceObservation>, Died> {
        self.calls.push("observe");
        self.slices += 1;
        if self.dies_at == Some(self.slices) {
            return Err(Died);
        }
        assert_ne!(self.panics_at, Some(self.slices), "panic that the test requests");
        let Effect { cpu, latency } = self.effect.unwrap();
        self.drift = 0.99 * self.drift + self.noise(0.03);
        let disturbance = if self.random.random::<f64>() < 0.1 { 0.3 } else { 0.0 };
        let speed = (self.drift + disturbance + self.noise(0.05)).exp();
        let mut histogram = LatencyHistogram::new();
        for _ in 0..400 {
            let tail = -self.random.random::<f64>().ln();
            histogram.record((50_000.0 * speed * latency * (1.0 + tail)) as u64);
        }
        let flags = self.flag_below_cpu.filter(|(below, _)| cpu < *below).map(|(_, flag)| flag);
        let observation = SliceObservation {
            spent_ms: f64::from(slice_ms) + 20.0,
            latency: Some(LatencyCounts::from(&histogram)),
            foreign_cpu: Some(disturbance),
            flags: flags.into_iter().collect(),
            ..SliceObservation::default()
        };
        let interrupts = self.noise(10.0).abs().floor();
        // A treatment that saves CPU time has no timer interrupts.
        let timers = if cpu < 1.0 { 0.0 } else { 1.0 + interrupts };
        let metrics = [("cpu", 10.0 * speed * cpu), ("interrupts", interrupts), ("timers", timers)];
        Ok(Some(metrics.into_iter().fold(observation, |slice, (name, value)| slice.with_metric(name, Some(value)))))
    }

    fn leaves_out_setting(&self, _: &Died) -> bool {
        self.fails_with_treatment
    }

    fn is_budget_spent(&self, _: &Died) -> bool {
        self.fails_by_budget
    }

    fn restore(&mut self) -> Result<(), Died> {
        self.calls.push("restore");
        self.effect = None;
        Ok(())
    }
}

fn treatment(name: &str, cpu: f64, latency: f64) -> Treatment<Effect> {
    Treatment { name: name.to_owned(), setting: Effect { cpu, latency } }
}

fn cpu() -> Criterion {
    Criterion::Metric { name: "cpu".to_owned(), goal: Goal::Lowest }
}

fn p99() -> Criterion {
    Criterion::Latency { quantile: 0.99 }
}

fn design(treatments: Vec<Treatment<Effect>>, seed: u64) -> ExperimentDesign<Effect> {
    let reference = Treatment { name: "base".to_owned(), setting: NONE };
    ExperimentDesign { budget_ms: 60_000, ..ExperimentDesign::new(reference, treatments, vec![cpu(), p99()], seed) }
}

/// A finished experiment.
struct Finished {
    record: ExperimentRecord<Effect>,
    analysis: SwitchbackAnalysis,
    end: ExperimentEnd<Died>,
    stopped: Option<StopReason>,
    restored: Result<(), Died>,
}

fn finished(subject: &mut Simulated, design: ExperimentDesign<Effect>) -> Finished {
    watched(subject, design, &mut |_, _| ControlFlow::Continue(()))
}

fn watched(
    subject: &mut Simulated,
    design: ExperimentDesign<Effect>,
    watch: &mut dyn FnMut(&Switchback<Effect>, SliceStage<'_>) -> ControlFlow<()>,
) -> Finished {
    let mut experiment = Switchback::new(design).unwrap();
    let Driven { end, restored } = drive(subject, &mut experiment, watch);
    let stopped = experiment.stopped();
    assert_eq!(stopped.is_some(), end == ExperimentEnd::Ended);
    let (record, analysis) = experiment.finish();
    Finished { record, analysis, end, stopped, restored }
}

fn verdict(analysis: &SwitchbackAnalysis, treatment: &str, criterion: &Criterion) -> ContrastVerdict {
    let wanted = |contrast: &&_| {
        let contrast: &quell_experiment::ContrastResult = contrast;
        contrast.treatment == treatment && contrast.against == "base" && contrast.criterion == *criterion
    };
    analysis.contrasts.iter().find(wanted).unwrap().verdict
}

fn undecided(reason: WhyUndecided) -> ContrastVerdict {
    ContrastVerdict::Undecided { reason }
}

#[test]
fn steps_of_a_metric_hide_differences_that_are_not_larger() {
    let of = |cpu_of_treatment, step| {
        let design = design(vec![treatment("other", cpu_of_treatment, 1.0)], 3);
        let steps = BTreeMap::from([("cpu".to_owned(), step)]);
        let design = ExperimentDesign { criteria: vec![cpu()], steps, margin: 0.15, ..design };
        let analysis = finished(&mut Simulated::new(3), design).analysis;
        (verdict(&analysis, "other", &cpu()), analysis.contrasts[0].estimate.unwrap())
    };
    let is_too_coarse = |verdict| match verdict {
        ContrastVerdict::Undecided { reason: WhyUndecided::TooCoarse { share } } => share > 0.1,
        _ => false,
    };
    assert_eq!(of(0.7, 0.01).0, ContrastVerdict::Better);
    let (verdict, estimate) = of(0.7, 8.0);
    assert!(is_too_coarse(verdict) && estimate.low < 0.6 && estimate.high.unwrap() > 1.0, "{verdict:?} {estimate:?}");
    assert_eq!(of(1.0, 0.01).0, ContrastVerdict::NoDifferenceLargerThan { margin: 0.15 });
    assert!(is_too_coarse(of(1.0, 8.0).0));
}

#[test]
fn large_differences_are_found_and_end_the_experiment_early() {
    let design = design(vec![treatment("saves", 0.7, 1.0), treatment("slow", 1.4, 2.0)], 3);
    let design = ExperimentDesign { criteria: vec![cpu()], ..design };
    let Finished { analysis, stopped, .. } = finished(&mut Simulated::new(1), design);
    assert_eq!(stopped, Some(StopReason::AllDecided));
    assert!(analysis.looks.last().unwrap().time < 0.8, "{:?}", analysis.looks);
    assert_eq!(verdict(&analysis, "saves", &cpu()), ContrastVerdict::Better);
    assert_eq!(verdict(&analysis, "slow", &cpu()), ContrastVerdict::Worse);
    let estimate = analysis.contrasts[0].estimate.unwrap();
    assert!(estimate.low < 0.7 && estimate.high.unwrap() > 0.7, "{estimate:?}");
    assert!(analysis.controls.iter().all(|control| control.holds));
}

#[test]
fn an_equal_treatment_has_no_difference_larger_than_the_margin() {
    let design = ExperimentDesign { margin: 0.15, ..design(vec![treatment("equal", 1.0, 1.0)], 5) };
    let Finished { analysis, .. } = finished(&mut Simulated::new(2), design);
    let equal = ContrastVerdict::NoDifferenceLargerThan { margin: 0.15 };
    assert_eq!(verdict(&analysis, "equal", &cpu()), equal);
    assert_eq!(verdict(&analysis, "equal", &p99()), equal);
}

#[test]
fn each_slice_is_set_settled_and_observed_and_the_subject_is_restored_once() {
    let mut subject = Simulated::new(1);
    let design = ExperimentDesign { budget_ms: 10_000, ..design(vec![treatment("equal", 1.0, 1.0)], 5) };
    let Finished { record, restored, stopped, .. } = finished(&mut subject, design);
    assert_eq!((restored, stopped), (Ok(()), Some(StopReason::BudgetSpent)));
    let (last, slices) = subject.calls.split_last().unwrap();
    assert_eq!(*last, "restore");
    assert_eq!(slices.len(), 3 * record.slices.len());
    assert!(slices.chunks(3).all(|calls| calls == ["set", "settle", "observe"]));
    assert!(record.slices.iter().map(|slice| slice.observation.spent_ms).sum::<f64>() <= 10_000.0);
}

#[test]
fn a_treatment_that_cannot_be_set_is_dropped_and_the_others_are_measured() {
    for from in [0, 20] {
        let mut subject = Simulated { not_settable: Some((0.5, from)), ..Simulated::new(1) };
        let design = design(vec![treatment("refused", 0.5, 1.0), treatment("saves", 0.7, 0.6)], 3);
        let Finished { record, analysis, stopped, .. } = finished(&mut subject, design);
        assert_eq!(stopped, Some(StopReason::AllDecided));
        assert_eq!(record.dropped.get(&2).map(String::as_str), Some("it died"));
        assert_eq!(verdict(&analysis, "refused", &cpu()), undecided(WhyUndecided::TreatmentDropped));
        assert_eq!(verdict(&analysis, "saves", &cpu()), ContrastVerdict::Better);
        assert_eq!(analyse(&record), analysis);
    }
}

#[test]
fn a_treatment_that_fails_during_a_slice_is_dropped() {
    // Each block has a slice of the reference, of the control and of the treatment.
    let failing_slice = (4..7).find(|slice| {
        let mut subject = Simulated { dies_at: Some(*slice), fails_with_treatment: true, ..Simulated::new(1) };
        let finished = finished(&mut subject, design(vec![treatment("stalls", 0.5, 1.0)], 3));
        match (finished.end, finished.stopped) {
            (ExperimentEnd::Ended, Some(StopReason::NoTreatmentLeft)) => finished.record.dropped.contains_key(&2),
            (ExperimentEnd::ReferenceNotSettable(Died), None) => false,
            end => panic!("{end:?}"),
        }
    });
    assert!(failing_slice.is_some());
}

#[test]
fn without_a_treatment_that_can_be_set_the_experiment_ends() {
    let mut subject = Simulated { not_settable: Some((0.5, 0)), ..Simulated::new(1) };
    let finished = finished(&mut subject, design(vec![treatment("refused", 0.5, 1.0)], 3));
    assert_eq!(finished.stopped, Some(StopReason::NoTreatmentLeft));
}

#[test]
fn a_reference_that_cannot_be_set_ends_the_experiment() {
    let mut subject = Simulated { not_settable: Some((1.0, 10)), ..Simulated::new(1) };
    let finished = finished(&mut subject, design(vec![treatment("saves", 0.5, 1.0)], 3));
    assert_eq!(finished.end, ExperimentEnd::ReferenceNotSettable(Died));
    assert_eq!(finished.restored, Ok(()));
}

#[test]
fn a_subject_that_dies_ends_the_experiment_and_its_earlier_slices_are_analysed() {
    let mut subject = Simulated { dies_at: Some(62), ..Simulated::new(1) };
    let finished = finished(&mut subject, design(vec![treatment("saves", 0.6, 0.6)], 3));
    assert_eq!(finished.end, ExperimentEnd::SubjectFailed(Died));
    assert_eq!((finished.record.slices.len(), finished.analysis.blocks), (61, 20));
    let ratio = finished.analysis.contrasts[0].estimate.unwrap().ratio;
    assert!((0.5..0.7).contains(&ratio), "{ratio}");
    assert_eq!(subject.calls.last(), Some(&"restore"));
}

#[test]
fn a_slice_for_which_no_time_is_left_ends_the_experiment_without_its_block() {
    let at = |slice| Simulated { dies_at: Some(slice), fails_by_budget: true, ..Simulated::new(1) };
    let mut subject = at(62);
    let Finished { end, record, analysis, stopped, restored } =
        finished(&mut subject, design(vec![treatment("saves", 0.6, 0.6)], 3));
    assert_eq!((end, stopped, restored), (ExperimentEnd::Ended, Some(StopReason::BudgetSpent), Ok(())));
    assert_eq!((record.slices.len(), analysis.blocks), (60, 20));
    assert_eq!(analyse(&record), analysis);
    let early = finished(&mut at(5), design(vec![treatment("saves", 0.6, 0.6)], 3));
    assert_eq!((early.end, early.record.slices.len()), (ExperimentEnd::SubjectFailed(Died), 4));
}

#[test]
fn a_panic_restores_the_subject() {
    let mut subject = Simulated { panics_at: Some(5), ..Simulated::new(1) };
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = finished(&mut subject, design(vec![treatment("saves", 0.6, 0.6)], 3));
    }));
    assert!(panicked.is_err());
    assert_eq!(subject.calls.iter().filter(|call| **call == "restore").count(), 1);
}

#[test]
fn the_caller_can_interrupt_at_any_event() {
    let mut events = 0;
    let mut subject = Simulated::new(1);
    let mut watch = |_: &Switchback<Effect>, stage: SliceStage<'_>| {
        events += u32::from(stage == SliceStage::Begins);
        if events == 40 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let finished = watched(&mut subject, design(vec![treatment("saves", 0.6, 0.6)], 3), &mut watch);
    assert_eq!(finished.end, ExperimentEnd::Interrupted);
    assert_eq!((finished.record.slices.len(), finished.analysis.blocks), (39, 13));
    assert_eq!(subject.calls.last(), Some(&"restore"));
}

#[test]
fn an_invalid_value_is_refused_with_its_name() {
    let mut experiment = Switchback::new(design(vec![treatment("saves", 0.6, 0.6)], 3)).unwrap();
    let observation = SliceObservation::default().with_metric("cpu", Some(f64::NAN));
    let error = experiment.record(observation).unwrap_err();
    assert!(error.to_string().contains("NaN for cpu"), "{error}");
    assert!(experiment.so_far().slices.is_empty());
}

#[test]
fn a_treatment_under_which_requests_fail_is_not_better() {
    let flag = |flag| {
        let mut subject = Simulated { flag_below_cpu: Some((0.9, flag)), ..Simulated::new(1) };
        let Finished { analysis, .. } = finished(&mut subject, design(vec![treatment("saves", 0.6, 0.5)], 3));
        (verdict(&analysis, "saves", &cpu()), verdict(&analysis, "saves", &p99()))
    };
    let better = ContrastVerdict::Better;
    assert_eq!(flag(SliceFlag::LoadWasLate), (better, better));
    assert_eq!(flag(SliceFlag::Saturated), (better, undecided(WhyUndecided::Saturated)));
    let fails = undecided(WhyUndecided::RequestsFail);
    assert_eq!(flag(SliceFlag::RequestsFailed), (fails, fails));
}

#[test]
fn absent_values_leave_the_contrast_undecided_and_are_not_zero() {
    let criteria = vec![cpu(), Criterion::Metric { name: "absent".to_owned(), goal: Goal::Highest }];
    let design = ExperimentDesign { criteria: criteria.clone(), ..design(vec![treatment("saves", 0.6, 1.0)], 3) };
    let Finished { analysis, .. } = finished(&mut Simulated::new(1), design);
    assert_eq!(
        verdict(&analysis, "saves", &criteria[1]),
        undecided(WhyUndecided::TooFewBlocks { blocks: 0, needed: 6 })
    );
    assert_eq!(verdict(&analysis, "saves", &cpu()), ContrastVerdict::Better);
}

#[test]
fn values_of_zero_are_compared() {
    let criteria = vec![Criterion::Metric { name: "interrupts".to_owned(), goal: Goal::Lowest }];
    let design = ExperimentDesign { criteria, ..design(vec![treatment("equal", 1.0, 1.0)], 3) };
    let Finished { record, analysis, .. } = finished(&mut Simulated::new(1), design);
    assert!(record.values(0, "interrupts").any(|value| value == Some(0.0)));
    assert_eq!(analysis.contrasts[0].estimate.unwrap().blocks + analysis.blocks_dropped, analysis.blocks);
}

#[test]
fn the_ratio_of_a_count_that_is_always_0_is_0_and_its_interval_has_an_upper_end() {
    let criteria = vec![Criterion::Metric { name: "timers".to_owned(), goal: Goal::Lowest }];
    let design = ExperimentDesign { criteria: criteria.clone(), ..design(vec![treatment("saves", 0.5, 1.0)], 3) };
    let Finished { analysis, .. } = finished(&mut Simulated::new(1), design);
    assert_eq!(verdict(&analysis, "saves", &criteria[0]), ContrastVerdict::Better);
    let estimate = analysis.contrasts[0].estimate.unwrap();
    assert_eq!((estimate.ratio, estimate.low), (0.0, 0.0));
    assert!(estimate.high.is_some_and(|high| high > 0.0 && high < 1.0), "{estimate:?}");
}

#[test]
fn a_quantile_beyond_the_requests_is_undecided() {
    let extreme = Criterion::Latency { quantile: 0.99999 };
    let design = ExperimentDesign { criteria: vec![extreme.clone()], ..design(vec![treatment("saves", 1.0, 0.5)], 3) };
    let Finished { analysis, .. } = finished(&mut Simulated::new(1), design);
    let verdict = verdict(&analysis, "saves", &extreme);
    assert!(
        matches!(verdict, ContrastVerdict::Undecided { reason: WhyUndecided::TooFewRequests { beyond: 0, .. } }),
        "{verdict:?}"
    );
}

#[test]
fn a_difference_of_a_latency_quantile_is_found_and_latencies_of_all_slices_are_described() {
    let p50 = Criterion::Latency { quantile: 0.5 };
    let design = ExperimentDesign {
        criteria: vec![p50.clone(), p99()],
        ..design(vec![treatment("fast", 1.0, 0.8), treatment("slow", 1.0, 1.3)], 3)
    };
    let Finished { record, analysis, .. } = finished(&mut Simulated::new(1), design);
    assert_eq!(verdict(&analysis, "fast", &p50), ContrastVerdict::Better);
    assert_eq!(verdict(&analysis, "slow", &p50), ContrastVerdict::Worse);
    let estimate = analysis.contrasts[0].estimate.unwrap();
    assert!(estimate.low < 0.8 && estimate.high.unwrap() > 0.8, "{estimate:?}");
    let pooled = |name: &str| analysis.pooled_latency.iter().find(|pooled| pooled.treatment == name).unwrap();
    assert_eq!(analysis.pooled_latency.len(), 3);
    assert_eq!(pooled("base").requests, 2 * pooled("slow").requests);
    let p50_ns = |name: &str| pooled(name).quantiles[0].ns;
    assert!(p50_ns("fast") < p50_ns("base") && p50_ns("base") < p50_ns("slow"));
    let is_described = |quantile: f64| pooled("slow").quantiles.iter().any(|pooled| pooled.quantile == quantile);
    assert!(is_described(0.999) && !is_described(0.9999), "{} slices", record.slices.len());
}

#[test]
fn with_all_pairs_the_unbeaten_treatments_are_listed() {
    let treatments =
        vec![treatment("saves", 0.7, 1.0), treatment("saves as much", 0.7, 1.0), treatment("slow", 1.3, 1.0)];
    let design = ExperimentDesign { contrasts: ContrastSet::AllPairs, criteria: vec![cpu()], ..design(treatments, 3) };
    let Finished { analysis, .. } = finished(&mut Simulated::new(1), design);
    assert_eq!(analysis.contrasts.len(), 6);
    assert_eq!(analysis.not_beaten(&cpu()), ["saves", "saves as much"]);
}

#[test]
fn a_stored_record_has_the_same_results() {
    let finished = finished(&mut Simulated::new(4), design(vec![treatment("saves", 0.8, 0.9)], 3));
    let named = |name: &str| Treatment { name: name.to_owned(), setting: name.to_owned() };
    let design = ExperimentDesign::new(named("base"), vec![named("saves")], vec![cpu(), p99()], 3);
    let record = ExperimentRecord {
        design: ExperimentDesign { budget_ms: 60_000, ..design },
        slices: finished.record.slices.clone(),
        dropped: finished.record.dropped.clone(),
    };
    let text = serde_json::to_string(&record).unwrap();
    let read: ExperimentRecord<String> = serde_json::from_str(&text).unwrap();
    assert_eq!(read, record);
    assert_eq!(analyse(&read), finished.analysis);
    assert_eq!(analyse(&finished.record), finished.analysis);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    /// For any observations, the state machine does not panic, and exceeds its budget by at most one block.
    #[test]
    fn any_observations_are_analysed(
        values in prop::collection::vec(
            (prop::option::of(0.0_f64..1e9), prop::option::of(0.0_f64..=1.0), prop::collection::vec(any::<u32>(), 0..5)),
            1..200,
        ),
        drop_at in prop::option::of(0_usize..100),
    ) {
        let mut experiment = Switchback::new(ExperimentDesign {
            budget_ms: 20_000,
            ..design(vec![treatment("one", 1.0, 1.0), treatment("other", 1.0, 1.0)], 1)
        }).unwrap();
        for (at, (value, foreign_cpu, ns)) in values.iter().enumerate() {
            if drop_at == Some(at) {
                experiment.drop_treatment("refused".to_owned());
            }
            let mut histogram = LatencyHistogram::new();
            ns.iter().for_each(|ns| histogram.record(u64::from(*ns)));
            let latency = (!ns.is_empty()).then(|| LatencyCounts::from(&histogram));
            let observation =
                SliceObservation { spent_ms: 220.0, latency, foreign_cpu: *foreign_cpu, ..SliceObservation::default() };
            experiment.record(observation.with_metric("cpu", *value)).unwrap();
        }
        let (record, analysis) = experiment.finish();
        prop_assert!(record.slices.len() as f64 * 220.0 <= 20_000.0);
        prop_assert_eq!(&analyse(&record), &analysis);
        for estimate in analysis.contrasts.iter().filter_map(|contrast| contrast.estimate) {
            prop_assert!(estimate.low <= estimate.ratio && estimate.high.is_none_or(|high| estimate.ratio <= high), "{:?}", estimate);
        }
    }
}

/// The plan of `quell bench` therefore names the number of planned blocks, and no maximum.
#[test]
fn the_budget_limits_the_time_and_not_the_number_of_blocks() {
    let blocks = |slice_takes_ms: f64| {
        let design = design(vec![Treatment { name: "other".to_owned(), setting: NONE }], 0);
        let design = ExperimentDesign { budget_ms: 8 * design.block_ms(), ..design };
        let (budget_ms, mut experiment) = (design.budget_ms as f64, Switchback::new(design).unwrap());
        while experiment.next_slice().is_some() {
            experiment.record(SliceObservation { spent_ms: slice_takes_ms, ..SliceObservation::default() }).unwrap();
        }
        let slices = experiment.so_far().slices.len();
        assert!(slices as f64 * slice_takes_ms <= budget_ms);
        (slices / 3, experiment.stopped())
    };
    assert_eq!(blocks(220.0), (7, Some(StopReason::BudgetSpent)));
    assert_eq!(blocks(210.0), (8, Some(StopReason::BudgetSpent)));
    assert_eq!(blocks(180.0), (9, Some(StopReason::BudgetSpent)));
}
