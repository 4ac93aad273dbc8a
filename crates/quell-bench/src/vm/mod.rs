//! The vm lab: server and client in two namespaces of a QEMU guest, on two emulated NICs with real interrupts.
//! Emulation distorts the cost of an interrupt, so the lab counts and does not time. [`interrupts`] holds the counts,
//! [`guest`] runs inside the guest, and this file starts it from outside.

mod collect;
pub mod features;
pub mod guest;
pub mod interrupts;
mod settable;

use std::time::Duration;

use quell_mode::{DeliveryMode, Threaded};
use quell_vm::machine::{Machine, MachineError};
use serde::{Deserialize, Serialize};

use self::collect::Collected;
use self::interrupts::{InterruptResult, InterruptTrial, Refusal};

/// Command of this program that runs in the guest. Its one argument is a [`Request`] as JSON.
pub const GUEST_COMMAND: &str = "vm-lab";

/// What to count.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Request {
    /// Modes. The guest refuses those that cannot be set.
    pub modes: Vec<DeliveryMode>,
    /// Number of measurements per mode, interleaved.
    pub repeats: u32,
    /// Total number of trials that may be repeated because the host kept the emulator waiting for CPUs.
    pub retries: u32,
    /// Duration of each trial, in milliseconds of the guest.
    pub measure_ms: u32,
}

impl Request {
    /// A request with this number of repeats, two seconds per trial and no retries.
    #[must_use]
    pub fn new(modes: Vec<DeliveryMode>, repeats: u32) -> Self {
        Self { modes, repeats, retries: 0, measure_ms: 2_000 }
    }

    /// Number of times that the guest runs all modes unless it is stopped. The guest does not know which trials the
    /// host disturbed.
    fn rounds(&self) -> u32 {
        let modes = u32::try_from(self.modes.len()).unwrap_or(u32::MAX).max(1);
        self.repeats.saturating_add(self.retries.div_ceil(modes))
    }

    /// Total measured time without retries.
    #[must_use]
    pub fn measured(&self) -> Duration {
        self.rounds_take(self.repeats)
    }

    /// Maximum total measured time.
    #[must_use]
    pub fn measured_at_most(&self) -> Duration {
        self.rounds_take(self.rounds())
    }

    fn rounds_take(&self, rounds: u32) -> Duration {
        let trials = u32::try_from(self.modes.len()).unwrap_or(u32::MAX).saturating_mul(rounds);
        Duration::from_millis(u64::from(self.measure_ms) + u64::from(guest::WARM_UP_MS)).saturating_mul(trials)
    }

    /// Number of virtual CPUs of the guest: the server's, the client's, and one for a thread that polls continuously.
    #[must_use]
    pub fn cpus(&self) -> u32 {
        let polls = self.modes.iter().any(|mode| mode.napi().threaded == Threaded::BusyPoll);
        2 + u32::from(polls)
    }
}

/// Events that the guest reports as they happen, one line of JSON each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Seen {
    /// The lab is up. Carries a result without trials.
    Up(Box<InterruptResult>),
    /// A mode cannot be set.
    Refused {
        /// Name of the mode.
        mode: String,
        /// Reason, and the nearest alternative.
        refusal: Refusal,
    },
    /// A trial begins.
    Begins {
        /// Name of the mode.
        mode: String,
    },
    /// A trial has ended.
    Ends(Box<InterruptTrial>),
}

/// Why the lab has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VmLabError {
    /// The guest failed before it ended.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The lab failed in the guest.
    #[error("the lab in the guest ended with {}: {said}", code.map_or("a signal".to_owned(), |code| format!("code {code}")))]
    InGuest {
        /// Exit code of the command. Absent if a signal ended it.
        code: Option<i32>,
        /// Output of the command.
        said: String,
    },
    /// The guest's output could not be parsed.
    #[error("what the guest said cannot be read: {0}")]
    Unreadable(#[from] serde_json::Error),
    /// The guest ended before the lab was up.
    #[error("the guest ended before its lab was up")]
    NeverUp,
}

/// Counts in a guest and passes each event of the guest to `watch`. If the host kept the emulator waiting during a
/// trial, the trial is repeated within the limit of the request. Calls `stopped` often and ends early when it returns
/// true.
///
/// # Errors
/// See [`VmLabError`].
pub fn count(
    machine: &Machine,
    request: &Request,
    watch: &mut dyn FnMut(&Seen),
    stopped: &dyn Fn() -> bool,
) -> Result<InterruptResult, VmLabError> {
    let arguments = [GUEST_COMMAND.to_owned(), serde_json::to_string(request)?];
    let mut collected = Collected::new(request);
    let ended = machine.run(&arguments, &mut |line, host| collected.hear(line, host, watch), stopped)?;
    if let Some(ended) = ended.filter(|ended| ended.code != Some(0)) {
        return Err(VmLabError::InGuest { code: ended.code, said: ended.diagnostics.trim().to_owned() });
    }
    collected.into_result()
}
