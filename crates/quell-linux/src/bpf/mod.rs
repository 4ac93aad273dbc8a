//! What Quell asks of BPF: counting at tracepoints, the polls of chosen NAPIs and the waits of chosen
//! processes, and an XDP program that stands for a server in benchmarks; all assembled here, so that
//! neither a compiler nor tracefs is needed on the machine. It is no general BPF library.
//!
//! Own code rather than a loader crate: those start from an object file that clang made, and do not
//! open their reader of the kernel's types (BTF) for looking up a member's offset.

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
