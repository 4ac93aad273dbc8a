//! Input files named on the command line.

use std::fs;
use std::path::Path;

use quell_linux::{own_file, visible};
use quell_mode::did_you_mean;

use crate::exit::ProgramFailure;

/// Size limit of files that are written by hand, such as profiles.
pub const BY_HAND_MAX: u64 = 1 << 20;

/// Reads a text file of at most `max_bytes`; endless files such as `/dev/zero` are refused.
pub fn read(file: &Path, max_bytes: u64) -> Result<String, ProgramFailure> {
    own_file::read_text(file, max_bytes).map_err(|error| {
        let near = if file.exists() { String::new() } else { similar(file) };
        ProgramFailure::usage(format!("could not read {}: {error}{near}", visible::path(file)))
    })
}

/// Suggests a file of the same directory.
fn similar(file: &Path) -> String {
    let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    visible::name(&did_you_mean(&name, names.iter().map(String::as_str))).into_owned()
}
