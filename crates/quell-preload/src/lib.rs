//! The library that a launched program gets by `LD_PRELOAD`: it stands before six functions of the C library and does in
//! the program what cannot be done from outside. What it does is decided by the launcher
//! ([`quell_preload_settings`]); without settings, or with some that it does not understand, it does nothing.
//!
//! It lives in programs of others: it allocates nothing, prints nothing, never panics, keeps nothing per thread, opens
//! nothing, and calls only what a signal handler and a child of `fork` may call.

#![cfg_attr(not(test), no_std)]

mod births;
pub mod interposed;
mod load;
mod waits;

use libc::c_int;

/// Nothing here panics; should that be wrong, the program ends rather than going on with half of a wait done.
#[cfg(all(not(test), panic = "abort"))]
#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: takes nothing and returns nothing.
    unsafe { libc::abort() }
}

/// The thread's `errno`.
fn errno() -> c_int {
    // SAFETY: the C library's pointer to this thread's own variable is always valid.
    unsafe { *libc::__errno_location() }
}

fn set_errno(value: c_int) {
    // SAFETY: as in `errno`.
    unsafe { *libc::__errno_location() = value }
}
