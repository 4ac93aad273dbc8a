//! Read access to control groups: finds a group by path or by systemd unit, and lists the processes in a group and its
//! descendants.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::Pid;
use crate::visible;

/// Mount point of the cgroup file system.
const MOUNT: &str = "/sys/fs/cgroup";
/// Hierarchies that contain the groups of systemd units, relative to the mount point. With cgroup v2 only, the mount
/// point itself is the hierarchy. The other two exist if cgroup v1 controllers are mounted.
const HIERARCHIES: [&str; 3] = ["", "unified", "systemd"];
/// Maximum depth of the search for units, because slices may be nested.
const DEPTH_MAX: u32 = 16;
/// Suffixes of unit names, systemd.unit(5).
const UNIT_SUFFIXES: [&str; 11] =
    ["service", "socket", "device", "mount", "automount", "swap", "target", "path", "timer", "slice", "scope"];

/// Why a group or its processes could not be found.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CgroupError {
    /// The group does not exist.
    #[error("no cgroup {path} in {}", visible::path(mount))]
    NoSuchGroup {
        /// Path of the group, as the caller gave it.
        path: String,
        /// Mount point below which the group was searched.
        mount: PathBuf,
    },
    /// No running unit has that name.
    #[error("no cgroup of unit {unit} in {}: the unit is not running, or its name is misspelled", visible::path(mount))]
    NoSuchUnit {
        /// Name of the unit.
        unit: String,
        /// Mount point below which the unit was searched.
        mount: PathBuf,
    },
    /// Several groups have the unit's name.
    #[error("{} and {} both belong to {unit}: select one with --cgroup", visible::path(first), visible::path(second))]
    Ambiguous {
        /// Name of the unit.
        unit: String,
        /// First group that was found.
        first: PathBuf,
        /// Second group that was found.
        second: PathBuf,
    },
    /// A directory or file could not be read.
    #[error("reading {}: {source}", visible::path(path))]
    Read {
        /// Path of the directory or file.
        path: PathBuf,
        /// Error returned by the system call.
        source: io::Error,
    },
}

/// A control group, identified by its absolute path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// Finds the group at `path`, relative to the mount point or absolute.
    ///
    /// # Errors
    /// When it does not exist.
    pub fn at(path: &str) -> Result<Self, CgroupError> {
        Self::at_in(Path::new(MOUNT), path)
    }

    /// Finds the group of a systemd unit, for example `nginx.service`. A name without the suffix of a unit type means a
    /// service, as for `systemctl`.
    ///
    /// # Errors
    /// When no group or several groups match.
    pub fn of_unit(unit: &str) -> Result<Self, CgroupError> {
        Self::of_unit_in(Path::new(MOUNT), unit)
    }

    fn at_in(mount: &Path, path: &str) -> Result<Self, CgroupError> {
        let below = Path::new(path).strip_prefix(mount).ok();
        let below = below.unwrap_or(Path::new(path.trim_start_matches('/')));
        let is_group = |group: &PathBuf| group.join("cgroup.procs").is_file();
        let found = HIERARCHIES.iter().map(|hierarchy| mount.join(hierarchy).join(below)).find(is_group);
        found.map(Self).ok_or_else(|| CgroupError::NoSuchGroup { path: path.to_owned(), mount: mount.to_owned() })
    }

    fn of_unit_in(mount: &Path, unit: &str) -> Result<Self, CgroupError> {
        let has_suffix = unit.rsplit_once('.').is_some_and(|(_, suffix)| UNIT_SUFFIXES.contains(&suffix));
        let unit = &if has_suffix { unit.to_owned() } else { format!("{unit}.service") };
        for hierarchy in HIERARCHIES {
            let top = mount.join(hierarchy);
            if !top.join("cgroup.procs").is_file() {
                continue;
            }
            let mut found = Vec::new();
            groups_below(&top, DEPTH_MAX, &mut |group| {
                if group.file_name().is_some_and(|name| name == unit.as_str()) {
                    found.push(group.to_owned());
                }
            })?;
            match &found[..] {
                [] => {}
                [group] => return Ok(Self(group.clone())),
                [first, second, ..] => {
                    let (unit, first, second) = (unit.clone(), first.clone(), second.clone());
                    return Err(CgroupError::Ambiguous { unit, first, second });
                }
            }
        }
        Err(CgroupError::NoSuchUnit { unit: unit.clone(), mount: mount.to_owned() })
    }

    /// Absolute path of the group's directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// PIDs of the processes in the group and its descendants, in ascending order. Returns an empty list if the group
    /// no longer exists.
    ///
    /// # Errors
    /// When a group cannot be read.
    pub fn processes(&self) -> Result<Vec<Pid>, CgroupError> {
        let mut pids = Vec::new();
        let mut refused = None;
        let mut add = |group: &Path| match processes_of(group) {
            Ok(found) => pids.extend(found),
            Err(error) => refused = Some(error),
        };
        add(&self.0);
        groups_below(&self.0, DEPTH_MAX, &mut add)?;
        pids.sort_unstable();
        pids.dedup();
        refused.map_or(Ok(pids), Err)
    }
}

