//! An XDP program that replaces a server in benchmarks, and a reader of the kernel's BTF. The program is assembled at run
//! time, so the machine needs no compiler. This is not a general BPF library.
//!
//! The programs that sample polls are written in C and loaded by `aya`: see `quell-sampler`. It uses the BTF reader of this
//! module, because that loader cannot look up an enumerator of an anonymous enum.

mod assembler;
mod btf;
mod syscall;
mod xdp_echo;
mod xdp_echo_program;

pub use btf::{Btf, BtfError};
pub(crate) use syscall::{load_socket_filter, open_pinned_program, open_program, pin};
pub use xdp_echo::{VethSide, XdpEcho, XdpEchoError};
