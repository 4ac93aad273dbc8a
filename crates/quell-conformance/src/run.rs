//! Runs scenarios on the backends. The model is exact, so it runs a scenario once. A kernel runs it as often as the
//! scenario requires. The result is plain data.

use std::ops::ControlFlow;

use quell_change::journal::Journal;
use quell_linux::capability::{self, Capability};
use quell_linux::proc::ProcRoot;
use quell_linux::{Pid, sched};
use quell_mode::Threaded;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::expect::{Backend, ExpectationResult, judge};
use crate::kernel::veth::{SiteError, VethSite};
use crate::kernel::{self, Control, PlayError, Site};
use crate::model;
use crate::observe::Observations;
use crate::scenario::{KernelRule, Need, Scenario};

pub const SCHEMA: &str = "quell-conformance/1";

/// Report of a conformance run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ConformanceReport {
    /// [`SCHEMA`] of the version that wrote the report.
    pub schema: String,
    /// Results of every scenario on every requested arm, in this order.
    pub results: Vec<ScenarioResult>,
}

/// Result of one scenario on one backend.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ScenarioResult {
    pub scenario: String,
    /// Behaviour that the scenario demonstrates.
    pub statement: String,
    /// Backend that ran the scenario.
    pub arm: Backend,
    pub outcome: ScenarioOutcome,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "outcome", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
#[non_exhaustive]
pub enum ScenarioOutcome {
    /// The expectations held in the required number of runs.
    Held {
        runs: u32,
        /// Failed expectations of each failed run.
        misses: Vec<Vec<ExpectationResult>>,
        /// Findings of the last run.
        findings: Vec<ExpectationResult>,
    },
    /// The expectations failed too often.
    DidNotHold {
        runs: u32,
        /// Failed expectations of each failed run.
        misses: Vec<Vec<ExpectationResult>>,
        /// Factor by which all times of the file were multiplied in the last run.
        stretch: u32,
        /// All observations of the last run.
        observations: Box<Observations>,
    },
    /// The backend lacks a requirement of the scenario.
    NotPossible { reason: String },
    /// The scenario could not be run because permissions are missing or an operation failed.
    NotRun { reason: String },
}

impl ScenarioOutcome {
    #[must_use]
    pub fn is_difference(&self) -> bool {
        matches!(self, Self::DidNotHold { .. })
    }
}

/// Capabilities in the initial user namespace that this process lacks for running scenarios on the kernel; empty if it
/// can run them.
pub fn missing_for_the_kernel() -> Result<Vec<Capability>, quell_linux::proc::ProcError> {
    const NEEDED: [Capability; 4] = [Capability::NetAdmin, Capability::SysAdmin, Capability::SysNice, Capability::Bpf];
    let proc = ProcRoot::default();
    // The kernel checks CAP_NET_ADMIN for `napi-set` in the initial user namespace.
    if !capability::in_initial_user_namespace(&proc).unwrap_or(true) {
        return Ok(NEEDED.to_vec());
    }
    let effective = capability::effective(&proc)?;
    Ok(effective.map_or_else(|| NEEDED.to_vec(), |effective| effective.missing(&NEEDED)))
}

#[derive(Debug, Clone, Copy)]
pub enum BackendContext<'a> {
    Model,
    /// The running kernel, on veth pairs recorded in this journal.
    Kernel(&'a Journal),
    /// The guest that this program runs in, on its NICs.
    Guest(&'a Site),
}

impl BackendContext<'_> {
    #[must_use]
    pub fn arm(self) -> Backend {
        match self {
            Self::Model => Backend::Model,
            Self::Kernel(_) => Backend::Kernel,
            Self::Guest(_) => Backend::Guest,
        }
    }

    fn play(self, scenario: &Scenario) -> ScenarioResult {
        let outcome = match self {
            Self::Model => on_the_model(scenario),
            Self::Kernel(journal) => on_this_kernel(scenario, journal),
            Self::Guest(site) => in_this_guest(scenario, site),
        };
        let (name, statement) = (scenario.name.clone(), scenario.statement.clone());
        ScenarioResult { scenario: name, statement, arm: self.arm(), outcome }
    }
}

