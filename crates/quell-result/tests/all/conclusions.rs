//! The conclusion of a result: use another mode, keep the present one, or measure longer.

use quell_experiment::{
    ContrastVerdict, Criterion, ExperimentDesign, ExperimentRecord, Goal, SliceFlag, SliceObservation, SliceRecord,
    StopReason, Treatment,
};
use quell_host::servers::{EarlierVerdict, OwnLoad};
use quell_linux::Pid;
use quell_load::OfferedLoad;
use quell_mode::DeliveryMode;
use quell_result::ResultDocument;
use quell_result::conclusion::{
    Conclusion, LoadRange, LoadSplit, OpenGain, Quantity, QuantityChange, WhyKeep, WhyLonger, WorseMode,
};
use quell_result::experiment::{EndOfExperiment, ExperimentResult, LoadExperiment, SubjectFacts};
use quell_result::facts::{ModelFacts, PlacementFacts, ProblemFacts, ProcessFacts, ProgramsFacts, SteeredFacts};
use quell_result::figures::{BUSY, PACKETS, Work};

const BLOCKS: u32 = 40;

pub(crate) fn mode(text: &str) -> DeliveryMode {
    text.parse().unwrap()
}

fn treatment(text: &str) -> Treatment<DeliveryMode> {
    Treatment { name: text.to_owned(), setting: mode(text) }
}

/// An experiment of `base`, twice, and other modes, each with its CPU time and interrupts per packet. Slices of one mode
/// differ by `noise`.
pub(crate) fn experiment(modes: &[(&str, f64, f64)], noise: f64) -> ExperimentResult {
    let criteria: Vec<Criterion> = vec![Work::Packet.cpu(), Work::Packet.criterion(quell_result::figures::IRQS)];
    let treatments = modes.iter().map(|(name, ..)| treatment(name)).collect();
    let design = ExperimentDesign::new(treatment("base"), treatments, criteria, 1);
    let arms: Vec<(f64, f64)> =
        [(10.0, 1.0), (10.0, 1.0)].into_iter().chain(modes.iter().map(|&(_, cpu, irqs)| (cpu, irqs))).collect();
    let mut slices = Vec::new();
    for block in 0..BLOCKS {
        for arm in design.order(block) {
            // Alternates differently in each arm, so that the noise is not that of the whole block.
            let factor = 1.0 + if (block >> (arm % 4)) & 1 == 0 { noise } else { -noise };
            let (cpu, irqs) = arms[arm];
            let observation =
                SliceObservation { spent_ms: 210.0, foreign_cpu: Some(0.0), ..SliceObservation::default() }
                    .with_metric(&Work::Packet.name(quell_result::figures::CPU), Some(cpu * factor))
                    .with_metric(&Work::Packet.name(quell_result::figures::IRQS), Some(irqs * factor))
                    .with_metric(BUSY, Some(0.03));
            slices.push(SliceRecord { block, arm, observation });
        }
    }
    let record = ExperimentRecord { design, slices, dropped: Default::default() };
    let end = EndOfExperiment::Stopped(StopReason::BudgetSpent);
    let subject = SubjectFacts::Model(ModelFacts {
        profile: "host".to_owned(),
        description: "a host".to_owned(),
        queues: 1,
        irqs_apart: false,
        connections: 1,
    });
    let mut result = ExperimentResult::begin(subject).unwrap();
    result.experiments.push(LoadExperiment::new(record, end));
    result
}

pub(crate) fn concluded(modes: &[(&str, f64, f64)], noise: f64) -> Conclusion {
    experiment(modes, noise).conclusion().unwrap()
}

pub(crate) fn unknown(because: WhyLonger) -> Conclusion {
    Conclusion::MeasureLonger { because, worse: Vec::new(), open: Vec::new(), budget_ms: None }
}

pub(crate) fn used(conclusion: &Conclusion) -> Option<String> {
    match conclusion {
        Conclusion::Use { mode, .. } => Some(mode.to_string()),
        _ => None,
    }
}

#[test]
fn a_mode_that_saves_without_a_cost_is_to_be_used() {
    let conclusion = concluded(&[("suspend20", 7.0, 0.5), ("defer20", 12.0, 1.0)], 0.01);
    let Conclusion::Use { mode: used, instead_of, saves, costs, .. } = conclusion else { panic!("{conclusion:?}") };
    assert_eq!((used, instead_of, saves.len(), costs.len()), (mode("suspend20"), mode("base"), 2, 0));
    assert!((saves[0].low - 0.7).abs() < 0.05, "{saves:?}");
}

