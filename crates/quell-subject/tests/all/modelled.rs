//! Experiments on the model of a host.

use std::ops::ControlFlow;

use quell_experiment::{ContrastVerdict, StopReason};
use quell_mode::DeliveryMode;
use quell_result::experiment::{EndOfExperiment, ExperimentResult};
use quell_sim::sweep::Setup;
use quell_sim::{HostProfile, Load};
use quell_subject::experiment::ComparisonError;
use quell_subject::experiment::model::{Model, ModelSpec, run_model};
use quell_subject::question::{Comparison, SubjectStep, Timing};
use quell_tune::{TunePlan, TuneSpace, tune};

type Asked = (ModelSpec, Comparison);

fn request(modes: &str, loads: &[&str]) -> Asked {
    let spec = ModelSpec {
        loads: loads.iter().map(|load| load.parse().expect("a load")).collect(),
        setup: Setup::new(HostProfile::shipped("epyc7662-cx5").expect("it ships")).with_queues(2),
        threads: 2,
    };
    let timing = Timing { budget_ms: 2_400, slice_ms: 20, settle_ms: 30, margin: 0.05, seed: 1 };
    let modes = DeliveryMode::parse_list(modes).expect("modes");
    (spec, Comparison { modes, timing, budget_max_ms: timing.budget_ms, leaves_out_stalls: false })
}

fn run((spec, comparison): &Asked) -> ExperimentResult {
    run_model(spec, comparison, &mut |_| (), &|| false).expect("it runs")
}

/// Threads that poll continuously improve neither throughput nor efficiency, and each uses a whole CPU (cover letter of
/// the kernel's threaded NAPI busy polling, v10).
#[test]
fn continuously_polling_threads_improve_neither_throughput_nor_cpu_time() {
    let result = run(&request("base,threadedbusy", &["50%", "max"]));
    for experiment in &result.experiments {
        let analysis = experiment.analyse();
        let efficiency = analysis.contrasts.iter().filter(|contrast| {
            let name = serde_json::to_string(&contrast.criterion).expect("JSON");
            name.contains("cpu-us-per-request") || name.contains("requests-per-s")
        });
        for contrast in efficiency {
            assert_eq!(contrast.verdict, ContrastVerdict::Worse, "{contrast:?}");
        }
        let polling = experiment.record.slices.iter().filter(|slice| slice.arm == 2);
        for busy in polling.map(|slice| slice.observation.metrics["busy-share"]) {
            assert!(busy > 0.99, "{busy}");
        }
    }
}

#[test]
fn a_large_effect_is_decided_before_the_budget_is_spent() {
    let result = run(&request("base,fullbusy", &["50%"]));
    let experiment = &result.experiments[0];
    let analysis = experiment.analyse();
    assert_eq!(analysis.contrasts[0].verdict, ContrastVerdict::Better, "p50 of fullbusy");
    assert!(analysis.controls.iter().all(|control| control.holds), "base against base");
    let spent_ms: f64 = experiment.record.slices.iter().map(|slice| slice.observation.spent_ms).sum();
    assert!(spent_ms <= 2_400.0, "{spent_ms}");
}

#[test]
fn slices_depend_on_the_seed_and_not_on_the_number_of_threads() {
    let (spec, comparison) = request("base,defer20", &["50%", "max"]);
    let one = (ModelSpec { threads: 1, ..spec.clone() }, comparison.clone());
    let many = (ModelSpec { threads: 7, ..spec.clone() }, comparison.clone());
    let another = (spec, Comparison { timing: Timing { seed: 2, ..comparison.timing }, ..comparison });
    let experiments = |asked: &Asked| run(asked).experiments;
    assert!(experiments(&one) == experiments(&many));
    assert!(experiments(&one) != experiments(&another));
}

#[test]
fn slices_of_one_mode_differ_because_each_has_its_own_seed() {
    let result = run(&request("base,defer20", &["50%"]));
    let mut cpu: Vec<f64> = result.experiments[0].record.values(0, "cpu-us-per-request").flatten().collect();
    let slices = cpu.len();
    cpu.sort_by(f64::total_cmp);
    cpu.dedup();
    assert_eq!(cpu.len(), slices);
}

