//! The vm lab: a server and a client in two namespaces of a QEMU guest, on two emulated NICs with real interrupts.
//! Emulation distorts times, so the lab only counts interrupts. The experiment runs inside the guest ([`guest`]). This
//! module starts the guest, and [`checks`] verifies the counts.

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

/// Subcommand of quell that runs in the guest. Its argument is a [`GuestRequest`] as JSON.
pub const GUEST_COMMAND: &str = "vm-lab";

/// Reason why a result of a guest is not a measurement of time.
const EMULATED: &str = "the machine was emulated: interrupt counts are valid, times are not";

/// A server in a guest, on an emulated NIC.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct GuestFacts {
    /// Driver of the guest's NICs. Absent if the kernel does not report it.
    pub driver: Option<String>,
    /// IRQ number of the server's receive queue.
    pub rx_irq: u32,
    /// Source of the IRQ number.
    #[serde(rename = "rx-irq-said-by")]
    pub rx_irq_provenance: Provenance,
    /// Availability of features in this kernel and driver.
    pub features: Vec<Feature>,
    /// Description of the generated load.
    pub load: String,
    /// Nearest alternative that this kernel accepts, for each mode that cannot be set. Each alternative was set,
    /// verified and undone.
    pub nearest: BTreeMap<String, Nearest>,
}

/// An experiment in a guest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct GuestRequest {
    /// Delivery modes to compare. The first one is the reference. Modes that the guest's kernel refuses are dropped.
    pub modes: Vec<DeliveryMode>,
    /// Durations and limits, measured by the guest's clock.
    pub timing: Timing,
}

impl GuestRequest {
    /// Number of virtual CPUs of the guest: one for the server, one for the client, and one for a thread that polls
    /// continuously, if a mode has one.
    #[must_use]
    pub fn cpus(&self) -> u32 {
        let polls = self.modes.iter().any(|mode| mode.napi().threaded == Threaded::BusyPoll);
        2 + u32::from(polls)
    }

    fn design(&self) -> ExperimentDesign<DeliveryMode> {
        // The guest decides when to stop, but only the host can detect disturbed blocks.
        let design = experiment::design(&self.modes, guest::criteria(), self.timing, 1);
        ExperimentDesign { foreign_cpu_range_max: 1.0, ..design }
    }

    /// Checks the design before a guest is started.
    ///
    /// # Errors
    /// See [`DesignError`].
    pub fn check(&self) -> Result<(), DesignError> {
        self.design().check()
    }

    /// Returns the maximum duration of the experiment, measured by the guest's clock.
    #[must_use]
    pub fn budget(&self) -> Duration {
        Duration::from_millis(self.timing.budget_ms)
    }
}

/// Events that the guest prints as they happen, each as a line of JSON.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum GuestEvent {
    /// The lab is set up. Contains a result with one experiment and no slices.
    Up(Box<ExperimentResult>),
    /// A mode cannot be set.
    Dropped {
        /// Name of the mode.
        mode: String,
        /// Reason why the mode cannot be set.
        reason: String,
    },
    /// A slice begins.
    SliceBegins {
        /// Index of the block.
        block: u32,
        /// Index of the arm in the design.
        arm: usize,
        /// Name of the mode.
        mode: String,
        /// Share of the budget that is used, 0 to 1.
        spent: f64,
    },
    /// The current slice has ended.
    SliceEnds(Box<SliceObservation>),
    /// The experiment has ended.
    Ended(EndOfExperiment),
}

/// Reason why the vm lab has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VmLabError {
    /// The emulator or the guest failed.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The guest's command exited with an error.
    #[error("the lab in the guest failed with {}: {said}", code.map_or("a signal".to_owned(), |code| format!("code {code}")))]
    InGuest {
        /// Exit code of the command. Absent if a signal killed it.
        code: Option<i32>,
        /// Output of the command.
        said: String,
    },
    /// The guest's output could not be parsed.
    #[error("cannot parse the output of the guest: {0}")]
    Unreadable(#[from] serde_json::Error),
    /// The guest exited before the lab was set up.
    #[error("the guest exited before its lab was set up")]
    NeverUp,
}

/// Compares modes in a guest and passes the guest's events to `watch`. Calls `stopped` and ends early when it returns
/// true; the result then contains the slices measured so far.
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
