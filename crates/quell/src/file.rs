//! Files that a user names: read with errors that say which, known to be writable before the work whose result they take.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Read as _, Write as _};
use std::path::Path;

use quell_linux::visible;
use serde::Serialize;

use crate::exit::{Exit, Failure};

/// A file that is written by hand, like a profile, is not larger than this.
pub(crate) const BY_HAND_MAX: u64 = 1 << 20;
/// A result, or a snapshot of a host with 100,000 sockets, is not larger than this.
const RECORDED_MAX: u64 = 256 << 20;

/// The text of a file of at most `max_bytes`: one without end, like `/dev/zero`, is refused once that much was read.
///
/// # Errors
/// When it cannot be read, is no text, or is larger.
pub(crate) fn read(file: &Path, max_bytes: u64) -> Result<String, Failure> {
    let refused =
        |why: &dyn std::fmt::Display| Failure::usage(format!("could not read {}: {why}", visible::path(file)));
    let mut text = String::new();
    let opened = File::open(file).map_err(|error| refused(&error))?;
    opened.take(max_bytes + 1).read_to_string(&mut text).map_err(|error| refused(&error))?;
    match text.len() as u64 <= max_bytes {
        true => Ok(text),
        false => {
            Err(refused(&format_args!("larger than {} MiB, the most that is read of such a file", max_bytes >> 20)))
        }
    }
}

/// JSON that this program has printed, here or elsewhere. No string in it holds a line end: whoever wrote the file has
/// chosen its names, and they are printed.
///
/// # Errors
/// As [`read`].
pub(crate) fn read_json(file: &Path) -> Result<String, Failure> {
    read(file, RECORDED_MAX).map(|text| visible::json_of_others(&text).into_owned())
}

/// A file that cannot be written is to be known before minutes of work, not after. `what` is what goes into it.
///
/// # Errors
/// When it cannot be written.
pub(crate) fn check_writable(file: &Path, what: &str) -> Result<(), Failure> {
    let is_new = !file.exists();
    let opened = OpenOptions::new().create(true).append(true).open(file);
    opened.map_err(|error| Failure::usage(format!("could not write {what} to {}: {error}", visible::path(file))))?;
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
    Failure::new(Exit::KernelRefused, format!("could not write {what} to {}: {error}", visible::path(file)))
}
