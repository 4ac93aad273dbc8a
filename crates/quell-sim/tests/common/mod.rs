//! What the scenario tests share: settings by name, and one place to build scenarios.

#![allow(dead_code, reason = "each test file uses its part")]

use quell_mode::{DeliveryMode, EpollSettings, NapiSettings};
use quell_sim::scenario::{Observed, Scenario};
use quell_sim::{HostProfile, Step};

pub(crate) const US: u64 = 1_000;
pub(crate) const MS: u64 = 1_000_000;
pub(crate) const FOREVER: Step = Step::Wait { max_events: 64, timeout_ns: None };

pub(crate) fn mode(text: &str) -> DeliveryMode {
    text.parse().expect("a delivery mode")
}

pub(crate) fn host() -> HostProfile {
    HostProfile::shipped("epyc7662-cx5").expect("it ships")
}

/// A scenario with the settings of a mode and an application of these steps, which repeat.
pub(crate) fn scenario(text: &str, steps: &[Step]) -> Scenario {
    let mode = mode(text);
    let mut app = steps.to_vec();
    app.push(Step::Repeat);
    Scenario { queues: vec![mode.napi()], epoll: mode.epoll().unwrap_or_default(), app, ..Scenario::new(host()) }
}

/// A server: it waits for ever, works for `work_ns` on what came, reads it, waits again.
pub(crate) fn server(text: &str, work_ns: u64) -> Scenario {
    scenario(text, &[FOREVER, Step::Work(work_ns), Step::ReadAll])
}

pub(crate) fn play(scenario: &Scenario) -> Observed {
    scenario.play().expect("a sound scenario")
}

/// How long each request lay between the NIC and the application, in ns.
pub(crate) fn delays(observed: &Observed) -> Vec<u64> {
    observed.reads.iter().map(|(read_ns, arrived_ns)| read_ns - arrived_ns).collect()
}

pub(crate) fn napi(text: &str) -> NapiSettings {
    mode(text).napi()
}

pub(crate) fn epoll(text: &str) -> EpollSettings {
    mode(text).epoll().expect("an epoll mode")
}

/// Moments of a mark.
pub(crate) fn marks(observed: &Observed, what: &str) -> Vec<u64> {
    observed.trace.marks.iter().filter(|mark| mark.what == what).map(|mark| mark.at_ns).collect()
}
