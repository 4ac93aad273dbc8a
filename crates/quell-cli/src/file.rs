//! Input and output files named on the command line. Output files are checked before the work starts.

use std::fs::{self, File};
use std::io::{self, BufWriter, Read as _, Write as _};
use std::path::{Path, PathBuf};

use quell_linux::{own_file, visible};
use serde::Serialize;

use crate::exit::{Exit, ProgramFailure};

/// Size limit of files that are written by hand, such as profiles.
pub const BY_HAND_MAX: u64 = 1 << 20;
/// Size limit of results and of snapshots; a host with 100,000 sockets fits.
const RECORDED_MAX: u64 = 256 << 20;

/// Reads a text file of at most `max_bytes`; endless files such as `/dev/zero` are refused.
///
/// # Errors
/// When the file cannot be read, is not UTF-8, or is larger.
pub fn read(file: &Path, max_bytes: u64) -> Result<String, ProgramFailure> {
    let refused =
        |why: &dyn std::fmt::Display| ProgramFailure::usage(format!("could not read {}: {why}", visible::path(file)));
    let mut text = String::new();
    let opened = File::open(file).map_err(|error| refused(&error))?;
    opened.take(max_bytes + 1).read_to_string(&mut text).map_err(|error| refused(&error))?;
    match text.len() as u64 <= max_bytes {
        true => Ok(text),
        false => Err(refused(&format_args!("larger than the limit of {} MiB", max_bytes >> 20))),
    }
}

/// Reads JSON that Quell printed, possibly on another host. Line ends within strings are escaped, because names from
/// an untrusted file are printed.
///
/// # Errors
/// As [`read`].
pub fn read_json(file: &Path) -> Result<String, ProgramFailure> {
    read(file, RECORDED_MAX).map(|text| visible::json_of_others(&text).into_owned())
}

/// An output file.
pub struct Destination {
    path: PathBuf,
    what: &'static str,
    open: fn(&Path) -> io::Result<File>,
}

impl Destination {
    /// A file named by the user; symbolic links are followed, except those of other users. `what` describes its content in
    /// errors.
    pub fn named(path: PathBuf, what: &'static str) -> Self {
        Self { path, what, open: own_file::open_named }
    }

    /// A file with a predictable name, possibly in a directory that others can write. Does not follow symbolic links,
    /// because others could have created them.
    pub fn by_default(path: PathBuf, what: &'static str) -> Self {
        Self { path, what, open: own_file::open }
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that the file can be written, before minutes of work.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn check_writable(&self) -> Result<(), ProgramFailure> {
        let is_new = !self.path.exists();
        (self.open)(&self.path).map_err(|error| ProgramFailure::usage(self.refusal(&error)))?;
        if is_new {
            // If removal fails, the empty file is overwritten later.
            let _ = fs::remove_file(&self.path);
        }
        Ok(())
    }

    /// Writes a value as JSON, streamed because it may be large.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write_json(&self, value: &impl Serialize) -> Result<(), ProgramFailure> {
        self.write_by(|out| serde_json::to_writer(out, value).map_err(io::Error::from))
    }

    /// Writes a text.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn write(&self, text: &str) -> Result<(), ProgramFailure> {
        self.write_by(|out| out.write_all(text.as_bytes()))
    }

    fn write_by(&self, content: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<(), ProgramFailure> {
        let write = || {
            let file = (self.open)(&self.path)?;
            if file.metadata()?.is_file() {
                file.set_len(0)?;
            }
            let mut out = BufWriter::new(file);
            content(&mut out)?;
            out.flush()
        };
        write().map_err(|error| ProgramFailure::new(Exit::KernelRefused, self.refusal(&error)))
    }

    fn refusal(&self, error: &io::Error) -> String {
        format!("could not write {} to {}: {error}", self.what, visible::path(&self.path))
    }
}
