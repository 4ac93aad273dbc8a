//! Output: data goes to standard output, diagnostics to standard error. A closed pipe is not an error.
//!
//! All output passes through these functions, except the full screen of `quell top`. Other programs choose the names of processes, interfaces, files and keys.
//! The functions therefore escape characters that a terminal interprets or hides: control characters, escape sequences,
//! bidirectional overrides. Line ends and tabs are not escaped; a caller that puts a name into a line escapes it with
//! [`quell_linux::visible`].

use std::io::{self, Write as _};

use quell_linux::process::stdout_was_closed;
use quell_linux::visible::{self, Kept};
use serde::Serialize;

use crate::exit::{Exit, Failure};
use crate::render::terminal::Terminal;

/// Writes text to standard output.
///
/// # Errors
/// When standard output cannot be written; a closed pipe is not an error.
pub(crate) fn data(text: &str) -> Result<(), Failure> {
    write(&visible::text(text, Kept::Layout))
}

/// Writes text with color sequences if `terminal` shows them. Names in it go through [`on_one_line`] first.
pub(crate) fn styled(text: &str, terminal: Terminal) -> Result<(), Failure> {
    write(&visible::text(text, if terminal.colour { Kept::LayoutAndStyle } else { Kept::Layout }))
}

pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    write_json(serde_json::to_string_pretty(value))
}

pub(crate) fn json_line(value: &impl Serialize) -> Result<(), Failure> {
    write_json(serde_json::to_string(value))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    Present,
    /// The pipe is closed: a command that goes on writing can end.
    Gone,
}

/// Writes text of a command that goes on until interrupted.
pub(crate) fn live(text: &str) -> Result<Reader, Failure> {
    write_to_reader(&visible::text(text, Kept::Layout))
}

/// Writes a value as one line of JSON, for a command that goes on until interrupted.
pub(crate) fn live_json(value: &impl Serialize) -> Result<Reader, Failure> {
    write_to_reader(&json_text(serde_json::to_string(value))?)
}

fn write_json(text: serde_json::Result<String>) -> Result<(), Failure> {
    write(&json_text(text)?)
}

fn json_text(text: serde_json::Result<String>) -> Result<String, Failure> {
    let text = text.map_err(|error| Failure::new(Exit::KernelRefused, format!("could not write JSON: {error}")))?;
    Ok(format!("{}\n", visible::json(&text)))
}

fn write(text: &str) -> Result<(), Failure> {
    write_to_reader(text).map(|_| ())
}

fn write_to_reader(text: &str) -> Result<Reader, Failure> {
    let refused = |why: &dyn std::fmt::Display| {
        Err(Failure::new(Exit::KernelRefused, format!("could not write to standard output: {why}")))
    };
    if stdout_was_closed() && !text.is_empty() {
        return refused(&"it is closed");
    }
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(Reader::Gone),
        Err(error) => refused(&error),
        Ok(()) => Ok(Reader::Present),
    }
}

/// Writes a line to standard error. Errors are ignored: there is no other place to report them.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{}", visible::text(text, Kept::Layout));
}

/// Escapes untrusted text so that it stays on one line and sets no colors.
pub(crate) fn on_one_line(text: &str) -> String {
    visible::name(text).into_owned()
}
