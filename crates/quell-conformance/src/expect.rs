//! The expectation language: required observations, checked by a pure function. On the model, times are exact except
//! for CPU time ([`MODEL_SLACK`]). On a kernel, times may deviate by the tolerance of the scenario. Counts are exact on
//! both, or lie between bounds.

use serde::{Deserialize, Serialize};

use crate::duration::Nanos;
use crate::observe::{Observations, ScenarioQueueCounters, SentMessage};
use crate::scenario::{KernelRule, Scenario};

/// Maximum CPU time of kernel and application on the model between two timer-driven events, ns. The model's costs are
/// minimal.
pub const MODEL_SLACK: Nanos = Nanos(20_000);

/// Executor of a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Backend {
    /// The model in virtual time.
    Model,
    /// The running kernel, on a veth pair.
    Kernel,
    /// A distribution's kernel in a guest of the vm lab, on a NIC with an interrupt.
    Guest,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Expectations(pub Vec<Expectation>);

#[derive(Debug, Clone, PartialEq)]
pub struct Expectation {
    /// Arms that the expectation applies to. Empty: all arms.
    pub on: Vec<Backend>,
    pub what: Subject,
}

#[derive(Debug, Clone, PartialEq)]
pub enum Subject {
    /// Every message of a packet row is read a given time after it was sent.
    SeenAfter {
        packet: usize,
        after: Nanos,
    },
    /// A given number of messages of a packet row are not read before the end.
    Unseen {
        packet: usize,
        count: Count,
    },
    WaitEvents {
        application: usize,
        /// Number of the wait, from 1.
        number: usize,
        events: Count,
    },
    WaitTook {
        application: usize,
        number: usize,
        /// Time from call to return.
        took: Nanos,
    },
    QueueCount {
        queue: usize,
        counter: Counter,
        count: Count,
    },
    /// `TcpExt BusyPollRxPackets` has a given value.
    BusyPollRxPackets(Count),
    /// `SO_INCOMING_NAPI_ID` of a descriptor identifies a given queue, or is 0.
    IncomingNapi {
        descriptor: usize,
        /// Index of the queue. Absent: the value is 0.
        queue: Option<usize>,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counter {
    Polls,
    EmptyPolls,
    BusyPolls,
    ThreadPolls,
    SoftirqPolls,
    OtherPolls,
    Interrupts,
    TimerInterrupts,
    LostTimers,
    Suspensions,
}

impl Counter {
    pub const ALL: [Self; 10] = [
        Self::Polls,
        Self::EmptyPolls,
        Self::BusyPolls,
        Self::ThreadPolls,
        Self::SoftirqPolls,
        Self::OtherPolls,
        Self::Interrupts,
        Self::TimerInterrupts,
        Self::LostTimers,
        Self::Suspensions,
    ];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Polls => "polls",
            Self::EmptyPolls => "empty-polls",
            Self::BusyPolls => "busy-polls",
            Self::ThreadPolls => "thread-polls",
            Self::SoftirqPolls => "softirq-polls",
            Self::OtherPolls => "other-polls",
            Self::Interrupts => "interrupts",
            Self::TimerInterrupts => "timer-interrupts",
            Self::LostTimers => "lost-timers",
            Self::Suspensions => "suspensions",
        }
    }

    pub(crate) fn of(self, queue: &ScenarioQueueCounters) -> Option<u64> {
        match self {
            Self::Polls => queue.polls,
            Self::EmptyPolls => queue.empty_polls,
            Self::BusyPolls => queue.busy_polls,
            Self::ThreadPolls => queue.thread_polls,
            Self::SoftirqPolls => queue.softirq_polls,
            Self::OtherPolls => queue.other_polls,
            Self::Interrupts => queue.interrupts,
            Self::TimerInterrupts => queue.timer_interrupts,
            Self::LostTimers => queue.lost_timers,
            Self::Suspensions => queue.suspensions,
        }
    }
}

/// An expected count: exact, or an inclusive range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    pub least: u64,
    pub greatest: u64,
}

impl Count {
    #[must_use]
    pub fn exactly(count: u64) -> Self {
        Self { least: count, greatest: count }
    }

    fn admits(self, count: u64) -> bool {
        (self.least..=self.greatest).contains(&count)
    }
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Self { least, greatest } if least == greatest => write!(f, "{least}"),
            Self { least, greatest: u64::MAX } => write!(f, "at least {least}"),
            Self { least: 0, greatest } => write!(f, "at most {greatest}"),
            Self { least, greatest } => write!(f, "{least} to {greatest}"),
        }
    }
}

/// Result of checking one expectation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ExpectationResult {
    pub holds: bool,
    /// Subject and expected value.
    pub expected: String,
    /// Observed value.
    pub observed: String,
}

