//! Control groups as far as they say which processes belong together: a group by its path, the group of a unit of the
//! service manager, the processes in it and below. Nothing is set.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::Pid;
use crate::visible;

/// Where control groups are mounted.
const MOUNT: &str = "/sys/fs/cgroup";
/// Hierarchies beside version 1's controllers in which the service manager keeps its units; version 2 alone has its groups
/// at the mount itself.
const HIERARCHIES: [&str; 3] = ["", "unified", "systemd"];
/// How deep units lie at most: slices may be nested.
const DEPTH_MAX: u32 = 16;

/// Why a group, or what is in it, could not be had.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CgroupError {
    /// There is no such group.
    #[error("there is no control group {path} under {}", visible::path(mount))]
    NoSuchGroup {
        /// As it was asked for.
        path: String,
        /// Where it was looked for.
        mount: PathBuf,
    },
    /// No unit of that name runs.
    #[error(
        "no unit {unit} has a control group under {}: it does not run, or is written otherwise",
        visible::path(mount)
    )]
    NoSuchUnit {
        /// Its name.
        unit: String,
        /// Where it was looked for.
        mount: PathBuf,
    },
    /// Several groups have the name of the unit.
    #[error("{} and {} are both called {unit}: name one with --cgroup", visible::path(first), visible::path(second))]
    Ambiguous {
        /// Its name.
        unit: String,
        /// One of them.
        first: PathBuf,
        /// Another.
        second: PathBuf,
    },
    /// A directory or file could not be read.
    #[error("reading {}: {source}", visible::path(path))]
    Read {
        /// Which.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
}

/// One control group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroup(PathBuf);

impl Cgroup {
    /// The group at `path`, below the mount or as a path in the file system.
    ///
    /// # Errors
    /// When there is none.
    pub fn at(path: &str) -> Result<Self, CgroupError> {
        Self::at_in(Path::new(MOUNT), path)
    }

    /// The group of a unit of the service manager, like `nginx.service`.
    ///
    /// # Errors
    /// When there is none, or several.
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
        for hierarchy in HIERARCHIES {
            let top = mount.join(hierarchy);
            if !top.join("cgroup.procs").is_file() {
                continue;
            }
            let mut found = Vec::new();
            groups_below(&top, DEPTH_MAX, &mut |group| {
                if group.file_name().is_some_and(|name| name == unit) {
                    found.push(group.to_owned());
                }
            })?;
            match &found[..] {
                [] => {}
                [group] => return Ok(Self(group.clone())),
                [first, second, ..] => {
                    let (unit, first, second) = (unit.to_owned(), first.clone(), second.clone());
                    return Err(CgroupError::Ambiguous { unit, first, second });
                }
            }
        }
        Err(CgroupError::NoSuchUnit { unit: unit.to_owned(), mount: mount.to_owned() })
    }

    /// Its path in the file system.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The processes in it and in the groups below, ascending; none once it is gone.
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

/// Calls `visit` with every group below `top`; one that goes away meanwhile is left out.
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

/// `cgroup.procs` of one group. A process that this pid namespace does not show is a 0 there, and a group of threads
/// refuses: its processes are listed by the group above.
fn processes_of(group: &Path) -> Result<Vec<Pid>, CgroupError> {
    let path = group.join("cgroup.procs");
    match fs::read_to_string(&path) {
        Ok(text) => Ok(text.lines().filter_map(|line| line.parse().ok()).collect()),
        Err(error) if is_gone(&error) || error.kind() == io::ErrorKind::Unsupported => Ok(Vec::new()),
        Err(source) => Err(CgroupError::Read { path, source }),
    }
}

/// `ENODEV` is what a group that is being removed answers.
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
    fn a_unit_is_found_by_its_name_with_the_processes_of_the_groups_below() {
        let mount = tempfile::tempdir().unwrap();
        group(mount.path(), "", "1\n");
        group(mount.path(), "system.slice", "");
        group(mount.path(), "system.slice/nginx.service", "20\n0\n21\n");
        group(mount.path(), "system.slice/nginx.service/worker", "30\n");
        let unit = Cgroup::of_unit_in(mount.path(), "nginx.service").unwrap();
        assert_eq!(pids(&unit), [20, 21, 30]);
        let absent = Cgroup::of_unit_in(mount.path(), "redis.service").unwrap_err();
        assert!(matches!(absent, CgroupError::NoSuchUnit { .. }), "{absent}");
    }

    #[test]
    fn a_unit_of_two_groups_is_not_guessed() {
        let mount = tempfile::tempdir().unwrap();
        group(mount.path(), "", "");
        for slice in ["system.slice", "user.slice"] {
            group(mount.path(), slice, "");
            group(mount.path(), &format!("{slice}/redis.service"), "");
        }
        assert!(matches!(Cgroup::of_unit_in(mount.path(), "redis.service"), Err(CgroupError::Ambiguous { .. })));
    }

    #[test]
    fn a_path_is_below_the_mount_or_whole_and_in_any_hierarchy() {
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
    fn a_group_that_went_away_has_no_processes() {
        let gone = Cgroup("/nonexistent/group".into());
        assert!(pids(&gone).is_empty());
    }
}
