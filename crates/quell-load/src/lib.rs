//! The request generator and the plain responder: request protocols, arrival processes, the hot loop, and recording.
//! This crate enters network namespaces and reads NAPI settings. It creates no namespaces, changes no NAPI settings,
//! and prints nothing.
//!
//! An open loop sends at times that do not depend on answers, and measures latency from when a request was *due*. A
//! stalled server therefore cannot hide its stall by delaying requests (coordinated omission). A closed loop keeps
//! every connection busy: each response is followed by the next request at once. It measures the server's maximum
//! throughput.

#![forbid(unsafe_code)]

#[cfg(feature = "args")]
pub mod args;
mod arrivals;
pub mod clients;
pub mod cluster_run;
mod connection;
mod distribution;
mod drive;
mod error;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod generator;
mod http;
mod key_table;
mod random;
mod redis;
mod report;
mod requests;
mod responder;
mod response;
mod spec;
mod worker;

pub use distribution::{Distribution, DistributionError};
pub use error::LoadError;
pub use generator::{Generator, RunObserver, RunProgress, RunningLoad};
pub use quell_mode::OfferedLoad;
pub use report::{Engine, EngineUsed, ErrorCounts, GeneratorCpu, LoadReport, is_backlog};
pub use responder::{Responder, ResponderSpec, ResponderStats, ServeShape};
pub use spec::{HttpGet, KeyValues, LoadSpec, Polling, RequestResponse, RunSpec, Schedule, Transport, Workload};
