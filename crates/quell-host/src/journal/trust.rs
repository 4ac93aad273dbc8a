//! Who may have written a journal: it says what is undone with the rights of whoever reads it, so it has to be that user's
//! alone. Its directory is closed to others, for the lock of a file needs no more than the right to open it.

use std::fs::{self, DirBuilder, File, Metadata, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;

use quell_linux::executable::effective_user;

const DIRECTORY: u32 = 0o700;
const FILE: u32 = 0o600;
const OF_OTHERS: u32 = 0o077;
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Why a journal, or the directory of the journals, is refused. Inside of an [`io::Error`] of kind
/// [`io::ErrorKind::PermissionDenied`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Untrusted {
    /// It belongs to another user.
    #[error(
        "it belongs to user {owner}, and this process runs as user {user}: remove it, or `chown {user}` it if you know what it says"
    )]
    Owner {
        /// Its owner.
        owner: u32,
        /// The effective user of this process.
        user: u32,
    },
    /// Others may write to it.
    #[error(
        "others than its owner may write to it (mode {mode:04o}), and have it undo what they like: remove it, or `chmod go-w` it if you know what it says"
    )]
    Writable {
        /// Its permissions.
        mode: u32,
    },
    /// Others may open a directory that holds more than journals, and hold its lock.
    #[error("others than its owner may open it (mode {mode:04o}) and hold its lock: `chmod 700` it")]
    Open {
        /// Its permissions.
        mode: u32,
    },
}

impl From<Untrusted> for io::Error {
    fn from(why: Untrusted) -> Self {
        Self::new(io::ErrorKind::PermissionDenied, why)
    }
}

/// Refuses what another user owns or may write to.
pub(super) fn check(metadata: &Metadata) -> Result<(), Untrusted> {
    let (owner, user, mode) = (metadata.uid(), effective_user(), metadata.mode() & 0o7777);
    if owner != user {
        return Err(Untrusted::Owner { owner, user });
    }
    if mode & WRITABLE_BY_OTHERS != 0 { Err(Untrusted::Writable { mode }) } else { Ok(()) }
}

/// Makes the directory, whatever the mask of this process is, and those that it is in.
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

/// Closes a directory that an earlier version left open to others, if it holds nothing but journals.
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

/// Takes from others the right to open a journal.
pub(super) fn close_file(file: &File) -> io::Result<()> {
    match file.metadata()?.mode() & OF_OTHERS {
        0 => Ok(()),
        _ => file.set_permissions(Permissions::from_mode(FILE)),
    }
}

/// Gives a new journal its permissions, whatever the mask of this process is.
pub(super) fn set_permissions(file: &File) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(FILE))
}
