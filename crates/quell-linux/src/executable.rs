//! Properties of executables: whether executing a file changes credentials, and whether its file system permits
//! code mappings.

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
/// `sizeof(struct vfs_ns_cap_data)` in `linux/capability.h`: the maximum size of the attribute `security.capability`.
const CAPABILITIES_SIZE: usize = 24;

/// Identity of a file, unique while the file exists or is executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct FileId {
    pub device: u64,
    pub inode: u64,
}

impl From<&fs::Metadata> for FileId {
    fn from(metadata: &fs::Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// Whether executing the file changes the user, group or capabilities of this process. In that case the dynamic linker
/// ignores paths in `LD_PRELOAD` (`AT_SECURE`, `cap_bprm_creds_from_file` in `security/commoncap.c`). The function does
/// not check for a `nosuid` mount, which would prevent the change.
pub fn gains_privileges(file: &Path) -> io::Result<bool> {
    let metadata = fs::metadata(file)?;
    let other_user = metadata.mode() & SET_USER_ID != 0 && metadata.uid() != geteuid().as_raw();
    let other_group = metadata.mode() & SET_GROUP_ID != 0 && metadata.gid() != getegid().as_raw();
    if other_user || other_group {
        return Ok(true);
    }
    // Root gains no capabilities from the file capabilities of a program.
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

/// Whether files in a directory can be mapped as code, which a `noexec` mount prevents.
pub fn can_hold_code(directory: &Path) -> io::Result<bool> {
    Ok(!statvfs(directory)?.f_flag.contains(StatVfsMountFlags::NOEXEC))
}

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
    fn a_missing_file_is_an_error() {
        assert_eq!(gains_privileges(Path::new("/nonexistent")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_set_user_id_program_of_another_user_gains_privileges() {
        let file = tempfile::NamedTempFile::new().unwrap();
        if let Err(error) = std::os::unix::fs::chown(file.path(), Some(65534), None) {
            return skip(Lacks::Root, format_args!("only root can change the owner of a file: {error}"));
        }
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o4755)).unwrap();
        assert!(gains_privileges(file.path()).unwrap());
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o755)).unwrap();
        assert!(!gains_privileges(file.path()).unwrap());
    }

    #[test]
    fn proc_is_mounted_without_execution() {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let proc = mounts.lines().rfind(|line| line.split(' ').nth(1) == Some("/proc")).unwrap();
        assert_eq!(can_hold_code(Path::new("/proc")).unwrap(), !proc.contains("noexec"));
    }
}
