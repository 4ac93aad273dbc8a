//! Runs distribution kernels under QEMU's software emulation. The crate fetches and unpacks a kernel, and boots it with
//! this program as init. Any Quell command can therefore run on any kernel, with real interrupts and without
//! privileges. The caller decides what to measure. This crate prints nothing.
//!
//! [`store`] stores the kernels and [`debian`] fetches them. [`machine`] boots a kernel and receives messages.
//! [`guest`] runs as process 1 and sends messages. [`nic`] configures the guest's two NICs as the two ends of a link.

#![forbid(unsafe_code)]

pub mod debian;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
pub mod guest;
mod initramfs;
mod kernel_name;
pub mod machine;
mod machine_error;
pub mod message;
mod modules;
pub mod nic;
mod program;
pub mod store;

pub use kernel_name::{Flavour, InvalidKernelName, KernelName};
