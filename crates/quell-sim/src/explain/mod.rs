//! Explains a delivery mode by a trace of the model: one request at low load and one busy period, step by step. The
//! modelled server is an epoll server with one queue on one CPU; the polling thread of `userbusy` has a second one. The
//! host uses only its lightest idle state.

mod fold;
mod words;

use quell_mode::{DeliveryMode, ProgramWait};
use schemars::JsonSchema;
use serde::Serialize;

use crate::{HostProfile, Ns, Run, RunError, Trace, TrafficKind};

/// One step of an explanation.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Sentence {
    /// Time since the first packet reached the NIC, in µs.
    pub at_us: f64,
    /// Duration in µs; `None` for an event without duration.
    pub lasts_us: Option<f64>,
    /// Description of the step, as a sentence.
    pub text: String,
}

/// Explanation of a mode.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Explanation {
    /// Schema of this value: `quell-sim-explain/1`.
    pub schema: &'static str,
    /// Delivery mode that is explained.
    pub mode: DeliveryMode,
    /// Name of the host.
    pub host: String,
    /// Steps for one request on an idle host.
    pub one_request: Vec<Sentence>,
    /// Steps for one request and [`BUSY_REQUESTS`] more, which arrive faster than the server handles them.
    pub busy_period: Vec<Sentence>,
}

impl Explanation {
    /// Schema of this type.
    pub const SCHEMA: &str = "quell-sim-explain/1";
}

/// Number of requests after the first in a busy period.
pub const BUSY_REQUESTS: usize = 8;

/// Time at which the first packet arrives, in ns. By then, deferral has enabled the interrupt again and the server
/// sleeps.
const QUIET_NS: Ns = 60_000_000;
/// Time at which the first packet arrives at a server that never sleeps, in ns. It is within the first busy poll.
const SPINNING_NS: Ns = 300_000;
/// Time of a packet before the first one, in ns, if a thread polls from outside. It takes the interrupt that is enabled
/// until the queue has had a packet.
const EARLIER_NS: Ns = QUIET_NS / 2;
/// Duration of the trace in ns. At its end, deferral has enabled the interrupt again.
const STORY_NS: Ns = 60_000_000;
/// Duration of the trace in ns if deferral takes longer than the normal duration. No further kinds of events would
/// occur after it.
const SHORT_STORY_NS: Ns = 3_000_000;
/// Time in ns from the first to the second request of a busy period. The second arrives while the server handles the
/// first.
const SECOND_AFTER_NS: Ns = 8_000;
/// Time between the other requests, relative to the service time of one request.
const PACE: f64 = 0.8;
/// Time in ns from the first request to the one after a busy period.
const LATER_NS: Ns = 220_000;
const LONGEST_STORY: usize = 60;

/// The runs that an explanation describes.
#[derive(Debug, Clone)]
pub struct RecordedStory {
    /// Time of the first packet, in ns.
    pub first_ns: Ns,
    /// One request on an idle host.
    pub one_request: Trace,
    /// One request and [`BUSY_REQUESTS`] more, then one that arrives when the server is idle again.
    pub busy_period: Trace,
}

/// Simulates both cases.
///
/// # Errors
///
/// When the modelled server does not support the mode.
pub fn record(mode: DeliveryMode, host: &HostProfile) -> Result<RecordedStory, RunError> {
    let story = Story::of(mode, host);
    let mut packets_ns = story.busy_packets_ns();
    packets_ns.push(story.first_ns + LATER_NS);
    Ok(RecordedStory {
        first_ns: story.first_ns,
        one_request: story.record(&[story.first_ns])?,
        busy_period: story.record(&packets_ns)?,
    })
}

/// Simulates both cases and describes their steps.
///
/// # Errors
///
/// When the modelled server does not support the mode.
pub fn explain(mode: DeliveryMode, host: &HostProfile) -> Result<Explanation, RunError> {
    let story = Story::of(mode, host);
    Ok(Explanation {
        schema: Explanation::SCHEMA,
        mode,
        host: host.name.clone(),
        one_request: story.sentences(&[story.first_ns])?,
        busy_period: story.sentences(&story.busy_packets_ns())?,
    })
}

/// A simulated case: the arrival of the first packet and the end of the trace.
struct Story {
    mode: DeliveryMode,
    host: HostProfile,
    first_ns: Ns,
    until_ns: Ns,
}

