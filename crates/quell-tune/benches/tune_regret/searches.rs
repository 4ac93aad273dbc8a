//! The searches that are compared. All but the grid have the same measuring time.

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::ops::ControlFlow;

use optimizer::parameter::{CategoricalParam, IntParam, Parameter as _};
use optimizer::sampler::tpe::TpeSampler;
use optimizer::{Direction, Study};
use quell_mode::DeliveryMode;
use quell_sim::{HostProfile, Load};
use quell_tune::{ModelPrior, TuneGoal, TunePlan, tune};
use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_pcg::Pcg64;

use crate::GOALS;
use crate::world::{Noisy, SLICE_MS, Truth, bounds, cost, reach, setup, space};

/// Slices of each mode in the exhaustive grid.
pub(crate) const GRID_SLICES: usize = 30;
/// Slices of every other search: a fifth of those of a grid with 125 modes.
pub(crate) const BUDGET_SLICES: usize = 750;
/// Slices with which the other searches measure one mode.
const TRIAL_SLICES: usize = 15;

/// Answer of a search. Without a mode, the present setting stays.
#[derive(Clone, Copy)]
pub(crate) struct Answer {
    pub(crate) mode: Option<DeliveryMode>,
    pub(crate) slices: u32,
}

/// Mode that the unperturbed model of a host ranks first, by goal.
pub(crate) fn of_model(truth: &Truth, goals: &[TuneGoal; GOALS]) -> [Option<DeliveryMode>; GOALS] {
    let setup = setup(HostProfile::shipped(&truth.shipped).unwrap());
    let loads = vec![Load::Qps(reach(&setup) * truth.load)];
    let (present, space) = (DeliveryMode::default(), space());
    let prior = ModelPrior { setup, loads, present, base_is: None, space, seed: 77 };
    goals.each_ref().map(|goal| prior.rank(goal, 1).unwrap().first().map(|one| one.mode))
}

/// A search on a subject for a goal, with the mode that the model of the host ranks first, and a seed.
type Search = fn(&mut Noisy<'_>, &TuneGoal, Option<DeliveryMode>, u64) -> Answer;

/// Names and searches. The model's table that `quell tune` uses does not have the searched host, except where stated.
pub(crate) const METHODS: [(&str, Search); 10] = [
    ("quell tune", |subject, goal, _, seed| race(subject, goal, |host, searched| host != searched, seed)),
    ("and model of host", |subject, goal, _, seed| race(subject, goal, |_, _| true, seed)),
    ("without model", |subject, goal, _, seed| race(subject, goal, |_, _| false, seed)),
    ("model of host alone", |_, _, mode, _| Answer { mode, slices: 0 }),
    ("suspend20", |_, _, _, _| Answer { mode: "suspend20".parse().ok(), slices: 0 }),
    ("busy_poll 50", |_, _, _, _| Answer { mode: Some(tuned()), slices: 0 }),
    ("hill climber", |subject, goal, _, _| climb(subject, goal)),
    ("random search", |subject, goal, _, seed| random(subject, goal, seed)),
    ("optimizer (TPE)", |subject, goal, _, seed| tpe(subject, goal, seed)),
    ("grid", |subject, goal, _, _| grid(subject, goal)),
];

/// What `net.core.busy_poll=50` does to an epoll: it busy polls for 50 µs, and interrupts stay as they are.
pub(crate) fn tuned() -> DeliveryMode {
    "base,busy-poll-usecs=50".parse().unwrap()
}

/// Searches with the model's table of hosts that `is_known` selects, by their names and that of the searched host.
fn race(subject: &mut Noisy<'_>, goal: &TuneGoal, is_known: fn(&str, &str) -> bool, seed: u64) -> Answer {
    let searched = &subject.truth.shipped;
    let hosts = HostProfile::shipped_names().filter(|host| is_known(host, searched)).map(str::to_owned).collect();
    let plan = TunePlan {
        model_hosts: hosts,
        budget_ms: (BUDGET_SLICES as f64 * SLICE_MS) as u64,
        ..TunePlan::new(goal.clone(), DeliveryMode::default(), space(), seed)
    };
    let finished = tune(subject, plan, &mut |_, _| ControlFlow::Continue(())).unwrap();
    Answer { mode: finished.result.answer.mode(), slices: subject.slices }
}

/// Bounds of the limits for searches that do not compare in blocks: relative ones refer to slices of `base` at the start.
fn measured_bounds(subject: &mut Noisy<'_>, goal: &TuneGoal) -> Vec<f64> {
    if goal.limits.iter().all(|limit| !limit.relative) {
        return goal.limits.iter().map(|limit| limit.at_most).collect();
    }
    let slices = (0..TRIAL_SLICES).map_while(|_| subject.slice(&DeliveryMode::default()));
    let of_slices: Vec<Vec<f64>> = slices.map(|slice| bounds(goal, &slice)).collect();
    let mean = |at: usize| of_slices.iter().map(|bounds| bounds[at]).sum::<f64>() / of_slices.len() as f64;
    (0..goal.limits.len()).map(mean).collect()
}

/// Mean cost of a mode, with a penalty beyond a limit. Infinite if it cannot be set.
fn measured(subject: &mut Noisy<'_>, (goal, bounds): (&TuneGoal, &[f64]), mode: &DeliveryMode, slices: usize) -> f64 {
    let costs: Vec<(f64, f64)> =
        (0..slices).map_while(|_| subject.slice(mode)).filter_map(|slice| cost(goal, bounds, &slice)).collect();
    if costs.is_empty() {
        return f64::INFINITY;
    }
    let mean = |of: fn(&(f64, f64)) -> f64| costs.iter().map(of).sum::<f64>() / costs.len() as f64;
    let excess = if goal.limits.is_empty() { 0.0 } else { mean(|(excess, _)| *excess).max(0.0) };
    mean(|(_, cost)| *cost) + 10.0 * excess
}

fn best(measured: &[(DeliveryMode, f64)]) -> Option<DeliveryMode> {
    measured.iter().min_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(mode, _)| *mode)
}

