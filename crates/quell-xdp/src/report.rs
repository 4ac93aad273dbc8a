//! Report of a load. All values are measured. Values that could not be read are absent.

use std::time::Duration;

use quell_linux::NapiId;
use quell_linux::af_xdp::XdpSocketStats;
use quell_sampler::{PollsByPoller, XdpHook};
use quell_stats::LatencyHistogram;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The queue of a socket, as the kernel reports it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct XdpQueue {
    pub device: String,
    pub queue: u32,
    pub hook: XdpHook,
    /// Whether the device writes into the socket's memory. Otherwise the kernel copies.
    pub zero_copy: bool,
    /// NAPI ID of the socket (`SO_INCOMING_NAPI_ID`). Null if it is 0: such a socket cannot busy poll.
    pub socket_napi: Option<NapiId>,
    /// NAPI ID of the queue. On a veth, which does not report it, that at the queue's position.
    pub napi: Option<NapiId>,
    /// Whether the queue defers interrupts (`defer-hard-irqs` and `gro-flush-timeout` are set), which preferred busy polling
    /// needs. Null if the kernel does not report it.
    pub defers: Option<bool>,
}

/// CPU time of a thread in the measured window.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct XdpCpu {
    /// Task of the thread: `receiver`, `sender` or `poller`.
    pub thread: String,
    /// CPU to which the thread is pinned.
    pub cpu: Option<u32>,
    /// Run time in ns.
    pub run_ns: u64,
    /// Time in ns that the thread was runnable while another task used its CPU.
    pub wait_ns: u64,
}

/// Outcome of the requests of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct XdpLoadReport {
    pub queue: XdpQueue,
    /// Length of the measured window, in ns.
    pub duration_ns: u64,
    /// Requests that were due in the window and sent.
    pub sent: u64,
    /// Requests that were due in the window and not sent: the device was down or too slow, or this program was.
    pub never_sent: u64,
    /// Requests of the window whose response arrived.
    pub answered: u64,
    /// `answered` per second.
    pub answered_per_s: f64,
    /// Requests of the window without a response. The program waits for 200 ms after the last request.
    pub lost: u64,
    /// Open loop: answered requests whose response arrived after the next request was due.
    pub late: u64,
    /// Responses to requests that have one already, or that were given up.
    pub unexpected: u64,
    /// Frames that are not a valid response: wrong length, checksum, address or number.
    pub invalid: u64,
    /// Time from when a request was due until the program has its response.
    pub latency: LatencyHistogram,
    /// Time from the send until the program has the response.
    pub latency_from_send: LatencyHistogram,
    /// Open loop: time from when a request was due to its send, the lateness of this program.
    pub lateness: LatencyHistogram,
    /// Open loop: requests that were sent at most [`XdpLoadReport::ON_TIME`] after they were due.
    pub on_time: u64,
    /// Durations of the receive calls, if they were to be measured.
    pub receive_calls: Option<LatencyHistogram>,
    /// CPU time of each thread. Empty if /proc could not be read.
    pub cpu: Vec<XdpCpu>,
    /// Polls of the queue in the window, by who polled. Null if they could not be sampled.
    pub polls: Option<PollsByPoller>,
    /// Why polls were not sampled.
    pub polls_missing: Option<String>,
    /// System calls in the window by which the program received and polled: `recvfrom`, `poll`, `io_uring_enter`.
    #[serde(default)]
    pub system_calls: u64,
    /// Drops of the socket since it was opened. Null if they could not be read.
    pub socket: Option<XdpSocketStats>,
}

impl XdpLoadReport {
    /// Lateness up to which a request counts as sent on time.
    pub const ON_TIME: Duration = Duration::from_micros(10);

    /// Whether more than 1 % of the requests were sent later than [`Self::ON_TIME`], so that latencies from the intended send
    /// contain the lateness of this program.
    #[must_use]
    pub fn was_late(&self) -> bool {
        !self.lateness.is_empty() && (self.on_time as f64) < 0.99 * (self.sent + self.never_sent) as f64
    }
}
