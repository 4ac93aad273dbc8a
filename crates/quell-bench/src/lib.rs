//! Which delivery mode wins: labs, the server under test, trials, the matrix of modes and loads, the result file, and
//! what can be said from it. [`run::run`] is the way in, [`model::run`] the one without a lab; [`plan`], [`cpus`], [`checks`], [`disturbance`], [`figure`] and
//! [`table`] decide, without touching anything; nothing here prints.

#![forbid(unsafe_code)]

pub mod checks;
pub mod counters;
pub mod cpus;
pub mod disturbance;
pub mod figure;
pub mod lab;
pub mod model;
pub mod offered_load;
pub mod plan;
pub mod requirements;
pub mod result;
pub mod run;
pub mod server;
pub mod settings;
pub mod table;
pub mod vm;

mod bench_load;
mod host_facts;
mod matrix;