/// What `suspend20` changes at each load, by the CPU time and the interrupts of `base`.
fn over_loads(loads: &[(OfferedLoad, f64, f64)]) -> Conclusion {
    let at = |&(load, cpu, irqs): &(OfferedLoad, f64, f64)| {
        let mut one = experiment(&[("suspend20", 10.0 * cpu, irqs)], 0.01).experiments.remove(0);
        one.load = Some(load);
        one
    };
    let mut result = experiment(&[("suspend20", 10.0, 1.0)], 0.01);
    result.experiments = loads.iter().map(at).collect();
    result.conclusion().unwrap()
}

const LOW: OfferedLoad = OfferedLoad::Rate(20_000.0);
const MIDDLE: OfferedLoad = OfferedLoad::Rate(50_000.0);
const HIGH: OfferedLoad = OfferedLoad::Rate(200_000.0);

pub(crate) fn split(conclusion: &Conclusion) -> Option<&LoadSplit> {
    let Conclusion::Use { split, .. } = conclusion else { panic!("{conclusion:?}") };
    split.as_ref()
}

fn ratios(changes: &[QuantityChange]) -> Vec<f64> {
    changes.iter().map(|change| (change.low * 100.0).round() / 100.0).collect()
}

#[test]
fn a_mode_that_costs_below_a_load_is_to_be_used_above_it_only() {
    let conclusion = over_loads(&[(LOW, 1.15, 1.0), (MIDDLE, 1.0, 1.0), (HIGH, 0.7, 1.0)]);
    let Conclusion::Use { saves, costs, split: Some(split), .. } = &conclusion else { panic!("{conclusion:?}") };
    assert_eq!((&split.pays, &split.costs), (&LoadRange::From(HIGH), &LoadRange::UpTo(LOW)));
    assert_eq!((ratios(saves), ratios(costs), ratios(&split.there)), (vec![0.7], vec![], vec![1.15]));
}

#[test]
fn a_mode_that_costs_above_a_load_is_to_be_used_below_it_only() {
    let conclusion = over_loads(&[(OfferedLoad::Max, 1.3, 1.0), (LOW, 0.7, 1.0), (MIDDLE, 0.8, 1.0)]);
    let split = split(&conclusion).unwrap();
    assert_eq!((&split.pays, &split.costs), (&LoadRange::UpTo(MIDDLE), &LoadRange::From(OfferedLoad::Max)));
}

#[test]
fn loads_without_an_order_are_named() {
    let conclusion = over_loads(&[(LOW, 0.7, 1.0), (MIDDLE, 1.3, 1.0), (HIGH, 0.7, 1.0)]);
    let split = split(&conclusion).unwrap();
    assert_eq!((&split.pays, &split.costs), (&LoadRange::At(vec![LOW, HIGH]), &LoadRange::At(vec![MIDDLE])));
}

#[test]
fn a_mode_that_pays_at_one_load_and_changes_nothing_at_others_is_to_be_used_at_all() {
    let conclusion = over_loads(&[(LOW, 1.0, 1.0), (HIGH, 0.7, 1.0)]);
    assert_eq!(split(&conclusion), None);
}

pub(crate) fn programs() -> ProgramsFacts {
    ProgramsFacts {
        processes: vec![ProcessFacts { pid: 812, name: "nginx".to_owned(), is_child: false }],
        epolls: 2,
        cpus: vec![0],
        ..ProgramsFacts::default()
    }
}

