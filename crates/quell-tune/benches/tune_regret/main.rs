//! Compares searches on cases in which the best mode is known: the model of four hosts, also with perturbed constants,
//! with the recorded noise of a real machine. `docs/results/tune.md` has the results.
//!
//! cargo bench -p quell-tune --bench tune_regret -- [PERTURBED-PER-HOST [SEEDS]]

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints, and fails by panicking")]

mod searches;
mod world;

use quell_mode::DeliveryMode;
use quell_sim::sweep::in_parallel;
use quell_tune::{TuneGoal, TuneLimit};

use searches::{Answer, BUDGET_SLICES, GRID_SLICES, METHODS, of_model};
use world::{LOADS, Noisy, Regrets, SLICE_MS, Truth, recordings, space, truths};

fn main() {
    let mut arguments = std::env::args().skip(1).filter(|argument| argument != "--bench");
    let perturbed: u64 = arguments.next().map_or(2, |number| number.parse().unwrap());
    let seeds: usize = arguments.next().map_or(2, |number| number.parse().unwrap());
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let modes = [space().all(), vec![searches::tuned()]].concat();
    let truths = truths(perturbed, &LOADS, &modes, threads);
    let modes = truths.iter().map(|truth| truth.modes.len()).min().unwrap();
    println!("{} hosts and loads, {modes} modes", truths.len());
    static_against_adaptive(&truths);
    let noise = recordings();
    let of_models = in_parallel(truths.len(), threads, |at| of_model(&truths[at], &goals(&truths[at])), |_| ());
    let cases: Vec<(usize, usize, usize)> = (0..truths.len())
        .flat_map(|truth| (0..GOALS).flat_map(move |goal| (0..seeds).map(move |seed| (truth, goal, seed))))
        .collect();
    println!(
        "{} cases; grid {:.0} s, others at most {:.0} s",
        cases.len(),
        modes as f64 * GRID_SLICES as f64 * SLICE_MS / 1e3,
        BUDGET_SLICES as f64 * SLICE_MS / 1e3
    );
    let answers = in_parallel(
        cases.len(),
        threads,
        |at| {
            let (truth, goal, seed) = cases[at];
            let goals = goals(&truths[truth]);
            let seed = (truth * 100 + goal * 10 + seed) as u64;
            METHODS.map(|(_, search)| {
                let mut subject = Noisy::new(&truths[truth], &noise[at % noise.len()], seed);
                search(&mut subject, &goals[goal], of_models[truth][goal], seed)
            })
        },
        |_| (),
    );
    let judged: Vec<[Judged; METHODS.len()]> = in_parallel(
        cases.len(),
        threads,
        |at| judge(&truths[cases[at].0], &goals(&truths[cases[at].0])[cases[at].1], &answers[at]),
        |_| (),
    );
    println!(
        "{:18} {:>8} {:>8} {:>8} {:>8} {:>10} {:>10} {:>8} {:>8}",
        "search", "median", "p95", "held", "time s", "confirmed", "elsewhere", "better", "worse"
    );
    for goal in std::iter::once(None).chain((0..GOALS).map(Some)) {
        println!("{}", goal.map_or("all goals", |goal| GOAL_NAMES[goal]));
        for (method, (name, _)) in METHODS.iter().enumerate() {
            let of_goal = (0..cases.len()).filter(|at| goal.is_none_or(|goal| cases[*at].1 == goal));
            let (of_method, of_first): (Vec<Judged>, Vec<Judged>) =
                of_goal.map(|at| (judged[at][method], judged[at][0])).unzip();
            print(name, &of_method, &of_first);
        }
    }
}

/// An answer compared with the truth.
#[derive(Clone, Copy)]
struct Judged {
    answer: Answer,
    /// Distance from the best mode. `None` if the answer misses a limit.
    regret: Option<f64>,
    /// Whether it is worse by more than 10 % with another seed of the model, by the objective or a limit.
    is_worse_elsewhere: bool,
}

fn judge(truth: &Truth, goal: &TuneGoal, answers: &[Answer; METHODS.len()]) -> [Judged; METHODS.len()] {
    let looser = |limit: &TuneLimit| TuneLimit { at_most: limit.at_most * 1.1, ..limit.clone() };
    let loose = TuneGoal { limits: goal.limits.iter().map(looser).collect(), ..goal.clone() };
    let (regrets, here, there) = (truth.regrets(goal), truth.regrets(&loose), truth.regrets_elsewhere(&loose));
    answers.map(|answer| {
        let mode = answer.mode.unwrap_or_default();
        let of_here = here.get(&mode).copied().unwrap_or(0.0);
        let is_worse_elsewhere = there.get(&mode).is_none_or(|of_there| *of_there > of_here + 0.1);
        Judged { answer, regret: regrets.get(&mode).copied(), is_worse_elsewhere }
    })
}

