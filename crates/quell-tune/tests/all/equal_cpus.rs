//! Modes with polling threads are judged with the CPUs that these take, and compared at equal numbers of CPUs.

use quell_mode::DeliveryMode;
use quell_sim::sweep::Setup;
use quell_sim::{HostProfile, Load};
use quell_tune::{ModelPrior, RankedMode, TuneGoal, TuneSpace};

/// One queue, a worker, and a CPU for its interrupt or its polling thread under every mode.
fn ranked(goal: &str) -> Vec<RankedMode> {
    with_threads(goal, None)
}

/// The same on queues that have the NAPI threads of a mode.
fn with_threads(goal: &str, base_is: Option<DeliveryMode>) -> Vec<RankedMode> {
    let host = HostProfile::shipped("epyc7662-cx5").unwrap();
    let setup =
        Setup { irqs_apart: true, warm_up_ns: 20_000_000, measured_ns: 60_000_000, ..Setup::new(host).with_queues(1) };
    let (loads, present, space) = (vec![Load::Qps(40e3)], DeliveryMode::default(), TuneSpace::default());
    ModelPrior { setup, loads, present, base_is, space, seed: 5 }.rank(&goal.parse::<TuneGoal>().unwrap(), 2).unwrap()
}

fn cost(ranked: &[RankedMode], mode: &str) -> f64 {
    ranked.iter().find(|ranked| ranked.mode.to_string() == mode).unwrap().cost.median
}

#[test]
fn a_polling_thread_is_ranked_high_for_latency_and_last_for_cpu_time() {
    let of_latency = ranked("lowest p50");
    assert!(cost(&of_latency, "userbusy") < 0.8, "{of_latency:?}");
    let of_cpu = ranked("least cpu");
    assert!(cost(&of_cpu, "userbusy") > 2.0 && cost(&of_cpu, "base") == 1.0, "{of_cpu:?}");
}

#[test]
fn a_limit_of_cpu_time_excludes_a_polling_thread() {
    let ranked = ranked("cpu<=1.5x, lowest p50");
    let userbusy = ranked.iter().find(|ranked| ranked.mode.to_string() == "userbusy").unwrap();
    assert!(!userbusy.meets_limits(), "{userbusy:?}");
    assert!(ranked[0].meets_limits(), "{ranked:?}");
}

#[test]
fn on_queues_with_napi_threads_base_is_ranked_as_these_and_no_second_time() {
    let cpu = |ranked: &[RankedMode], mode: &str| {
        ranked.iter().find(|ranked| ranked.mode.to_string() == mode).map(|ranked| ranked.objective[0].unwrap())
    };
    let (without, with) = (ranked("least cpu"), with_threads("least cpu", "threaded".parse().ok()));
    // Modes of low rank run with one seed.
    let threads = cpu(&with, "base").unwrap() / cpu(&without, "threaded").unwrap();
    assert!((0.95..1.05).contains(&threads), "attaching base leaves the threads: {threads}");
    assert_eq!(cpu(&with, "threaded"), None, "the same setting");
    let differs =
        |one: &&RankedMode| cpu(&without, &one.mode.to_string()).is_some_and(|cpu| Some(cpu) != one.objective[0]);
    assert!(with.iter().any(|one| one.mode.to_string().starts_with("suspend") && differs(&one)), "{with:?}");
}
