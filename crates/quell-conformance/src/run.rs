//! Playing scenarios on arms: the model once, for it is exact; a kernel as often as a scenario says.
//! The result is plain data.

use std::ops::ControlFlow;

use quell_host::journal::Journal;
use quell_linux::capability::{self, Capability};
use quell_linux::proc::ProcRoot;
use quell_linux::{Pid, sched};
use quell_mode::Threaded;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::expect::{Arm, Finding, judge};
use crate::kernel::veth::{SiteError, VethSite};
use crate::kernel::{self, Control, PlayError, Site};
use crate::model;
use crate::observe::Observations;
use crate::scenario::{KernelRule, Need, Scenario};

/// The `schema` of a [`Report`].
pub const SCHEMA: &str = "quell-conformance/1";

/// What came of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Report {
    /// [`SCHEMA`] of the writer.
    pub schema: String,
    /// Every scenario on every arm that was asked for, in this order.
    pub results: Vec<ScenarioResult>,
}

/// What came of one scenario on one arm.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ScenarioResult {
    /// The scenario.
    pub scenario: String,
    /// What it shows.
    pub statement: String,
    /// Who played it.
    pub arm: Arm,
    /// What came of it.
    pub outcome: Outcome,
}

/// What came of a scenario.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "outcome", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
#[non_exhaustive]
pub enum Outcome {
    /// What it expects was observed as often as it asks for.
    Held {
        /// How often it was played.
        plays: u32,
        /// What did not hold in the plays that missed.
        misses: Vec<Vec<Finding>>,
        /// What was found in the last play.
        findings: Vec<Finding>,
    },
    /// It was not.
    DidNotHold {
        /// How often it was played.
        plays: u32,
        /// What did not hold in the plays that missed.
        misses: Vec<Vec<Finding>>,
        /// How many times as long as the file says everything took in the last of them.
        stretch: u32,
        /// Everything that was observed in the last of them.
        observations: Box<Observations>,
    },
    /// The arm has not what the scenario needs.
    NotPossible {
        /// What it lacks.
        reason: String,
    },
    /// It could not be played: rights are missing, or something failed.
    NotPlayed {
        /// Why.
        reason: String,
    },
}

impl Report {
    /// What its JSON looks like.
    #[must_use]
    pub fn json_schema() -> schemars::Schema {
        schemars::schema_for!(Self)
    }
}

impl Outcome {
    /// Whether it speaks against the arm: something was observed that must not be.
    #[must_use]
    pub fn is_difference(&self) -> bool {
        matches!(self, Self::DidNotHold { .. })
    }
}

/// What this process lacks for the kernel's arm; empty when it can play.
///
/// # Errors
/// When the process's capabilities cannot be read.
pub fn missing_for_the_kernel() -> Result<Vec<Capability>, quell_linux::proc::ProcError> {
    const NEEDED: [Capability; 4] = [Capability::NetAdmin, Capability::SysAdmin, Capability::SysNice, Capability::Bpf];
    let effective = capability::effective(&ProcRoot::default())?;
    Ok(effective.map_or_else(|| NEEDED.to_vec(), |effective| effective.missing(&NEEDED)))
}

