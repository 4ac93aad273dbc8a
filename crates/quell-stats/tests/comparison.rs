//! Comparisons through the public interface: verdicts that must not occur, the rate of false verdicts,
//! and plain differences that must be found. The simulations are seeded.

use proptest::prelude::*;
use quell_stats::{Choice, Doubt, Goal, PairedRatios, Resolution, Series, Verdict, best, compare, compromise};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

fn present(values: &[f64]) -> Vec<Option<f64>> {
    values.iter().copied().map(Some).collect()
}

fn ratios(a: &[f64], b: &[f64]) -> PairedRatios {
    PairedRatios::new(&present(a), &present(b)).expect("magnitudes")
}

/// Identical runs that differ by 1 % at most.
fn quiet() -> PairedRatios {
    ratios(&[100.0, 100.0, 100.0], &[101.0, 100.0, 99.5])
}

fn doubt(verdict: Verdict) -> Doubt {
    match verdict {
        Verdict::CannotTell { reason, .. } => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_clear_difference_has_a_direction_and_a_ratio() {
    let Verdict::Lower(effect) = compare(&ratios(&[100.0, 110.0, 90.0], &[50.0, 56.0, 45.0]), &quiet()) else {
        panic!("not lower");
    };
    assert!((effect.ratio - 0.5).abs() < 1e-9);
    assert_eq!(effect.pairs, 3);
    assert!((effect.interval.confidence - 0.75).abs() < 1e-9);
}

#[test]
fn equal_values_have_no_verdict() {
    let equal = ratios(&[5.0; 10], &[5.0; 10]);
    assert_eq!(doubt(compare(&equal, &equal)), Doubt::PairsDisagree);
}

#[test]
fn two_pairs_support_no_verdict() {
    let two = ratios(&[100.0; 2], &[1.0; 2]);
    assert_eq!(doubt(compare(&two, &quiet())), Doubt::TooFewPairs { pairs: 2 });
    let plain = ratios(&[100.0; 3], &[1.0, 2.0, 3.0]);
    assert_eq!(doubt(compare(&plain, &two)), Doubt::ResolutionUnknown { pairs: 2 });
}

#[test]
fn one_disagreeing_pair_of_three_prevents_a_verdict() {
    let mixed = ratios(&[100.0; 3], &[50.0, 50.0, 101.0]);
    assert_eq!(doubt(compare(&mixed, &quiet())), Doubt::PairsDisagree);
}

#[test]
fn one_disagreeing_pair_of_ten_does_not_prevent_a_verdict() {
    let mut b = [50.0; 10];
    b[4] = 200.0;
    assert!(matches!(compare(&ratios(&[100.0; 10], &b), &quiet()), Verdict::Lower(_)));
}

#[test]
fn a_difference_within_the_noise_floor_has_no_verdict() {
    let noisy = ratios(&[100.0; 3], &[100.0, 130.0, 99.0]);
    let small = ratios(&[100.0; 3], &[125.0, 120.0, 128.0]);
    assert!(matches!(doubt(compare(&small, &noisy)), Doubt::WithinResolution { .. }));
    let resolution = Resolution::of(&noisy, 3).unwrap();
    assert!((resolution.ratio - 1.3).abs() < 1e-9);
}

#[test]
fn one_outlier_in_ten_identical_pairs_does_not_hide_a_difference_of_ten_repeats() {
    let mut twin = [101.0; 10];
    twin[7] = 400.0;
    let identical = ratios(&[100.0; 10], &twin);
    assert!(matches!(compare(&ratios(&[100.0; 10], &[80.0; 10]), &identical), Verdict::Lower(_)));
    let three = ratios(&[100.0; 3], &[80.0; 3]);
    assert!(matches!(doubt(compare(&three, &identical)), Doubt::WithinResolution { .. }));
}

#[test]
fn pairs_with_an_absent_value_are_omitted_and_counted() {
    let a = [Some(100.0), None, Some(100.0), Some(100.0), Some(100.0)];
    let b = [Some(50.0), Some(1.0), Some(50.0), None];
    let pairs = PairedRatios::new(&a, &b).unwrap();
    assert_eq!((pairs.pairs(), pairs.absent(), pairs.zero()), (2, 3, 0));
}

#[test]
fn a_value_of_zero_prevents_a_verdict() {
    let pairs = ratios(&[100.0; 4], &[50.0, 50.0, 50.0, 0.0]);
    assert_eq!(doubt(compare(&pairs, &quiet())), Doubt::ZeroValues { repeats: 1 });
}

#[test]
fn a_negative_or_infinite_value_is_an_error() {
    for bad in [-1.0, f64::NAN, f64::INFINITY] {
        let error = PairedRatios::new(&present(&[1.0, 1.0]), &present(&[1.0, bad])).unwrap_err();
        assert_eq!(error.repeat, 1);
    }
}

/// Heavy-tailed noise on a logarithmic scale: mostly some percent, now and then many times that
/// (the quotient of a uniform over the root of a uniform: a tail like Student's with two degrees).
fn noise(rng: &mut Pcg64Mcg) -> f64 {
    let uniform = |rng: &mut Pcg64Mcg| (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
    let sign_and_size = 2.0 * uniform(rng) - 1.0;
    (0.02 * sign_and_size / (1.0 - uniform(rng)).sqrt()).exp()
}

/// Of 20,000 runs of `repeats`, the share with a verdict when `b` is `factor` times base. As in a
/// bench, one base serves both the comparison and the A/A pairs, and each repeat drifts.
fn share_with_verdict(repeats: usize, factor: f64, seed: u64) -> f64 {
    const RUNS: u32 = 20_000;
    let mut rng = Pcg64Mcg::seed_from_u64(seed);
    let mut verdicts = 0;
    for _ in 0..RUNS {
        let (mut base, mut twin, mut other) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..repeats {
            let drift = 100.0 * noise(&mut rng);
            base.push(drift * noise(&mut rng));
            twin.push(drift * noise(&mut rng));
            other.push(drift * noise(&mut rng) * factor);
        }
        let verdict = compare(&ratios(&base, &other), &ratios(&base, &twin));
        verdicts += u32::from(!matches!(verdict, Verdict::CannotTell { .. }));
    }
    f64::from(verdicts) / f64::from(RUNS)
}

#[test]
fn identical_modes_get_a_verdict_in_at_most_one_of_twenty_runs() {
    for repeats in 3..=10 {
        let wrong = share_with_verdict(repeats, 1.0, 0x5eed + repeats as u64);
        assert!(wrong <= 0.05, "{repeats} repeats: {wrong}");
    }
}

#[test]
fn a_difference_of_a_fifth_is_found_in_most_runs() {
    for (repeats, at_least) in [(3, 0.95), (5, 0.95), (10, 0.95)] {
        for factor in [0.8, 1.25] {
            let seen = share_with_verdict(repeats, factor, 0xface);
            assert!(seen >= at_least, "{repeats} repeats, factor {factor}: {seen}");
        }
    }
}

fn series<'a>(rows: &'a [(&'static str, Vec<Option<f64>>)]) -> Vec<Series<'a, &'static str>> {
    rows.iter().map(|(label, values)| Series { label: *label, values }).collect()
}

#[test]
fn modes_without_a_significant_difference_from_the_winner_are_listed() {
    let rows = [
        ("base", present(&[100.0, 101.0, 99.0])),
        ("fullbusy", present(&[20.0, 21.0, 20.5])),
        ("suspend50", present(&[20.1, 20.9, 20.6])),
        ("threadedbusy", vec![None, None, None]),
    ];
    let choice = best(Goal::Lowest, &series(&rows), &quiet()).unwrap();
    let expected =
        Choice { winner: "fullbusy", not_distinguishable: vec!["suspend50"], without_value: vec!["threadedbusy"] };
    assert_eq!(choice, Some(expected));
}

#[test]
fn with_goal_highest_the_largest_median_wins() {
    let rows = [("base", present(&[100.0, 101.0, 99.0])), ("suspend50", present(&[120.0, 121.0, 119.0]))];
    let choice = best(Goal::Highest, &series(&rows), &quiet()).unwrap().unwrap();
    assert_eq!(choice.winner, "suspend50");
    assert!(choice.not_distinguishable.is_empty());
}

#[test]
fn with_too_few_repeats_no_mode_is_distinguishable_from_the_winner() {
    let rows = [("base", present(&[100.0])), ("fullbusy", present(&[1.0]))];
    let choice = best(Goal::Lowest, &series(&rows), &quiet()).unwrap().unwrap();
    assert_eq!(choice.not_distinguishable, ["base"]);
}

#[test]
fn without_values_there_is_no_winner() {
    let rows = [("base", vec![None]), ("fullbusy", vec![])];
    assert_eq!(best(Goal::Lowest, &series(&rows), &quiet()).unwrap(), None);
}

#[test]
fn the_compromise_weighs_latency_and_cpu_equally() {
    let base = compromise(&present(&[100.0]), &present(&[10.0]));
    let half_and_twice = compromise(&present(&[50.0]), &present(&[20.0]));
    assert_eq!(base, half_and_twice);
    assert_eq!(compromise(&[None, Some(1.0)], &[Some(1.0), None]), [None, None]);
}

fn runs() -> impl Strategy<Value = (Vec<f64>, Vec<f64>, Vec<f64>)> {
    let run = |n| prop::collection::vec(1.0..1000.0, n);
    (0usize..12).prop_flat_map(move |n| (run(n), run(n), run(n)))
}

proptest! {
    #[test]
    fn swapping_the_modes_reverses_the_verdict((a, b, twin) in runs(), factor in 0.001..1000.0) {
        let b: Vec<f64> = b.iter().map(|b| b * factor).collect();
        let identical = ratios(&a, &twin);
        let one_way = compare(&ratios(&a, &b), &identical);
        let other_way = compare(&ratios(&b, &a), &identical);
        match (one_way, other_way) {
            (Verdict::Lower(x), Verdict::Higher(y)) | (Verdict::Higher(x), Verdict::Lower(y)) => {
                prop_assert!((x.ratio * y.ratio - 1.0).abs() < 1e-9);
                prop_assert!((x.interval.low * y.interval.high - 1.0).abs() < 1e-9);
            }
            (Verdict::CannotTell { reason: x, .. }, Verdict::CannotTell { reason: y, .. }) => prop_assert_eq!(x, y),
            (x, y) => prop_assert!(false, "{x:?} and {y:?}"),
        }
    }

    #[test]
    fn the_verdict_does_not_depend_on_the_unit((a, b, twin) in runs(), exponent in -30i32..30) {
        let scaled = |values: &[f64]| values.iter().map(|v| v * 2.0_f64.powi(exponent)).collect::<Vec<_>>();
        let kind = |verdict| match verdict {
            Verdict::Lower(_) => "lower",
            Verdict::Higher(_) => "higher",
            Verdict::CannotTell { .. } => "cannot tell",
        };
        let plain = compare(&ratios(&a, &b), &ratios(&a, &twin));
        let other = compare(&ratios(&scaled(&a), &scaled(&b)), &ratios(&scaled(&a), &scaled(&twin)));
        prop_assert_eq!(kind(plain), kind(other));
    }

    #[test]
    fn a_difference_between_identical_runs_never_gives_a_verdict((a, _, twin) in runs()) {
        let identical = ratios(&a, &twin);
        let verdict = compare(&identical, &identical);
        prop_assert!(matches!(verdict, Verdict::CannotTell { .. }), "{verdict:?}");
    }

    #[test]
    fn the_interval_contains_the_median((a, b, _) in runs()) {
        let ratios = ratios(&a, &b);
        if let (Some(median), Some(interval)) = (ratios.median(), ratios.interval()) {
            prop_assert!(interval.low <= median && median <= interval.high);
        } else {
            prop_assert_eq!(ratios.pairs(), 0);
        }
    }
}
