//! Reports survive a round trip; a run reports each scenario and may be ended by its observer.

use std::ops::ControlFlow;

use quell_change::journal::Journal;
use quell_conformance::run::{BackendContext, ConformanceReport, ScenarioOutcome, run};
use quell_conformance::suite;

#[test]
fn a_report_survives_a_round_trip() {
    let scenarios = [suite::scenario("deferral-counts-down").unwrap()];
    let mut reported = 0;
    let report = run(&scenarios, &[BackendContext::Model], &mut |_| {
        reported += 1;
        ControlFlow::Continue(())
    });
    assert!(matches!(report.results[0].outcome, ScenarioOutcome::Held { runs: 1, .. }));
    assert_eq!((reported, report.results.len()), (1, 1));
    let json = serde_json::to_string(&report).unwrap();
    assert_eq!(serde_json::from_str::<ConformanceReport>(&json).unwrap(), report);
}

#[test]
fn the_observer_may_end_the_run() {
    let scenarios = ["deferral-counts-down", "maxevents-bounds-a-wait"].map(|name| suite::scenario(name).unwrap());
    let report = run(&scenarios, &[BackendContext::Model], &mut |_| ControlFlow::Break(()));
    assert_eq!(report.results.len(), 1);
}

#[test]
fn a_scenario_that_needs_an_interrupt_is_not_possible_on_a_veth_pair() {
    let scenario = suite::scenario("deferral-needs-one-interrupt").unwrap();
    let nowhere = Journal::in_dir("unused: no site is set up");
    let report = run([&scenario], &[BackendContext::Kernel(&nowhere)], &mut |_| ControlFlow::Continue(()));
    let ScenarioOutcome::NotPossible { reason } = &report.results[0].outcome else { panic!("{report:?}") };
    assert!(reason.contains("no interrupt"), "{reason}");
}
