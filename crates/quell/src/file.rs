//! Input files named on the command line.

use std::path::Path;

use quell_linux::{own_file, visible};
use quell_result::store;

use crate::exit::Failure;

/// Size limit of files that are written by hand, such as profiles.
pub(crate) const BY_HAND_MAX: u64 = 1 << 20;
/// Reads a text file of at most `max_bytes`; endless files such as `/dev/zero` are refused.
///
/// # Errors
/// When the file cannot be read, is not UTF-8, or is larger.
pub(crate) fn read(file: &Path, max_bytes: u64) -> Result<String, Failure> {
    own_file::read_text(file, max_bytes)
        .map_err(|error| Failure::usage(format!("could not read {}: {error}", visible::path(file))))
}

/// Reads JSON that Quell printed, possibly on another host. Line ends within strings are escaped, because names from
/// an untrusted file are printed.
///
/// # Errors
/// As [`read`].
pub(crate) fn read_json(file: &Path) -> Result<String, Failure> {
    let text = store::read_text(file).map_err(Failure::usage)?;
    Ok(visible::json_of_others(&text).into_owned())
}
