//! Read access to control groups: finds a group by path or by systemd unit, and lists the processes in a group and its
//! descendants.

use std::ffi::OsString;
use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd as _, IntoRawFd as _};
use std::os::unix::ffi::OsStringExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::Pid;
use crate::proc::{ProcRoot, unescaped_unit};
use crate::visible;

const USUAL_MOUNT: &str = "/sys/fs/cgroup";
const ANCESTORS_MAX: usize = 64;
/// Maximum depth of the search for units, because slices may be nested.
const DEPTH_MAX: u32 = 16;
/// Suffixes of unit names, systemd.unit(5).
const UNIT_SUFFIXES: [&str; 11] =
    ["service", "socket", "device", "mount", "automount", "swap", "target", "path", "timer", "slice", "scope"];

#[derive(Debug, Error)]
#[non_exhaustive]
pub enum CgroupError {
    #[error(
        "no cgroup2 or systemd hierarchy is mounted here, and none is visible to an ancestor of this process \
         (`ip netns exec` hides /sys): run the command outside, or select the processes by PID"
    )]
    NotMounted,
    #[error("no cgroup {} in {}", visible::name(path), listed(mounts))]
    NoSuchGroup { path: String, mounts: Vec<PathBuf> },
    #[error(
        "no cgroup of unit {} in {}: the unit is not running, or its name is misspelled",
        visible::name(unit),
        listed(mounts)
    )]
    NoSuchUnit { unit: String, mounts: Vec<PathBuf> },
    #[error(
        "{} and {} both belong to {}: select one with --cgroup",
        visible::path(first),
        visible::path(second),
        visible::name(unit)
    )]
    Ambiguous { unit: String, first: PathBuf, second: PathBuf },
    #[error("reading {}: {source}", visible::path(path))]
    Read { path: PathBuf, source: io::Error },
}

fn listed(mounts: &[PathBuf]) -> String {
    mounts.iter().map(|mount| visible::path(mount)).collect::<Vec<_>>().join(" and ")
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cgroup {
    /// Root directory of the mount namespace that has the path.
    root: PathBuf,
    path: PathBuf,
}

impl Cgroup {
    /// Finds the group at `path`, relative to a mount point or absolute.
    pub fn at(path: &str) -> Result<Self, CgroupError> {
        Hierarchies::mounted()?.at(path)
    }

    /// Finds the group of a systemd unit, for example `nginx.service`. A name without the suffix of a unit type means a
    /// service, as for `systemctl`.
    pub fn of_unit(unit: &str) -> Result<Self, CgroupError> {
        Hierarchies::mounted()?.of_unit(unit)
    }

    /// Absolute path of the group's directory, in the mount namespace of this program, or else in that of an ancestor.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn directory(&self) -> PathBuf {
        below(&self.root, &self.path)
    }

    /// PIDs of the processes in the group and its descendants, in ascending order. Empty if the group no longer exists.
    pub fn processes(&self) -> Result<Vec<Pid>, CgroupError> {
        let mut pids = Vec::new();
        let mut refused = None;
        let mut add = |group: &Path| match processes_of(group) {
            Ok(found) => pids.extend(found),
            Err(error) => refused = Some(error),
        };
        let directory = self.directory();
        add(&directory);
        groups_below(&directory, DEPTH_MAX, &mut add)?;
        pids.sort_unstable();
        pids.dedup();
        refused.map_or(Ok(pids), Err)
    }
}

/// Mounted hierarchies that contain the groups of systemd units.
#[derive(Debug)]
struct Hierarchies {
    root: PathBuf,
    /// Mount points: version 2 first, then systemd's own of version 1.
    mounts: Vec<PathBuf>,
}

