//! Every scenario holds on the running kernel, on a veth pair.

use quell_change::journal::Journal;
use quell_conformance::run::{ScenarioOutcome, missing_for_the_kernel, on_this_kernel};
use quell_conformance::suite;
use quell_test_support::{LabTurn, Lacks, skip};

#[test]
fn every_scenario_holds_on_this_kernel() {
    let missing = missing_for_the_kernel().unwrap();
    if !missing.is_empty() {
        skip(Lacks::Root, format_args!("{missing:?} missing"));
        return;
    }
    let _turn = LabTurn::wait();
    let journals = tempfile::tempdir().unwrap();
    let mut wrong = String::new();
    for scenario in suite::all().unwrap_or_else(|error| panic!("{error}")) {
        match on_this_kernel(&scenario, &Journal::in_dir(journals.path())) {
            ScenarioOutcome::Held { misses, .. } if misses.is_empty() => {}
            ScenarioOutcome::Held { runs, misses, .. } => {
                eprintln!("{}: held, of {runs} missed {misses:?}", scenario.name)
            }
            ScenarioOutcome::NotPossible { reason } => eprintln!("{}: not possible here: {reason}", scenario.name),
            other => wrong += &format!("{}: {other:#?}\n", scenario.name),
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    assert_eq!(std::fs::read_dir(journals.path()).unwrap().count(), 0, "journals are left");
}
