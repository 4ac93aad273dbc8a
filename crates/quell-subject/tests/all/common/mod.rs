//! Helpers of the lab tests: they check whether a lab is possible and run a short experiment.

use quell_change::journal::Journal;
use quell_load::Workload;
use quell_result::experiment::ExperimentResult;
use quell_subject::bench_load;
use quell_subject::question::Timing;
use quell_subject::question::{Comparison, SubjectStep};
use quell_subject::requirements::missing;
use quell_subject::run::{LabRequest, LabRunError, LabSpec, run};
use quell_subject::server::ServerCommand;
use quell_test_support::{LabTurn, skip_missing};

/// memcached, started as `quell bench` does by default.
pub(crate) fn memcached() -> ServerCommand {
    ServerCommand::memcached()
}

/// Returns whether a lab is possible on this machine. If not, records the test as skipped.
pub(crate) fn can_raise_a_lab() -> bool {
    let missing = missing(&memcached());
    if !missing.is_empty() {
        skip_missing(missing.iter().map(|missing| missing.what.as_str()));
    }
    missing.is_empty()
}

/// Parameters of a short experiment on one queue.
pub(crate) fn request(modes: &str, loads: &[&str]) -> (LabRequest, Comparison) {
    let loads: Vec<_> = loads.iter().map(|load| load.parse().unwrap()).collect();
    let budget_ms = 3_000 * loads.len() as u64;
    let timing = Timing { budget_ms, slice_ms: 50, settle_ms: 5, margin: 0.05, seed: 7 };
    let modes = quell_mode::DeliveryMode::parse_list(modes).unwrap();
    let comparison = Comparison { modes, timing, budget_max_ms: budget_ms, leaves_out_stalls: false };
    let request = LabRequest {
        loads,
        workload: Workload::Memcached(bench_load::published_keys()),
        beside: None,
        lab: LabSpec {
            server: memcached(),
            queues: 1,
            generators: 1,
            connections: 16,
            interrupt_stand_in: true,
            insist: false,
            steer: None,
        },
    };
    (request, comparison)
}

/// Runs the experiment while holding the machine-wide lab lock. Uses a private journal and checks that it is empty
/// afterwards.
pub(crate) fn run_to_the_end(
    (request, comparison): &(LabRequest, Comparison),
    follow: &mut dyn FnMut(SubjectStep<'_>),
) -> Result<ExperimentResult, LabRunError> {
    let _turn = LabTurn::wait();
    let dir = tempfile::tempdir().unwrap();
    let result = run(request, comparison, &Journal::in_dir(dir.path()), follow, &|| false);
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert!(left.is_empty(), "journals remain: {left:?}");
    result
}
