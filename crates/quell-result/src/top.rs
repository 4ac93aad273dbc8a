//! Reports of `quell top`: what happened on the queues and in the programs during an interval; and a recording, which
//! is many of them.

use std::collections::BTreeSet;

use quell_host::attach::effect::ModeVerdict;
use quell_host::attach::payoff::ModePayoff;
use quell_linux::proc::ProcRoot;
use quell_linux::sched::SchedError;
use quell_linux::{NapiId, Pid, clock};
use quell_mode::{EpollParams, PartialNapiSettings};
use quell_sampler::{QueueSample, Unsampled};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Document;
use crate::document::header_and_lines;
use crate::facts::HostFacts;

/// What happened on the queues during one interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct IntervalReport {
    /// `quell-top/1`.
    pub schema: String,
    /// End of the interval in wall-clock nanoseconds since 1970.
    pub unix_ns: u64,
    /// Length of the interval in nanoseconds.
    pub interval_ns: u64,
    /// Reason why polls cannot be sampled; null if they are.
    pub polls_unknown: Option<String>,
    /// NAPI instances of the devices, by device.
    pub queues: Vec<ObservedQueue>,
    /// Devices with NAPI instances.
    pub devices: Vec<ObservedDevice>,
    /// Programs with sockets on these instances, in ascending order of process ID.
    pub programs: Vec<ObservedProgram>,
    /// Idle states that the CPUs entered, from the lightest to the deepest. Empty without a cpuidle driver.
    pub idle_states: Vec<ObservedIdleState>,
    /// Number of processes whose files the reader may not access, so that it is unknown whether they have sockets.
    pub hidden_processes: usize,
}

impl IntervalReport {
    /// Packets per second from the queues of these programs; absent if one of the queues was not sampled.
    #[must_use]
    pub fn packets_per_s(&self, pids: &[Pid]) -> Option<u64> {
        let programs = self.programs.iter().filter(|program| pids.contains(&program.pid));
        let napis: BTreeSet<NapiId> = programs.flat_map(|program| program.napis.iter().copied()).collect();
        let packets = |napi| Some(self.queues.iter().find(|queue| queue.napi == napi)?.sample?.packets);
        let packets = napis.into_iter().map(packets).sum::<Option<u64>>()?;
        (self.interval_ns > 0).then(|| (packets as f64 * 1e9 / self.interval_ns as f64).round() as u64)
    }
}

impl Document for IntervalReport {
    const SCHEMA: &'static str = "quell-top/1";
}

/// An idle state, over all CPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ObservedIdleState {
    /// Name from the cpuidle driver.
    pub name: String,
    /// Number of times that CPUs entered it during the interval.
    pub entered: u64,
}

/// A network device. `rx-dropped` and `tx-dropped` are those of `/proc/net/dev`: `rx-dropped` includes frames that no
/// protocol wanted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ObservedDevice {
    /// Inode of its network namespace.
    pub namespace: u64,
    pub name: String,
    /// Received packets that were dropped during the interval: `rx_dropped` and `rx_missed_errors`. Null if it cannot be
    /// read.
    pub rx_dropped: Option<u64>,
    /// Packets for the device that were lost because a receive queue was full; on veth, the `tx_dropped` of the peer. Null
    /// if it cannot be read.
    pub rx_queue_dropped: Option<u64>,
    /// Packets that were dropped on transmit, likewise.
    pub tx_dropped: Option<u64>,
}

/// One NAPI instance.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ObservedQueue {
    /// Inode of the network namespace of its device.
    pub namespace: u64,
    pub device: String,
    /// Its receive queues, in ascending order.
    pub rx_queues: Vec<u32>,
    pub napi: NapiId,
    /// Its settings at the latest snapshot, as far as they can be read.
    #[serde(default)]
    pub settings: PartialNapiSettings,
    /// Interrupts during the interval; null if the instance has none, or it cannot be counted.
    pub interrupts: Option<u64>,
    /// CPU time of its NAPI thread during the interval, in nanoseconds; null without such a thread.
    pub thread_ns: Option<u64>,
    /// Its polls during the interval; null if polls cannot be sampled.
    pub sample: Option<QueueSample>,
    /// Why this instance is not sampled although others are; null otherwise.
    pub unsampled: Option<Unsampled>,
    /// Whether a poll during the interval found packets after 50 ms or more without a poll, with the interrupt masked.
    /// Null without samples.
    pub stalled: Option<bool>,
}