/// Runs scenarios on several backends. Passes each result to `watch`, which may end the run.
pub fn run<'a>(
    scenarios: impl IntoIterator<Item = &'a Scenario>,
    places: &[BackendContext<'_>],
    watch: &mut dyn FnMut(&ScenarioResult) -> ControlFlow<()>,
) -> ConformanceReport {
    let mut results = Vec::new();
    'played: for scenario in scenarios {
        for place in places {
            let result = place.play(scenario);
            let proceed = watch(&result);
            results.push(result);
            if proceed.is_break() {
                break 'played;
            }
        }
    }
    ConformanceReport { schema: SCHEMA.to_owned(), results }
}

/// Runs a scenario on the model once, because the model is exact.
#[must_use]
pub fn on_the_model(scenario: &Scenario) -> ScenarioOutcome {
    let once = KernelRule { holds: 1, of: 1, ..scenario.kernel };
    runs(scenario, Backend::Model, once, 1, model::play)
}

#[must_use]
pub fn on_this_kernel(scenario: &Scenario, journal: &Journal) -> ScenarioOutcome {
    if let Some(need) = scenario.needs.first() {
        return ScenarioOutcome::NotPossible { reason: lacks("a veth pair", *need) };
    }
    match missing_for_the_kernel() {
        Ok(missing) if !missing.is_empty() => {
            let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
            return ScenarioOutcome::NotRun { reason: format!("needs {}: run it as root", missing.join(", ")) };
        }
        Ok(_) => {}
        Err(error) => return ScenarioOutcome::NotRun { reason: error.to_string() },
    }
    if let Some(reason) = too_few_cpus(scenario).or_else(|| no_kernel_threads(scenario)) {
        return ScenarioOutcome::NotPossible { reason };
    }
    let queues = scenario.queues.len() as u32;
    runs(scenario, Backend::Kernel, scenario.kernel, 1, |stretched| {
        let raised = VethSite::raise(journal, queues, stretched.past_napi)?;
        let played = kernel::play(&raised.site, stretched);
        // Changes that could not be undone stay in the journal, where the next run finds them.
        let _ = raised.take_down();
        Ok::<_, SitePlayError>(played?)
    })
}

/// Each application needs its own CPU, because a working application would block another one on the same CPU.
fn too_few_cpus(scenario: &Scenario) -> Option<String> {
    let cpus = sched::affinity(Pid::of_this_thread()).ok()?.iter().count();
    let applications = scenario.applications.len();
    (cpus < applications).then(|| format!("{applications} applications need one CPU each, but only {cpus} can be used"))
}

/// NAPI threads must be pinned, so this PID namespace must contain them.
fn no_kernel_threads(scenario: &Scenario) -> Option<String> {
    let takes_one = scenario.queues.iter().any(|queue| queue.threaded != Threaded::Off);
    let out_of_sight = || !quell_linux::kernel::threads_are_in_sight(&ProcRoot::default());
    (takes_one && out_of_sight()).then(|| "kernel threads are not visible in this PID namespace".to_owned())
}

/// Factor for all times in a guest. Under emulation, a datagram takes 0.1 ms, and a virtual CPU may wait for the host
/// for several ms.
const GUEST_STRETCH: u32 = 4;

/// Runs a scenario on the NICs of the guest that this program runs in. All times are scaled.
#[must_use]
pub fn in_this_guest(scenario: &Scenario, site: &Site) -> ScenarioOutcome {
    if let Some(reason) = lacking(scenario, site) {
        return ScenarioOutcome::NotPossible { reason };
    }
    runs(scenario, Backend::Guest, scenario.kernel, GUEST_STRETCH, |stretched| kernel::play(site, stretched))
}

/// Requirement of the scenario that the device or kernel of the guest does not meet.
fn lacking(scenario: &Scenario, site: &Site) -> Option<String> {
    if let Some(need) = scenario.needs.iter().find(|need| !site.has.contains(need)) {
        return Some(lacks("this device", *need));
    }
    if scenario.past_napi {
        return Some("packets of this device cannot bypass NAPI".to_owned());
    }
    if scenario.queues.len() != 1 {
        return Some(format!("this device has one queue, but the scenario needs {}", scenario.queues.len()));
    }
    if site.control != Control::EachByNetlink && scenario.takes_netlink() {
        return Some("this kernel supports neither IRQ suspension nor threads for single queues".to_owned());
    }
    if site.spare_cpu.is_none() && scenario.queues.iter().any(|queue| queue.threaded == Threaded::BusyPoll) {
        return Some("a busy-polling NAPI thread needs a CPU of its own, but none is available".to_owned());
    }
    if !site.epoll_parameters && scenario.takes_epoll_parameters() {
        return Some("this kernel does not support busy-poll parameters of epolls".to_owned());
    }
    too_few_cpus(scenario)
}

