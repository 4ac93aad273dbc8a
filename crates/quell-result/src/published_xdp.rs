//! Result of the published AF_XDP experiment that was played on this machine.

use std::collections::BTreeMap;
use std::fmt;

use quell_linux::clock;
use quell_linux::proc::ProcRoot;
use quell_linux::sched::SchedError;
use quell_published::PollMechanism;
use quell_sampler::QueuePoller;
use quell_stats::LatencyHistogram;
use quell_xdp::{PollWay, XdpQueue};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Document;
use crate::experiment::LoadExperiment;
use crate::facts::HostFacts;

/// CPU time of the client's side per answered request, in µs: the receiving thread, a thread of its own that polls, and
/// the NAPI thread of its queue.
pub const CLIENT_CPU: &str = "client-cpu-us-per-request";
/// CPUs that a thread used, 0 to 1: [`RECEIVER`], [`SENDER`], [`POLLER`], [`NAPI_THREAD`] or [`RESPONDER`].
#[must_use]
pub fn cpus_of(thread: &str) -> String {
    format!("cpus {thread}")
}
pub const RECEIVER: &str = "receiver";
pub const SENDER: &str = "sender";
pub const POLLER: &str = "poller";
pub const NAPI_THREAD: &str = "napi-thread";
pub const RESPONDER: &str = "responder";
/// Share of the polls of the client's queue, 0 to 1, by who polled.
#[must_use]
pub fn poll_share(poller: QueuePoller) -> String {
    format!("polls {}", poller.field())
}
/// Share of the requests that were sent within 10 µs of the schedule, 0 to 1.
pub const ON_TIME: &str = "on-time-share";
/// Share of the requests that were answered, 0 to 1.
pub const ANSWERED: &str = "answered-share";
/// System calls by which the client received and polled, per answered request.
pub const SYSTEM_CALLS: &str = "system-calls-per-request";
/// Median latency from the actual send, in µs.
pub const FROM_SEND: &str = "from-send-p50-us";

/// Result file of `quell bench --experiment c`: at each published point, the client's way to poll is switched.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PublishedXdpRun {
    /// `quell-published-xdp/1`.
    pub schema: String,
    /// Version of Quell that made the measurement.
    pub quell_version: String,
    /// Start of the measurement, in seconds since 1970-01-01 UTC.
    pub started_unix_s: u64,
    /// Machine on which the measurement was made.
    pub host: HostFacts,
    pub placement: XdpPlacement,
    /// Points, in the order in which they were measured.
    pub points: Vec<XdpPoint>,
    /// Ways to poll that this machine cannot play.
    pub absent: Vec<AbsentWay>,
    /// Reason why the result is not a measurement. Absent if it is a measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_a_measurement: Option<String>,
    /// Factor by which rates, processing times and the timeout of deferral were smaller than published, in a guest. Its
    /// times mean nothing and are absent. Absent: the lab of this machine, with the published values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowed_by: Option<u32>,
    /// Reason why the experiment ended before its last point. Absent if it is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended: Option<String>,
}

impl Document for PublishedXdpRun {
    const SCHEMA: &'static str = "quell-published-xdp/1";
}

impl PublishedXdpRun {
    /// Creates a result without points that begins now, on this host.
    pub fn begin(placement: XdpPlacement, absent: Vec<AbsentWay>) -> Result<Self, SchedError> {
        Ok(Self {
            schema: Self::SCHEMA.to_owned(),
            quell_version: env!("CARGO_PKG_VERSION").to_owned(),
            started_unix_s: clock::realtime_ns() / 1_000_000_000,
            host: HostFacts::read(&ProcRoot::default())?,
            placement,
            points: Vec::new(),
            absent,
            not_a_measurement: None,
            slowed_by: None,
            ended: None,
        })
    }
}

/// CPUs of the threads. Every one of them spins, except for the responder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct XdpPlacement {
    /// CPU of the client's receiving thread, which also does the processing.
    pub receiver: u32,
    /// CPU of the client's sending thread, and of the responder, which preempts it (`SCHED_FIFO`).
    pub sender: u32,
    /// CPU of a thread of its own that polls. Null: no CPU is left for one.
    pub poller: Option<u32>,
}

impl XdpPlacement {
    /// Whether threads that spin share a CPU.
    #[must_use]
    pub fn is_overcommitted(&self) -> bool {
        self.receiver == self.sender || self.poller == Some(self.sender)
    }
}

