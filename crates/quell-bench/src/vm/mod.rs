//! The vm lab: server and client in two namespaces of a QEMU guest, on two emulated NICs with real interrupts. What an
//! interrupt costs cannot be measured under emulation, so nothing is timed: [`interrupts`] counts them, [`guest`] is
//! the part that runs inside, and this file starts it from outside.

pub mod features;
pub mod guest;
pub mod interrupts;

use std::time::Duration;

use quell_mode::{DeliveryMode, Threaded};
use quell_vm::machine::{Machine, MachineError};
use serde::{Deserialize, Serialize};

use self::interrupts::InterruptResult;

/// The command of this program that runs in the guest; its one argument is a [`Request`] as JSON.
pub const GUEST_COMMAND: &str = "vm-lab";

/// What is to be counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Request {
    /// The modes; what cannot be set in the guest is refused there.
    pub modes: Vec<DeliveryMode>,
    /// How often each is measured, interleaved.
    pub repeats: u32,
    /// How long each trial is measured, in milliseconds of the guest.
    pub measure_ms: u32,
}

impl Request {
    /// Counts these modes so often, for two seconds each time.
    #[must_use]
    pub fn new(modes: Vec<DeliveryMode>, repeats: u32) -> Self {
        Self { modes, repeats, measure_ms: 2_000 }
    }

    /// How long all trials are measured.
    #[must_use]
    pub fn measured(&self) -> Duration {
        let trials = u32::try_from(self.modes.len()).unwrap_or(u32::MAX).saturating_mul(self.repeats);
        Duration::from_millis(self.measure_ms.into()).saturating_mul(trials)
    }

    /// The virtual CPUs that the guest needs: the server's, the client's, and one for a thread that polls without end.
    #[must_use]
    pub fn cpus(&self) -> u32 {
        let polls = self.modes.iter().any(|mode| mode.napi().threaded == Threaded::BusyPoll);
        2 + u32::from(polls)
    }
}

/// Why the lab has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VmLabError {
    /// The guest did not get to its end.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The lab failed in the guest.
    #[error("the lab in the guest ended with {}: {said}", code.map_or("a signal".to_owned(), |code| format!("code {code}")))]
    InGuest {
        /// The exit code of the command; absent when a signal ended it.
        code: Option<i32>,
        /// What it said.
        said: String,
    },
    /// What it wrote is no result.
    #[error("the guest's result cannot be read: {0}")]
    Result(#[from] serde_json::Error),
}

/// Counts in a guest. `stopped` is asked often whether to end early.
///
/// # Errors
/// See [`VmLabError`].
pub fn count(machine: &Machine, request: &Request, stopped: &dyn Fn() -> bool) -> Result<InterruptResult, VmLabError> {
    let arguments = [GUEST_COMMAND.to_owned(), serde_json::to_string(request)?];
    let ended = machine.run(&arguments, stopped)?;
    if ended.code != Some(0) {
        return Err(VmLabError::InGuest { code: ended.code, said: ended.diagnostics.trim().to_owned() });
    }
    Ok(serde_json::from_str(&ended.output)?)
}
