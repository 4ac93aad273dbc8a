//! Files and directories that no other user can replace while they are in use. They protect default paths in
//! directories that may belong to other users, for example `/tmp`, or the home directory of the user who called `sudo`.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};

use crate::visible;

const STICKY: u32 = 0o1000;
const WRITABLE_BY_GROUP: u32 = 0o020;
const WRITABLE_BY_OTHERS: u32 = 0o002;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NotOwn {
    #[error("{path} is owned by user {owner}, who could replace its contents", path = visible::path(.path))]
    Owner { path: PathBuf, owner: u32 },
    #[error("{path} is writable by others, who could replace its contents", path = visible::path(.path))]
    Writable { path: PathBuf },
    #[error("could not inspect {path}: {source}", path = visible::path(.path))]
    Look { path: PathBuf, source: io::Error },
}

/// Checks whether the caller could create a file in a directory, and the directory itself if it is absent. Nothing is
/// created: the file that tries it has no name.
pub fn check_creatable(dir: &Path) -> io::Result<()> {
    let dir = std::path::absolute(dir)?;
    let existing = dir.ancestors().find(|dir| dir.exists()).unwrap_or(&dir);
    match rustix::fs::open(existing, OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR) {
        // The file system does not support it, so nothing is known.
        Ok(_) | Err(Errno::OPNOTSUPP | Errno::ISDIR) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Rejects a directory that users other than this one and root could replace. Such a user owns a directory or link on
/// the path, or may write to a directory on it. The directory itself need not exist. A path that passes the check
/// remains safe, because nobody else can change it.
pub fn check_directory(path: &Path) -> Result<(), NotOwn> {
    let failed = |path: &Path, source| NotOwn::Look { path: path.to_owned(), source };
    let path = std::path::absolute(path).map_err(|error| failed(path, error))?;
    let mut existing = path.as_path();
    while let (Err(_), Some(parent)) = (fs::symlink_metadata(existing), existing.parent()) {
        existing = parent;
    }
    // Examine both the links on the path and their targets.
    let resolved = fs::canonicalize(existing).map_err(|error| failed(existing, error))?;
    for place in existing.ancestors().chain(resolved.ancestors()) {
        let metadata = fs::symlink_metadata(place).map_err(|error| failed(place, error))?;
        check(place, &metadata)?;
    }
    Ok(())
}

fn check(path: &Path, metadata: &Metadata) -> Result<(), NotOwn> {
    let (owner, mode) = (metadata.uid(), metadata.mode());
    if owner != 0 && owner != geteuid().as_raw() {
        return Err(NotOwn::Owner { path: path.to_owned(), owner });
    }
    let is_own_group = [0, getegid().as_raw()].contains(&metadata.gid());
    let by_others = mode & WRITABLE_BY_OTHERS != 0 || (mode & WRITABLE_BY_GROUP != 0 && !is_own_group);
    // In a sticky directory, users cannot replace files that belong to others.
    if by_others && !metadata.is_symlink() && mode & STICKY == 0 {
        return Err(NotOwn::Writable { path: path.to_owned() });
    }
    Ok(())
}

/// Opens a file for writing. The file is new or belongs only to this user. The function does not follow a link and does
/// not truncate the file. Errors: those of `open(2)`, for example `ELOOP` for a link. `PermissionDenied` if others have
/// access to the file.
pub fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o644).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let file = options.open(path)?;
    let metadata = file.metadata()?;
    if metadata.is_file() && metadata.uid() == geteuid().as_raw() && metadata.nlink() == 1 {
        return Ok(file);
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, "the existing file is not private to this user"))
}

/// Replaces the content of a file that [`open`] accepts. Only this user may write to it, regardless of the umask.
pub fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = open(path)?;
    file.set_permissions(Permissions::from_mode(0o644))?;
    file.set_len(0)?;
    file.write_all(content)
}

/// Reads a text of at most `max_bytes`. An endless file such as `/dev/zero` is refused. Errors: `InvalidData` if it is
/// not UTF-8, `FileTooLarge`.
pub fn read_text(path: &Path, max_bytes: u64) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(max_bytes + 1).read_to_string(&mut text)?;
    match text.len() as u64 <= max_bytes {
        true => Ok(text),
        false => {
            let limit = format!("larger than the limit of {} MiB", max_bytes >> 20);
            Err(io::Error::new(io::ErrorKind::FileTooLarge, limit))
        }
    }
}

/// Opens a file that the user named for writing, without truncating it. Links of this user and of root are followed,
/// also `/dev/stdout`. Another user who controls a directory on the path cannot redirect the output to a file of this
/// user: their links are refused, and in their directories files with several names. Errors: those of `open(2)`;
/// `PermissionDenied` for a link or file that another user could have prepared.
pub fn open_named(path: &Path) -> io::Result<File> {
    let path = std::path::absolute(path)?;
    for place in path.ancestors() {
        match fs::symlink_metadata(place) {
            Ok(metadata) if metadata.is_symlink() && ![0, geteuid().as_raw()].contains(&metadata.uid()) => {
                let text = format!("the symbolic link {} belongs to another user", visible::path(place));
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
            }
            _ => {}
        }
    }
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o644);
    let Some(resolved) = resolved(&path) else {
        // A link of this user or root to a pipe, or to a file that does not exist.
        return options.open(&path);
    };
    let is_trusted = resolved.parent().is_none_or(|parent| check_directory(parent).is_ok());
    if is_trusted {
        return options.open(&resolved);
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOFOLLOW;
    let mode = Mode::from_raw_mode(0o644);
    // The other user may replace a directory by a link at any time.
    let file = match openat2(CWD, &resolved, flags, mode, ResolveFlags::NO_SYMLINKS) {
        Err(Errno::NOSYS | Errno::PERM) => rustix::fs::open(&resolved, flags, mode)?,
        opened => opened?,
    };
    let file = File::from(file);
    let metadata = file.metadata()?;
    if metadata.is_file() && metadata.nlink() == 1 {
        return Ok(file);
    }
    let text = "others control its directory, and it is no regular file or has several names";
    Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
}

