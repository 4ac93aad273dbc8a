//! Judging is a pure function of the observations. An expectation fails if its value is late, missing or not observed.

use quell_conformance::expect::{Backend, ExpectationResult, judge};
use quell_conformance::observe::Observations;
use quell_conformance::scenario::Scenario;
use quell_conformance::{model, suite};

fn played(name: &str) -> (Scenario, Observations) {
    let scenario = suite::scenario(name).unwrap();
    let observations = model::play(&scenario).unwrap();
    (scenario, observations)
}

fn wrong(scenario: &Scenario, observations: &Observations, arm: Backend) -> Vec<ExpectationResult> {
    judge(scenario, observations, arm).into_iter().filter(|finding| !finding.holds).collect()
}

#[test]
fn a_delay_of_30_us_fails_on_the_model_and_passes_on_a_kernel() {
    let (scenario, mut observations) = played("recv-does-not-suspend");
    assert!(wrong(&scenario, &observations, Backend::Model).is_empty());
    observations.messages[1].read_ns = observations.messages[1].read_ns.map(|at_ns| at_ns + 30_000);
    assert_eq!(wrong(&scenario, &observations, Backend::Model).len(), 1);
    assert!(wrong(&scenario, &observations, Backend::Kernel).is_empty());
}

#[test]
fn a_delay_above_the_tolerance_fails_on_a_kernel() {
    let (scenario, mut observations) = played("recv-does-not-suspend");
    observations.messages[1].read_ns = observations.messages[1].read_ns.map(|at_ns| at_ns + 5_000_000);
    let wrong = wrong(&scenario, &observations, Backend::Kernel);
    assert_eq!((wrong.len(), wrong[0].observed.as_str()), (1, "20.00 ms"));
}

#[test]
fn a_message_that_is_never_read_fails_its_expectation() {
    let (scenario, mut observations) = played("recv-does-not-suspend");
    observations.messages[1].read_ns = None;
    assert_eq!(wrong(&scenario, &observations, Backend::Kernel)[0].observed, "never");
}

#[test]
fn the_slowest_message_of_a_burst_decides() {
    let (scenario, mut observations) = played("a-poll-takes-64-packets");
    let last = observations.messages.last_mut().unwrap();
    last.read_ns = last.read_ns.map(|at_ns| at_ns + 20_000_000);
    assert_eq!(wrong(&scenario, &observations, Backend::Kernel).len(), 1);
}

#[test]
fn an_unobserved_value_fails_its_expectation() {
    let (scenario, mut observations) = played("suspension-needs-no-interrupt");
    observations.queues[0].interrupts = None;
    assert_eq!(wrong(&scenario, &observations, Backend::Kernel)[0].observed, "not observed on this arm");
}

#[test]
fn an_expectation_for_one_backend_is_not_checked_on_another() {
    let (scenario, mut observations) = played("suspension-holds-packets-while-the-application-works");
    observations.queues[0].suspensions = None;
    assert!(wrong(&scenario, &observations, Backend::Kernel).is_empty());
    assert_eq!(wrong(&scenario, &observations, Backend::Model).len(), 1);
}

#[test]
fn the_model_observes_the_same_every_time() {
    let (scenario, observations) = played("two-napis-in-one-epoll");
    assert_eq!(model::play(&scenario).unwrap(), observations);
}
