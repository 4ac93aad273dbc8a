//! Waiting for what a test expects of another process or of the kernel.

use std::thread;
use std::time::{Duration, Instant};

/// How long a test waits for what takes milliseconds on an idle machine. A machine that is busy with other things takes
/// seconds; only what never comes takes this long.
pub const PATIENCE: Duration = Duration::from_secs(60);

const PAUSE: Duration = Duration::from_millis(2);

/// Tries until it succeeds.
///
/// # Panics
/// With the last reason, when it has not succeeded within [`PATIENCE`].
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