impl Hierarchies {
    /// Searches the mounts of this process, then those of its ancestors: `ip netns exec` replaces /sys, and with it
    /// hides the cgroups that the shell before it sees.
    fn mounted() -> Result<Self, CgroupError> {
        if let Some(own) = Self::seen_by("self", PathBuf::from("/")) {
            return Ok(own);
        }
        let proc = ProcRoot::default();
        let parent = |pid: &Pid| proc.process(*pid).stat().ok()?.ppid;
        let ancestors = std::iter::successors(Some(Pid::of_this_process()), parent).skip(1).take(ANCESTORS_MAX);
        let of_ancestor = |pid: Pid| {
            let mut options = OpenOptions::new();
            options.read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY);
            let root = options.open(proc.process(pid).path().join("root")).ok()?;
            let path = PathBuf::from(format!("/proc/self/fd/{}", root.as_raw_fd()));
            let seen = Self::seen_by(&pid.to_string(), path)?;
            // The descriptor stays open until this process exits: the ancestor can exit before.
            let _ = root.into_raw_fd();
            Some(seen)
        };
        ancestors.into_iter().find_map(of_ancestor).ok_or(CgroupError::NotMounted)
    }

    fn seen_by(pid: &str, root: PathBuf) -> Option<Self> {
        // Nothing can be found where the caller may not read.
        let mounts = mounts_of_units(&fs::read(format!("/proc/{pid}/mountinfo")).unwrap_or_default());
        let mounts: Vec<PathBuf> = mounts.into_iter().filter(|mount| is_group(&below(&root, mount))).collect();
        (!mounts.is_empty()).then_some(Self { root, mounts })
    }

    fn at(&self, path: &str) -> Result<Cgroup, CgroupError> {
        let given = Path::new(path);
        let relative = given.strip_prefix(USUAL_MOUNT).unwrap_or(Path::new(path.trim_start_matches('/')));
        let in_mounts = self.mounts.iter().map(|mount| mount.join(relative));
        let mut candidates = given.is_absolute().then(|| given.to_owned()).into_iter().chain(in_mounts);
        match candidates.find(|group| is_group(&below(&self.root, group))) {
            Some(path) => Ok(Cgroup { root: self.root.clone(), path }),
            None => Err(CgroupError::NoSuchGroup { path: path.to_owned(), mounts: self.mounts.clone() }),
        }
    }

    fn of_unit(&self, unit: &str) -> Result<Cgroup, CgroupError> {
        let has_suffix = unit.rsplit_once('.').is_some_and(|(_, suffix)| UNIT_SUFFIXES.contains(&suffix));
        let unit = if has_suffix { unit.to_owned() } else { format!("{unit}.service") };
        for mount in &self.mounts {
            let top = below(&self.root, mount);
            let mut found = Vec::new();
            groups_below(&top, DEPTH_MAX, &mut |group| {
                let name = group.file_name().and_then(|name| name.to_str());
                if name.is_some_and(|name| name == unit || unescaped_unit(name) == unit) {
                    found.extend(group.strip_prefix(&top).map(|relative| mount.join(relative)));
                }
            })?;
            match <[PathBuf; 1]>::try_from(found) {
                Ok([path]) => return Ok(Cgroup { root: self.root.clone(), path }),
                Err(mut found) if found.len() > 1 => {
                    return Err(CgroupError::Ambiguous { unit, first: found.remove(0), second: found.remove(0) });
                }
                Err(_) => {}
            }
        }
        Err(CgroupError::NoSuchUnit { unit, mounts: self.mounts.clone() })
    }
}

fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

fn is_group(directory: &Path) -> bool {
    directory.join("cgroup.procs").is_file()
}

/// Mount points in `/proc/PID/mountinfo` of the hierarchies that contain the groups of units.
fn mounts_of_units(mountinfo: &[u8]) -> Vec<PathBuf> {
    let mount = |line: &[u8]| {
        let mut fields = line.split(|&byte| byte == b' ');
        let point = PathBuf::from(OsString::from_vec(unescaped(fields.nth(4)?)));
        // Optional fields end with a dash; the type, source and options of the file system follow.
        let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
        let (kind, options) = (rest.next()?, rest.nth(1)?);
        let is_systemd = || options.split(|&byte| byte == b',').any(|option| option == b"name=systemd");
        match kind {
            b"cgroup2" => Some((1, point)),
            b"cgroup" if is_systemd() => Some((2, point)),
            _ => None,
        }
    };
    let mut mounts: Vec<(u8, PathBuf)> = mountinfo.split(|&byte| byte == b'\n').filter_map(mount).collect();
    mounts.sort_by_key(|(order, _)| *order);
    mounts.into_iter().map(|(_, point)| point).collect()
}

