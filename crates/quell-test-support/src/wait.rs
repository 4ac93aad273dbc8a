//! Waits for an expected state of another process or of the kernel.

use std::thread;
use std::time::{Duration, Instant};

/// Time limit for an event that takes milliseconds on an idle machine and seconds on a busy one. Only a missing event
/// reaches it.
pub const PATIENCE: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(2);

/// Repeats `attempt` until it succeeds. Panics with the last reason after [`PATIENCE`].
pub fn wait_until<T>(mut attempt: impl FnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match attempt() {
            Ok(value) => return value,
            Err(why) if Instant::now() > deadline => panic!("after {PATIENCE:?}: {why}"),
            Err(_) => thread::sleep(PAUSE),
        }
    }
}
