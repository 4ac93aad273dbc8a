//! A small version of the benchmark `tune_regret`: answers of searches on the model of each host, with recorded noise,
//! are close to the best mode.

// Shared with the benchmark: Cargo has no place for code that only tests and benches of one crate use.
#[path = "../../benches/tune_regret/world.rs"]
mod world;

use std::ops::ControlFlow;

use quell_mode::DeliveryMode;
use quell_tune::{TuneGoal, TunePlan, tune};

use world::{Noisy, recordings, space, truths};

#[test]
fn answers_on_each_host_are_close_to_the_best_mode() {
    let space = space();
    let (noise, goal): (_, TuneGoal) = (recordings(), "least cpu".parse().unwrap());
    for truth in &truths(0, &[0.6], &space.coarse(), 2) {
        let plan = TunePlan::new(goal.clone(), DeliveryMode::default(), space.clone(), 1);
        let plan = TunePlan { space: None, ..plan };
        let mut subject = Noisy::new(truth, &noise[0], 1);
        let finished = tune(&mut subject, plan, &mut |_, _| ControlFlow::Continue(())).unwrap();
        let mode = finished.result.answer.mode().unwrap_or_default();
        let regret = truth.regrets(&goal)[&mode];
        assert!(regret < 0.1, "{}: {mode} is worse than the best by {:.1} %", truth.shipped, regret * 100.0);
    }
}