#[test]
fn a_mode_that_causes_a_serious_finding_is_not_recommended_and_the_next_one_is() {
    let concluded = |modes: &[(&str, f64, f64)]| {
        let mut result = experiment(modes, 0.01);
        let observed = "nginx (812): sockets by NAPI: 16 on 1, 16 on 2".to_owned();
        let problem = ProblemFacts { observed, ..mixed("suspend200") };
        result.subject = SubjectFacts::Programs(Box::new(ProgramsFacts { problems: vec![problem], ..programs() }));
        result.conclusion().unwrap()
    };
    let alone = concluded(&[("suspend200", 7.0, 1.0)]);
    let Conclusion::Keep { because: WhyKeep::SeriousFinding { mode: other, saves, finding }, .. } = &alone else {
        panic!("{alone:?}")
    };
    assert_eq!((other.as_str(), ratios(saves), finding.as_str()), ("suspend200", vec![0.7], "epoll-mixes-napis"));
    let beside = concluded(&[("suspend200", 7.0, 1.0), ("defer200", 8.0, 1.0)]);
    assert_eq!(used(&beside).as_deref(), Some("defer200"));
    let trade = concluded(&[("suspend200", 7.0, 1.0), ("fullbusy", 35.0, 0.1)]);
    assert!(matches!(trade, Conclusion::Keep { because: WhyKeep::SeriousFinding { .. }, .. }), "{trade:?}");
    let worse = concluded(&[("suspend200", 20.0, 1.0)]);
    assert!(matches!(worse, Conclusion::Keep { because: WhyKeep::OthersAreWorse { .. }, .. }), "{worse:?}");
}

fn steered_group((new_connections, unsorted): (Option<usize>, usize)) -> SteeredFacts {
    SteeredFacts {
        group: "tcp 0.0.0.0:80".to_owned(),
        sockets: 2,
        connections_before: 16,
        aligned_before: 8,
        new_connections,
        unsorted: Some(unsorted),
    }
}

#[test]
fn the_answer_for_a_program_is_that_of_each_load_with_its_packet_rate_and_problem() {
    let steered = |options: &[&str]| PlacementFacts {
        options: options.iter().map(|one| (*one).to_owned()).collect(),
        steered: vec![steered_group((None, 0))],
        ..PlacementFacts::default()
    };
    let programs = ProgramsFacts {
        placement: Some(steered(&["--steer"])),
        problems: vec![ProblemFacts { id: "nested-epoll".to_owned(), ..mixed("fullbusy") }],
        ..programs()
    };
    let mut result = experiment(&[("threaded", 10.0, 1.0)], 0.01);
    result.experiments = [(LOW, 1.15, 40e3), (HIGH, 0.7, 400e3)]
        .map(|(load, cpu, packets_per_s)| {
            let mut one = experiment(&[("threaded", 10.0 * cpu, 1.0)], 0.01).experiments.remove(0);
            for slice in &mut one.record.slices {
                slice.observation = slice.observation.clone().with_metric(PACKETS, Some(packets_per_s));
            }
            one.load = Some(load);
            one
        })
        .into();
    result.subject = SubjectFacts::Programs(Box::new(programs.clone()));
    let answers = |result: &ExperimentResult| {
        let advice = Some(("measure longer".to_owned(), "quell bench --budget 4m".to_owned()));
        ResultDocument::Experiment(Box::new(result.clone())).answers_for_programs("bench-1", advice, None)
    };
    let processes =
        |result: &ExperimentResult| ResultDocument::Experiment(Box::new(result.clone())).measured_processes();
    assert_eq!(processes(&result), [(Pid::new(812).unwrap(), "nginx".to_owned())]);
    let of_loads = answers(&result).unwrap();
    let rates: Vec<_> = of_loads.iter().map(|one| (one.measured.packets_per_s, one.verdict.clone())).collect();
    let kept = EarlierVerdict::Keep(mode("base"));
    assert_eq!(rates, [(Some(40_000), kept), (Some(400_000), EarlierVerdict::Better(mode("threaded")))]);
    assert!(of_loads.iter().all(|one| one.compared == [mode("threaded"), mode("base")]));
    assert!(of_loads.iter().all(|one| one.steered && one.measured.result == "bench-1"));
    assert!(of_loads.iter().all(|one| one.measured.own_load.is_none()));
    let judged = ProgramsFacts { latency: Some(vec!["wrk".to_owned()]), ..programs.clone() };
    let judged = ExperimentResult { subject: SubjectFacts::Programs(Box::new(judged)), ..result.clone() };
    assert!(answers(&judged).unwrap().iter().all(|one| one.measured.own_load == Some(OwnLoad::Judge)));
    let problems: Vec<_> = of_loads.iter().map(|one| one.measured.problem.as_deref()).collect();
    assert_eq!(problems, [Some("nested-epoll"), None], "threaded does not cause it");
    let mut delaying = result.clone();
    // Its timer delays packets, and no latency was measured.
    delaying.experiments.iter_mut().for_each(|one| one.record.design.treatments[0].setting = mode("suspend20"));
    assert!(matches!(answers(&delaying).unwrap()[1].verdict, EarlierVerdict::Undecided { .. }));
    let mut wide = experiment(&[("suspend20", 10.0, 1.0)], 0.5);
    wide.subject = result.subject.clone();
    let of_wide = answers(&wide).unwrap();
    assert!(
        matches!(&of_wide[0].verdict, EarlierVerdict::Undecided { command, unsteered: false, .. } if command.ends_with("4m")),
        "{of_wide:?}"
    );
    assert!(of_wide[0].worse.is_empty());
    let mut worse = experiment(&[("suspend20", 13.0, 1.0)], 0.01);
    worse.subject = result.subject.clone();
    assert_eq!(answers(&worse).unwrap()[0].worse, [mode("suspend20")]);
    result.host.kernel_release = "5.10".to_owned();
    assert_eq!(processes(&result), [], "another kernel");
}

