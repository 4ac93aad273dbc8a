//! Time that is left after an answer: modes that look better are compared with it, and each has a reason.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use quell_experiment::SliceStage;
use quell_mode::DeliveryMode;
use quell_tune::{ArmReport, ArmState, Rival, TuneEnd, TunePhase, TunePlan, Tuner, WhyNotChosen, tune};

use crate::searches::{Server, plan, search};

/// `base` misses the limit. `napibusy` holds it at 1.28 times the CPU time, `suspend40` closely at 1.14 times.
fn one_is_cheaper_and_close_to_the_limit(mode: &DeliveryMode, _: usize) -> (f64, f64) {
    match mode.to_string().as_str() {
        "base" => (10.0, 500.0),
        "napibusy" => (12.8, 150.0),
        "suspend40" => (11.4, 290.0),
        _ => (11.0, 450.0),
    }
}

/// A search so short that it often finds the mode first that holds the limit with a distance.
fn short_plan(seed: u64) -> TunePlan {
    let arms = ["napibusy", "suspend40", "defer40", "threaded"].map(|mode| mode.parse().unwrap()).to_vec();
    TunePlan { seed, arms, space: None, budget_ms: 40_000, ..plan("p99<=300us, least cpu") }
}

#[test]
fn time_that_is_left_is_spent_on_a_mode_that_looks_better_than_the_answer() {
    let mut replaced = 0;
    for seed in 0..8 {
        let result = search(&mut Server::new(one_is_cheaper_and_close_to_the_limit, seed), short_plan(seed));
        let (first, others) = result.confirmations.split_first().unwrap();
        if first.mode.to_string() == "napibusy" {
            assert_eq!(others.len(), 1, "seed {seed}");
            assert_eq!((others[0].mode.to_string().as_str(), others[0].against), ("suspend40", Some(first.mode)));
            let is_replaced = result.answer.mode() != Some(first.mode);
            replaced += u32::from(is_replaced);
            let has_reason = |rival: &Rival| rival.mode == others[0].mode && rival.why == WhyNotChosen::LimitsNotShown;
            assert!(is_replaced || result.rivals.iter().any(has_reason), "{:?}", result.rivals);
        }
        assert!(result.spent_ms <= result.plan.budget_ms as f64);
    }
    assert!(replaced > 1, "{replaced} answers were replaced by a better mode");
}

#[test]
fn modes_that_look_better_than_the_answer_are_named_with_the_reason() {
    let mut server = Server::new(one_is_cheaper_and_close_to_the_limit, 3);
    let result = search(&mut server, plan("p99<=300us, least cpu"));
    let looks_better = |arm: &&ArmReport| arm.ratio[0].is_some_and(|ratio| ratio < 1.13) && arm.slices > 0;
    let others = result.arms.iter().filter(looks_better).filter(|arm| arm.mode != result.plan.present);
    let others: Vec<_> = others.map(|arm| arm.mode).collect();
    assert!(others.len() > 3, "{others:?}");
    for mode in others {
        let rival = result.rivals.iter().find(|rival| rival.mode == mode);
        let why = &rival.unwrap_or_else(|| panic!("{mode} has no reason")).why;
        let is_limit = matches!(why, WhyNotChosen::LimitInDoubt { .. } | WhyNotChosen::LimitsNotShown)
            || matches!(why, WhyNotChosen::Excluded { state: ArmState::MissesLimit { .. } });
        assert!(is_limit, "{mode}: {why:?}");
    }
}

/// Differences of some percent need more slices than a short search has.
#[test]
fn a_mode_that_is_not_decided_has_a_budget_that_probably_decides_it() {
    fn two_are_alike(mode: &DeliveryMode, _: usize) -> (f64, f64) {
        match mode.to_string().as_str() {
            "suspend40" => (8.0, 200.0),
            "suspend20" => (8.6, 200.0),
            _ => (14.0, 250.0),
        }
    }
    let arms = || ["suspend20", "suspend40"].map(|mode| mode.parse().unwrap()).to_vec();
    let short = || TunePlan { arms: arms(), space: None, budget_ms: 20_000, ..plan("p99<=300us, least cpu") };
    let is_decided_by_longer = |seed| {
        let result = search(&mut Server::new(two_are_alike, seed), TunePlan { seed, ..short() });
        let rival = result.rivals.iter().find(|rival| rival.mode.to_string() == "suspend40")?;
        let (WhyNotChosen::Undecided { budget_ms } | WhyNotChosen::NotCompared { budget_ms }) = rival.why else {
            return None;
        };
        let interval = rival.interval.unwrap();
        assert!(interval.low < interval.ratio && interval.high.unwrap() > interval.ratio);
        let longer = TunePlan { seed, budget_ms: budget_ms?, ..short() };
        assert!(longer.budget_ms > short().budget_ms);
        let answer = search(&mut Server::new(two_are_alike, seed), longer).answer;
        Some(answer.mode().is_some_and(|mode| mode.to_string() == "suspend40"))
    };
    let decided: Vec<bool> = (0..40).filter_map(is_decided_by_longer).collect();
    let count = decided.iter().filter(|is_decided| **is_decided).count();
    assert!(count > 0 && count * 2 > decided.len(), "{decided:?}");
}

#[test]
fn an_answer_stays_if_the_search_is_interrupted_while_it_is_compared_with_others() {
    let interrupted = (0..8).find_map(|seed| {
        let mut server = Server::new(one_is_cheaper_and_close_to_the_limit, seed);
        let mut confirmed = BTreeSet::new();
        let watch = &mut |tuner: &Tuner, stage: SliceStage<'_>| {
            let next = tuner.next_slice().filter(|next| next.phase == TunePhase::Confirm);
            confirmed.extend(next.map(|next| next.mode.to_string()));
            match stage {
                SliceStage::Begins if confirmed.contains("napibusy") && confirmed.contains("suspend40") => {
                    ControlFlow::Break(())
                }
                _ => ControlFlow::Continue(()),
            }
        };
        let result = tune(&mut server, short_plan(seed), watch).unwrap().result;
        result.confirmations.first().is_some_and(|one| one.mode.to_string() == "napibusy").then_some(result)
    });
    let result = interrupted.expect("a search that finds the costly mode first");
    assert_eq!(result.end, TuneEnd::Interrupted);
    assert_eq!(result.answer.mode().unwrap().to_string(), "napibusy");
}
