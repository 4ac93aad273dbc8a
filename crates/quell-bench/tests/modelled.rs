//! Findings of the bench about modes on the model.

use quell_bench::model::{self, Request};
use quell_bench::plan::Plan;
use quell_bench::table::Question;
use quell_mode::DeliveryMode;
use quell_sim::HostProfile;
use quell_sim::sweep::Setup;

/// Threads that poll continuously give neither throughput nor efficiency, and each takes a whole CPU (cover letter of
/// threaded NAPI busy polling, v10).
#[test]
fn continuously_polling_threads_win_neither_throughput_nor_cpu_time() {
    let modes = DeliveryMode::parse_list("base,threadedbusy").expect("modes");
    let loads = ["50%", "max"].map(|load| load.parse().expect("a load")).to_vec();
    let plan = Plan { measure_ms: 20, warm_up_ms: 30, ..Plan::new(modes, loads, 3, 1).expect("a plan") };
    let setup = Setup::new(HostProfile::shipped("epyc7662-cx5").expect("it ships")).with_queues(2);
    let result = model::run(&Request { plan, setup, threads: 2 }, |_, _| ()).expect("it runs");

    let findings = result.findings();
    let found = findings.iter().flat_map(|(_, found)| found);
    let efficient: Vec<_> =
        found.filter(|found| matches!(found.question, Question::Throughput | Question::Cpu)).collect();
    assert_eq!(efficient.len(), 3);
    for finding in efficient {
        let named = std::iter::once(&finding.choice.winner).chain(&finding.choice.not_distinguishable);
        assert!(named.clone().all(|label| label != "threadedbusy"), "{finding:?}");
    }
    let polling = result.trials.iter().filter(|trial| result.plan.modes[trial.id.mode].label == "threadedbusy");
    for cpus in polling.map(|trial| trial.counters.server_cpus.expect("the model counts it")) {
        assert!(cpus.idle_ns * 100 < cpus.capacity_ns, "{cpus:?}");
    }
}
