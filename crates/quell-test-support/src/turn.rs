//! A machine-wide lock for tests that measure in labs or generate much traffic, including tests in other processes. Two labs
//! on two CPUs would be too slow for the time limits, and a lab refuses CPUs that receive the packets of others.

use std::fs::File;

/// A held turn. Other tests on this machine wait for their turn until it is dropped.
#[derive(Debug)]
pub struct LabTurn {
    _lock: File,
}

impl LabTurn {
    #[must_use]
    pub fn wait() -> Self {
        let lock = File::create(std::env::temp_dir().join("quell-lab-tests.lock")).unwrap();
        lock.lock().unwrap();
        Self { _lock: lock }
    }
}