/// The path without links; the file itself need not exist.
fn resolved(path: &Path) -> Option<PathBuf> {
    match fs::canonicalize(path) {
        Ok(resolved) => Some(resolved),
        Err(_) if fs::symlink_metadata(path).is_err() => {
            Some(fs::canonicalize(path.parent()?).ok()?.join(path.file_name()?))
        }
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use quell_test_support::{Lacks, skip};
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Whether this process may change the owner of files. The root of a user namespace can have no other users.
    fn is_root() -> bool {
        let file = tempfile::NamedTempFile::new().unwrap();
        let changed = chown(file.path(), Some(12345), None);
        if let Err(error) = &changed {
            skip(Lacks::Root, format_args!("only root can change the owner of a file: {error}"));
        }
        changed.is_ok()
    }

    #[test]
    fn a_directory_below_one_of_this_user_is_trusted_even_if_it_does_not_exist() {
        let dir = tempfile::tempdir().unwrap();
        check_directory(dir.path()).unwrap();
        check_directory(&dir.path().join("not/yet")).unwrap();
        symlink(dir.path(), dir.path().join("link")).unwrap();
        check_directory(&dir.path().join("link/further")).unwrap();
    }

    #[test]
    fn a_directory_that_others_may_write_to_is_not_trusted_unless_it_is_sticky() {
        let dir = tempfile::tempdir().unwrap();
        mode(dir.path(), 0o777);
        assert!(matches!(check_directory(&dir.path().join("below")), Err(NotOwn::Writable { .. })));
        mode(dir.path(), 0o1777);
        check_directory(&dir.path().join("below")).unwrap();
    }

    #[test]
    fn the_home_and_links_of_another_user_are_not_trusted() {
        if !is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (home, link) = (dir.path().join("home"), dir.path().join("link"));
        fs::create_dir(&home).unwrap();
        symlink("/usr", &link).unwrap();
        check_directory(&home.join(".cache")).unwrap();
        chown(&home, Some(12345), None).unwrap();
        std::os::unix::fs::lchown(&link, Some(12345), None).unwrap();
        for path in [home.join(".cache/quell"), link.join("lib")] {
            assert!(matches!(check_directory(&path), Err(NotOwn::Owner { owner: 12345, .. })), "{path:?}");
        }
    }

    #[test]
    fn a_link_at_the_path_of_a_file_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (precious, link) = (dir.path().join("precious"), dir.path().join("link"));
        fs::write(&precious, "precious").unwrap();
        symlink(&precious, &link).unwrap();
        assert_eq!(open(&link).unwrap_err().raw_os_error(), Some(libc::ELOOP));
        let hard = dir.path().join("hard");
        fs::hard_link(&precious, &hard).unwrap();
        assert_eq!(open(&hard).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        assert_eq!(fs::read(&precious).unwrap(), b"precious");
    }

    #[test]
    fn a_file_of_another_user_is_not_written_to() {
        if !is_root() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let theirs = dir.path().join("theirs");
        fs::write(&theirs, "").unwrap();
        open(&theirs).unwrap();
        chown(&theirs, Some(12345), None).unwrap();
        assert_eq!(open(&theirs).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }

    #[test]
    fn a_named_file_is_followed_by_links_of_this_user_only() {
        let dir = tempfile::tempdir().unwrap();
        let (target, link, dangling) =
            (dir.path().join("target"), dir.path().join("link"), dir.path().join("dangling"));
        fs::write(&target, "").unwrap();
        symlink(&target, &link).unwrap();
        symlink(dir.path().join("new"), &dangling).unwrap();
        for path in [&target, &link, &dangling, &dir.path().join("another"), Path::new("/dev/null")] {
            open_named(path).unwrap();
        }
        assert!(dir.path().join("new").exists() && dir.path().join("another").exists());
        if !is_root() {
            return;
        }
        let home = dir.path().join("home");
        fs::create_dir(&home).unwrap();
        let theirs = home.join("result");
        symlink(&target, &theirs).unwrap();
        std::os::unix::fs::lchown(&theirs, Some(12345), None).unwrap();
        chown(&home, Some(12345), None).unwrap();
        assert_eq!(open_named(&theirs).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        // A directory of the path, and a second name of a file of this user.
        let through = home.join("through");
        symlink(dir.path(), &through).unwrap();
        std::os::unix::fs::lchown(&through, Some(12345), None).unwrap();
        assert_eq!(open_named(&through.join("target")).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        let hard = home.join("hard");
        fs::hard_link(&target, &hard).unwrap();
        assert_eq!(open_named(&hard).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        // Their own file, as after `sudo` in a home directory.
        let own = home.join("own");
        fs::write(&own, "").unwrap();
        chown(&own, Some(12345), None).unwrap();
        open_named(&own).unwrap();
        open_named(&home.join("new")).unwrap();
    }
}
