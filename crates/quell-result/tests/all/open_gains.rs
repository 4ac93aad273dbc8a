//! Modes in a conclusion that keeps the present one, and what more time may decide.

use quell_experiment::{Criterion, Goal};
use quell_result::conclusion::{Conclusion, OpenGain, WhyKeep};
use quell_result::experiment::ExperimentResult;
use quell_result::facts::PRESENT;

use crate::conclusions::experiment;

/// The modes that are worse, and what is open.
fn kept(result: &ExperimentResult) -> (Vec<String>, Vec<OpenGain>) {
    match result.conclusion().unwrap() {
        Conclusion::Keep { because: WhyKeep::OthersAreWorse { modes, .. }, open, .. } => {
            (modes.into_iter().map(|worse| worse.mode).collect(), open)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_mode_that_could_not_be_set_leaves_nothing_open() {
    let mut result = experiment(&[("suspend20", 10.0, 1.0), ("defer20", 60.0, 1.0)], 0.01);
    let record = &mut result.experiments[0].record;
    let of_suspend20 = record.design.arms_of("suspend20")[0];
    record.slices.retain(|slice| slice.arm != of_suspend20);
    record.dropped.insert(of_suspend20, "it is statically linked".to_owned());
    assert_eq!(kept(&result), (vec!["defer20".to_owned()], Vec::new()));
}

#[test]
fn a_latency_that_may_fall_less_than_another_rises_is_not_open() {
    let is_open = |p50_us: f64| {
        let mut result = experiment(&[("defer20", 10.0, 1.0)], 0.01);
        let record = &mut result.experiments[0].record;
        let of_defer20 = record.design.arms_of("defer20")[0];
        let criterion = |name: &str| Criterion::Metric { name: name.to_owned(), goal: Goal::Lowest };
        record.design.criteria = ["p50-us", "p99-us"].map(criterion).into();
        for slice in &mut record.slices {
            let steady = 1.0 + f64::from(slice.block % 3) * 0.001;
            let (p50_us, p99_us) = match slice.arm == of_defer20 {
                true => (p50_us, if slice.block % 2 == 0 { 15.0 } else { 150.0 }),
                false => (50.0, 100.0),
            };
            let observation = std::mem::take(&mut slice.observation);
            slice.observation =
                observation.with_metric("p50-us", Some(p50_us * steady)).with_metric("p99-us", Some(p99_us));
        }
        let (worse, open) = kept(&result);
        assert_eq!(worse, ["defer20"]);
        !open.is_empty()
    };
    assert!(is_open(60.0), "p50 +20 %, p99 about −53 %");
    assert!(!is_open(150.0), "p50 ×3");
}

#[test]
fn the_attached_mode_has_its_own_name_in_the_conclusion() {
    let mut result = experiment(&[("suspend20", 60.0, 1.0)], 0.01);
    result.experiments[0].record.design.treatments[0].name = PRESENT.to_owned();
    assert_eq!(kept(&result).0, ["suspend20"]);
}
