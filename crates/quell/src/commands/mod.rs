//! One file a command: it reads its options, calls the crate that does the work, and hands the answer to `render`.

pub(crate) mod apply;
pub(crate) mod attach;
pub(crate) mod bench;
pub(crate) mod conformance;
pub(crate) mod doctor;
pub(crate) mod lab;
pub(crate) mod load;
mod picture_scope;
mod placement_args;
pub(crate) mod respond;
pub(crate) mod run;
pub(crate) mod show;
pub(crate) mod sim;
pub(crate) mod status;
pub(crate) mod vm;
pub(crate) mod vm_commands;
