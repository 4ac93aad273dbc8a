//! Common parts of the scenario tests: settings by name, and functions that create scenarios.

use quell_mode::{DeliveryMode, EpollParams, NapiSettings};
use quell_sim::scenario::{EpollContext, Observed, ScriptedApplication, SimScenario};
use quell_sim::{HostProfile, ScriptStep};

pub(crate) const US: u64 = 1_000;
pub(crate) const MS: u64 = 1_000_000;
pub(crate) const FOREVER: ScriptStep = ScriptStep::Wait { max_events: 64, timeout_ns: None };

pub(crate) fn mode(text: &str) -> DeliveryMode {
    text.parse().expect("a delivery mode")
}

pub(crate) fn host() -> HostProfile {
    HostProfile::shipped("epyc7662-cx5").expect("it ships")
}

/// Creates a scenario with the settings of a mode, and an application that repeats these steps.
pub(crate) fn scenario(text: &str, steps: &[ScriptStep]) -> SimScenario {
    let mode = mode(text);
    let mut steps = steps.to_vec();
    steps.push(ScriptStep::Repeat);
    let epolls = vec![EpollContext { settings: mode.epoll().unwrap_or_default(), napi_known: false, inside: None }];
    let applications = vec![ScriptedApplication { steps, ..ScriptedApplication::default() }];
    SimScenario { queues: vec![mode.napi()], epolls, applications, ..SimScenario::new(host()) }
}

/// Changes a scenario so that its epoll already knows the NAPI ID of its socket.
pub(crate) fn known(mut scenario: SimScenario) -> SimScenario {
    scenario.epolls[0].napi_known = true;
    scenario
}

/// Creates a scenario with a server. It waits without a time limit, works for `work_ns` on the events, reads the data,
/// and waits again.
pub(crate) fn server(text: &str, work_ns: u64) -> SimScenario {
    scenario(text, &[FOREVER, ScriptStep::Work(work_ns), ScriptStep::ReadAll])
}

pub(crate) fn play(scenario: &SimScenario) -> Observed {
    scenario.play().expect("a valid scenario")
}

/// Time of each request between its arrival at the NIC and its read by the application, in ns.
pub(crate) fn delays(observed: &Observed) -> Vec<u64> {
    observed.reads.iter().map(|read| read.at_ns - read.sent_ns).collect()
}

pub(crate) fn napi(text: &str) -> NapiSettings {
    mode(text).napi()
}

pub(crate) fn epoll(text: &str) -> EpollParams {
    mode(text).epoll().expect("an epoll mode")
}

/// Times at which an event occurred on any queue, in ns.
pub(crate) fn marks(observed: &Observed, what: &str) -> Vec<u64> {
    observed.trace.marks.iter().filter(|mark| mark.what == what).map(|mark| mark.at_ns).collect()
}