/// Calls `visit` with every group below `top`. A group that vanishes during the search is skipped.
fn groups_below(top: &Path, depth: u32, visit: &mut impl FnMut(&Path)) -> Result<(), CgroupError> {
    let failed = |source| CgroupError::Read { path: top.to_owned(), source };
    let entries = match fs::read_dir(top) {
        Ok(entries) => entries,
        Err(error) if is_gone(&error) => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let is_group = entry.file_type().is_ok_and(|kind| kind.is_dir()) && entry.path().join("cgroup.procs").is_file();
        if is_group {
            visit(&entry.path());
            if depth > 1 {
                groups_below(&entry.path(), depth - 1, visit)?;
            }
        }
    }
    Ok(())
}

/// Reads `cgroup.procs` of one group. A process outside this PID namespace appears there as 0. Reading fails for a
/// threaded group, whose processes are listed in the domain group above it.
fn processes_of(group: &Path) -> Result<Vec<Pid>, CgroupError> {
    let path = group.join("cgroup.procs");
    match fs::read_to_string(&path) {
        Ok(text) => Ok(text.lines().filter_map(|line| line.parse().ok()).collect()),
        Err(error) if is_gone(&error) || error.kind() == io::ErrorKind::Unsupported => Ok(Vec::new()),
        Err(source) => Err(CgroupError::Read { path, source }),
    }
}

/// Whether the error means that the group is being removed: `ENOENT` or `ENODEV`.
fn is_gone(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(mount: &Path, path: &str, pids: &str) {
        let group = mount.join(path);
        fs::create_dir_all(&group).unwrap();
        fs::write(group.join("cgroup.procs"), pids).unwrap();
    }

    fn pids(cgroup: &Cgroup) -> Vec<i32> {
        cgroup.processes().unwrap().into_iter().map(Pid::get).collect()
    }

    #[test]
    fn a_unit_is_found_by_name_with_the_processes_of_the_groups_below() {
        let mount = tempfile::tempdir().unwrap();
        group(mount.path(), "", "1\n");
        group(mount.path(), "system.slice", "");
        group(mount.path(), "system.slice/nginx.service", "20\n0\n21\n");
        group(mount.path(), "system.slice/nginx.service/worker", "30\n");
        let unit = Cgroup::of_unit_in(mount.path(), "nginx.service").unwrap();
        assert_eq!(pids(&unit), [20, 21, 30]);
        assert_eq!(Cgroup::of_unit_in(mount.path(), "nginx").unwrap(), unit, "as for systemctl");
        let absent = Cgroup::of_unit_in(mount.path(), "redis").unwrap_err();
        assert!(matches!(absent, CgroupError::NoSuchUnit { .. }), "{absent}");
    }

    #[test]
    fn a_unit_name_with_two_groups_is_ambiguous() {
        let mount = tempfile::tempdir().unwrap();
        group(mount.path(), "", "");
        for slice in ["system.slice", "user.slice"] {
            group(mount.path(), slice, "");
            group(mount.path(), &format!("{slice}/redis.service"), "");
        }
        assert!(matches!(Cgroup::of_unit_in(mount.path(), "redis.service"), Err(CgroupError::Ambiguous { .. })));
    }

    #[test]
    fn a_path_is_relative_to_the_mount_or_absolute_in_any_hierarchy() {
        let mount = tempfile::tempdir().unwrap();
        group(mount.path(), "systemd", "");
        group(mount.path(), "systemd/system.slice", "7\n");
        let whole = mount.path().join("systemd/system.slice");
        for path in ["system.slice", "/system.slice", whole.to_str().unwrap()] {
            assert_eq!(pids(&Cgroup::at_in(mount.path(), path).unwrap()), [7], "{path}");
        }
        assert!(matches!(Cgroup::at_in(mount.path(), "nowhere"), Err(CgroupError::NoSuchGroup { .. })));
    }

    #[test]
    fn a_removed_group_has_no_processes() {
        let gone = Cgroup("/nonexistent/group".into());
        assert!(pids(&gone).is_empty());
    }
}
