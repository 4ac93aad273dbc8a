//! Presentation: tables, sentences, progress. The results come from the library crates.

pub(crate) mod advice;
pub(crate) mod attach;
pub(crate) mod client_load;
pub(crate) mod conclusion;
pub(crate) mod conformance;
pub(crate) mod doctor;
pub(crate) mod document;
pub(crate) mod experiment;
pub(crate) mod explanation;
mod guest;
pub(crate) mod launch;
pub(crate) mod load_report;
pub(crate) mod measured;
pub(crate) mod payoff;
pub(crate) mod plan_tree;
pub(crate) mod program_arguments;
pub(crate) mod published;
mod recording;
pub(crate) mod results;
pub(crate) mod reverted;
pub(crate) mod servers;
mod show_device;
mod show_names;
mod show_process;
pub(crate) mod show_tree;
pub(crate) mod sim_rows;
pub(crate) mod status;
pub(crate) mod timeline;
pub(crate) mod top;
mod tree;
pub(crate) mod tune;
pub(crate) mod xdp;
pub(crate) mod xsk_rows;

pub(crate) use quell_cli::{number, progress, terminal};
