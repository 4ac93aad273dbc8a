//! Scenarios played in a guest of the vm lab, from its host: this program runs in the guest, plays there on NICs with
//! interrupts, and says what came of each scenario when it is there.

use std::ops::ControlFlow;

use quell_vm::machine::{Machine, MachineError};

use crate::run::{Report, SCHEMA, ScenarioResult};
use crate::scenario::Scenario;

/// The command of this program that runs in the guest; its arguments are names of scenarios. It writes a
/// [`ScenarioResult`] as JSON on a line each.
pub const GUEST_COMMAND: &str = "vm-conformance";

/// Why a guest has no report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InGuestError {
    /// The guest did not get to its end.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The command failed in the guest.
    #[error("playing in the guest ended with {}: {said}", code.map_or("a signal".to_owned(), |code| format!("code {code}")))]
    Command {
        /// Its exit code; absent when a signal ended it.
        code: Option<i32>,
        /// What it said.
        said: String,
    },
    /// What it wrote is not what it writes.
    #[error("what the guest said cannot be read: {0}")]
    Unreadable(serde_json::Error),
}

/// Plays scenarios in a guest; `watch` hears of each result when it is there. `stopped` is asked often whether to end
/// early.
///
/// # Errors
/// See [`InGuestError`].
pub fn play(
    machine: &Machine,
    scenarios: &[Scenario],
    watch: &mut dyn FnMut(&ScenarioResult),
    stopped: &dyn Fn() -> bool,
) -> Result<Report, InGuestError> {
    let names = scenarios.iter().map(|scenario| scenario.name.clone());
    let arguments: Vec<String> = std::iter::once(GUEST_COMMAND.to_owned()).chain(names).collect();
    let mut results = Vec::new();
    let mut unreadable = None;
    let mut hear = |line: &str, _| match serde_json::from_str::<ScenarioResult>(line) {
        Ok(result) => {
            watch(&result);
            results.push(result);
            ControlFlow::Continue(())
        }
        Err(error) => {
            unreadable = Some(error);
            ControlFlow::Break(())
        }
    };
    let ended = machine.run(&arguments, &mut hear, stopped)?;
    if let Some(error) = unreadable {
        return Err(InGuestError::Unreadable(error));
    }
    match ended.filter(|ended| ended.code != Some(0)) {
        Some(ended) => Err(InGuestError::Command { code: ended.code, said: ended.diagnostics.trim().to_owned() }),
        None => Ok(Report { schema: SCHEMA.to_owned(), results }),
    }
}
