//! The vm lab: server and client in two namespaces of a QEMU guest, on two emulated NICs with real interrupts. What an
//! interrupt costs cannot be measured under emulation, so nothing is timed: [`interrupts`] counts them, [`guest`] is
//! the part that runs inside, and this file starts it from outside.

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
    /// How many trials may be measured again, in all, because the host kept the emulator waiting for its CPUs.
    pub retries: u32,
    /// How long each trial is measured, in milliseconds of the guest.
    pub measure_ms: u32,
}

impl Request {
    /// Counts these modes so often, for two seconds each time, without measuring any again.
    #[must_use]
    pub fn new(modes: Vec<DeliveryMode>, repeats: u32) -> Self {
        Self { modes, repeats, retries: 0, measure_ms: 2_000 }
    }

    /// How often the guest goes through all modes, unless it is ended before: it does not know which trials its host
    /// disturbed.
    fn rounds(&self) -> u32 {
        let modes = u32::try_from(self.modes.len()).unwrap_or(u32::MAX).max(1);
        self.repeats.saturating_add(self.retries.div_ceil(modes))
    }

    /// How long trials are measured when none is measured again.
    #[must_use]
    pub fn measured(&self) -> Duration {
        self.rounds_take(self.repeats)
    }

    /// How long trials are measured at most.
    #[must_use]
    pub fn measured_at_most(&self) -> Duration {
        self.rounds_take(self.rounds())
    }

    fn rounds_take(&self, rounds: u32) -> Duration {
        let trials = u32::try_from(self.modes.len()).unwrap_or(u32::MAX).saturating_mul(rounds);
        Duration::from_millis(u64::from(self.measure_ms) + u64::from(guest::WARM_UP_MS)).saturating_mul(trials)
    }

    /// The virtual CPUs that the guest needs: the server's, the client's, and one for a thread that polls without end.
    #[must_use]
    pub fn cpus(&self) -> u32 {
        let polls = self.modes.iter().any(|mode| mode.napi().threaded == Threaded::BusyPoll);
        2 + u32::from(polls)
    }
}

/// What the guest says, a line of JSON each, when it happens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Seen {
    /// The lab is up: a result without trials.
    Up(Box<InterruptResult>),
    /// A mode cannot be set.
    Refused {
        /// Which.
        mode: String,
        /// Why, and what can be set instead.
        refusal: Refusal,
    },
    /// A trial begins.
    Begins {
        /// Its mode.
        mode: String,
    },
    /// It has ended.
    Ends(Box<InterruptTrial>),
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
    /// What it wrote is not what it writes.
    #[error("what the guest said cannot be read: {0}")]
    Unreadable(#[from] serde_json::Error),
    /// It ended before the lab was up.
    #[error("the guest ended before its lab was up")]
    NeverUp,
}

/// Counts in a guest; `watch` hears what the guest says. A trial during which the host kept the emulator waiting is
/// measured again, as often as the request allows. `stopped` is asked often whether to end early.
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
