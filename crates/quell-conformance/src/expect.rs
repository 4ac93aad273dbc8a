//! The expectation language: what must be observed, as a pure function of the observations. On the
//! model a moment is exact but for the time that CPUs take ([`MODEL_SLACK`]); on a kernel it may be
//! off by the tolerance that the scenario states. A count is exact on both, or between bounds.

use serde::{Deserialize, Serialize};

use crate::duration::Nanos;
use crate::observe::{Message, Observations, Queue};
use crate::scenario::{KernelRule, Scenario};

/// What the execution of kernel and application may take on the model between two moments that
/// timers decide, where everything costs next to nothing.
pub const MODEL_SLACK: Nanos = Nanos(20_000);

/// Who played.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Arm {
    /// The model in virtual time.
    Model,
    /// The kernel that runs here, on a veth pair.
    Kernel,
    /// A distribution's kernel in a guest of the vm lab, on a NIC with an interrupt.
    Guest,
}

/// What must be observed.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Expectations(pub Vec<Expectation>);

/// One thing that must be observed.
#[derive(Debug, Clone, PartialEq)]
pub struct Expectation {
    /// On which arms; empty: on all.
    pub on: Vec<Arm>,
    /// What.
    pub what: Subject,
}

/// What an expectation is about.
#[derive(Debug, Clone, PartialEq)]
pub enum Subject {
    /// All messages of a packet row are read so long after they were sent.
    SeenAfter {
        /// The row.
        packet: usize,
        /// From sending to reading.
        after: Nanos,
    },
    /// So many messages of a packet row are not read before the end.
    Unseen {
        /// The row.
        packet: usize,
        /// How many.
        count: Count,
    },
    /// An `epoll_wait` returns so many events.
    WaitEvents {
        /// Whose.
        application: usize,
        /// Which, counted from 1.
        number: usize,
        /// How many.
        events: Count,
    },
    /// An `epoll_wait` takes so long.
    WaitTook {
        /// Whose.
        application: usize,
        /// Which, counted from 1.
        number: usize,
        /// From call to return.
        took: Nanos,
    },
    /// A queue does something so often.
    QueueCount {
        /// The queue.
        queue: usize,
        /// What is counted.
        counter: Counter,
        /// How often.
        count: Count,
    },
    /// `TcpExt BusyPollRxPackets`.
    BusyPollRxPackets(Count),
    /// `SO_INCOMING_NAPI_ID` of a descriptor is that of a queue, or 0.
    IncomingNapi {
        /// The descriptor.
        descriptor: usize,
        /// The queue; absent: 0.
        queue: Option<usize>,
    },
}

/// What is counted of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are the fields of `observe::Queue`")]
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
    /// All of them.
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

    /// As files and reports spell it.
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

    pub(crate) fn of(self, queue: &Queue) -> Option<u64> {
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

/// A count: exact, or between bounds that belong to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// The least that will do.
    pub least: u64,
    /// The greatest that will do.
    pub greatest: u64,
}

impl Count {
    /// Just so many.
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

/// What became of one expectation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Finding {
    /// Whether it held.
    pub holds: bool,
    /// What it is about, and what was expected of it.
    pub expected: String,
    /// What was observed.
    pub observed: String,
}

/// Compares what was observed with what a scenario expects of this arm.
#[must_use]
pub fn judge(scenario: &Scenario, observations: &Observations, arm: Arm) -> Vec<Finding> {
    let Expectations(expectations) = &scenario.expect;
    let here = expectations.iter().filter(|expectation| expectation.on.is_empty() || expectation.on.contains(&arm));
    let judge = Judge { scenario, observations, slack: slack(arm, scenario.kernel) };
    here.map(|expectation| judge.finding(&expectation.what)).collect()
}

fn slack(arm: Arm, kernel: KernelRule) -> Nanos {
    if arm == Arm::Model { MODEL_SLACK } else { kernel.tolerance }
}

struct Judge<'a> {
    scenario: &'a Scenario,
    observations: &'a Observations,
    slack: Nanos,
}

impl Judge<'_> {
    fn finding(&self, subject: &Subject) -> Finding {
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

    fn messages(&self, packet: usize) -> impl Iterator<Item = &Message> {
        self.observations.messages.iter().filter(move |message| message.packet == packet)
    }

    fn packet(&self, packet: usize) -> &str {
        &self.scenario.packets[packet].name
    }

    fn wait(&self, application: usize, number: usize) -> Option<&crate::observe::Wait> {
        self.observations.waits.iter().filter(|wait| wait.application == application).nth(number - 1)
    }

    fn wait_name(&self, application: usize, number: usize) -> String {
        format!("epoll_wait number {number} of `{}`", self.scenario.applications[application].name)
    }

    fn seen_after(&self, packet: usize, after: Nanos) -> Finding {
        let delay = |message: &Message| message.read_ns.map(|read_ns| read_ns.saturating_sub(message.sent_ns));
        let far_off = |delay: &Option<u64>| delay.map_or(u64::MAX, |delay| delay.abs_diff(after.0));
        let worst = self.messages(packet).map(delay).max_by_key(far_off).flatten();
        let sent = self.messages(packet).count();
        let subject = match sent {
            1 => format!("time until `{}` is read", self.packet(packet)),
            _ => format!("time until each of `{}` is read", self.packet(packet)),
        };
        self.timed(subject, worst, after)
    }

    fn timed(&self, subject: String, observed: Option<u64>, expected: Nanos) -> Finding {
        Finding {
            holds: observed.is_some_and(|observed| observed.abs_diff(expected.0) <= self.slack.0),
            expected: format!("{subject}: {expected} ± {}", self.slack),
            observed: observed.map_or_else(|| "never".to_owned(), |observed| Nanos(observed).to_string()),
        }
    }

    fn incoming_napi(&self, descriptor: usize, expected: Option<usize>) -> Finding {
        let text =
            |queue: Option<usize>| queue.map_or_else(|| "0".to_owned(), |queue| format!("that of queue {queue}"));
        let observed = self.observations.incoming_napi.get(descriptor).copied();
        let name = &self.scenario.descriptors[descriptor].name;
        Finding {
            holds: observed == Some(expected),
            expected: format!("SO_INCOMING_NAPI_ID of `{name}`: {}", text(expected)),
            observed: observed.map_or_else(|| "not observed on this arm".to_owned(), text),
        }
    }
}

/// What an arm cannot count does not hold: a scenario has to say which arms it speaks of.
fn counted(subject: String, observed: Option<u64>, expected: Count) -> Finding {
    Finding {
        holds: observed.is_some_and(|observed| expected.admits(observed)),
        expected: format!("{subject}: {expected}"),
        observed: observed.map_or_else(|| "not observed on this arm".to_owned(), |observed| observed.to_string()),
    }
}
