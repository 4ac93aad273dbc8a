//! A delivery mode explained by what happened: one request at low load and one busy period, step
//! by step, in words that come from a recorded run.

use quell_mode::DeliveryMode;
use serde::Serialize;

use crate::engine::Ns;
use crate::host::HostProfile;
use crate::scenario::{Application, EpollContext, Scenario, ScenarioError};
use crate::trace::Trace;
use crate::world::Step;

/// One step of an explanation.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Sentence {
    /// Time since the first packet reached the NIC, in µs.
    pub at_us: f64,
    /// What happened, in words.
    pub text: String,
}

/// An explanation of a mode.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    /// The mode.
    pub mode: DeliveryMode,
    /// One request while nothing else goes on.
    pub one_request: Vec<Sentence>,
    /// Eight requests that arrive while the first is being served, and the rest after them.
    pub busy_period: Vec<Sentence>,
}

const FIRST_NS: Ns = 1_000_000;
const SERVICE_NS: Ns = 40_000;
const LONGEST_STORY: usize = 60;

/// Plays the two scenarios and tells what happened.
///
/// # Errors
///
/// A scenario that cannot be played.
pub fn explain(mode: DeliveryMode, host: &HostProfile) -> Result<Explanation, ScenarioError> {
    let one = scenario(mode, host).request(FIRST_NS, 0);
    let mut busy = scenario(mode, host).request(FIRST_NS, 0);
    for index in 0..8 {
        busy = busy.request(FIRST_NS + 10_000 + 12_000 * index, 0);
    }
    Ok(Explanation { mode, one_request: tell(&one.play()?.trace), busy_period: tell(&busy.play()?.trace) })
}

fn scenario(mode: DeliveryMode, host: &HostProfile) -> Scenario {
    let wait = Step::Wait { max_events: 64, timeout_ns: None };
    let steps = vec![wait, Step::Work(SERVICE_NS), Step::ReadAll, Step::Repeat];
    Scenario {
        queues: vec![mode.napi()],
        epolls: vec![EpollContext { settings: mode.epoll().unwrap_or_default(), napi_known: true }],
        applications: vec![Application { steps, ..Application::default() }],
        until_ns: FIRST_NS + 60_000_000,
        ..Scenario::new(host.clone())
    }
}

/// Marks and the segments that matter, from the first packet on, in words; what repeats is counted.
fn tell(trace: &Trace) -> Vec<Sentence> {
    let from_marks = trace.marks.iter().filter_map(|mark| Some((mark.at_ns, of_mark(mark.what)?)));
    let from_segments = trace.segments.iter().filter_map(|segment| Some((segment.from_ns, of_segment(segment.what)?)));
    let mut steps: Vec<(Ns, &str)> = from_marks.chain(from_segments).filter(|(at_ns, _)| *at_ns >= FIRST_NS).collect();
    steps.sort_by_key(|(at_ns, _)| *at_ns);
    let mut story: Vec<(Ns, &str, usize)> = Vec::new();
    for (at_ns, text) in steps {
        // A cycle of two steps, such as timer and empty poll, is told once.
        let before = story.len().saturating_sub(2);
        match story[before..].iter_mut().find(|(_, told, _)| *told == text) {
            Some((_, _, times)) => *times += 1,
            None => story.push((at_ns, text, 1)),
        }
    }
    story
        .into_iter()
        .take(LONGEST_STORY)
        .map(|(at_ns, text, times)| {
            let again = if times > 1 { format!(" ({times} times)") } else { String::new() };
            Sentence { at_us: (at_ns - FIRST_NS) as f64 / 1e3, text: format!("{text}{again}") }
        })
        .collect()
}

fn of_mark(what: &str) -> Option<&'static str> {
    Some(match what {
        "packet" => "A packet lands in the ring of the NIC.",
        "interrupt" => "The interrupt is handled: it is masked from now on, and a NAPI poll is scheduled.",
        "timer" => "The NAPI timer fires, nobody owns the instance: a poll is scheduled.",
        "timer lost" => "The NAPI timer fires while the instance is owned: the firing is lost.",
        "interrupt enabled" => "The poll completes and the interrupt is enabled again.",
        "delivered" => "The packet reaches its socket, and the epoll hears of it.",
        "suspended" => {
            "epoll_wait hands events over and puts the timer off by irq-suspend-timeout: interrupts are suspended."
        }
        "resumed" => "epoll_wait found nothing: suspension ends, one poll is scheduled, deferral takes over.",
        _ => return None,
    })
}

fn of_segment(what: &str) -> Option<&'static str> {
    Some(match what {
        "NET_RX softirq" => "The softirq polls the queue.",
        "NAPI thread" => "The queue's NAPI thread polls it.",
        "busy poll" => "The application's thread polls the queue itself, inside epoll_wait.",
        "final poll" => "On leaving the busy loop the queue is polled a last time, with a whole budget.",
        "application" => "The application works on what epoll_wait returned.",
        "leaving idle" => "The CPU leaves its idle state.",
        "entering idle" => "Nothing is left to do: the CPU goes idle.",
        "ksoftirqd" => "ksoftirqd takes over what the softirq could not do in its bounds.",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(sentences: &[Sentence]) -> String {
        sentences.iter().map(|sentence| sentence.text.as_str()).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn suspension_is_told_with_its_beginning_and_its_end() {
        let host = HostProfile::shipped("epyc7662-cx5").expect("it ships");
        let told = explain("suspend20".parse().expect("a mode"), &host).expect("it plays");
        let story = texts(&told.one_request);
        let place = |words: &str| story.find(words).unwrap_or_else(|| panic!("`{words}` is not told:\n{story}"));
        assert!(place("interrupts are suspended") < place("suspension ends"));
        assert_eq!(told.busy_period[0].at_us, 0.0);
    }

    #[test]
    fn base_is_told_without_suspension() {
        let host = HostProfile::shipped("epyc7662-cx5").expect("it ships");
        let told = explain("base".parse().expect("a mode"), &host).expect("it plays");
        let story = texts(&told.busy_period);
        assert!(story.contains("interrupt is handled") && !story.contains("suspended"), "{story}");
    }
}
