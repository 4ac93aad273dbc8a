//! Configuration of a load and of a responder, checked before anything is opened.

use std::net::SocketAddr;

use quell_linux::af_xdp::CopyMode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::XdpError;
use crate::request::HEADER_BYTES;

/// Who polls the queue for the frames of an AF_XDP socket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "args", derive(clap::ValueEnum))]
pub enum PollWay {
    /// Softirq after an interrupt.
    #[default]
    Interrupts,
    /// The receiving thread, with `SO_PREFER_BUSY_POLL` and `recvfrom`.
    BusyPoll,
    /// A second thread, with `SO_PREFER_BUSY_POLL` and `recvfrom`; the receiving thread watches the RX ring.
    BusyPollThread,
    /// The kernel thread of the queue's NAPI instance (`threaded`).
    NapiThread,
    /// The kernel thread of the queue's NAPI instance, which polls without end (Linux 6.19).
    ThreadedBusyPoll,
    /// The receiving thread, with `SO_PREFER_BUSY_POLL` and `recv` of a UDP socket that has received from the queue: a
    /// substitute for `busy-poll` with the same kind of call, for loads.
    UdpBusyPoll,
    /// A second thread, in the same way: a substitute for `busy-poll-thread`.
    UdpBusyPollThread,
    /// The receiving thread, with an io_uring that polls the queue's NAPI ID: a substitute for `busy-poll` where the
    /// socket has no NAPI ID.
    IoUring,
    /// A second thread, with an io_uring that polls the queue's NAPI ID: a substitute for `busy-poll-thread`.
    IoUringThread,
}

impl PollWay {
    /// Name in documents and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Interrupts => "interrupts",
            Self::BusyPoll => "busy-poll",
            Self::BusyPollThread => "busy-poll-thread",
            Self::NapiThread => "napi-thread",
            Self::ThreadedBusyPoll => "threaded-busy-poll",
            Self::UdpBusyPoll => "udp-busy-poll",
            Self::UdpBusyPollThread => "udp-busy-poll-thread",
            Self::IoUring => "io-uring",
            Self::IoUringThread => "io-uring-thread",
        }
    }

    /// Whether a thread of this process polls beside the one that receives.
    #[must_use]
    pub fn has_thread(self) -> bool {
        matches!(self, Self::BusyPollThread | Self::UdpBusyPollThread | Self::IoUringThread)
    }

    /// Whether the kernel polls by itself, so that the program can sleep until frames arrive.
    #[must_use]
    pub fn is_the_kernels(self) -> bool {
        matches!(self, Self::Interrupts | Self::NapiThread | Self::ThreadedBusyPoll)
    }

    /// Whether the receiving thread polls, each time that the RX ring is empty.
    #[must_use]
    pub fn is_inline(self) -> bool {
        matches!(self, Self::BusyPoll | Self::UdpBusyPoll | Self::IoUring)
    }

    /// Whether the program polls by the NAPI ID of a UDP socket.
    #[must_use]
    pub fn is_of_udp(self) -> bool {
        matches!(self, Self::UdpBusyPoll | Self::UdpBusyPollThread)
    }

    /// Whether the program polls by the NAPI ID of the socket.
    #[must_use]
    pub fn is_the_sockets(self) -> bool {
        matches!(self, Self::BusyPoll | Self::BusyPollThread)
    }
}

/// A socket and how it is polled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct XdpSpec {
    /// Receive and transmit queue of the device.
    pub queue: u32,
    /// Entries of each ring: a power of two from 64 to [`XdpSpec::RING_MAX`].
    pub ring_entries: u32,
    /// Maximum number of frames that are received before responses are published, 1 to `ring_entries`.
    pub batch: u32,
    pub copy_mode: CopyMode,
    /// Whether the kernel tells when it needs a kick (`XDP_USE_NEED_WAKEUP`).
    pub need_wakeup: bool,
    pub way: PollWay,
    /// Ways in which the kernel polls: watch the RX ring instead of sleeping in `poll`.
    pub spin: bool,
    /// `SO_BUSY_POLL` in µs, at least 1.
    pub busy_poll_us: u32,
    /// `SO_BUSY_POLL_BUDGET` in packets, 1 to 64.
    pub busy_poll_budget: u16,
    /// CPU of the thread that polls, if the way has one. Null: not pinned.
    pub poll_cpu: Option<u32>,
    /// CPUs of the other threads: the receiver's, then the sender's. If there are fewer, the list repeats. Empty: not
    /// pinned.
    pub cpus: Vec<u32>,
    /// Priority of the threads under `SCHED_FIFO`, 1 to 99. Null: the class and priority of the caller. Other programs
    /// get little of a CPU on which such a thread spins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fifo_priority: Option<u32>,
    /// Measure each receive call of the ways in which the receiving thread polls ([`PollWay::is_inline`]).
    pub time_calls: bool,
}

