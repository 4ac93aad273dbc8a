//! Output: data goes to standard output, diagnostics to standard error. A closed pipe is not an error.
//!
//! All output passes through these functions, except the full screen of `quell top`. Other programs choose the names of processes, interfaces, files and keys.
//! The functions therefore escape characters that a terminal interprets or hides: control characters, escape sequences,
//! bidirectional overrides. Line ends and tabs are not escaped; a caller that puts a name into a line escapes it with
//! [`quell_linux::visible`].

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::error::ErrorKind;
use quell_linux::process::stdout_was_closed;
use quell_linux::visible::{self, Kept};
use serde::Serialize;

use crate::exit::{Exit, ProgramFailure};
use crate::terminal::Terminal;

/// Writes text to standard output. Fails if standard output cannot be written; a closed pipe is not an error.
pub fn data(text: &str) -> Result<(), ProgramFailure> {
    write(&visible::text(text, Kept::Layout))
}

/// Writes sentences and lists to standard output, wrapped at the width of a terminal.
pub fn prose(text: &str) -> Result<(), ProgramFailure> {
    write(&Terminal::of_stdout().wrap(&visible::text(text, Kept::Layout)))
}

/// Writes text with color sequences if `terminal` shows them. Names in it go through [`on_one_line`] first.
pub fn styled(text: &str, terminal: Terminal) -> Result<(), ProgramFailure> {
    write(&visible::text(text, if terminal.colour { Kept::LayoutAndStyle } else { Kept::Layout }))
}

/// Writes a value as JSON to standard output.
pub fn json(value: &impl Serialize) -> Result<(), ProgramFailure> {
    write_json(serde_json::to_string_pretty(value))
}

/// Writes a value as one line of JSON to standard output.
pub fn json_line(value: &impl Serialize) -> Result<(), ProgramFailure> {
    write_json(serde_json::to_string(value))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// As far as known.
    Present,
    /// The pipe is closed: a command that goes on writing can end.
    Gone,
}

/// Writes text of a command that goes on until interrupted.
pub fn live(text: &str) -> Result<Reader, ProgramFailure> {
    write_to_reader(&visible::text(text, Kept::Layout))
}

/// Writes a value as one line of JSON, for a command that goes on until interrupted.
pub fn live_json(value: &impl Serialize) -> Result<Reader, ProgramFailure> {
    write_to_reader(&json_text(serde_json::to_string(value))?)
}

fn write_json(text: serde_json::Result<String>) -> Result<(), ProgramFailure> {
    write(&json_text(text)?)
}

fn json_text(text: serde_json::Result<String>) -> Result<String, ProgramFailure> {
    let text =
        text.map_err(|error| ProgramFailure::new(Exit::KernelRefused, format!("could not write JSON: {error}")))?;
    Ok(format!("{}\n", visible::json(&text)))
}

fn write(text: &str) -> Result<(), ProgramFailure> {
    write_to_reader(text).map(|_| ())
}

fn write_to_reader(text: &str) -> Result<Reader, ProgramFailure> {
    let refused = |why: &dyn std::fmt::Display| {
        Err(ProgramFailure::new(Exit::KernelRefused, format!("could not write to standard output: {why}")))
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

/// Writes a line to standard error, wrapped at the width of a terminal. Errors are ignored: there is no other place to
/// report them.
pub fn say(text: &str) {
    let wrapped = Terminal::of_stderr().wrap(&visible::text(text, Kept::Layout));
    let _ = writeln!(io::stderr().lock(), "{wrapped}");
}

/// Escapes untrusted text so that it stays on one line and sets no colors.
pub fn on_one_line(text: &str) -> String {
    visible::name(text).into_owned()
}

/// Prints the error that ends a program. Returns its exit code.
pub fn report(program: &str, failure: &ProgramFailure) -> ExitCode {
    say(&format!("{program}: {}", failure.text));
    failure.exit.into()
}

/// clap indents blank lines.
fn without_trailing_spaces(text: &str) -> String {
    text.split('\n').map(|line| line.trim_end_matches(' ')).collect::<Vec<_>>().join("\n")
}

/// Prints help and version to standard output; any other parse error is a usage error. Returns the exit code.
pub fn usage(program: &str, error: &clap::Error) -> ExitCode {
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let terminal = Terminal::of_stdout();
            let help = error.render();
            let help = if terminal.colour { help.ansi().to_string() } else { help.to_string() };
            match styled(&without_trailing_spaces(&help), terminal) {
                Ok(()) => ExitCode::SUCCESS,
                Err(failure) => report(program, &failure),
            }
        }
        // The message quotes arguments, which can contain escape sequences.
        _ => {
            say(error.to_string().trim_end());
            Exit::Usage.into()
        }
    }
}