#[test]
fn a_quantity_that_is_better_at_one_load_and_a_little_worse_at_another_has_its_loads() {
    // At the low load it saves two quantities of three, so the little that it costs is worth it.
    let mut low = experiment(&[("suspend20", 11.0, 0.5)], 0.01).experiments.remove(0);
    low.load = Some(LOW);
    low.record.design.criteria.push(Criterion::Metric { name: "w".to_owned(), goal: Goal::Lowest });
    for slice in &mut low.record.slices {
        let value = if slice.arm == 2 { 1.0 } else { 2.0 } + f64::from(slice.block % 3) / 100.0;
        slice.observation = slice.observation.clone().with_metric("w", Some(value));
    }
    let mut result = experiment(&[("suspend20", 7.0, 0.5)], 0.01);
    result.experiments[0].load = Some(HIGH);
    result.experiments.insert(0, low);
    let conclusion = result.conclusion().unwrap();
    let Conclusion::Use { saves, costs, split: None, .. } = &conclusion else { panic!("{conclusion:?}") };
    let cpu = saves.iter().find(|change| change.quantity == costs[0].quantity).unwrap();
    assert_eq!((&*costs[0].loads, &*cpu.loads), (&[LOW][..], &[HIGH][..]));
}

#[test]
fn what_was_decided_at_one_load_only_is_not_said_of_all_and_an_undecided_cost_is_listed() {
    let mut result = experiment(&[("suspend20", 10.5, 0.1)], 0.2);
    let mut high = experiment(&[("suspend20", 7.0, 0.1)], 0.01).experiments.remove(0);
    let [half, max] = [OfferedLoad::Percent(50.0), OfferedLoad::Max];
    (result.experiments[0].load, high.load) = (Some(half), Some(max));
    result.experiments[0].offered_per_s = Some(20_000.0);
    result.experiments.push(high);
    let conclusion = result.conclusion().unwrap();
    let Conclusion::Use { saves, costs, undecided, .. } = &conclusion else { panic!("{conclusion:?}") };
    let [irqs, cpu] = &saves[..] else { panic!("{saves:?}") };
    assert!(irqs.is_everywhere && !cpu.is_everywhere && cpu.loads == [max] && costs.is_empty(), "{saves:?}");
    let [open] = &undecided[..] else { panic!("{undecided:?}") };
    assert_eq!((&open.quantity, open.load), (&cpu.quantity, Some(half)));
    assert!(open.ratio.is_some_and(|ratio| ratio > 1.0), "{open:?}");
}

#[test]
fn a_mode_that_costs_much_is_not_recommended_for_what_it_saves() {
    let conclusion = concluded(&[("fullbusy", 35.0, 0.01)], 0.01);
    let Conclusion::Keep { mode: kept, because: WhyKeep::TradeOff { mode: other, saves, costs, .. }, .. } = conclusion
    else {
        panic!("{conclusion:?}")
    };
    assert_eq!((kept, other.as_str(), saves.len(), costs.len()), (mode("base"), "fullbusy", 1, 1));
    let with_cheaper = concluded(&[("fullbusy", 35.0, 0.01), ("suspend50", 9.0, 0.9)], 0.01);
    assert_eq!(used(&with_cheaper).as_deref(), Some("suspend50"));
}

#[test]
fn a_mode_that_costs_little_beside_what_it_saves_is_recommended_and_otherwise_is_a_trade() {
    let small_cost = concluded(&[("napibusy", 11.6, 0.5)], 0.001);
    assert_eq!(used(&small_cost).as_deref(), Some("napibusy"));
    let trade = concluded(&[("napibusy", 11.6, 0.8)], 0.001);
    assert!(matches!(trade, Conclusion::Keep { because: WhyKeep::TradeOff { .. }, .. }), "{trade:?}");
}

