//! The conclusion of a search.

use quell_experiment::{ContrastVerdict, RatioEstimate, SliceFlag, SliceRecord};
use quell_load::OfferedLoad;
use quell_result::Document as _;
use quell_result::conclusion::{Conclusion, LoadRange, Quantity, WhyKeep, WhyLonger};
use quell_result::experiment::SubjectFacts;
use quell_result::facts::ProgramsFacts;
use quell_result::tune::TuneFile;
use quell_tune::{ArmState, Rival, TuneAnswer, TuneEnd, TuneMetric, WhyNotChosen};

use crate::conclusions::{mode, programs, split, unknown, used};

#[test]
fn a_search_concludes_its_answer() {
    let mut file = TuneFile::from_json(include_str!("../../../quell/tests/fixtures/tune.json")).unwrap();
    assert!(used(&file.conclusion()).is_some() && file.is_decided());
    file.search.answer = TuneAnswer::NoSettingBetter;
    assert!(matches!(
        file.conclusion(),
        Conclusion::Keep { because: WhyKeep::NotBeaten { failed: 0, .. }, budget_ms: None, .. }
    ));
    let arms = file.search.arms.clone();
    file.search.arms[1].state = ArmState::NotSettable { reason: "`wrk` did not exit".to_owned() };
    assert!(matches!(file.conclusion(), Conclusion::Keep { because: WhyKeep::NotBeaten { failed: 1, .. }, .. }));
    file.search.arms = arms;
    let rivals = file.search.rivals.clone();
    let rival = |name: &str, why: WhyNotChosen| Rival { mode: mode(name), looks: 0.88, interval: None, why };
    let longer_than_an_hour = rival("defer40", WhyNotChosen::NotCompared { budget_ms: None });
    file.search.rivals = vec![rival("defer20", WhyNotChosen::NotBetter)];
    assert!(file.is_decided(), "no mode may be better");
    file.search.rivals = vec![longer_than_an_hour.clone()];
    let conclusion = file.conclusion();
    let Conclusion::Keep { open, budget_ms: None, .. } = &conclusion else { panic!("{conclusion:?}") };
    assert!(open[0].best.as_ref().is_some_and(|best| best.mode == "defer40") && !file.is_decided(), "{open:?}");
    let decidable = rival("suspend40", WhyNotChosen::Undecided { budget_ms: Some(100_000) });
    file.search.rivals = vec![longer_than_an_hour, decidable];
    assert!(!file.is_decided());
    let conclusion = file.conclusion();
    let Conclusion::Keep { open, budget_ms: Some(100_000), .. } = &conclusion else { panic!("{conclusion:?}") };
    assert!(open[0].best.as_ref().is_some_and(|best| best.mode == "suspend40"), "{open:?}");
    let interval = Some(RatioEstimate { ratio: 0.9, low: 0.85, high: Some(0.95), blocks: 20 });
    let surest =
        Rival { looks: 0.9, interval, ..rival("base", WhyNotChosen::NotCompared { budget_ms: Some(150_000) }) };
    file.search.rivals.push(surest);
    let conclusion = file.conclusion();
    let Conclusion::Keep { open, budget_ms: Some(150_000), .. } = &conclusion else { panic!("{conclusion:?}") };
    assert!(open[0].best.as_ref().is_some_and(|best| best.mode == "base"), "{open:?}");
    file.search.rivals = rivals;
    // The candidate was better at one load and worse at the other.
    file.search.plan.loads = vec!["50%".to_owned(), "90%".to_owned()];
    let mut worse = file.search.confirmations[0].analyses[0].clone();
    worse.contrasts[0].verdict = ContrastVerdict::Worse;
    file.search.confirmations[0].analyses.push(worse);
    let conclusion = file.conclusion();
    let split = split(&conclusion).unwrap();
    let [half, most] = [50.0, 90.0].map(OfferedLoad::Percent);
    assert_eq!((&split.pays, &split.costs), (&LoadRange::UpTo(half), &LoadRange::From(most)));
    (file.search.answer, file.search.end) = (TuneAnswer::None, TuneEnd::BudgetSpent);
    let budget = file.search.plan.budget_ms;
    assert!(matches!(file.conclusion(), Conclusion::MeasureLonger { budget_ms: Some(ms), .. } if ms >= budget * 2));
    file.search.plan.budget_ms = 480_000;
    assert!(matches!(file.conclusion(), Conclusion::NotDecidable { within_ms: 480_000, .. }));
    file.search.end = TuneEnd::NoModeLeft;
    assert!(matches!(file.conclusion(), Conclusion::MeasureLonger { budget_ms: None, .. }));
}

