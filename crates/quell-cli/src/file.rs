//! Input files named on the command line.

use std::path::Path;

use quell_linux::{own_file, visible};

use crate::exit::ProgramFailure;

/// Size limit of files that are written by hand, such as profiles.
pub const BY_HAND_MAX: u64 = 1 << 20;

/// Reads a text file of at most `max_bytes`; endless files such as `/dev/zero` are refused.
pub fn read(file: &Path, max_bytes: u64) -> Result<String, ProgramFailure> {
    own_file::read_text(file, max_bytes)
        .map_err(|error| ProgramFailure::usage(format!("could not read {}: {error}", visible::path(file))))
}