fn lacks(device: &str, need: Need) -> String {
    match need {
        Need::Interrupt => {
            format!("{device} has no interrupt to count: the sender's CPU tests a flag instead")
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum SitePlayError {
    #[error(transparent)]
    Site(#[from] SiteError),
    #[error(transparent)]
    Play(#[from] PlayError),
}

/// Repeats a scenario until it has held as often as required, or no longer can. The first run multiplies all times by
/// `stretch`; each miss doubles the factor. A slow host is late by a fixed number of ms, so longer times separate the
/// decisive events.
fn runs<E: std::error::Error>(
    scenario: &Scenario,
    arm: Backend,
    rule: KernelRule,
    stretch: u32,
    mut play: impl FnMut(&Scenario) -> Result<Observations, E>,
) -> ScenarioOutcome {
    let mut held = 0;
    let mut misses: Vec<Vec<ExpectationResult>> = Vec::new();
    loop {
        let stretch = stretch << misses.len();
        let stretched = scenario.clone().stretched(stretch);
        let observations = match play(&stretched) {
            Ok(observations) => observations,
            Err(error) => return ScenarioOutcome::NotRun { reason: error.to_string() },
        };
        let findings = judge(&stretched, &observations, arm);
        let wrong: Vec<ExpectationResult> = findings.iter().filter(|finding| !finding.holds).cloned().collect();
        if wrong.is_empty() {
            held += 1;
        } else {
            misses.push(wrong);
        }
        let missed = misses.len() as u32;
        let runs = held + missed;
        if held == rule.holds {
            return ScenarioOutcome::Held { runs, misses, findings };
        }
        if rule.of - missed < rule.holds {
            return ScenarioOutcome::DidNotHold { runs, misses, stretch, observations: Box::new(observations) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ScenarioModelError;
    use crate::suite;

    /// Outcome on a kernel that fires every timer `timer_ns` late and gives every thread its CPU `wake_ns` late.
    fn on_a_late_host(scenario: &Scenario, timer_ns: f64, wake_ns: f64) -> ScenarioOutcome {
        runs(scenario, Backend::Kernel, scenario.kernel, 1, |stretched| -> Result<_, ScenarioModelError> {
            let mut host = model::host()?;
            (host.constants.timer_irq_ns, host.constants.wake_ns) = (timer_ns, wake_ns);
            model::play_on(host, stretched)
        })
    }

    fn all() -> Vec<Scenario> {
        suite::all().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn every_scenario_holds_at_once_with_timers_1_ms_late() {
        for scenario in all() {
            let outcome = on_a_late_host(&scenario, 1e6, 0.0);
            let ScenarioOutcome::Held { misses, .. } = outcome else { panic!("{}: {outcome:#?}", scenario.name) };
            assert!(misses.is_empty(), "{}: {misses:#?}", scenario.name);
        }
    }

    #[test]
    fn every_scenario_holds_eventually_with_timers_and_threads_3_ms_late() {
        for scenario in all() {
            let outcome = on_a_late_host(&scenario, 3e6, 3e6);
            assert!(matches!(outcome, ScenarioOutcome::Held { .. }), "{}: {outcome:#?}", scenario.name);
        }
    }

    #[test]
    fn a_scenario_that_fails_even_when_scaled_by_8_does_not_hold() {
        let scenario = suite::scenario("a-napi-thread-is-deferred-alike").unwrap_or_else(|error| panic!("{error}"));
        let outcome = on_a_late_host(&scenario, 0.0, 60e6);
        assert!(matches!(outcome, ScenarioOutcome::DidNotHold { runs: 4, stretch: 8, .. }), "{outcome:#?}");
    }
}
