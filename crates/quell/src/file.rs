//! Files that a user names: read with errors that say which, known to be writable before the work whose result they take.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Read as _, Write as _};
use std::path::{Path, PathBuf};

use quell_linux::{own_file, visible};
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

/// A file that takes a result.
pub(crate) struct Destination {
    path: PathBuf,
    what: &'static str,
    open: fn(&Path) -> io::Result<File>,
}

impl Destination {
    /// The file that the user has named, wherever that leads. `what` goes into it.
    pub(crate) fn named(path: PathBuf, what: &'static str) -> Self {
        Self { path, what, open: |path| OpenOptions::new().write(true).create(true).truncate(false).open(path) }
    }

    /// A file with a name that others can foresee, in a directory that may be theirs too: no link of theirs is followed.
    pub(crate) fn by_default(path: PathBuf, what: &'static str) -> Self {
        Self { path, what, open: own_file::open }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A file that cannot be written is to be known before minutes of work, not after.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn check_writable(&self) -> Result<(), Failure> {
        let is_new = !self.path.exists();
        (self.open)(&self.path).map_err(|error| Failure::usage(self.refusal(&error)))?;
        if is_new {
            // Should it stay, it is replaced.
            let _ = fs::remove_file(&self.path);
        }
        Ok(())
    }

    /// Writes a value as JSON, piece by piece: it may be large.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn write_json(&self, value: &impl Serialize) -> Result<(), Failure> {
        self.write_by(|out| serde_json::to_writer(out, value).map_err(io::Error::from))
    }

    /// Writes a text.
    ///
    /// # Errors
    /// When it cannot be written.
    pub(crate) fn write(&self, text: &str) -> Result<(), Failure> {
        self.write_by(|out| out.write_all(text.as_bytes()))
    }

    fn write_by(&self, content: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<(), Failure> {
        let write = || {
            let file = (self.open)(&self.path)?;
            if file.metadata()?.is_file() {
                file.set_len(0)?;
            }
            let mut out = BufWriter::new(file);
            content(&mut out)?;
            out.flush()
        };
        write().map_err(|error| Failure::new(Exit::KernelRefused, self.refusal(&error)))
    }

    fn refusal(&self, error: &io::Error) -> String {
        format!("could not write {} to {}: {error}", self.what, visible::path(&self.path))
    }
}