#[test]
fn equal_modes_have_nothing_to_gain_at_this_load_and_worse_ones_are_worse() {
    let equal = concluded(&[("suspend20", 10.0, 1.0)], 0.001);
    let Conclusion::Keep { because: WhyKeep::NothingToGain { busy, .. }, .. } = equal else { panic!("{equal:?}") };
    assert_eq!(busy, Some(0.03));
    let worse = concluded(&[("suspend20", 20.0, 2.0)], 0.001);
    let Conclusion::Keep { because: WhyKeep::OthersAreWorse { modes, .. }, open, without_clients: true, .. } = worse
    else {
        panic!("{worse:?}")
    };
    let [WorseMode { mode: other, costs }] = &modes[..] else { panic!("{modes:?}") };
    let compared = [Work::Packet.cpu(), Work::Packet.criterion(quell_result::figures::IRQS)];
    let quantities: Vec<_> = costs.iter().map(|change| change.quantity.clone()).collect();
    assert_eq!((other.as_str(), quantities), ("suspend20", compared.map(Quantity::Criterion).to_vec()));
    assert_eq!(open, []);
}

#[test]
fn a_mode_that_costs_much_and_shows_no_gain_is_never_measured_longer() {
    let mut result = experiment(&[("defer200", 36.4, 1.0)], 0.01);
    with_noisy_latency(&mut result, 1.3);
    let conclusion = result.conclusion();
    let Some(Conclusion::Keep { because: WhyKeep::OthersAreWorse { .. }, open, budget_ms, .. }) = &conclusion else {
        panic!("{conclusion:?}")
    };
    assert_eq!((&open[..], *budget_ms), (&[][..], None));
    let mut beside_an_equal_one = experiment(&[("defer200", 36.4, 1.0), ("suspend20", 10.0, 1.0)], 0.001);
    with_noisy_latency(&mut beside_an_equal_one, 1.6);
    for experiment in &mut beside_an_equal_one.experiments {
        for slice in experiment.record.slices.iter_mut().filter(|slice| slice.arm != 2) {
            slice.observation = slice.observation.clone().with_metric("p99-us", Some(100.0));
        }
    }
    let conclusion = beside_an_equal_one.conclusion();
    assert!(
        matches!(conclusion, Some(Conclusion::Keep { because: WhyKeep::NothingToGain { .. }, .. })),
        "{conclusion:?}"
    );
}

#[test]
fn modes_that_differ_less_than_the_slices_are_measured_longer() {
    let conclusion = concluded(&[("suspend20", 10.0, 1.0)], 0.5);
    let Conclusion::MeasureLonger { because, worse, budget_ms, .. } = conclusion else { panic!("{conclusion:?}") };
    assert_eq!((because, worse.len(), budget_ms), (WhyLonger::TooWide, 0, Some(480_000)));
}

#[test]
fn repetitions_end_in_a_decision_after_two_and_a_present_mode_that_is_kept_has_no_command_then() {
    for first_ms in [20_000, 30_000, 50_000, 120_000, 180_000, 360_000] {
        let mut result = experiment(&[("suspend20", 10.0, 1.0)], 0.5);
        result.experiments[0].record.design.budget_ms = first_ms;
        let mut repetitions = 0;
        while let Some(Conclusion::MeasureLonger { budget_ms: Some(ms), .. }) = result.conclusion() {
            assert!(ms > result.experiments[0].record.design.budget_ms);
            result.experiments[0].record.design.budget_ms = ms;
            repetitions += 1;
        }
        assert!(repetitions <= 2, "{first_ms}: {repetitions}");
        let ended = result.conclusion();
        assert!(
            matches!(&ended, Some(Conclusion::NotDecidable { mode: kept, because: WhyLonger::TooWide, .. }) if *kept == mode("base")),
            "{ended:?}"
        );
    }
    let mut result = experiment(&[("suspend20", 60.4, 1.0)], 0.01);
    with_noisy_latency(&mut result, 0.6);
    let record = &mut result.experiments[0].record;
    // The same part of the budget is spent.
    (record.design.budget_ms, record.design.slice_ms) = (480_000, 4 * record.design.slice_ms);
    record.slices.iter_mut().for_each(|slice| slice.observation.spent_ms *= 4.0);
    let Some(Conclusion::Keep { open, budget_ms: None, .. }) = result.conclusion() else {
        panic!("{:?}", result.conclusion())
    };
    assert_eq!(open.len(), 1);
}

