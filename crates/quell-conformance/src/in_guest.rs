//! Runs scenarios in a guest of the vm lab, started from the host. In the guest, this program uses NICs with interrupts
//! and prints each result as soon as it is available.

use std::ops::ControlFlow;

use quell_vm::machine::{Machine, MachineError};

use crate::run::{ConformanceReport, SCHEMA, ScenarioResult};
use crate::scenario::Scenario;

/// Command of this program that runs in the guest. Its arguments are names of scenarios. It writes one
/// [`ScenarioResult`] as JSON per line.
pub const GUEST_COMMAND: &str = "vm-conformance";

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InGuestError {
    #[error(transparent)]
    Machine(#[from] MachineError),
    #[error("the command in the guest exited with {}: {said}", code.map_or("a signal".to_owned(), |code| format!("code {code}")))]
    Command { code: Option<i32>, said: String },
    #[error("could not parse the guest's output: {0}")]
    Unreadable(serde_json::Error),
}

/// Runs scenarios in a guest and passes each result to `watch` as it arrives. Calls `stopped` often and ends early when
/// it returns true.
pub fn play(
    machine: &Machine,
    scenarios: &[Scenario],
    watch: &mut dyn FnMut(&ScenarioResult),
    stopped: &dyn Fn() -> bool,
) -> Result<ConformanceReport, InGuestError> {
    let names = scenarios.iter().map(|scenario| scenario.name.clone());
    let arguments: Vec<String> = std::iter::once(GUEST_COMMAND.to_owned()).chain(names).collect();
    let mut results = Vec::new();
    let mut unreadable = None;
    let mut on_line = |line: &str, _| match serde_json::from_str::<ScenarioResult>(line) {
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
    let ended = machine.run(&arguments, &mut on_line, stopped)?;
    if let Some(error) = unreadable {
        return Err(InGuestError::Unreadable(error));
    }
    match ended.filter(|ended| ended.code != Some(0)) {
        Some(ended) => Err(InGuestError::Command { code: ended.code, said: ended.diagnostics.trim().to_owned() }),
        None => Ok(ConformanceReport { schema: SCHEMA.to_owned(), results }),
    }
}
