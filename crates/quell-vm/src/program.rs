//! The running program as files of a guest: its executable and the libraries that it runs code from, so that a guest
//! needs neither a second build nor a distribution's user space.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use quell_linux::Pid;
use quell_linux::proc::{ProcError, ProcRoot};
use thiserror::Error;

use crate::elf_trim::{interpreter, loaded_part};
use crate::initramfs::Initramfs;

/// Where the program is in a guest.
pub(crate) const PROGRAM: &str = "/bin/quell";
/// Where its libraries are in a guest: the dynamic linker is told so by the environment.
pub(crate) const LIBRARIES: &str = "/lib";

/// Why this program could not be made a guest's.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// Its files are not known.
    #[error(transparent)]
    Proc(#[from] ProcError),
    /// One of its files could not be read.
    #[error("reading {path}, which this program runs code from: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The program has been replaced or removed since it was started.
    #[error("the file of this program is no longer what runs: start it again")]
    Replaced,
}

/// Adds the running program and its libraries to an archive.
///
/// # Errors
/// [`ProgramError`].
pub(crate) fn add_this_program(initramfs: &mut Initramfs) -> Result<(), ProgramError> {
    let files = ProcRoot::default().process(Pid::of_this_process()).executable_files()?;
    let program = std::env::current_exe().map_err(|_| ProgramError::Replaced)?;
    if !files.contains(&program) {
        return Err(ProgramError::Replaced);
    }
    let content = read(&program)?;
    let linker = interpreter(&content);
    initramfs.file(Path::new(PROGRAM), &loaded_part(content));
    for library in files.iter().filter(|file| **file != program) {
        let Some(name) = library.file_name() else { continue };
        let place = Path::new(LIBRARIES).join(name);
        initramfs.file(&place, &loaded_part(read(library)?));
        add_linker(initramfs, linker.as_deref(), library, &place);
    }
    Ok(())
}

/// The dynamic linker is looked for at the path that the program names, which is often a link to the file that is
/// mapped.
fn add_linker(initramfs: &mut Initramfs, linker: Option<&str>, library: &Path, place: &Path) {
    let Some(linker) = linker.map(Path::new) else { return };
    let is_it = fs::canonicalize(linker).is_ok_and(|file| file == library);
    if is_it && linker != place {
        initramfs.link(linker, &place.to_string_lossy());
    }
}

fn read(path: &Path) -> Result<Vec<u8>, ProgramError> {
    fs::read(path).map_err(|source| ProgramError::Read { path: path.to_owned(), source })
}
