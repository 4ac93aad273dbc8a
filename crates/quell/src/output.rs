//! Where data and diagnostics go: data to standard output, everything else to standard error. A reader that closes the
//! pipe has seen enough; that is no error.
//!
//! Everything that is printed passes here, and names of processes, interfaces, files and keys are chosen by others: what a
//! terminal would obey or hide (control characters, escape sequences, bidirectional overrides) is printed as its code, by
//! these functions, so that no caller has to think of it. Line ends and tabs are layout; who puts a name into a line that
//! could hold one takes it from [`quell_linux::visible`].

use std::io::{self, Write as _};

use quell_linux::process::stdout_was_closed;
use quell_linux::visible::{self, Kept};
use serde::Serialize;

use crate::exit::{Exit, Failure};
use crate::render::terminal::Terminal;

/// Writes text to standard output.
///
/// # Errors
/// When it cannot be written for another reason than that nobody reads it any more.
pub(crate) fn data(text: &str) -> Result<(), Failure> {
    write(&visible::text(text, Kept::Layout))
}

/// Writes text that has colours where `terminal` shows them. Whoever sets colours puts names through [`on_one_line`].
///
/// # Errors
/// As [`data`].
pub(crate) fn styled(text: &str, terminal: Terminal) -> Result<(), Failure> {
    write(&visible::text(text, if terminal.colour { Kept::LayoutAndStyle } else { Kept::Layout }))
}

/// Writes a value as JSON to standard output.
///
/// # Errors
/// As [`data`].
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    write_json(serde_json::to_string_pretty(value))
}

/// Writes a value as a line of JSON to standard output.
///
/// # Errors
/// As [`data`].
pub(crate) fn json_line(value: &impl Serialize) -> Result<(), Failure> {
    write_json(serde_json::to_string(value))
}

fn write_json(text: serde_json::Result<String>) -> Result<(), Failure> {
    let text = text.map_err(|error| Failure::new(Exit::KernelRefused, format!("could not write JSON: {error}")))?;
    write(&format!("{}\n", visible::json(&text)))
}

fn write(text: &str) -> Result<(), Failure> {
    let refused = |why: &dyn std::fmt::Display| {
        Err(Failure::new(Exit::KernelRefused, format!("could not write to standard output: {why}")))
    };
    if stdout_was_closed() && !text.is_empty() {
        return refused(&"it is closed");
    }
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => refused(&error),
        _ => Ok(()),
    }
}

/// Writes a line to standard error; when nobody reads that either, there is nobody to tell.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", visible::text(text, Kept::Layout));
}

/// A text of others on one line, without colours of its own.
pub(crate) fn on_one_line(text: &str) -> String {
    visible::name(text).into_owned()
}