/// Replaces the octal escapes of white space and backslashes (`\040`).
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.filter(|_| first == b'\\').and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                out.push(byte);
                rest = &after[3..];
            }
            None => {
                out.push(first);
                rest = after;
            }
        }
    }
    out
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
        let found = entry.file_type().is_ok_and(|kind| kind.is_dir()) && is_group(&entry.path());
        if found {
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

    fn hierarchies(mount: &Path) -> Hierarchies {
        let mounts = ["", "unified", "systemd"].map(|name| mount.join(name));
        Hierarchies { root: "/".into(), mounts: mounts.into_iter().filter(|mount| is_group(mount)).collect() }
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
        let unit = hierarchies(mount.path()).of_unit("nginx.service").unwrap();
        assert_eq!(pids(&unit), [20, 21, 30]);
        assert_eq!(hierarchies(mount.path()).of_unit("nginx").unwrap(), unit, "as for systemctl");
        let absent = hierarchies(mount.path()).of_unit("redis").unwrap_err();
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
        assert!(matches!(hierarchies(mount.path()).of_unit("redis.service"), Err(CgroupError::Ambiguous { .. })));
    }

    #[test]
    fn a_path_is_relative_to_the_mount_or_absolute_in_any_hierarchy() {
        let mount = tempfile::tempdir().unwrap();
        group(mount.path(), "systemd", "");
        group(mount.path(), "systemd/system.slice", "7\n");
        let whole = mount.path().join("systemd/system.slice");
        for path in ["system.slice", "/system.slice", whole.to_str().unwrap()] {
            assert_eq!(pids(&hierarchies(mount.path()).at(path).unwrap()), [7], "{path}");
        }
        assert!(matches!(hierarchies(mount.path()).at("nowhere"), Err(CgroupError::NoSuchGroup { .. })));
    }

    #[test]
    fn a_reserved_unit_name_is_found_by_its_escaped_cgroup() {
        let mount = tempfile::tempdir().unwrap();
        group(mount.path(), "", "");
        group(mount.path(), "_cpu.service", "5\n");
        group(mount.path(), "dnsmasq@fd00::1.service", "6\n");
        assert_eq!(pids(&hierarchies(mount.path()).of_unit("cpu.service").unwrap()), [5]);
        assert_eq!(pids(&hierarchies(mount.path()).of_unit("dnsmasq@fd00::1.service").unwrap()), [6]);
    }

    #[test]
    fn hierarchies_are_found_wherever_they_are_mounted() {
        let hybrid = b"31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
            32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime shared:4 master:1 - cgroup cgroup rw,cpu\n\
            40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd\n\
            41 31 0:38 / /run/my\\040groups rw,relatime - cgroup2 cgroup2 rw\n";
        assert_eq!(mounts_of_units(hybrid), [Path::new("/run/my groups"), Path::new("/sys/fs/cgroup/systemd")]);
        let in_netns = b"48 45 0:39 / /sys rw,relatime - sysfs blue rw\n";
        assert!(mounts_of_units(in_netns).is_empty());
        assert!(mounts_of_units(b"48 45 - cgroup2\n- - - -\n").is_empty());
    }

    #[test]
    fn control_characters_of_a_name_are_escaped_in_errors() {
        let mount = tempfile::tempdir().unwrap();
        group(mount.path(), "", "");
        let refused = hierarchies(mount.path()).of_unit("a\u{1b}[2J\nb").unwrap_err().to_string();
        assert!(!refused.contains(['\u{1b}', '\n']), "{refused}");
    }

    #[test]
    fn a_removed_group_has_no_processes() {
        let gone = Cgroup { root: "/".into(), path: "/nonexistent/group".into() };
        assert!(pids(&gone).is_empty());
    }
}