impl ObservedQueue {
    /// CPU time of the polls by softirqs and by the NAPI thread, in nanoseconds. Polls of programs are in the CPU time of
    /// the programs. Absent if a part is unknown.
    #[must_use]
    pub fn cpu_ns(&self) -> Option<u64> {
        let sample = self.sample?;
        let thread_ns = if sample.polls.thread > 0 { self.thread_ns? } else { self.thread_ns.unwrap_or(0) };
        Some(sample.softirq_ns? + thread_ns)
    }
}

/// One program.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ObservedProgram {
    pub pid: Pid,
    /// Name of its main thread.
    pub name: String,
    /// Systemd service or scope that contains it; null without one, and if it cannot be read.
    pub unit: Option<String>,
    /// UID of the Kubernetes pod that contains it; null outside of pods.
    #[serde(default)]
    pub pod: Option<String>,
    /// First twelve digits of the ID of its container; null outside of containers.
    #[serde(default)]
    pub container: Option<String>,
    /// NAPI instances that its sockets last received packets from, in ascending order.
    pub napis: Vec<NapiId>,
    /// Busy-poll parameters of its epolls at the latest snapshot, in ascending order of the parameters.
    #[serde(default)]
    pub epolls: Vec<ObservedEpolls>,
    /// What its AF_XDP sockets lost; null without such sockets.
    #[serde(default)]
    pub xdp: Option<ObservedXdp>,
    /// CPU time of its threads divided by wall-clock time, between the two latest snapshots; 1 is one CPU. Null before
    /// the second snapshot, and if a counter cannot be read.
    pub cpus: Option<f64>,
    /// CPU time of its threads per packet of its instances in nanoseconds, between the two latest snapshots. Null without
    /// packets, and if other programs use these instances or may do so: the scope is limited to processes, processes are
    /// hidden, or an instance was not sampled from one snapshot to the other.
    pub cpu_ns_per_packet: Option<f64>,
    /// User and system time of the process since it started, in nanoseconds, with that of threads that exited. Its unit is
    /// the kernel's clock tick, usually 10 ms. Null if it cannot be read.
    pub cpu_ns: Option<u64>,
    /// Mode that `quell attach` or `quell run` applied; null without one, and if the journals cannot be read.
    pub mode: Option<String>,
    /// The attached process that it descends from, or itself: one for all workers of a server. Null without a mode.
    #[serde(default)]
    pub root: Option<RootProgram>,
    /// Whether that mode is in effect on the program's queues: "not in effect" if it is not on one of them, or if the
    /// process started after the attachment and its epolls or sockets lack the mode. Null without a mode or without samples.
    pub effect: Option<ModeVerdict>,
    /// Whether that mode pays, over the same queues; null likewise.
    #[serde(default)]
    pub payoff: Option<ModePayoff>,
    /// Number of settings of that mode that no longer have the applied value, or whose queue is missing, at the latest
    /// snapshot. Null without a mode, and if a setting cannot be read.
    pub drifted: Option<usize>,
    /// Parts of that mode that are not applied, at the latest snapshot. Null without a mode.
    pub skipped: Option<Vec<SkippedPart>>,
}

/// First process of a program that a mode was applied to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct RootProgram {
    pub pid: Pid,
    pub name: String,
}

/// Epolls of a program that have the same parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ObservedEpolls {
    pub params: EpollParams,
    pub count: usize,
}

