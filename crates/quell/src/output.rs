//! Where data and diagnostics go: data to standard output, everything else to standard error. A reader that closes the
//! pipe has seen enough; that is no error.

use std::io::{self, Write as _};

use serde::Serialize;

use crate::exit::{Exit, Failure};

/// Writes text to standard output.
///
/// # Errors
/// When it cannot be written for another reason than that nobody reads it any more.
pub(crate) fn data(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(Failure::new(Exit::RolledBack, format!("could not write the output: {error}")))
        }
        _ => Ok(()),
    }
}

/// Writes a value as JSON to standard output.
///
/// # Errors
/// As [`data`].
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|error| Failure::new(Exit::RolledBack, format!("could not write JSON: {error}")))?;
    data(&format!("{text}\n"))
}

/// Writes a value as a line of JSON to standard output.
///
/// # Errors
/// As [`data`].
pub(crate) fn json_line(value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string(value)
        .map_err(|error| Failure::new(Exit::RolledBack, format!("could not write JSON: {error}")))?;
    data(&format!("{text}\n"))
}

/// Writes a line to standard error; when nobody reads that either, there is nobody to tell.
pub(crate) fn say(text: &str) {
    let _ = writeln!(io::stderr().lock(), "{text}");
}
