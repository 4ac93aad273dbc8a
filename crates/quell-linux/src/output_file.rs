//! Files that are written at the end of minutes of work. They are checked before the work starts.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::{own_file, visible};

#[derive(Debug, thiserror::Error)]
#[error("could not write {content} to {}: {source}", visible::path(path))]
pub struct OutputFileError {
    content: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// A file that gets one line of JSON after another.
#[derive(Debug)]
pub struct OutputLines<'a> {
    file: File,
    of: &'a OutputFile,
}

impl OutputLines<'_> {
    pub fn add(&mut self, value: &impl Serialize) -> Result<(), OutputFileError> {
        let line = serde_json::to_string(value).map(|json| json + "\n").map_err(io::Error::from);
        line.and_then(|line| self.file.write_all(line.as_bytes())).map_err(|source| self.of.error(source))
    }
}

#[derive(Debug)]
pub struct OutputFile {
    path: PathBuf,
    content: &'static str,
    open: fn(&Path) -> io::Result<File>,
}

impl OutputFile {
    /// A file named by the user; symbolic links are followed, except those of other users. `content` describes it in
    /// errors.
    #[must_use]
    pub fn named(path: PathBuf, content: &'static str) -> Self {
        Self { path, content, open: own_file::open_named }
    }

    /// A file with a predictable name, possibly in a directory that others can write. Does not follow symbolic links,
    /// because others could have created them.
    #[must_use]
    pub fn by_default(path: PathBuf, content: &'static str) -> Self {
        Self { path, content, open: own_file::open }
    }

    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Checks that the file can be written, before minutes of work.
    pub fn check_writable(&self) -> Result<(), OutputFileError> {
        let is_new = !self.path.exists();
        (self.open)(&self.path).map_err(|source| self.error(source))?;
        if is_new {
            // If removal fails, the empty file is overwritten later.
            let _ = fs::remove_file(&self.path);
        }
        Ok(())
    }

    /// Streams the JSON, because it may be large.
    pub fn write_json(&self, value: &impl Serialize) -> Result<(), OutputFileError> {
        self.write_by(|out| serde_json::to_writer(out, value).map_err(io::Error::from))
    }

    pub fn write(&self, text: &str) -> Result<(), OutputFileError> {
        self.write_by(|out| out.write_all(text.as_bytes()))
    }

    /// Begins a file of lines of JSON, which are complete after each line.
    pub fn begin_lines(&self) -> Result<OutputLines<'_>, OutputFileError> {
        let file = self.open_empty().map_err(|source| self.error(source))?;
        Ok(OutputLines { file, of: self })
    }

    fn write_by(&self, content: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> Result<(), OutputFileError> {
        let write = || {
            let mut out = BufWriter::new(self.open_empty()?);
            content(&mut out)?;
            out.flush()
        };
        write().map_err(|source| self.error(source))
    }

    fn open_empty(&self) -> io::Result<File> {
        let file = (self.open)(&self.path)?;
        if file.metadata()?.is_file() {
            file.set_len(0)?;
        }
        Ok(file)
    }

    fn error(&self, source: io::Error) -> OutputFileError {
        OutputFileError { content: self.content, path: self.path.clone(), source }
    }
}
