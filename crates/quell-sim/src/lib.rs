//! A deterministic model of the kernel's packet delivery in virtual time. It covers interrupts, NAPI, deferral, timers,
//! busy polling, suspension, threads and epoll, with the kernel's states and names. The costs of its CPUs are physical
//! constants of a host. A run uses no I/O, no wall clock and no threads, so its result is identical on every machine.
//!
//! | item | what it simulates |
//! | --- | --- |
//! | [`Run`] | a server under a load |
//! | [`sweep`] | modes and loads on one host, in parallel |
//! | [`sweep_file`] | files that list the points of a sweep |
//! | [`scenario`] | a few packets and programs, event by event, for conformance tests |
//! | [`explain`] | a request and a busy period under a mode, step by step, in sentences |
//! | [`XskRoundTrips`] | two AF_XDP hosts that exchange packets |
//!
//! ```
//! use quell_sim::HostProfile;
//! use quell_sim::sweep::{Point, Setup};
//!
//! let host = HostProfile::shipped("epyc7662-cx5")?;
//! let setup = Setup { warm_up_ns: 1_000_000, measured_ns: 2_000_000, ..Setup::new(host) };
//! let row = setup.row(&Point { mode: "suspend20".parse()?, load: "600K".parse()?, seed: 1 })?;
//! assert!(row.figures.cpu_pct < 100.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![deny(missing_docs)]
#![forbid(unsafe_code)]

mod engine;
pub mod explain;
mod figures;
mod host;
mod mechanism;
mod poll_counter;
mod run;
pub mod scenario;
mod server;
pub mod sweep;
pub mod sweep_file;
mod trace;
mod workload;
mod world;
mod xsk_rr;

pub use engine::Ns;
pub use figures::{Column, Figures};
pub use host::{CONSTANTS, Constant, Constants, HostProfile, HostProfileError, IdleState, Value};
pub use mechanism::{CoalescingPeriod, NapiState, Packet, PacketKind, PacketSizes, SimCoalescing, StoredValues};
pub use quell_mode::{InvalidLoad, Load};
pub use run::{ConnectionSpread, MessageSize, Run, RunError, RunResult};
pub use server::{Assignment, Epolls, ServerKind};
pub use trace::{Mark, Segment, TimelineEntry, TimelineSource, Trace};
pub use workload::RunScale;
pub use world::{Counters, CpuTime, KernelRules, ReadObserved, ScriptStep, SocketBusyPoll, TrafficKind, WaitObserved};
pub use xsk_rr::{InvalidXskPolling, XskFigures, XskHostFigures, XskPolling, XskResult, XskRoundTrips};