impl Default for XdpSpec {
    /// Queue 0, rings of 2,048 entries, batches of 64, interrupts; busy polling as published: 400 µs (one poll, because
    /// `recvfrom` does not wait), 64 packets.
    fn default() -> Self {
        Self {
            queue: 0,
            ring_entries: 2_048,
            batch: 64,
            copy_mode: CopyMode::Auto,
            need_wakeup: true,
            way: PollWay::Interrupts,
            spin: false,
            busy_poll_us: 400,
            busy_poll_budget: 64,
            poll_cpu: None,
            cpus: Vec::new(),
            fifo_priority: None,
            time_calls: false,
        }
    }
}

impl XdpSpec {
    pub const RING_MAX: u32 = 32_768;

    pub(crate) fn check(&self) -> Result<(), XdpError> {
        if !self.ring_entries.is_power_of_two() || !(64..=Self::RING_MAX).contains(&self.ring_entries) {
            return refuse(
                "ring",
                format!("{} is not a power of two from 64 to {}", self.ring_entries, Self::RING_MAX),
            );
        }
        within("batch", self.batch, 1, self.ring_entries)?;
        if let Some(priority) = self.fifo_priority {
            within("fifo-priority", priority, 1, 99)?;
        }
        within("busy-poll-us", self.busy_poll_us, 1, i32::MAX as u32)?;
        within("busy-poll-budget", self.busy_poll_budget.into(), 1, 64)?;
        if self.spin && !self.way.is_the_kernels() {
            return refuse(
                "spin",
                "applies to ways in which the kernel polls; in the others, the program never sleeps",
            );
        }
        if self.poll_cpu.is_some() && !self.way.has_thread() {
            return refuse("poll-cpu", "applies to the ways with a thread that polls");
        }
        if self.time_calls && !self.way.is_inline() {
            return refuse("time-calls", "applies to the ways in which the receiving thread polls");
        }
        Ok(())
    }

    /// CPU of the thread with this number.
    pub(crate) fn cpu(&self, thread: usize) -> Option<u32> {
        (!self.cpus.is_empty()).then(|| self.cpus[thread % self.cpus.len()])
    }
}

/// A load through one socket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct XdpLoadSpec {
    pub server: SocketAddr,
    pub socket: XdpSpec,
    pub schedule: XdpSchedule,
    /// Payload of a request and of its response, in bytes: from 16 to [`XdpLoadSpec::BYTES_MAX`].
    pub bytes: u32,
    /// Time that the receiving thread works after each response, in µs: the processing time of an application.
    pub delay_us: f64,
    /// Warm-up before the measured time, in ms.
    pub warm_up_ms: u32,
    /// Measured time, in ms, at least 1.
    pub measure_ms: u32,
}

/// When requests are sent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum XdpSchedule {
    /// By a thread of its own, at a fixed period that does not depend on responses.
    Open {
        /// Time between two requests, in ns, from 500 to one second.
        period_ns: f64,
    },
    /// The receiving thread keeps this number of requests outstanding, 1 to the entries of a ring.
    Closed { depth: u32 },
}

impl XdpLoadSpec {
    /// Largest payload whose frame fits an MTU of 1,500 bytes with IPv6.
    pub const BYTES_MAX: u32 = 1_452;

    pub fn check(&self) -> Result<(), XdpError> {
        self.socket.check()?;
        within("request-bytes", self.bytes, HEADER_BYTES as u32, Self::BYTES_MAX)?;
        within("seconds", self.measure_ms, 1, u32::MAX)?;
        if !(0.0..=1e6).contains(&self.delay_us) {
            return refuse("delay-us", format!("{} is not from 0 to 1,000,000", self.delay_us));
        }
        match self.schedule {
            XdpSchedule::Open { period_ns } if !(500.0..=1e9).contains(&period_ns) => {
                refuse("rate", "is not from 1 to 2,000,000 requests per second")
            }
            XdpSchedule::Closed { depth } => within("depth", depth, 1, self.socket.ring_entries),
            XdpSchedule::Open { .. } => Ok(()),
        }
    }
}

fn within(field: &'static str, value: u32, low: u32, high: u32) -> Result<(), XdpError> {
    if (low..=high).contains(&value) {
        return Ok(());
    }
    refuse(field, format!("{value} is not from {low} to {high}"))
}

fn refuse(field: &'static str, problem: impl Into<String>) -> Result<(), XdpError> {
    Err(XdpError::Spec { field, problem: problem.into() })
}
