//! Compares delivery modes: labs, the server under test, and subjects of experiments. [`run::run`] measures a server in
//! a lab. [`subjects`] answer a [`question::Question`]. [`experiment::model::run_model`] simulates a server.
//! [`replay`] plays published experiments. This crate prints nothing.

#![forbid(unsafe_code)]

pub mod bench_load;
pub mod beside;
pub mod checks;
pub mod counters;
pub mod cpus;
pub mod disturbance;
pub mod experiment;
pub mod extent;
pub mod lab;
pub mod other_programs;
pub mod question;
pub mod replay;
pub mod requirements;
pub mod run;
pub mod server;
pub mod subjects;
pub mod unsuitable;
pub mod vm;
