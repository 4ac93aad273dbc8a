//! The `bpf(2)` commands for filters of reuseport groups, and a reader of the kernel's BTF. This is not a general BPF
//! library: programs are written in C and loaded by `aya`, see `quell-sampler`. It uses the BTF reader of this module,
//! because `aya` cannot look up an enumerator of an anonymous enum. `btf-rs` has another licence (LGPL), and `btf`
//! (0.5) needs 440 ms and 86 MB for the types of a kernel, of which three values are wanted.

mod btf;
mod syscall;

pub use btf::{Btf, BtfError};
pub(crate) use syscall::{load_socket_filter, open_pinned_program, open_program, pin};
