//! Searches on a server whose CPU time is counted in ticks of 10 ms, as the idle time of `/proc/stat` is.

use quell_mode::DeliveryMode;
use quell_tune::{TunePlan, WhyNotChosen};

use crate::searches::{Server, one_is_best, plan, search};

/// As `one_is_best`, with differences that a tick of 10 ms hides.
fn one_is_slightly_better(mode: &DeliveryMode, load: usize) -> (f64, f64) {
    let (cpu, p99) = one_is_best(mode, load);
    (14.0 - (14.0 - cpu) * 0.35, p99)
}

#[test]
fn no_time_is_left_while_a_mode_that_looks_better_is_undecided() {
    for (goal, slice_ms) in [("least cpu", 850), ("p99<=300us, least cpu", 500), ("p99<=300us, least cpu", 850)] {
        for seed in 0..5 {
            let mut server = Server::new(one_is_slightly_better, seed).counting_ticks_at(2_000.0);
            let result = search(&mut server, TunePlan { slice_ms, seed, ..plan(goal) });
            let is_open =
                |why: &WhyNotChosen| matches!(why, WhyNotChosen::Undecided { .. } | WhyNotChosen::NotCompared { .. });
            let spent = result.spent_ms / result.plan.budget_ms as f64;
            let is_spent = spent > 0.95 || !result.rivals.iter().any(|rival| is_open(&rival.why));
            let compared: Vec<_> = result.confirmations.iter().map(|one| one.experiments[0].slices.len()).collect();
            assert!(is_spent, "{goal}, {slice_ms} ms, seed {seed}: {spent:.2} of the budget, {compared:?}");
        }
    }
}

#[test]
fn longer_slices_find_the_best_mode_although_cpu_time_is_counted_in_ticks() {
    let found = |slice_ms: u32| {
        let is_found = |seed: &u64| {
            let mut server = Server::new(one_is_best, *seed).counting_ticks_at(2_000.0);
            let result = search(&mut server, TunePlan { slice_ms, seed: *seed, ..plan("least cpu") });
            result.answer.mode().is_some_and(|mode| one_is_best(&mode, 0).0 < 10.0)
        };
        (0..5).filter(is_found).count()
    };
    assert_eq!((found(200) < 4, found(1_200)), (true, 5));
}