impl Story {
    fn of(mode: DeliveryMode, host: &HostProfile) -> Self {
        let kept_awake = matches!(mode.program_wait(), ProgramWait::AtMost(_));
        let first_ns = if kept_awake { SPINNING_NS } else { QUIET_NS };
        let napi = mode.napi();
        let deferral_ns = u64::from(napi.defer_hard_irqs).saturating_mul(napi.gro_flush_timeout_ns);
        let long = if deferral_ns < STORY_NS { STORY_NS } else { SHORT_STORY_NS };
        let mut host = host.clone();
        // Remove deep idle states, because they would dominate the duration of every step.
        host.idle_states.truncate(1);
        Self { mode, host, first_ns, until_ns: first_ns + long }
    }

    /// Times of the packets of the busy period, in ns.
    fn busy_packets_ns(&self) -> Vec<Ns> {
        let pace_ns = (self.host.constants.request_ns * PACE) as Ns;
        let others = (0..BUSY_REQUESTS as u64).map(|index| self.first_ns + SECOND_AFTER_NS + index * pace_ns);
        std::iter::once(self.first_ns).chain(others).collect()
    }

    fn sentences(&self, packets_ns: &[Ns]) -> Result<Vec<Sentence>, RunError> {
        let trace = self.record(packets_ns)?;
        let mut steps = fold::fold(words::steps(&trace, &self.mode, self.first_ns));
        steps.truncate(LONGEST_STORY);
        let us = |ns: Ns| ns as f64 / 1e3;
        let sentence = |step: fold::Step| Sentence {
            at_us: us(step.at_ns - self.first_ns),
            lasts_us: step.lasts_ns.map(us),
            text: step.text,
        };
        Ok(steps.into_iter().map(sentence).collect())
    }

    fn record(&self, packets_ns: &[Ns]) -> Result<Trace, RunError> {
        let has_poller = self.mode.poller().is_some();
        let packets_ns: Vec<Ns> =
            has_poller.then_some(EARLIER_NS).into_iter().chain(packets_ns.iter().copied()).collect();
        let run = Run {
            connections: packets_ns.len(),
            // The polling thread has a CPU of its own.
            irqs_apart: has_poller,
            warm_up_ns: 0,
            measured_ns: self.until_ns,
            ..Run::new(self.mode, self.host.clone(), TrafficKind::Listed(packets_ns), 1)
        };
        run.simulate_recorded().map(|(_, trace)| trace)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn explained(mode: &str) -> Explanation {
        let host = HostProfile::shipped("epyc7662-cx5").expect("it ships");
        explain(mode.parse().expect("a mode"), &host).expect("it plays")
    }

    fn story(sentences: &[Sentence]) -> String {
        sentences.iter().map(|sentence| sentence.text.as_str()).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn suspend_mode_shows_suspension_its_end_and_the_interrupt_that_is_enabled_again() {
        let explained = explained("suspend20");
        let story = story(&explained.one_request);
        let place = |words: &str| story.find(words).unwrap_or_else(|| panic!("`{words}` is missing:\n{story}"));
        assert!(place("suspended") < place("suspension ends"));
        assert!(place("suspension ends") < place("again, 9"));
        assert!(place("again, 9") < place("the interrupt is enabled"));
        assert_eq!(explained.busy_period[0].at_us, 0.0);
    }

    #[test]
    fn base_shows_no_suspension() {
        let story = story(&explained("base").busy_period);
        assert!(story.contains("interrupt is handled") && !story.contains("suspen"), "{story}");
    }

    #[test]
    fn a_thread_that_polls_from_outside_delivers_without_an_interrupt() {
        let story = story(&explained("userbusy").one_request);
        assert!(story.contains("Quell's thread polls") && !story.contains("interrupts the CPU"), "{story}");
    }

    #[test]
    fn every_request_of_a_busy_period_is_answered_in_every_mode() {
        for mode in ["base", "defer20", "napibusy", "fullbusy", "suspend20", "threaded", "userbusy", "eventspin20"] {
            let host = HostProfile::shipped("epyc7662-cx5").expect("it ships");
            let story = Story::of(mode.parse().expect("a mode"), &host);
            let packets: Vec<_> = (0..9).map(|index| story.first_ns + 3_000 * index).collect();
            let trace = story.record(&packets).expect("it plays");
            let answered = |mark: &&crate::Mark| mark.what == "response" && mark.at_ns > story.first_ns;
            let answered = trace.marks.iter().filter(answered).count();
            assert_eq!(answered, 9, "{mode}");
        }
    }

    #[test]
    fn a_mode_that_the_server_does_not_support_is_refused() {
        let host = HostProfile::shipped("epyc7662-cx5").expect("it ships");
        let error = explain("sockpoll50".parse().expect("a mode"), &host)
            .expect_err("the modelled server does not call recv")
            .to_string();
        assert!(error.contains("SO_BUSY_POLL"), "{error}");
    }
}
