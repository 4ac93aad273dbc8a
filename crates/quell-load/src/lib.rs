//! The request generator and the plain responder, as libraries: request protocols, arrival
//! processes, the hot loop, the recording. Network namespaces are entered and NAPI settings are
//! looked at, but neither is made or changed here, and nothing is printed.
//!
//! An open loop sends at moments that do not depend on answers and counts latency from the moment a
//! request was *due*: a server that stalls cannot hide it by keeping the generator from asking
//! (coordinated omission). A closed loop keeps every connection busy and finds what the server can do.

#![forbid(unsafe_code)]

mod arrivals;
mod connection;
mod distribution;
mod drive;
mod error;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
mod generator;
mod key_table;
mod random;
mod report;
mod requests;
mod responder;
mod response;
mod spec;
mod worker;

pub use distribution::{Distribution, DistributionError};
pub use error::LoadError;
pub use generator::{Generator, Progress, RunObserver};
pub use report::{Engine, EngineUsed, ErrorCounts, GeneratorCpu, LoadReport};
pub use responder::{Responder, ResponderSpec, ResponderStats, ServeShape};
pub use spec::{LoadSpec, Memcached, Polling, RequestResponse, RunSpec, Schedule, Transport, Workload};
