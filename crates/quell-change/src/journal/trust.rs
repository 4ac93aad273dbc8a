//! Permissions of journals. A journal determines what its reader undoes with its own privileges, so only that user and
//! root may write it. Other users cannot open the directory, because opening a file is enough to lock it.

use std::fs::{self, DirBuilder, File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use quell_linux::executable::effective_user;

/// Root's journals are also read by services with capabilities instead of root's user ID.
const ROOT: u32 = 0;
const DIRECTORY: u32 = 0o700;
const FILE: u32 = 0o600;
const OF_OTHERS: u32 = 0o077;
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Reason why a journal or its directory is refused. Wrapped in an [`io::Error`] of kind
/// [`io::ErrorKind::PermissionDenied`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Untrusted {
    #[error(
        "it is owned by user {owner}, but this process runs as user {user}: {}",
        remedy(*is_directory, &format!("chown {user}"))
    )]
    Owner { is_directory: bool, owner: u32, user: u32 },
    #[error(
        "it is writable by others (mode {mode:04o}), who could make it undo anything: {}",
        remedy(*is_directory, "chmod go-w")
    )]
    Writable { is_directory: bool, mode: u32 },
    /// Other users may open the directory and lock it. Quell does not change its permissions, because it also holds
    /// other files.
    #[error("it is accessible to others (mode {mode:04o}), who could hold its lock: {}", remedy(true, "chmod 700"))]
    Open { mode: u32 },
}

/// A directory may be one that other programs need, such as /tmp.
fn remedy(is_directory: bool, command: &str) -> String {
    match is_directory {
        true => format!(
            "set QUELL_JOURNAL_DIR to a directory that only Quell uses; if this is one, check it and `{command}` it"
        ),
        false => format!("remove it, or check it and `{command}` it"),
    }
}

impl From<Untrusted> for io::Error {
    fn from(why: Untrusted) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, why)
    }
}

/// Refuses a file that another user except root owns, or that another user may write to.
pub(super) fn check(metadata: &Metadata) -> Result<(), Untrusted> {
    let (owner, user, mode) = (metadata.uid(), effective_user(), metadata.mode() & 0o7777);
    if ![user, ROOT].contains(&owner) {
        return Err(Untrusted::Owner { is_directory: metadata.is_dir(), owner, user });
    }
    if mode & WRITABLE_BY_OTHERS != 0 {
        Err(Untrusted::Writable { is_directory: metadata.is_dir(), mode })
    } else {
        Ok(())
    }
}

/// Creates the directory and its parents, independently of the umask.
pub(super) fn make_directory(dir: &Path) -> io::Result<()> {
    if let Some(parent) = dir.parent() {
        DirBuilder::new().recursive(true).mode(0o755).create(parent)?;
    }
    match DirBuilder::new().mode(DIRECTORY).create(dir) {
        Ok(()) => fs::set_permissions(dir, Permissions::from_mode(DIRECTORY)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => close_directory(dir),
        Err(error) => Err(error),
    }
}

/// Removes the permissions of other users from the directory, if it holds only journals.
pub(super) fn close_directory(dir: &Path) -> io::Result<()> {
    let metadata = fs::metadata(dir)?;
    check(&metadata)?;
    let mode = metadata.mode() & 0o7777;
    if mode & OF_OTHERS == 0 {
        return Ok(());
    }
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        if !name.to_string_lossy().contains(".journal") {
            return Err(Untrusted::Open { mode }.into());
        }
    }
    fs::set_permissions(dir, Permissions::from_mode(DIRECTORY))
}

pub(super) fn close_file(file: &File) -> io::Result<()> {
    match file.metadata()?.mode() & OF_OTHERS {
        0 => Ok(()),
        _ => file.set_permissions(Permissions::from_mode(FILE)),
    }
}

/// Sets the permissions of a new journal, independently of the umask.
pub(super) fn set_permissions(file: &File) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(FILE))
}