/// A rate and a processing time under which ways to poll were compared.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct XdpPoint {
    /// Requests per second, in thousands.
    pub rate_kpps: f64,
    /// Time that the client works on each response, in µs.
    pub delay_us: f64,
    /// The measurement. Absent if the point is not possible here.
    pub result: Option<LoadExperiment<XdpWay>>,
    /// Durations of the receive call, for each way in which the receiving thread polls. They were measured in a run of
    /// their own, because reading the clock lengthens each call.
    pub receive_calls: BTreeMap<String, LatencyHistogram>,
    /// Socket and queue under each way, as the kernel reports them.
    #[serde(default)]
    pub queues: BTreeMap<String, XdpQueue>,
    /// Reason why the point is not possible here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_possible: Option<String>,
}

impl XdpPoint {
    #[must_use]
    pub fn new(rate_kpps: f64, delay_us: f64) -> Self {
        let (receive_calls, queues) = (BTreeMap::new(), BTreeMap::new());
        Self { rate_kpps, delay_us, result: None, receive_calls, queues, not_possible: None }
    }

    /// Ways whose named pollers have less than half of the polls, with their share. Known only without processing: while
    /// the program works, the timer polls.
    #[must_use]
    pub fn not_as_named(&self) -> Vec<(String, f64)> {
        let Some(experiment) = self.result.as_ref().filter(|_| self.delay_us <= 0.0) else { return Vec::new() };
        let design = &experiment.record.design;
        let ways = std::iter::once(&design.reference).chain(&design.treatments);
        let share = |name: &str, way: XdpWay| -> Option<f64> {
            way.pollers().iter().map(|poller| experiment.median(name, &poll_share(*poller))).sum()
        };
        let shares = ways.filter_map(|way| Some((way.name.clone(), share(&way.name, way.setting)?)));
        shares.filter(|(_, share)| *share < NAMED_SHARE_MIN).collect()
    }
}

/// How the client's queue is polled.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct XdpWay {
    pub poller: PollWay,
    /// Whether the receiving thread sleeps until a response arrives. Otherwise it watches the RX ring, as published.
    pub sleeps: bool,
    /// Whether the thread that polls has a CPU of its own, so that the client has two CPUs beside the sender's.
    pub own_cpu: bool,
}

/// Smallest share of the polls of the poller after which a way is named.
const NAMED_SHARE_MIN: f64 = 0.5;

impl XdpWay {
    /// Who polls under this way.
    #[must_use]
    pub fn pollers(self) -> &'static [QueuePoller] {
        match self.poller {
            PollWay::Interrupts => &[QueuePoller::Interrupt, QueuePoller::Rescheduled, QueuePoller::Ksoftirqd],
            PollWay::NapiThread | PollWay::ThreadedBusyPoll => &[QueuePoller::Thread],
            _ => &[QueuePoller::Program],
        }
    }

    /// The published mechanism to which this way is closest. `None` if it was not published.
    #[must_use]
    pub fn published(self) -> Option<PollMechanism> {
        match self.poller {
            PollWay::Interrupts if !self.sleeps => Some(PollMechanism::Interrupts),
            PollWay::BusyPoll | PollWay::UdpBusyPoll | PollWay::IoUring => Some(PollMechanism::Inline),
            PollWay::BusyPollThread | PollWay::UdpBusyPollThread | PollWay::IoUringThread => {
                Some(PollMechanism::Separate)
            }
            PollWay::ThreadedBusyPoll => Some(PollMechanism::Threaded),
            PollWay::Interrupts | PollWay::NapiThread => None,
        }
    }
}

impl fmt::Display for XdpWay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The other ways with a thread always have a CPU for it.
        let suffix = match (self.sleeps, self.own_cpu && self.poller == PollWay::NapiThread) {
            (true, _) => "-sleeping",
            (false, true) => "-own-cpu",
            (false, false) => "",
        };
        f.pad(&format!("{}{suffix}", self.poller.name()))
    }
}

/// A way to poll that this machine cannot play.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct AbsentWay {
    pub ways: String,
    /// What is missing.
    pub why: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_way_is_that_of_the_poller_and_tells_ways_with_the_same_poller_apart() {
        let all = [
            PollWay::Interrupts,
            PollWay::BusyPoll,
            PollWay::BusyPollThread,
            PollWay::NapiThread,
            PollWay::ThreadedBusyPoll,
            PollWay::UdpBusyPoll,
            PollWay::UdpBusyPollThread,
            PollWay::IoUring,
            PollWay::IoUringThread,
        ];
        for poller in all {
            let way = XdpWay { poller, own_cpu: poller != PollWay::NapiThread, ..XdpWay::default() };
            assert_eq!(serde_json::to_value(poller).unwrap(), way.to_string());
        }
        let of = |poller, sleeps, own_cpu| XdpWay { poller, sleeps, own_cpu }.to_string();
        assert_eq!(of(PollWay::Interrupts, true, false), "interrupts-sleeping");
        assert_eq!(of(PollWay::NapiThread, false, true), "napi-thread-own-cpu");
    }
}
