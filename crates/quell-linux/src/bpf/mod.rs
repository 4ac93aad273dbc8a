//! Quell's BPF programs: counters at tracepoints for NAPI polls and epoll waits, and an XDP program that replaces a
//! server in benchmarks. The programs are assembled at run time, so the machine needs neither a compiler nor tracefs.
//! This is not a general BPF library.
//!
//! These programs need no BPF loader crate. Larger ones are written in C and loaded by `aya`: see `quell-sampler`, which
//! uses the BTF reader of this module, because that loader cannot look up an enumerator.

mod assembler;
mod btf;
mod counter;
mod epoll_wait_counter;
mod napi_poll_counter;
mod napi_poll_program;
mod syscall;
mod xdp_echo;
mod xdp_echo_program;

pub use btf::{Btf, BtfError};
pub use counter::CounterError;
pub use epoll_wait_counter::{EpollWaitCounter, EpollWaits};
pub use napi_poll_counter::{NapiPollCounter, NapiPolls};
pub use xdp_echo::{VethSide, XdpEcho, XdpEchoError};
