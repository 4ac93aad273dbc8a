//! The vm lab: server and client in two namespaces of a QEMU guest, on two emulated NICs with real interrupts.
//! Emulation distorts the cost of an interrupt, so the lab counts and does not time. The experiment runs inside the guest
//! ([`guest`]); this file starts it from outside, and [`checks`] says what has to hold.

pub mod checks;
mod collect;
pub mod earlier;
pub mod features;
pub mod guest;
mod nearest;

use std::collections::BTreeMap;
use std::time::Duration;

use quell_experiment::{DesignError, ExperimentDesign, SliceObservation};
use quell_host::snapshot::Provenance;
use quell_mode::{DeliveryMode, Nearest, Threaded};
use quell_vm::machine::{Machine, MachineError};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::collect::Collected;
use self::features::Feature;
use crate::experiment::{self, EndOfExperiment, ExperimentResult, Timing};

/// Command of this program that runs in the guest. Its one argument is a [`GuestRequest`] as JSON.
pub const GUEST_COMMAND: &str = "vm-lab";

/// Why a result of a guest is not a measurement of time.
const EMULATED: &str = "an emulated machine: interrupts are counted, times mean nothing";

/// A server in a guest, on an emulated NIC.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct GuestFacts {
    /// Driver of its NICs. Absent if the kernel does not report it.
    pub driver: Option<String>,
    /// The interrupt of the server's receive queue.
    pub rx_irq: u32,
    /// Source of the interrupt number.
    #[serde(rename = "rx-irq-said-by")]
    pub rx_irq_provenance: Provenance,
    /// Features of this kernel and driver.
    pub features: Vec<Feature>,
    /// Description of the clients' load.
    pub load: String,
    /// By mode that cannot be set: the nearest alternative that this kernel accepts. It was set, verified and undone.
    pub nearest: BTreeMap<String, Nearest>,
}

/// What to compare in a guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct GuestRequest {
    /// Modes; the first is the reference. The guest refuses those that cannot be set.
    pub modes: Vec<DeliveryMode>,
    /// Times and limits, of the guest's clock.
    pub timing: Timing,
}

impl GuestRequest {
    /// Number of virtual CPUs of the guest: the server's, the client's, and one for a thread that polls continuously.
    #[must_use]
    pub fn cpus(&self) -> u32 {
        let polls = self.modes.iter().any(|mode| mode.napi().threaded == Threaded::BusyPoll);
        2 + u32::from(polls)
    }

    fn design(&self) -> ExperimentDesign<DeliveryMode> {
        // Only the host knows whether it kept the emulator waiting, and the guest decides when to stop.
        let design = experiment::design(&self.modes, guest::criteria(), self.timing, 1);
        ExperimentDesign { foreign_cpu_range_max: 1.0, ..design }
    }

    /// Checks the design before a guest boots.
    ///
    /// # Errors
    /// See [`DesignError`].
    pub fn check(&self) -> Result<(), DesignError> {
        self.design().check()
    }

    /// Time of the whole experiment at most.
    #[must_use]
    pub fn budget(&self) -> Duration {
        Duration::from_millis(self.timing.budget_ms)
    }
}

/// Events that the guest reports as they happen, one line of JSON each.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum GuestEvent {
    /// The lab is up. Carries a result with one experiment and no slices.
    Up(Box<ExperimentResult>),
    /// A mode cannot be set.
    Dropped {
        /// Name of the mode.
        mode: String,
        /// Reason.
        reason: String,
    },
    /// A slice begins.
    SliceBegins {
        /// Block.
        block: u32,
        /// Arm.
        arm: usize,
        /// Name of the mode.
        mode: String,
        /// Share of the budget that is spent, 0 to 1.
        spent: f64,
    },
    /// The slice that began last has ended.
    SliceEnds(Box<SliceObservation>),
    /// The experiment has ended.
    Ended(EndOfExperiment),
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

/// Compares modes in a guest and passes each event of the guest to `watch`. Calls `stopped` often and ends early when it
/// returns true; the slices until then are the result.
///
/// # Errors
/// See [`VmLabError`].
pub fn run_guest(
    machine: &Machine,
    request: &GuestRequest,
    watch: &mut dyn FnMut(&GuestEvent),
    stopped: &dyn Fn() -> bool,
) -> Result<ExperimentResult, VmLabError> {
    let arguments = [GUEST_COMMAND.to_owned(), serde_json::to_string(request)?];
    let mut collected = Collected::default();
    let ended = machine.run(&arguments, &mut |line, host| collected.hear(line, host, watch), stopped)?;
    if let Some(ended) = ended.filter(|ended| ended.code != Some(0)) {
        return Err(VmLabError::InGuest { code: ended.code, said: ended.diagnostics.trim().to_owned() });
    }
    collected.into_result()
}
