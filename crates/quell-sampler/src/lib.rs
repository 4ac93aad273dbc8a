//! Samples the polls of NAPI instances in the kernel: who polls, how many packets, how long the packets can have waited
//! in the ring. [`Sampler`] loads the BPF programs of `bpf/sampler.bpf.c` and reads their counters; [`WaitSampler`] those
//! of `bpf/waits.bpf.c`, which count the waits of programs. [`group_programs`] lists the programs of reuseport groups,
//! [`xdp_bindings`] the queues of AF_XDP sockets. These only observe. [`XdpRedirect`] gives frames to an AF_XDP socket,
//! [`XdpEcho`] answers requests for benchmarks and tests. Everything else is pure.
//!
//! The programs are C with CO-RE, the language of this field. Their objects are committed, so that a build needs no clang
//! (`make bpf` rebuilds it, `make lint` compares). `aya` loads it: unlike `libbpf-rs` it needs no C library (libelf,
//! zlib), which matters for a static binary.

#![forbid(unsafe_code)]

mod counters;
mod iterator;
mod reuseport;
mod sampler;
mod wait;
mod waits;
mod xdp_echo;
mod xdp_redirect;
mod xdp_sockets;

pub use counters::{PollCounters, PollsByPoller, QueuePoller, QueueSample};
pub use reuseport::{GroupProgram, GroupPrograms, group_programs};
pub use sampler::{Sampler, SamplerError, Unsampled};
pub use wait::{STALLED_NS, WaitBounds};
pub use waits::{WaitCounts, WaitKey, WaitPlace, WaitSampler};
pub use xdp_echo::{VethSide, XdpEcho};
pub use xdp_redirect::{XdpHook, XdpRedirect, XdpRedirectError};
pub use xdp_sockets::{XdpBinding, XdpBindings, xdp_bindings};