#[test]
fn a_mode_that_the_modelled_server_does_not_support_is_left_out() {
    let mixed = run(&request("base,defer20,sockpoll50", &["50%"]));
    assert_eq!(mixed.experiments[0].record.dropped.keys().collect::<Vec<_>>(), [&3]);
    let (spec, alone) = request("base,sockpoll50", &["50%"]);
    let alone = run_model(&spec, &alone, &mut |_| (), &|| false);
    assert!(matches!(alone, Err(ComparisonError::NoModeLeft(_))), "{alone:?}");
}

#[test]
fn an_interrupted_experiment_keeps_its_slices_and_is_the_last_one() {
    let slices = std::cell::Cell::new(0);
    let mut count =
        |step: SubjectStep<'_>| slices.set(slices.get() + u32::from(matches!(step, SubjectStep::Slice { .. })));
    let (spec, comparison) = request("base,defer20", &["50%", "max"]);
    let result = run_model(&spec, &comparison, &mut count, &|| slices.get() > 4);
    let result = result.expect("it has slices");
    assert_eq!(result.experiments.len(), 1);
    assert_eq!(result.experiments[0].end, EndOfExperiment::Interrupted);
    assert_eq!(result.experiments[0].record.slices.len(), 4);
    let whole = run(&request("base,defer20", &["max"]));
    assert!(matches!(
        whole.experiments[0].end,
        EndOfExperiment::Stopped(StopReason::AllDecided | StopReason::BudgetSpent)
    ));
}

#[test]
fn a_result_is_marked_as_no_measurement_and_can_be_read_from_its_file() {
    let result = run(&request("base,defer20", &["50%"]));
    assert!(result.not_a_measurement.is_some());
    let text = serde_json::to_string(&result).expect("JSON");
    assert!(serde_json::from_str::<ExperimentResult>(&text).expect("a result") == result);
}

fn search(goal: &str) -> TunePlan {
    TunePlan::new(goal.parse().expect("a goal"), DeliveryMode::default(), TuneSpace::default(), 3)
}

#[test]
fn a_search_tries_userbusy_only_if_each_queue_has_a_cpu_for_its_thread() {
    let completed = |irqs_apart| {
        let (spec, _) = request("base", &["30%"]);
        let mut plan = search("lowest p50");
        ModelSpec { setup: Setup { irqs_apart, ..spec.setup }, ..spec }.complete(&mut plan);
        plan
    };
    let tries = |plan: &TunePlan| plan.arms.iter().any(|mode| mode.to_string() == "userbusy");
    let (shared, apart) = (completed(false), completed(true));
    assert!(!tries(&shared) && tries(&apart));
    let refused = shared.space.expect("a grid").refused;
    assert!(refused[0].kind == "userbusy" && refused[0].reason.contains("--irqs-apart"), "{refused:?}");
}

/// All modes have two CPUs: that of the worker, and one for its interrupt or its polling thread.
#[test]
fn a_search_finds_userbusy_for_latency_and_not_for_cpu_time() {
    let answer = |goal: &str| {
        let host = HostProfile::shipped("epyc7662-cx5").expect("it ships");
        let (warm_up_ns, measured_ns) = (20_000_000, 20_000_000);
        let setup = Setup { irqs_apart: true, warm_up_ns, measured_ns, ..Setup::new(host).with_queues(1) };
        let arms = DeliveryMode::parse_list("userbusy,defer40").expect("modes");
        let plan = TunePlan { arms, space: None, slice_ms: 20, settle_ms: 20, budget_ms: 6_000, ..search(goal) };
        let mut model = Model::new(setup, vec![Load::Qps(40e3)], 3);
        let found = tune(&mut model, plan, &mut |_, _| ControlFlow::Continue(())).expect("a valid plan");
        found.result.answer.mode().map(|mode| mode.to_string())
    };
    assert_eq!(answer("lowest p50").as_deref(), Some("userbusy"));
    assert_ne!(answer("least cpu").as_deref(), Some("userbusy"));
    assert_ne!(answer("cpu<=1.5x, lowest p50").as_deref(), Some("userbusy"));
}