/// Adds a latency to every slice: `us` times `factor` under the treatments, noisy.
fn with_noisy_latency(result: &mut ExperimentResult, factor: f64) {
    for experiment in &mut result.experiments {
        experiment.record.design.criteria.push(p99());
        for slice in &mut experiment.record.slices {
            let noise = if (slice.block >> (slice.arm % 4)) & 1 == 0 { 1.9 } else { 0.1 };
            let us = 100.0 * noise * if slice.arm >= 2 { factor } else { 1.0 };
            slice.observation = slice.observation.clone().with_metric("p99-us", Some(us));
        }
    }
}

fn p99() -> Criterion {
    Criterion::Metric { name: "p99-us".to_owned(), goal: Goal::Lowest }
}

#[test]
fn a_mode_that_is_worse_is_not_used_although_its_latency_is_undecided_which_is_said_with_its_estimate() {
    let mut result = experiment(&[("suspend20", 60.4, 1.0)], 0.01);
    with_noisy_latency(&mut result, 0.6);
    let conclusion = result.conclusion().unwrap();
    let Conclusion::Keep { mode: kept, because: WhyKeep::OthersAreWorse { modes, .. }, open, budget_ms, .. } =
        conclusion
    else {
        panic!("{conclusion:?}")
    };
    assert_eq!((kept, ratios(&modes[0].costs), budget_ms), (mode("base"), vec![6.04], Some(480_000)));
    let [OpenGain { quantity, best: Some(best) }] = &open[..] else { panic!("{open:?}") };
    assert_eq!((quantity, best.mode.as_str()), (&Quantity::Criterion(p99()), "suspend20"));
    assert!(best.ratio < 0.8, "{best:?}");
    let mut slower = experiment(&[("suspend20", 60.4, 1.0)], 0.01);
    with_noisy_latency(&mut slower, 50.0);
    let conclusion = slower.conclusion();
    let Some(Conclusion::Keep { open, budget_ms: None, .. }) = &conclusion else { panic!("{conclusion:?}") };
    assert_eq!(open, &[], "it cannot be faster");
}

#[test]
fn what_is_decided_is_said_although_another_mode_has_to_be_measured_longer() {
    let mut result = experiment(&[("suspend20", 60.4, 1.0), ("suspend200", 10.0, 1.0)], 0.01);
    with_noisy_latency(&mut result, 0.6);
    let conclusion = result.conclusion().unwrap();
    let Conclusion::MeasureLonger { because: WhyLonger::TooWide, worse, open, .. } = &conclusion else {
        panic!("{conclusion:?}")
    };
    assert_eq!((worse.len(), worse[0].mode.as_str(), open.len()), (1, "suspend20", 1));
}

#[test]
fn a_mode_that_is_worse_at_one_load_and_open_at_another_is_measured_longer() {
    let mut result = experiment(&[("suspend20", 20.0, 1.0)], 0.01);
    result.experiments.extend(experiment(&[("suspend20", 10.0, 1.0)], 0.5).experiments);
    let conclusion = result.conclusion().unwrap();
    let Conclusion::MeasureLonger { worse, budget_ms, .. } = &conclusion else { panic!("{conclusion:?}") };
    assert_eq!((worse.len(), *budget_ms), (1, Some(480_000)), "longer than the budget of both loads");
}

/// The first blocks of an experiment, with slices that took so long.
fn first_blocks(blocks: u32, took_ms: f64, command: Option<&str>) -> Option<Conclusion> {
    let mut few = experiment(&[("suspend20", 10.0, 1.0)], 0.5);
    few.experiments[0].record.design.budget_ms = 5_000;
    few.experiments[0].record.slices.retain(|slice| slice.block < blocks);
    few.experiments[0].record.slices.iter_mut().for_each(|slice| slice.observation.spent_ms = took_ms);
    let latency = command.map(|command| command.split(' ').map(str::to_owned).collect());
    few.subject = SubjectFacts::Programs(Box::new(ProgramsFacts { latency, ..programs() }));
    few.conclusion()
}