/// Losses of the AF_XDP sockets of a program (`XDP_STATISTICS`), at the latest snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ObservedXdp {
    pub sockets: usize,
    /// Frames that were dropped since the sockets were opened: `rx_dropped` and `rx_ring_full`.
    pub dropped: u64,
    /// Times that the kernel found the fill ring empty. In copy mode, each is one of the dropped frames.
    pub fill_ring_empty: u64,
    /// Frames dropped per second between the two latest snapshots. Null before the second, and if sockets were opened or
    /// closed in between.
    pub dropped_per_s: Option<f64>,
}

/// A part of a mode that is not applied.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct SkippedPart {
    /// NAPI instance; null if the part is no queue.
    pub napi: Option<NapiId>,
    pub reason: SkipReason,
}

/// Why a part of a mode is not applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SkipReason {
    /// The attachment has not set the queue: a socket received from it only later.
    QueueNotSet,
    /// The epoll has other parameters: they were changed, or it was created after the attachment.
    EpollNotSet,
    /// The sockets do not busy poll: they were changed, or created after the attachment.
    PollingNotSet,
    /// An AF_XDP socket has no NAPI ID, so it cannot busy poll.
    CannotBusyPoll,
    /// A socket receives from a NAPI instance of no visible device.
    UnknownQueue,
    /// The queue keeps its NAPI thread, which the mode does not use.
    NapiThreadRemains,
    /// The program has no epoll with network sockets.
    NoEpoll,
    /// An epoll watches the sockets that should busy poll, and `epoll_wait` ignores `SO_BUSY_POLL`.
    WatchedByEpoll,
    /// The program receives through AF_XDP or io_uring, which do not suspend interrupts.
    NotSuspended,
    /// The mode limits the sleep in `epoll_wait`, which only the preload library of `quell run` can do.
    EpollWaitUnlimited,
    /// Another part, which `quell attach --dry-run` describes.
    Other,
}

impl SkipReason {
    /// Whether an epoll or sockets of the process itself lack the mode.
    #[must_use]
    pub fn is_unset(self) -> bool {
        matches!(self, Self::EpollNotSet | Self::PollingNotSet)
    }

    /// The reason as a word of JSON and of labels.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::QueueNotSet => "queue-not-set",
            Self::EpollNotSet => "epoll-not-set",
            Self::PollingNotSet => "polling-not-set",
            Self::CannotBusyPoll => "cannot-busy-poll",
            Self::UnknownQueue => "unknown-queue",
            Self::NapiThreadRemains => "napi-thread-remains",
            Self::NoEpoll => "no-epoll",
            Self::WatchedByEpoll => "watched-by-epoll",
            Self::NotSuspended => "not-suspended",
            Self::EpollWaitUnlimited => "epoll-wait-unlimited",
            Self::Other => "other",
        }
    }
}

/// First line of a recording.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct RecordingHeader {
    /// `quell-recording/1`.
    pub schema: String,
    /// Version of Quell that made the recording.
    pub quell_version: String,
    /// Start of the recording, in seconds since 1970-01-01 UTC.
    pub started_unix_s: u64,
    pub host: HostFacts,
}

impl RecordingHeader {
    /// Header of a recording that begins now, on this host.
    pub fn begin() -> Result<Self, SchedError> {
        Ok(Self {
            schema: TopRecording::SCHEMA.to_owned(),
            quell_version: env!("CARGO_PKG_VERSION").to_owned(),
            started_unix_s: clock::realtime_ns() / 1_000_000_000,
            host: HostFacts::read(&ProcRoot::default())?,
        })
    }
}

/// Recording of `quell top`: lines of JSON, first the header, then one report on each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct TopRecording {
    /// The first line.
    #[serde(flatten)]
    pub header: RecordingHeader,
    /// The other lines. A line that was written in part is not a report.
    #[serde(default)]
    pub reports: Vec<IntervalReport>,
}

impl Document for TopRecording {
    const SCHEMA: &'static str = "quell-recording/1";

    fn from_json(text: &str) -> serde_json::Result<Self> {
        let (mut recording, reports): (Self, Vec<IntervalReport>) = header_and_lines(text)?;
        recording.reports.extend(reports);
        Ok(recording)
    }
}
