//! The preload library, embedded in this program and stored as a file for the dynamic linkers of launched programs. The
//! file is written once, to a directory that only this user can write to. It is verified before each use.

use std::fs::{self, DirBuilder, Metadata, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use quell_linux::executable::{can_hold_code, effective_user};
use quell_linux::own_file::check_creatable;
use quell_linux::visible;
use tempfile::NamedTempFile;
use tracing::info;

/// The shared object, built from `preload/preload.c` for the architecture of this program.
pub const LIBRARY: &[u8] = include_bytes!(env!("QUELL_PRELOAD_LIBRARY"));

/// Prefix of the file name. The CRC-32 of the content follows, so another version does not replace a file that programs
/// have mapped.
pub(crate) const FILE_NAME: &str = "libquell-preload-";

/// Directories for root. The file must be readable for programs that change their user, and for the programs that these
/// execute.
const OF_ROOT: [&str; 2] = ["/run/quell", "/var/cache/quell"];
const WRITABLE_BY_OTHERS: u32 = 0o022;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlaceError {
    #[error(
        "no directory for the preload library permits execution: {0}; set XDG_RUNTIME_DIR or \
         XDG_CACHE_HOME to one that is not mounted noexec"
    )]
    NoDirectory(String),
    #[error("{path} is not safe for code that is loaded into programs: {why}; remove it")]
    NotOurs { path: PathBuf, why: &'static str },
    #[error("the path of the preload library, {0}, contains a space or colon, which LD_PRELOAD does not support")]
    Unspeakable(PathBuf),
    #[error("{action} {path}: {source}")]
    File { action: &'static str, path: PathBuf, source: io::Error },
}

/// Provides the library file for programs that this user starts, and returns its path.
pub fn place() -> Result<PathBuf, PlaceError> {
    let path =
        in_first_directory(|directory, mode| prepare(directory, mode)?.then(|| place_in(directory)).transpose())?;
    info!(path = visible::path(&path), "preload library provided");
    Ok(path)
}

/// Checks whether [`place`] would find a directory, without creating anything.
pub fn check_placeable() -> Result<(), PlaceError> {
    in_first_directory(|directory, _| {
        let failed = |source| PlaceError::File { action: "creating a file in", path: directory.to_owned(), source };
        if let Ok(metadata) = fs::symlink_metadata(directory) {
            refuse_what_is_not_ours(directory, &metadata, metadata.is_dir())?;
        }
        let existing = directory.ancestors().find(|directory| directory.exists());
        if !fs::read(path_in(directory)?).is_ok_and(|stored| stored == LIBRARY) {
            check_creatable(directory).map_err(failed)?;
        }
        Ok(can_hold_code(existing.unwrap_or(directory)).map_err(failed)?.then_some(()))
    })
}

/// Result of `attempt` in the first suitable directory. It returns `None` if code in the directory cannot be executed.
fn in_first_directory<T>(attempt: impl Fn(&Path, u32) -> Result<Option<T>, PlaceError>) -> Result<T, PlaceError> {
    let (directories, mode) = directories(effective_user(), |name| std::env::var_os(name).map(PathBuf::from));
    let mut refused = Vec::new();
    for directory in directories {
        match attempt(&directory, mode) {
            Ok(Some(done)) => return Ok(done),
            Ok(None) => refused.push(format!("{} is mounted noexec", visible::path(&directory))),
            Err(PlaceError::File { action, path, source }) => {
                refused.push(format!("{action} {}: {source}", visible::path(&path)));
            }
            Err(error) => return Err(error),
        }
    }
    Err(PlaceError::NoDirectory(if refused.is_empty() {
        "no directory is known".to_owned()
    } else {
        refused.join("; ")
    }))
}

/// Candidate directories in order of preference, and the permissions of a new directory.
fn directories(user: u32, variable: impl Fn(&str) -> Option<PathBuf>) -> (Vec<PathBuf>, u32) {
    if user == 0 {
        return (OF_ROOT.map(PathBuf::from).to_vec(), 0o755);
    }
    let absolute = |name| variable(name).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    let places = [absolute("XDG_RUNTIME_DIR"), cache];
    (places.into_iter().flatten().map(|place| place.join("quell")).collect(), 0o700)
}

/// Creates the directory and its parents if necessary. Returns whether code in it can be executed.
fn prepare(directory: &Path, mode: u32) -> Result<bool, PlaceError> {
    let failed = |action, source| PlaceError::File { action, path: directory.to_owned(), source };
    if let Some(parent) = directory.parent() {
        DirBuilder::new()
            .recursive(true)
            .mode(mode)
            .create(parent)
            .map_err(|error| failed("creating the parent directory of", error))?;
    }
    match DirBuilder::new().mode(mode).create(directory) {
        // Set the requested permissions regardless of the umask.
        Ok(()) => fs::set_permissions(directory, Permissions::from_mode(mode)).map_err(|e| failed("opening", e))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(failed("making", error)),
    }
    let metadata = fs::symlink_metadata(directory).map_err(|error| failed("examining", error))?;
    refuse_what_is_not_ours(directory, &metadata, metadata.is_dir())?;
    can_hold_code(directory).map_err(|error| failed("examining", error))
}

#[must_use]
pub fn file_name() -> String {
    format!("{FILE_NAME}{:08x}.so", crc32fast::hash(LIBRARY))
}

fn path_in(directory: &Path) -> Result<PathBuf, PlaceError> {
    let path = directory.join(file_name());
    if path.to_string_lossy().contains([' ', ':']) {
        return Err(PlaceError::Unspeakable(path));
    }
    Ok(path)
}

fn place_in(directory: &Path) -> Result<PathBuf, PlaceError> {
    let path = path_in(directory)?;
    let failed = |action, source| PlaceError::File { action, path: path.clone(), source };
    match fs::symlink_metadata(&path) {
        Ok(metadata) => {
            refuse_what_is_not_ours(&path, &metadata, metadata.is_file())?;
            if fs::read(&path).map_err(|error| failed("reading", error))? == LIBRARY {
                return Ok(path);
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed("examining", error)),
    }
    write(directory, &path).map_err(|error| failed("writing", error))?;
    Ok(path)
}

/// Writes the file completely or not at all. A program that starts at the same time finds the old file or the new one.
fn write(directory: &Path, path: &Path) -> io::Result<()> {
    let mut file = NamedTempFile::new_in(directory)?;
    file.write_all(LIBRARY)?;
    file.as_file().set_permissions(Permissions::from_mode(0o644))?;
    file.persist(path)?;
    Ok(())
}

fn refuse_what_is_not_ours(path: &Path, metadata: &Metadata, is_of_kind: bool) -> Result<(), PlaceError> {
    let why = if !is_of_kind {
        "it has an unexpected file type"
    } else if metadata.uid() != effective_user() {
        "it belongs to another user"
    } else if metadata.mode() & WRITABLE_BY_OTHERS != 0 {
        "other users may write to it"
    } else {
        return Ok(());
    };
    Err(PlaceError::NotOurs { path: path.to_owned(), why })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory() -> tempfile::TempDir {
        tempfile::tempdir().unwrap()
    }

    #[test]
    fn the_file_contains_the_library_and_is_readable_for_all() {
        let directory = directory();
        let path = place_in(directory.path()).unwrap();
        assert_eq!(fs::read(&path).unwrap(), LIBRARY);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o644);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "the directory contains nothing else");
    }

    #[test]
    fn an_existing_file_is_reused() {
        let directory = directory();
        let inode = |path: &Path| fs::metadata(path).unwrap().ino();
        let first = place_in(directory.path()).unwrap();
        let inode_of_first = inode(&first);
        assert_eq!(inode(&place_in(directory.path()).unwrap()), inode_of_first);
    }

    #[test]
    fn a_damaged_file_is_replaced() {
        let directory = directory();
        let path = place_in(directory.path()).unwrap();
        fs::write(&path, "half").unwrap();
        assert_eq!(fs::read(place_in(directory.path()).unwrap()).unwrap(), LIBRARY);
    }

    #[test]
    fn a_file_that_others_may_write_to_is_refused() {
        let directory = directory();
        let path = place_in(directory.path()).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
        assert!(matches!(place_in(directory.path()), Err(PlaceError::NotOurs { .. })));
    }

    #[test]
    fn a_link_in_its_place_is_refused() {
        let directory = directory();
        let path = place_in(directory.path()).unwrap();
        let elsewhere = directory.path().join("elsewhere");
        fs::rename(&path, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        assert!(matches!(place_in(directory.path()), Err(PlaceError::NotOurs { .. })));
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_refused() {
        let directory = directory();
        let open = directory.path().join(".cache/quell");
        assert!(prepare(&open, 0o700).unwrap());
        assert_eq!(fs::metadata(&open).unwrap().mode() & 0o777, 0o700);
        fs::set_permissions(&open, Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(prepare(&open, 0o700), Err(PlaceError::NotOurs { .. })));
    }

    #[test]
    fn a_path_with_a_space_or_colon_is_refused() {
        let directory = directory();
        let with_space = directory.path().join("my files");
        fs::create_dir(&with_space).unwrap();
        assert!(matches!(place_in(&with_space), Err(PlaceError::Unspeakable(_))));
    }

    #[test]
    fn root_uses_a_shared_directory_and_others_a_private_one() {
        let none = |_: &str| None;
        assert_eq!(directories(0, none).1, 0o755);
        let variable = |name: &str| match name {
            "XDG_RUNTIME_DIR" => Some(PathBuf::from("/run/user/7")),
            "HOME" => Some(PathBuf::from("/home/g")),
            _ => Some(PathBuf::from("not/absolute")),
        };
        let expected = ["/run/user/7/quell", "/home/g/.cache/quell"].map(PathBuf::from).to_vec();
        assert_eq!(directories(7, variable), (expected, 0o700));
        assert_eq!(directories(7, none), (Vec::new(), 0o700));
    }
}
