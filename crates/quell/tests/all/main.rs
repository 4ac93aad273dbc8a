//! Tests of quell from outside, in one binary: each binary costs seconds of linking and tens of megabytes.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "helpers of tests fail by panicking"
)]

mod ansible;
mod apply_on_the_kernel;
mod attach_on_the_kernel;
mod attach_to_receivers;
mod bench_command_on_the_kernel;
mod bench_on_the_kernel;
mod cli;
mod command;
mod completion;
mod doctor_over_ssh;
mod export_on_the_kernel;
mod export_rules;
mod fuzz_corpus;
mod hostile_names;
mod kubernetes;
mod live;
mod load_and_respond;
mod logs;
mod narrow_terminals;
mod packages;
mod predicted_stalls_on_the_kernel;
mod programs_on_the_kernel;
mod published_schemas;
mod refusals;
mod repository_floors;
mod results;
mod run;
mod selected_programs;
mod servers;
mod show_unprivileged;
mod stalls_on_the_kernel;
mod sweep_resumes;
mod systemd_unit;
mod top_on_a_terminal;
mod top_on_the_kernel;
mod userbusy_on_the_kernel;
mod vm;
mod vm_guests;
mod vm_kernels;
mod xdp_on_the_kernel;
