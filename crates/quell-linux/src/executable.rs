//! What the kernel makes of a file that is to be executed or mapped as code: whether executing it changes who one is, and
//! whether its file system lets code be mapped at all.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use rustix::fs::{StatVfsMountFlags, getxattr, statvfs};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const CAPABILITIES: &CStr = c"security.capability";
/// `sizeof(struct vfs_ns_cap_data)`, the largest value of that attribute (`linux/capability.h`).
const CAPABILITIES_SIZE: usize = 24;

/// A file, told from all others as long as it exists or is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct FileId {
    /// The number of its file system (`st_dev`).
    pub device: u64,
    /// Its number there (`st_ino`).
    pub inode: u64,
}

impl From<&fs::Metadata> for FileId {
    fn from(metadata: &fs::Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// Whether executing the file would give this process another user, group or capabilities: then the dynamic linker obeys
/// no `LD_PRELOAD` with a path (`AT_SECURE`, `cap_bprm_creds_from_file` in `security/commoncap.c`). A file system that
/// is mounted `nosuid` is not looked for: there it is less than this says.
///
/// # Errors
/// When the file cannot be looked at.
pub fn gains_privileges(file: &Path) -> io::Result<bool> {
    let metadata = fs::metadata(file)?;
    let other_user = metadata.mode() & SET_USER_ID != 0 && metadata.uid() != geteuid().as_raw();
    let other_group = metadata.mode() & SET_GROUP_ID != 0 && metadata.gid() != getegid().as_raw();
    if other_user || other_group {
        return Ok(true);
    }
    // Root gains nothing by capabilities of a file.
    Ok(!geteuid().is_root() && has_capabilities(file)?)
}

fn has_capabilities(file: &Path) -> io::Result<bool> {
    let mut value = [0_u8; CAPABILITIES_SIZE];
    match getxattr(file, CAPABILITIES, &mut value) {
        Ok(_) => Ok(true),
        Err(Errno::NODATA | Errno::NOTSUP) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Whether files in a directory can be mapped as code: not when its file system is mounted `noexec`.
///
/// # Errors
/// When the directory cannot be looked at.
pub fn can_hold_code(directory: &Path) -> io::Result<bool> {
    Ok(!statvfs(directory)?.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

/// The user whose rights this process has.
#[must_use]
pub fn effective_user() -> u32 {
    geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use quell_test_support::{Lacks, skip};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn an_ordinary_program_gains_nothing() {
        assert!(!gains_privileges(Path::new("/proc/self/exe")).unwrap());
    }

    #[test]
    fn a_file_that_is_not_there_is_an_error() {
        assert_eq!(gains_privileges(Path::new("/nonexistent")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_program_of_anothers_with_the_set_user_id_bit_gains_something() {
        if !geteuid().is_root() {
            skip(Lacks::Root, "only root can give a file away");
            return;
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::os::unix::fs::chown(file.path(), Some(65534), None).unwrap();
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o4755)).unwrap();
        assert!(gains_privileges(file.path()).unwrap());
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(!gains_privileges(file.path()).unwrap());
    }

    #[test]
    fn proc_is_mounted_so_that_no_code_of_it_runs() {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let proc = mounts.lines().rfind(|line| line.split(' ').nth(1) == Some("/proc")).unwrap();
        assert_eq!(can_hold_code(Path::new("/proc")).unwrap(), !proc.contains("noexec"));
    }
}
