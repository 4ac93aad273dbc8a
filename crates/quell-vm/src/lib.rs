//! Distribution kernels under QEMU's software emulation: fetched, unpacked, booted with this very program as their
//! first process, so that any command of it runs on any kernel, with real interrupts and without privileges. What is
//! measured in there is the caller's; nothing is printed.
//!
//! [`store`] keeps the kernels, [`debian`] fetches them, [`machine`] boots one and listens, [`guest`] is what runs as
//! process 1 inside and speaks, [`nic`] makes its two NICs two ends of a wire.

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
