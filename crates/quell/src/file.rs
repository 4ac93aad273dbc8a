//! Files that a user names: read with errors that say which, known to be writable before the work whose result they take.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write as _};
use std::path::Path;

use serde::Serialize;

use crate::exit::{Exit, Failure};

/// The text of a file.
///
/// # Errors
/// When it cannot be read.
pub(crate) fn read(file: &Path) -> Result<String, Failure> {
    fs::read_to_string(file).map_err(|error| Failure::usage(format!("could not read {}: {error}", file.display())))
}

/// A file that cannot be written is to be known before minutes of work, not after. `what` is what goes into it.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn check_writable(file: &Path, what: &str) -> Result<(), Failure> {
    let is_new = !file.exists();
    let opened = OpenOptions::new().create(true).append(true).open(file);
    opened.map_err(|error| Failure::usage(format!("could not write {what} to {}: {error}", file.display())))?;
    if is_new {
        // Should it stay, it is replaced.
        let _ = fs::remove_file(file);
    }
    Ok(())
}

/// Writes a value as JSON to a file, piece by piece: it may be large.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn write_json(file: &Path, what: &str, value: &impl Serialize) -> Result<(), Failure> {
    let mut out = BufWriter::new(File::create(file).map_err(|error| not_written(file, what, &error))?);
    serde_json::to_writer(&mut out, value).map_err(|error| not_written(file, what, &error.into()))?;
    out.flush().map_err(|error| not_written(file, what, &error))
}

/// Writes a text to a file. `what` is what the text is.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn write(file: &Path, what: &str, text: &str) -> Result<(), Failure> {
    fs::write(file, text).map_err(|error| not_written(file, what, &error))
}

fn not_written(file: &Path, what: &str, error: &std::io::Error) -> Failure {
    Failure::new(Exit::RolledBack, format!("could not write {what} to {}: {error}", file.display()))
}