#[test]
fn a_mode_that_a_search_found_has_the_costs_that_its_goal_does_not_name() {
    let mut file = TuneFile::from_json(include_str!("../../../quell/tests/fixtures/tune.json")).unwrap();
    let costs = |file: &TuneFile| match file.conclusion() {
        Conclusion::Use { costs, .. } => costs,
        other => panic!("{other:?}"),
    };
    assert!(costs(&file).is_empty());
    // The recording has one block.
    let record = &mut file.search.confirmations[0].experiments[0];
    let block = std::mem::take(&mut record.slices);
    for (number, slice) in (0..16).flat_map(|number| block.iter().map(move |slice| (number, slice))) {
        let mut slice = SliceRecord { block: number, ..slice.clone() };
        // The reference has two arms.
        let p50_us = if slice.arm == 2 { 430.0 } else { 93.0 } + f64::from(number % 3);
        slice.observation.latency = None;
        slice.observation.metrics.insert("p50-us".to_owned(), p50_us);
        record.slices.push(slice);
    }
    let with = costs(&file);
    let p50 = Quantity::Metric(TuneMetric::Latency { quantile: 0.5 });
    assert!(with.iter().any(|cost| cost.quantity == p50 && cost.low > 4.0), "{with:?}");
}

#[test]
fn a_search_on_connections_that_were_not_steered_has_found_no_mode() {
    let mut file = TuneFile::from_json(include_str!("../../../quell/tests/fixtures/tune.json")).unwrap();
    assert!(file.found().is_some());
    let placement = serde_json::json!({ "options": ["--steer"], "pinned": 0, "steered": [{
        "group": "tcp 0.0.0.0:80", "sockets": 2, "connections-before": 16, "aligned-before": 8, "new-connections": 0
    }] });
    let facts = ProgramsFacts { placement: serde_json::from_value(placement).unwrap(), ..programs() };
    file.subject = SubjectFacts::Programs(Box::new(facts));
    assert_eq!((file.found(), file.conclusion()), (None, unknown(WhyLonger::NotSteered)));
}

#[test]
fn a_search_whose_goal_shows_other_programs_has_no_answer() {
    let file = TuneFile::from_json(include_str!("../../../quell/tests/fixtures/tune.json")).unwrap();
    let concluded = |flag, goal: &str, answer: &TuneAnswer| {
        let mut file = file.clone();
        let fresh = file.search.confirmations.iter_mut().flat_map(|one| &mut one.experiments);
        let fresh = fresh.flat_map(|one| &mut one.slices).map(|slice| &mut slice.observation);
        let all = file.search.slices.iter_mut().map(|slice| &mut slice.observation).chain(fresh);
        for slice in all {
            slice.flags.insert(flag);
        }
        (file.search.plan.goal, file.search.answer) = (goal.parse().unwrap(), answer.clone());
        file.conclusion()
    };
    let mut spent = file.clone();
    assert_eq!(spent.sufficient_budget_ms(), None, "it had an answer in its budget");
    spent.search.end = TuneEnd::BudgetSpent;
    assert!(spent.sufficient_budget_ms().is_some_and(|ms| ms > file.search.plan.budget_ms));
    let withheld = unknown(WhyLonger::OtherPrograms { latency_helps: false });
    for answer in [&file.search.answer, &TuneAnswer::NoSettingBetter] {
        assert_eq!(concluded(SliceFlag::ForeignCpu, "least cpu", answer), withheld);
        assert_eq!(concluded(SliceFlag::NoIdleCpu, "p99<=1.1x, least cpu", answer), withheld);
        assert_ne!(concluded(SliceFlag::ForeignCpu, "least p99", answer), withheld);
        assert_ne!(concluded(SliceFlag::NoIdleCpu, "least cpu", answer), withheld, "CPU time is that of threads");
    }
}

#[test]
fn modes_of_the_grid_that_were_not_tried_are_left_although_no_rival_is_open() {
    let mut file = TuneFile::from_json(include_str!("../../../quell/tests/fixtures/tune.json")).unwrap();
    (file.search.answer, file.search.rivals) = (TuneAnswer::NoSettingBetter, Vec::new());
    let left = |file: &TuneFile| match file.conclusion() {
        Conclusion::Keep { because: WhyKeep::NotBeaten { left, .. }, .. } => left,
        other => panic!("{other:?}"),
    };
    let before = left(&file);
    let mut untried = file.search.arms[0].clone();
    (untried.mode, untried.slices, untried.state) = (mode("defer777"), 0, ArmState::Alive);
    file.search.arms.push(untried);
    assert_eq!(left(&file), before + 1);
    file.search.arms.last_mut().unwrap().state = ArmState::Worse { than: mode("base") };
    assert_eq!(left(&file), before);
}
