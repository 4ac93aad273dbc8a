//! Helpers of the bench tests: lab availability, and a run of a small plan.

use quell_bench::plan::Plan;
use quell_bench::requirements::missing;
use quell_bench::result::BenchResult;
use quell_bench::run::{BenchError, Event, Request, run};
use quell_bench::server::ServerCommand;
use quell_host::journal::Journal;
use quell_test_support::{LabTurn, skip_missing};

/// memcached as `quell bench` starts it by default.
pub(crate) fn memcached() -> ServerCommand {
    ServerCommand::Memcached { program: "memcached".into() }
}

/// Whether a lab can run here. Prints the reason for skipping on stderr.
pub(crate) fn can_raise_a_lab() -> bool {
    let missing = missing(&memcached());
    if !missing.is_empty() {
        skip_missing(missing.iter().map(|missing| missing.what.as_str()));
    }
    missing.is_empty()
}

/// A request for short trials on one queue. Each trial runs once.
pub(crate) fn request(modes: &str, loads: &[&str]) -> Request {
    let modes = quell_mode::DeliveryMode::parse_list(modes).unwrap();
    let loads = loads.iter().map(|load| load.parse().unwrap()).collect();
    let mut plan = Plan::new(modes, loads, 1, 7).unwrap();
    (plan.measure_ms, plan.warm_up_ms, plan.retries) = (200, 100, 0);
    Request {
        plan,
        server: memcached(),
        queues: 1,
        generators: 1,
        connections: 16,
        interrupt_stand_in: true,
        insist: false,
    }
}

/// Runs the request to its end while holding the lab lock. Uses a private journal and checks that it is empty
/// afterwards.
pub(crate) fn run_to_the_end(request: &Request, mut watch: impl FnMut(&Event<'_>)) -> Result<BenchResult, BenchError> {
    let _turn = LabTurn::wait();
    let dir = tempfile::tempdir().unwrap();
    let result = run(request, &Journal::in_dir(dir.path()), &mut |event| watch(&event), &|| false);
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().collect();
    assert!(left.is_empty(), "journals are left: {left:?}");
    result
}
