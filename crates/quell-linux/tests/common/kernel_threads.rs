//! Whether tests can name the kernel's threads, which a container cannot.

use quell_linux::kernel;
use quell_linux::proc::ProcRoot;

/// Says on stderr that a test is skipped where they are.
pub(crate) fn are_out_of_sight() -> bool {
    let out_of_sight = !kernel::threads_are_in_sight(&ProcRoot::default());
    if out_of_sight {
        eprintln!("skipped: the kernel's threads are not in this PID namespace");
    }
    out_of_sight
}