#[must_use]
pub fn judge(scenario: &Scenario, observations: &Observations, arm: Backend) -> Vec<ExpectationResult> {
    let Expectations(expectations) = &scenario.expect;
    let here = expectations.iter().filter(|expectation| expectation.on.is_empty() || expectation.on.contains(&arm));
    let judge = Judge { scenario, observations, slack: slack(arm, scenario.kernel) };
    here.map(|expectation| judge.finding(&expectation.what)).collect()
}

fn slack(arm: Backend, kernel: KernelRule) -> Nanos {
    if arm == Backend::Model { MODEL_SLACK } else { kernel.tolerance }
}

struct Judge<'a> {
    scenario: &'a Scenario,
    observations: &'a Observations,
    slack: Nanos,
}

impl Judge<'_> {
    fn finding(&self, subject: &Subject) -> ExpectationResult {
        match *subject {
            Subject::SeenAfter { packet, after } => self.seen_after(packet, after),
            Subject::Unseen { packet, count } => {
                let unseen = self.messages(packet).filter(|message| message.read_ns.is_none()).count();
                counted(format!("messages of `{}` that are not read", self.packet(packet)), Some(unseen as u64), count)
            }
            Subject::WaitEvents { application, number, events } => {
                let returned = self.wait(application, number).map(|wait| wait.events as u64);
                counted(format!("events of {}", self.wait_name(application, number)), returned, events)
            }
            Subject::WaitTook { application, number, took } => {
                let observed = self.wait(application, number).map(|wait| wait.returned_ns - wait.called_ns);
                self.timed(format!("duration of {}", self.wait_name(application, number)), observed, took)
            }
            Subject::QueueCount { queue, counter, count } => {
                let observed = self.observations.queues.get(queue).and_then(|queue| counter.of(queue));
                counted(format!("{} of queue {queue}", counter.name()), observed, count)
            }
            Subject::BusyPollRxPackets(count) => {
                counted("BusyPollRxPackets".to_owned(), self.observations.busy_poll_rx_packets, count)
            }
            Subject::IncomingNapi { descriptor, queue } => self.incoming_napi(descriptor, queue),
        }
    }

    fn messages(&self, packet: usize) -> impl Iterator<Item = &SentMessage> {
        self.observations.messages.iter().filter(move |message| message.packet == packet)
    }

    fn packet(&self, packet: usize) -> &str {
        &self.scenario.packets[packet].name
    }

    fn wait(&self, application: usize, number: usize) -> Option<&crate::observe::ObservedWait> {
        self.observations.waits.iter().filter(|wait| wait.application == application).nth(number - 1)
    }

    fn wait_name(&self, application: usize, number: usize) -> String {
        format!("epoll_wait number {number} of `{}`", self.scenario.applications[application].name)
    }

    fn seen_after(&self, packet: usize, after: Nanos) -> ExpectationResult {
        let delay = |message: &SentMessage| message.read_ns.map(|read_ns| read_ns.saturating_sub(message.sent_ns));
        let far_off = |delay: &Option<u64>| delay.map_or(u64::MAX, |delay| delay.abs_diff(after.0));
        let worst = self.messages(packet).map(delay).max_by_key(far_off).flatten();
        let sent = self.messages(packet).count();
        let subject = match sent {
            1 => format!("time until `{}` is read", self.packet(packet)),
            _ => format!("time until each of `{}` is read", self.packet(packet)),
        };
        self.timed(subject, worst, after)
    }

    fn timed(&self, subject: String, observed: Option<u64>, expected: Nanos) -> ExpectationResult {
        ExpectationResult {
            holds: observed.is_some_and(|observed| observed.abs_diff(expected.0) <= self.slack.0),
            expected: format!("{subject}: {expected} ± {}", self.slack),
            observed: observed.map_or_else(|| "never".to_owned(), |observed| Nanos(observed).to_string()),
        }
    }

    fn incoming_napi(&self, descriptor: usize, expected: Option<usize>) -> ExpectationResult {
        let text =
            |queue: Option<usize>| queue.map_or_else(|| "0".to_owned(), |queue| format!("that of queue {queue}"));
        let observed = self.observations.incoming_napi.get(descriptor).copied();
        let name = &self.scenario.descriptors[descriptor].name;
        ExpectationResult {
            holds: observed == Some(expected),
            expected: format!("SO_INCOMING_NAPI_ID of `{name}`: {}", text(expected)),
            observed: observed.map_or_else(|| "not observed on this arm".to_owned(), text),
        }
    }
}

/// Checks a count. A value that the backend cannot count fails the expectation, so a scenario must name the backends
/// that it applies to.
fn counted(subject: String, observed: Option<u64>, expected: Count) -> ExpectationResult {
    ExpectationResult {
        holds: observed.is_some_and(|observed| expected.admits(observed)),
        expected: format!("{subject}: {expected}"),
        observed: observed.map_or_else(|| "not observed on this arm".to_owned(), |observed| observed.to_string()),
    }
}
