//! A turn on the machine: tests that raise labs take one after the other, also those of other processes, for two labs
//! on two CPUs are slow enough to look broken.

use std::fs::File;

/// Until it is dropped, no other test of this machine that asks for a turn has one.
#[derive(Debug)]
pub struct LabTurn {
    _lock: File,
}

impl LabTurn {
    /// Waits for a turn.
    ///
    /// # Panics
    /// When the lock file cannot be made in the directory of temporary files.
    #[must_use]
    pub fn wait() -> Self {
        let lock = File::create(std::env::temp_dir().join("quell-lab-tests.lock")).unwrap();
        lock.lock().unwrap();
        Self { _lock: lock }
    }
}
