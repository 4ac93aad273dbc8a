//! The running program as files for a guest: its executable, and the libraries that it has mapped. A guest therefore
//! needs no separate build and no user space of a distribution.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use object::Endianness;
use object::elf::FileHeader64;
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use quell_linux::Pid;
use quell_linux::proc::{ProcError, ProcRoot};
use thiserror::Error;

use crate::initramfs::Initramfs;

pub(crate) const PROGRAM: &str = "/bin/quell";
/// Library directory in a guest. An environment variable passes it to the dynamic linker.
pub(crate) const LIBRARIES: &str = "/lib";

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProgramError {
    #[error(transparent)]
    Proc(#[from] ProcError),
    #[error("could not read {path}, which is part of this program: {source}")]
    Read { path: PathBuf, source: io::Error },
    #[error("the file of this program was replaced while it runs: start it again")]
    Replaced,
}

/// Adds the running program and its libraries to an archive.
pub(crate) fn add_this_program(initramfs: &mut Initramfs) -> Result<(), ProgramError> {
    let files = ProcRoot::default().process(Pid::of_this_process()).executable_files()?;
    let program = std::env::current_exe().map_err(|_| ProgramError::Replaced)?;
    if !files.contains(&program) {
        return Err(ProgramError::Replaced);
    }
    let content = read(&program)?;
    let linker = interpreter(&content);
    initramfs.file(Path::new(PROGRAM), content);
    for library in files.iter().filter(|file| **file != program) {
        let Some(name) = library.file_name() else { continue };
        let place = Path::new(LIBRARIES).join(name);
        initramfs.file(&place, read(library)?);
        add_linker(initramfs, linker.as_deref(), library, &place);
    }
    Ok(())
}

/// Adds the dynamic linker under the path that the program specifies. That path is often a link to the mapped file.
fn add_linker(initramfs: &mut Initramfs, linker: Option<&str>, library: &Path, place: &Path) {
    let Some(linker) = linker.map(Path::new) else { return };
    let is_it = fs::canonicalize(linker).is_ok_and(|file| file == library);
    if is_it && linker != place {
        initramfs.link(linker, &place.to_string_lossy());
    }
}

/// Path of an ELF file's dynamic linker. `None` if the file is statically linked.
pub(crate) fn interpreter(file: &[u8]) -> Option<String> {
    let header = FileHeader64::<Endianness>::parse(file).ok()?;
    let endian = header.endian().ok()?;
    let segments = header.program_headers(endian, file).ok()?;
    let path = segments.iter().find_map(|segment| segment.interpreter(endian, file).ok().flatten())?;
    String::from_utf8(path.to_vec()).ok()
}

fn read(path: &Path) -> Result<Vec<u8>, ProgramError> {
    fs::read(path).map_err(|source| ProgramError::Read { path: path.to_owned(), source })
}
