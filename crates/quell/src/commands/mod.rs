//! One module per command: it parses options, calls the library crate, and passes the result to `render`.

pub(crate) mod apply;
pub(crate) mod attach;
pub(crate) mod bench;
pub(crate) mod conformance;
pub(crate) mod doctor;
pub(crate) mod export;
pub(crate) mod lab;
pub(crate) mod load;
mod pace;
mod placement_args;
pub(crate) mod program_profiles;
pub(crate) mod programs_args;
pub(crate) mod report;
pub(crate) mod respond;
pub(crate) mod results;
pub(crate) mod run;
pub(crate) mod show;
pub(crate) mod sim;
mod snapshot_scope;
mod stalls;
pub(crate) mod status;
mod subject;
pub(crate) mod top;
pub(crate) mod tune;
pub(crate) mod vm;
pub(crate) mod vm_commands;
pub(crate) mod xdp;
