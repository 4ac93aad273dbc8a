//! Runs distribution kernels under QEMU's software emulation. Kernels are fetched, unpacked and booted with this
//! program as init. Any Quell command therefore runs on any kernel, with real interrupts and without privileges. The
//! caller decides what to measure. Nothing here prints.
//!
//! [`store`] holds the kernels and [`debian`] fetches them. [`machine`] boots a kernel and receives messages. [`guest`]
//! runs as process 1 and sends messages. [`nic`] makes the guest's two NICs the ends of a wire.

#![forbid(unsafe_code)]

pub mod debian;
mod elf_trim;
#[cfg(any(fuzzing, test))]
pub mod fuzzing;
pub mod guest;
mod initramfs;
mod kernel_image;
mod kernel_name;
pub mod machine;
mod machine_error;
pub mod message;
mod modules;
pub mod nic;
mod program;
pub mod store;

pub use kernel_name::{Flavour, InvalidKernelName, KernelName};
