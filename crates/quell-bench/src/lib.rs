//! Compares delivery modes: labs, the server under test, trials, the matrix of modes and loads, the result file, and
//! the conclusions from it. [`run::run`] measures on a lab; [`model::run`] simulates. [`plan`], [`cpus`], [`checks`],
//! [`disturbance`], [`metric`] and [`table`] are pure. Nothing here prints.

#![forbid(unsafe_code)]

pub mod checks;
pub mod counters;
pub mod cpus;
pub mod disturbance;
pub mod experiment;
pub mod lab;
pub mod metric;
pub mod model;
pub mod offered_load;
pub mod plan;
pub mod requirements;
pub mod result;
pub mod run;
pub mod server;
pub mod table;
pub mod vm;

mod bench_load;
mod host_facts;