/// Number of goals of a host at a load.
const GOALS: usize = 5;
const GOAL_NAMES: [&str; GOALS] = [
    "p99 limit in us, least cpu",
    "cpu limit in us, lowest p50",
    "lowest p99",
    "p99 limit relative to base, least cpu",
    "cpu limit relative to base, lowest p50",
];

/// Goals of a case. `base` holds their limits.
fn goals(truth: &Truth) -> [TuneGoal; GOALS] {
    let base = DeliveryMode::default();
    let value = |metric: &str| truth.value(&format!("least {metric}").parse::<TuneGoal>().unwrap().objective, &base);
    [
        format!("p99<={}us, least cpu", value("p99") * 1.3),
        format!("cpu<={}, lowest p50", value("cpu") * 1.1),
        "lowest p99".to_owned(),
        "p99<=1.3x, least cpu".to_owned(),
        "cpu<=1.1x, lowest p50".to_owned(),
    ]
    .map(|text| text.parse().unwrap())
}

/// Prints the results of a search, and in how many cases its answer is better or worse than that of the first search.
fn print(name: &str, judged: &[Judged], first: &[Judged]) {
    let regret = |one: &Judged| one.regret.unwrap_or(f64::INFINITY) * 100.0;
    let differs = |is: fn(f64, f64) -> bool| judged.iter().zip(first).filter(|(a, b)| is(regret(a), regret(b))).count();
    let (better, worse) = (differs(|a, b| a < b), differs(|a, b| a > b));
    let mut sorted: Vec<f64> = judged.iter().map(regret).collect();
    sorted.sort_by(f64::total_cmp);
    let at = |share: f64| sorted[((sorted.len() as f64 * share) as usize).min(sorted.len() - 1)];
    let percent = |count: usize, of: usize| 100.0 * count as f64 / of.max(1) as f64;
    let confirmed = || judged.iter().filter(|one| one.answer.mode.is_some());
    let held = percent(confirmed().filter(|one| one.regret.is_some()).count(), confirmed().count());
    let elsewhere = percent(judged.iter().filter(|one| one.is_worse_elsewhere).count(), judged.len());
    let time =
        judged.iter().map(|one| f64::from(one.answer.slices)).sum::<f64>() * SLICE_MS / 1e3 / judged.len() as f64;
    let (median, p95, confirmed) = (at(0.5), at(0.95), confirmed().count());
    println!(
        "{name:18} {median:>8.1} {p95:>8.1} {held:>8.1} {time:>8.0} {confirmed:>10} {elsewhere:>10.1} {better:>8} {worse:>8}"
    );
}

/// For each shipped host: CPU with the best setting at each load against the best static setting.
fn static_against_adaptive(truths: &[Truth]) {
    println!(
        "{:20} {:>6} {:>28} {:>10} {:28} {:>10}",
        "host", "load", "best at this load", "us/request", "best static", "saved %"
    );
    for of_host in truths.chunks(LOADS.len()).filter(|of_host| !of_host[0].is_perturbed) {
        let goals: Vec<TuneGoal> = of_host.iter().map(|truth| goals(truth)[0].clone()).collect();
        let regrets: Vec<Regrets> = of_host.iter().zip(&goals).map(|(truth, goal)| truth.regrets(goal)).collect();
        let regret = |load: usize, mode: &DeliveryMode| regrets[load].get(mode).copied().unwrap_or(f64::INFINITY);
        let worst = |mode: &DeliveryMode| (0..LOADS.len()).map(|load| regret(load, mode)).fold(0.0, f64::max);
        let space = space().all();
        let best = |of: &dyn Fn(&DeliveryMode) -> f64| *space.iter().min_by(|a, b| of(a).total_cmp(&of(b))).unwrap();
        let fixed = best(&worst);
        for (load, truth) in of_host.iter().enumerate() {
            let adapted = best(&|mode| regret(load, mode));
            let cpu = |mode: &DeliveryMode| truth.value(&goals[load].objective, mode);
            let saved = 100.0 * (1.0 - cpu(&adapted) / cpu(&fixed));
            let (adapted_text, fixed_text) = (adapted.to_string(), fixed.to_string());
            println!(
                "{:20} {:>5.0}% {adapted_text:>28} {:>10.2} {fixed_text:28} {saved:>10.1}",
                truth.shipped,
                truth.load * 100.0,
                cpu(&adapted)
            );
        }
    }
}
