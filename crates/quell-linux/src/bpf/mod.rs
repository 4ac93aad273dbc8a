//! What Quell asks of BPF: counting the polls of chosen NAPIs at the kernel's tracepoint, by a
//! program assembled here, so that neither a compiler nor tracefs is needed on the machine. It is no
//! general BPF library.
//!
//! Own code rather than a loader crate: those start from an object file that clang made, and do not
//! open their reader of the kernel's types (BTF) for looking up a member's offset.

mod assembler;
mod btf;
mod napi_poll_counter;
mod napi_poll_program;
mod syscall;

pub use btf::{Btf, BtfError};
pub use napi_poll_counter::{NapiPollCounter, NapiPollError, NapiPolls};
