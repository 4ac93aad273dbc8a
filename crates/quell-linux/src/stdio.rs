//! The standard output as this program got it. Rust's runtime opens `/dev/null` in place of a standard file that is closed,
//! before `main`: what is printed then is lost without an error. So it is looked at before the runtime does.

use std::sync::atomic::{AtomicBool, Ordering};

static STDOUT_IS_CLOSED: AtomicBool = AtomicBool::new(false);

extern "C" fn look() {
    // SAFETY: `fcntl` with F_GETFD reads the flags of a descriptor and takes no pointer. Nothing of Rust's runtime is used,
    // which is not up yet.
    let flags = unsafe { libc::fcntl(libc::STDOUT_FILENO, libc::F_GETFD) };
    STDOUT_IS_CLOSED.store(flags < 0, Ordering::Relaxed);
}

// SAFETY: the C library calls the functions of this section once, with arguments that one without parameters ignores,
// before `main` (System V ABI, "Initialization and Termination Functions").
#[used]
#[unsafe(link_section = ".init_array")]
static LOOK: extern "C" fn() = look;

/// Whether the standard output was closed when this program was started.
#[must_use]
pub fn stdout_was_closed() -> bool {
    STDOUT_IS_CLOSED.load(Ordering::Relaxed)
}