#[test]
fn a_longer_budget_has_time_for_enough_blocks_of_slices_that_take_as_long_as_these() {
    let conclusion = first_blocks(3, 1_500.0, None);
    let Some(Conclusion::MeasureLonger { because, budget_ms: Some(ms), .. }) = &conclusion else {
        panic!("{conclusion:?}")
    };
    assert_eq!(because, &WhyLonger::TooFewBlocks { disturbed: 0 });
    let blocks = *ms as f64 / (3.0 * 1_500.0);
    assert!(blocks >= 8.0, "{blocks}");
}

#[test]
fn more_load_is_no_remedy_in_a_closed_loop() {
    let because = |command: &str| {
        let mut result = experiment(&[("suspend20", 10.0, 1.0)], 0.5);
        result.experiments[0].record.design.criteria = vec![p99()];
        let latency = Some(command.split(' ').map(str::to_owned).collect());
        result.subject = SubjectFacts::Programs(Box::new(ProgramsFacts { latency, ..programs() }));
        match result.conclusion() {
            Some(Conclusion::MeasureLonger { because: WhyLonger::TooFewRequests { closed_loop }, .. }) => closed_loop,
            other => panic!("{other:?}"),
        }
    };
    assert!(because("wrk -c 4 http://192.0.2.1/") && because("ssh client quell load 192.0.2.1:80 --rate max"));
    assert!(because("/usr/bin/quell load 192.0.2.1:80"));
    assert!(!because("quell load 192.0.2.1:80 --rate 1K") && !because("mine") && !because("oha -q 100"));
}

#[test]
fn verdicts_that_other_programs_prevent_do_not_ask_for_more_time() {
    let mut disturbed = experiment(&[("suspend20", 10.0, 1.0)], 0.5);
    for slice in &mut disturbed.experiments[0].record.slices {
        slice.observation.flags.insert(SliceFlag::ForeignCpu);
    }
    let because = |latency_helps| Some(unknown(WhyLonger::OtherPrograms { latency_helps }));
    assert_eq!(disturbed.conclusion(), because(true));
    let mut few = disturbed.clone();
    few.experiments[0].record.slices.retain(|slice| slice.block < 3);
    assert_eq!(few.conclusion(), because(true), "too few blocks");
    few.experiments[0].record.design.budget_ms = 3 * 3 * 210;
    let blocks = few.sufficient_budget_ms().unwrap() as f64 / (3.0 * 210.0);
    assert!((8.0..10.0).contains(&blocks), "six are left if two of eight are disturbed: {blocks}");
    assert_eq!(disturbed.sufficient_budget_ms(), None, "its budget sufficed");
    for slice in &mut disturbed.experiments[0].record.slices {
        slice.observation.flags.insert(SliceFlag::NoIdleCpu);
    }
    assert_eq!(disturbed.conclusion(), because(false), "latencies would be withheld, too");
    // With NAPI threads, the CPU time of the server is known, and as noisy.
    for slice in &mut disturbed.experiments[0].record.slices {
        (slice.observation.flags, slice.observation.foreign_cpu) = (Default::default(), Some(0.7));
    }
    assert_eq!(disturbed.conclusion(), because(true));
}

