//! Asks for confirmation.

use std::io::{self, IsTerminal as _, Write as _};

use crate::exit::{Exit, Failure};

/// Asks `question` on a terminal, unless `yes` is set. Without a terminal goes on, so that units and scripts start.
pub(crate) fn on_terminal(yes: bool, question: &str) -> Result<(), Failure> {
    unless(!is_asked(yes), question, "--yes")
}

/// Whether [`on_terminal`] asks.
pub(crate) fn is_asked(yes: bool) -> bool {
    !yes && io::stdin().is_terminal() && io::stderr().is_terminal()
}

/// Asks `question` unless `yes` is set. `option` is the command-line option that sets it. Without a terminal, the user
/// must give it.
pub(crate) fn unless(yes: bool, question: &str, option: &str) -> Result<(), Failure> {
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        let text = format!("confirmation needs a terminal; nothing was changed (in scripts, use {option})");
        return Err(Failure::usage(text));
    }
    let mut err = io::stderr().lock();
    let _ = write!(err, "{question} [y/N] ").and_then(|()| err.flush());
    let mut answer = String::new();
    io::stdin()
        .read_line(&mut answer)
        .map_err(|error| Failure::usage(format!("could not read the answer: {error}")))?;
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::new(Exit::Interrupted, "nothing was changed")),
    }
}