fn grid(subject: &mut Noisy<'_>, goal: &TuneGoal) -> Answer {
    let modes = space().all();
    let bounds = measured_bounds(subject, goal);
    let costs: Vec<_> =
        modes.iter().map(|mode| (*mode, measured(subject, (goal, &bounds), mode, GRID_SLICES))).collect();
    Answer { mode: best(&costs), slices: subject.slices }
}

fn random(subject: &mut Noisy<'_>, goal: &TuneGoal, seed: u64) -> Answer {
    let mut modes = space().all();
    modes.shuffle(&mut Pcg64::seed_from_u64(seed));
    let tried = modes.iter().take(BUDGET_SLICES / TRIAL_SLICES);
    let bounds = measured_bounds(subject, goal);
    let costs: Vec<_> = tried.map(|mode| (*mode, measured(subject, (goal, &bounds), mode, TRIAL_SLICES))).collect();
    Answer { mode: best(&costs), slices: subject.slices }
}

/// As `net_dim` does: one step up or down a ladder of profiles, on as long as it becomes better by 10 %, back if it
/// becomes worse, parked if it makes no difference. The profiles are `suspend` with 5 µs to 1.28 ms.
fn climb(subject: &mut Noisy<'_>, goal: &TuneGoal) -> Answer {
    let ladder =
        [5, 10, 20, 40, 80, 160, 320, 640, 1280].map(|us| format!("suspend{us}").parse::<DeliveryMode>().unwrap());
    let (mut at, mut direction, mut previous) = (4_usize, 1_isize, f64::INFINITY);
    let bounds = measured_bounds(subject, goal);
    for _ in 0..BUDGET_SLICES / TRIAL_SLICES {
        let now = measured(subject, (goal, &bounds), &ladder[at], TRIAL_SLICES);
        if now > previous + 0.1 {
            direction = -direction;
        } else if now > previous - 0.1 {
            previous = now;
            continue;
        }
        previous = now;
        at = at.saturating_add_signed(direction).min(ladder.len() - 1);
    }
    Answer { mode: Some(ladder[at]), slices: subject.slices }
}

fn tpe(subject: &mut Noisy<'_>, goal: &TuneGoal, seed: u64) -> Answer {
    let modes = space().all();
    let mut words: Vec<&str> = modes.iter().map(|mode| mode.kind().word()).collect();
    words.dedup();
    let sampler = TpeSampler::builder().seed(seed).build().unwrap();
    let study: Study<f64> = Study::with_sampler(Direction::Minimize, sampler);
    let kind = CategoricalParam::new(words.clone()).name("kind");
    // One parameter for each kind: its modes are in the order of their values.
    let value = |word: &str| {
        let of_kind: Vec<DeliveryMode> = modes.iter().filter(|mode| mode.kind().word() == word).copied().collect();
        (IntParam::new(0, of_kind.len() as i64 - 1).name(word), of_kind)
    };
    let values: Vec<_> = words.iter().map(|word| value(word)).collect();
    let mut costs: Vec<(DeliveryMode, f64)> = Vec::new();
    let bounds = measured_bounds(subject, goal);
    for _ in 0..BUDGET_SLICES / TRIAL_SLICES {
        let mut trial = study.ask();
        let word = kind.suggest(&mut trial).unwrap();
        let (param, of_kind) = &values[words.iter().position(|other| *other == word).unwrap()];
        let mode = of_kind[param.suggest(&mut trial).unwrap() as usize];
        let cost = measured(subject, (goal, &bounds), &mode, TRIAL_SLICES);
        costs.push((mode, cost));
        study.tell(trial, Ok::<_, String>(cost.min(100.0)));
    }
    Answer { mode: best(&costs), slices: subject.slices }
}