/// Where a scenario is played, with what it takes there.
#[derive(Debug, Clone, Copy)]
pub enum Place<'a> {
    /// The model.
    Model,
    /// The kernel that runs here, on veth pairs that this journal knows of.
    Kernel(&'a Journal),
    /// The guest that this runs in, on its NICs.
    Guest(&'a Site),
}

impl Place<'_> {
    /// Whose the observations are.
    #[must_use]
    pub fn arm(self) -> Arm {
        match self {
            Self::Model => Arm::Model,
            Self::Kernel(_) => Arm::Kernel,
            Self::Guest(_) => Arm::Guest,
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

/// Plays scenarios in places; `watch` hears of each result when it is there, and may end the run with it.
pub fn run<'a>(
    scenarios: impl IntoIterator<Item = &'a Scenario>,
    places: &[Place<'_>],
    watch: &mut dyn FnMut(&ScenarioResult) -> ControlFlow<()>,
) -> Report {
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
    Report { schema: SCHEMA.to_owned(), results }
}

/// Plays a scenario on the model, once: it is exact.
#[must_use]
pub fn on_the_model(scenario: &Scenario) -> Outcome {
    let once = KernelRule { holds: 1, of: 1, ..scenario.kernel };
    plays(scenario, Arm::Model, once, 1, model::play)
}

/// Plays a scenario on the kernel that runs here, each time on a veth pair of its own.
#[must_use]
pub fn on_this_kernel(scenario: &Scenario, journal: &Journal) -> Outcome {
    if let Some(need) = scenario.needs.first() {
        return Outcome::NotPossible { reason: lacks("a veth pair", *need) };
    }
    match missing_for_the_kernel() {
        Ok(missing) if !missing.is_empty() => {
            let missing: Vec<String> = missing.iter().map(ToString::to_string).collect();
            return Outcome::NotPlayed { reason: format!("needs {}: run it as root", missing.join(", ")) };
        }
        Ok(_) => {}
        Err(error) => return Outcome::NotPlayed { reason: error.to_string() },
    }
    if let Some(reason) = too_few_cpus(scenario).or_else(|| no_kernel_threads(scenario)) {
        return Outcome::NotPossible { reason };
    }
    let queues = scenario.queues.len() as u32;
    plays(scenario, Arm::Kernel, scenario.kernel, 1, |stretched| {
        let raised = VethSite::raise(journal, queues, stretched.past_napi)?;
        let played = kernel::play(&raised.site, stretched);
        // What could not be undone stays in the journal, where the next run finds it.
        let _ = raised.take_down();
        Ok::<_, SitePlayError>(played?)
    })
}

/// An application that works would keep another of its CPU from running.
fn too_few_cpus(scenario: &Scenario) -> Option<String> {
    let cpus = sched::affinity(Pid::of_this_thread()).ok()?.iter().count();
    let applications = scenario.applications.len();
    (cpus < applications).then(|| format!("{applications} applications need a CPU each, and there are {cpus}"))
}

/// A queue's thread is pinned, which takes a name for it.
fn no_kernel_threads(scenario: &Scenario) -> Option<String> {
    let takes_one = scenario.queues.iter().any(|queue| queue.threaded != Threaded::Off);
    let out_of_sight = || !quell_linux::kernel::threads_are_in_sight(&ProcRoot::default());
    (takes_one && out_of_sight()).then(|| "the kernel's threads are not in this PID namespace".to_owned())
}

/// Under emulation a datagram takes a tenth of a millisecond, and the host may let a virtual CPU wait for several: in a
/// guest all times are so many times as long.
const GUEST_STRETCH: u32 = 4;

/// Plays a scenario on the NICs of the guest that this runs in, all its times stretched alike.
#[must_use]
pub fn in_this_guest(scenario: &Scenario, site: &Site) -> Outcome {
    if let Some(reason) = lacking(scenario, site) {
        return Outcome::NotPossible { reason };
    }
    plays(scenario, Arm::Guest, scenario.kernel, GUEST_STRETCH, |stretched| kernel::play(site, stretched))
}

/// What a guest's device or kernel has not of what a scenario needs.
fn lacking(scenario: &Scenario, site: &Site) -> Option<String> {
    if let Some(need) = scenario.needs.iter().find(|need| !site.has.contains(need)) {
        return Some(lacks("this device", *need));
    }
    if scenario.past_napi {
        return Some("every packet of this device goes through NAPI".to_owned());
    }
    if scenario.queues.len() != 1 {
        return Some(format!("this device has one queue, and the scenario {}", scenario.queues.len()));
    }
    if site.control != Control::EachByNetlink && scenario.takes_netlink() {
        return Some("this kernel has neither IRQ suspension nor threads of single queues".to_owned());
    }
    if site.spare_cpu.is_none() && scenario.queues.iter().any(|queue| queue.threaded == Threaded::BusyPoll) {
        return Some("a thread that polls without end takes a CPU of its own, and there is none to spare".to_owned());
    }
    if !site.epoll_parameters && scenario.takes_epoll_parameters() {
        return Some("this kernel has no busy-poll parameters of an epoll".to_owned());
    }
    too_few_cpus(scenario)
}

fn lacks(device: &str, need: Need) -> String {
    match need {
        Need::Interrupt => {
            format!("{device} has no interrupt that could be counted: the sender's CPU tests a flag in its place")
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

/// Plays until it held as often as the rule says, or cannot any more: first with all times `stretch` times as long, then,
/// after each miss, twice as long again. A host that is late by some milliseconds is so whatever the scenario, and what
/// decides lies further apart each time.
fn plays<E: std::error::Error>(
    scenario: &Scenario,
    arm: Arm,
    rule: KernelRule,
    stretch: u32,
    mut play: impl FnMut(&Scenario) -> Result<Observations, E>,
) -> Outcome {
    let mut held = 0;
    let mut misses: Vec<Vec<Finding>> = Vec::new();
    loop {
        let stretch = stretch << misses.len();
        let stretched = scenario.clone().stretched(stretch);
        let observations = match play(&stretched) {
            Ok(observations) => observations,
            Err(error) => return Outcome::NotPlayed { reason: error.to_string() },
        };
        let findings = judge(&stretched, &observations, arm);
        let wrong: Vec<Finding> = findings.iter().filter(|finding| !finding.holds).cloned().collect();
        if wrong.is_empty() {
            held += 1;
        } else {
            misses.push(wrong);
        }
        let missed = misses.len() as u32;
        let plays = held + missed;
        if held == rule.holds {
            return Outcome::Held { plays, misses, findings };
        }
        if rule.of - missed < rule.holds {
            return Outcome::DidNotHold { plays, misses, stretch, observations: Box::new(observations) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::ModelError;
    use crate::suite;

    /// The judgement of a kernel that has every timer so late, and every thread so late on its CPU.
    fn on_a_late_host(scenario: &Scenario, timer_ns: f64, wake_ns: f64) -> Outcome {
        plays(scenario, Arm::Kernel, scenario.kernel, 1, |stretched| -> Result<_, ModelError> {
            let mut host = model::host()?;
            (host.constants.timer_irq_ns, host.constants.wake_ns) = (timer_ns, wake_ns);
            model::play_on(host, stretched)
        })
    }

    fn all() -> Vec<Scenario> {
        suite::all().unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn every_scenario_holds_at_once_where_each_timer_is_a_millisecond_late() {
        for scenario in all() {
            let outcome = on_a_late_host(&scenario, 1e6, 0.0);
            let Outcome::Held { misses, .. } = outcome else { panic!("{}: {outcome:#?}", scenario.name) };
            assert!(misses.is_empty(), "{}: {misses:#?}", scenario.name);
        }
    }

    #[test]
    fn every_scenario_holds_in_the_end_where_timers_and_threads_are_3_milliseconds_late() {
        for scenario in all() {
            let outcome = on_a_late_host(&scenario, 3e6, 3e6);
            assert!(matches!(outcome, Outcome::Held { .. }), "{}: {outcome:#?}", scenario.name);
        }
    }

    #[test]
    fn what_misses_even_8_times_as_long_does_not_hold() {
        let scenario = suite::scenario("a-napi-thread-is-deferred-alike").unwrap_or_else(|error| panic!("{error}"));
        let outcome = on_a_late_host(&scenario, 0.0, 60e6);
        assert!(matches!(outcome, Outcome::DidNotHold { plays: 4, stretch: 8, .. }), "{outcome:#?}");
    }
}
