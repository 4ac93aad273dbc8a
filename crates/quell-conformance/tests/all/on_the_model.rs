//! Every scenario holds exactly on the model.

use quell_conformance::run::{ScenarioOutcome, on_the_model};
use quell_conformance::suite;

#[test]
fn every_scenario_holds_on_the_model() {
    let mut wrong = String::new();
    for scenario in suite::all().unwrap_or_else(|error| panic!("{error}")) {
        match on_the_model(&scenario) {
            ScenarioOutcome::Held { .. } => {}
            other => wrong += &format!("{}: {other:#?}\n", scenario.name),
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