#[test]
fn a_change_that_rounds_to_0_percent_is_no_cost() {
    let mut result = experiment(&[("suspend20", 7.0, 1.0)], 0.01);
    result.experiments[0].record.design.criteria.push(Criterion::Metric { name: "w".to_owned(), goal: Goal::Highest });
    let mut concluded = |ratio: f64| {
        for slice in &mut result.experiments[0].record.slices {
            let value = 1_000.0 * if slice.arm == 2 { ratio } else { 1.0 } + f64::from(slice.block % 3) / 100.0;
            slice.observation = slice.observation.clone().with_metric("w", Some(value));
        }
        let verdict = result.experiments[0].analyse().contrasts.last().unwrap().verdict;
        match result.conclusion() {
            Some(Conclusion::Use { costs, .. }) => (verdict, costs.len()),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(concluded(0.99), (ContrastVerdict::Worse, 1));
    assert!(matches!(concluded(0.9997), (ContrastVerdict::NoDifferenceLargerThan { .. }, 0)));
}

#[test]
fn a_server_that_waited_for_a_cpu_has_no_answer_for_a_mode_that_saves_cpu_time_and_keeps_its_own_against_one_that_costs()
 {
    let concluded = |cpu: f64, criteria: &[Criterion]| {
        let mut disturbed = experiment(&[("suspend20", cpu, 1.0)], 0.001);
        disturbed.experiments[0].record.design.criteria.extend_from_slice(criteria);
        for slice in &mut disturbed.experiments[0].record.slices {
            slice.observation.flags.insert(SliceFlag::NoIdleCpu);
        }
        disturbed.conclusion().unwrap()
    };
    let because = WhyLonger::OtherPrograms { latency_helps: false };
    assert_eq!(concluded(5.0, &[p99()]), unknown(because));
    let kept = concluded(20.0, &[p99()]);
    assert!(
        matches!(
            &kept,
            Conclusion::Keep { because: WhyKeep::OthersAreWorse { modes, latency_withheld: true }, .. } if modes.len() == 1
        ),
        "{kept:?}"
    );
    let of_cpu_only = concluded(5.0, &[]);
    assert!(matches!(of_cpu_only, Conclusion::Use { without_clients: true, .. }), "no latency was asked for");
}

#[test]
fn the_present_mode_of_queues_with_napi_threads_is_not_called_base() {
    let mut result = experiment(&[("suspend20", 20.0, 2.0)], 0.001);
    result.subject = SubjectFacts::Programs(Box::new(ProgramsFacts { base_is: Some(mode("threaded")), ..programs() }));
    assert!(matches!(result.conclusion(), Some(Conclusion::Keep { mode: kept, .. }) if kept == mode("threaded")));
}

fn mixed(under: &str) -> ProblemFacts {
    let (id, observed) = ("epoll-mixes-napis".to_owned(), String::new());
    ProblemFacts { id, observed, modes: vec![mode(under)], stays_when_steered: false }
}

#[test]
fn connections_that_were_not_steered_have_no_answer() {
    let mut result = experiment(&[("suspend20", 5.0, 0.5)], 0.001);
    let mut concluded = |groups: &[(Option<usize>, usize)], problems: &[ProblemFacts]| {
        let steered = groups.iter().copied().map(steered_group).collect();
        let placement =
            Some(PlacementFacts { options: vec!["--steer".to_owned()], steered, ..PlacementFacts::default() });
        let facts = ProgramsFacts { placement, problems: problems.to_vec(), ..programs() };
        result.subject = SubjectFacts::Programs(Box::new(facts));
        result.conclusion().unwrap()
    };
    let not_steered = unknown(WhyLonger::NotSteered);
    assert_eq!(concluded(&[(Some(0), 8)], &[]), not_steered);
    assert!(used(&concluded(&[(Some(0), 8), (Some(4), 0)], &[])).is_some(), "clients of one port have reconnected");
    assert!(used(&concluded(&[], &[])).is_some(), "the attachment steers");
    let mixed = [mixed("fullbusy")];
    let by_program = [ProblemFacts { stays_when_steered: true, ..mixed[0].clone() }];
    assert_eq!(concluded(&[(Some(4), 8)], &mixed), not_steered, "only the judge has reconnected");
    assert!(used(&concluded(&[(Some(4), 8)], &by_program)).is_some(), "the program opened them");
    assert_eq!(concluded(&[], &mixed), not_steered, "clients are older than the attachment");
    assert!(used(&concluded(&[(Some(4), 0)], &mixed)).is_some(), "another port is mixed, which cannot be steered");
    let SubjectFacts::Programs(facts) = &mut result.subject else { unreachable!() };
    facts.placement.as_mut().unwrap().steered.clear();
    facts.attached_in_part = vec![812];
    assert!(used(&result.conclusion().unwrap()).is_some(), "a program beside the attached one is mixed");
}

#[test]
fn an_experiment_that_failed_has_no_answer() {
    let mut failed = experiment(&[("suspend20", 10.0, 1.0)], 0.5);
    failed.experiments[0].end = EndOfExperiment::Failed("the program exited".to_owned());
    let conclusion = failed.conclusion().unwrap();
    assert_eq!(conclusion, unknown(WhyLonger::Incomplete));
}

#[test]
fn a_command_names_the_parents_of_the_measured_processes() {
    let child = |pid| ProcessFacts { pid, name: "nginx".to_owned(), is_child: true };
    let mut facts = programs();
    facts.processes.extend([child(813), child(814)]);
    assert_eq!(facts.named_pids().collect::<Vec<_>>(), [812]);
}
