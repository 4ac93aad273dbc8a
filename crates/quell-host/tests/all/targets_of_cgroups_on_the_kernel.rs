//! Selects programs by cgroup or unit in real cgroups: which processes are found, which appear and which exit. Creates
//! its own groups in the version 2 hierarchy and removes them. Needs root.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use quell_host::attach::{Selection, TargetError, Targets};
use quell_linux::cgroup::{Cgroup, CgroupError};
use quell_test_support::{Lacks, entry, skip};

/// Mount points of cgroup version 2: alone, or next to version 1.
const MOUNTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// Nested groups and their child processes, all removed on drop.
struct Groups {
    /// Outermost first.
    paths: Vec<PathBuf>,
    children: Vec<Child>,
}

impl Groups {
    fn make(names: &[&str]) -> Option<Self> {
        let is_version_2 = |mount: &&&str| Path::new(mount).join("cgroup.controllers").is_file();
        let Some(mount) = MOUNTS.iter().find(is_version_2) else {
            skip(Lacks::Machine, "cgroup version 2 is not mounted");
            return None;
        };
        let mut groups = Self { paths: Vec::new(), children: Vec::new() };
        let mut path = PathBuf::from(mount);
        for name in names {
            path.push(name);
            match fs::create_dir(&path) {
                Ok(()) => groups.paths.push(path.clone()),
                Err(error) if is_not_allowed(&error) => {
                    skip(Lacks::Root, format_args!("could not create {}: {error}", path.display()));
                    return None;
                }
                Err(error) => panic!("could not create {}: {error}", path.display()),
            }
        }
        Some(groups)
    }

    /// Starts a child of this process in the innermost group.
    fn start(&mut self) -> u32 {
        let child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let pid = child.id();
        self.children.push(child);
        fs::write(self.paths.last().unwrap().join("cgroup.procs"), pid.to_string()).unwrap();
        pid
    }

    fn end(&mut self, pid: u32) {
        let mut child = self.children.swap_remove(self.children.iter().position(|child| child.id() == pid).unwrap());
        child.kill().unwrap();
        child.wait().unwrap();
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
        for path in self.paths.iter().rev() {
            if let Err(error) = fs::remove_dir(path) {
                eprintln!("could not remove {}: {error}", path.display());
            }
        }
    }
}

fn is_not_allowed(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// A name that no other run of these tests uses.
fn name(of: &str) -> String {
    format!("qt-{}-{of}", std::process::id())
}

fn living(targets: &Targets) -> Vec<u32> {
    targets.living().map(|target| target.pid.get().unsigned_abs()).collect()
}

fn sorted<const N: usize>(mut pids: [u32; N]) -> [u32; N] {
    pids.sort_unstable();
    pids
}

#[test]
fn processes_of_a_group_and_its_subgroups_are_found_also_later() {
    let name = name("path");
    let Some(mut groups) = Groups::make(&[&name, "below"]) else { return };
    let first = groups.start();
    let whole = groups.paths[0].to_str().unwrap().to_owned();
    for path in [name.as_str(), &format!("/{name}"), &format!("{name}/below"), &whole] {
        let targets = Targets::find(Selection::Cgroup(Cgroup::at(path).unwrap())).unwrap();
        assert_eq!(living(&targets), [first], "{path}");
    }
    let mut targets = Targets::find(Selection::Cgroup(Cgroup::at(&name).unwrap())).unwrap();
    let second = groups.start();
    let turnover = targets.refresh().unwrap();
    assert_eq!(turnover.started.iter().map(|target| target.pid.get().unsigned_abs()).collect::<Vec<_>>(), [second]);
    assert_eq!(living(&targets), sorted([first, second]));
    groups.end(first);
    let turnover = targets.refresh().unwrap();
    assert_eq!(turnover.ended.iter().map(|target| target.pid.get().unsigned_abs()).collect::<Vec<_>>(), [first]);
    assert_eq!(living(&targets), [second]);
}

#[test]
fn a_unit_is_found_by_the_name_of_its_group_in_any_slice() {
    let (slice, unit) = (name("unit.slice"), name("unit.service"));
    let Some(mut groups) = Groups::make(&[&slice, &unit]) else { return };
    let empty = Targets::find(Selection::Cgroup(Cgroup::of_unit(&unit).unwrap())).unwrap_err();
    assert!(matches!(&empty, TargetError::Empty(group) if group.path() == groups.paths[1]), "{empty}");
    let pid = groups.start();
    let targets = Targets::find(Selection::Cgroup(Cgroup::of_unit(&unit).unwrap())).unwrap();
    assert_eq!(living(&targets), [pid]);
    drop(groups);
    assert!(matches!(Cgroup::of_unit(&unit), Err(CgroupError::NoSuchUnit { .. })));
}

/// Prints the processes of a unit. Executed by a test in another mount namespace.
#[test]
#[ignore = "entry point of another process"]
fn the_processes_of_a_unit_are_printed() {
    let Ok(unit) = std::env::var("QT_UNIT") else { return };
    let targets = Targets::find(Selection::Cgroup(Cgroup::of_unit(&unit).unwrap())).unwrap();
    println!("found {:?}", living(&targets));
}

/// `ip netns exec` mounts another /sys.
#[test]
fn a_unit_is_found_without_the_cgroups_of_the_own_mount_namespace() {
    let unit = name("hidden.service");
    let Some(mut groups) = Groups::make(&[&unit]) else { return };
    let pid = groups.start();
    let script = "mount --make-rslave / && umount -l /sys && mount -t sysfs none /sys && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(std::env::current_exe().unwrap());
    command.args(entry(the_processes_of_a_unit_are_printed)).env("QT_UNIT", &unit);
    let Ok(output) = command.output() else { return skip(Lacks::Tool("unshare"), "unshare is not installed") };
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(text.contains(&format!("found [{pid}]")), "{text}");
}

/// `cgroup.procs` of a threaded group cannot be read (`EOPNOTSUPP`); its processes belong to the parent group.
#[test]
fn a_process_with_threads_in_threaded_groups_is_found_by_the_parent_group() {
    let name = name("threads");
    let Some(mut groups) = Groups::make(&[&name]) else { return };
    let pid = groups.start();
    let threads = groups.paths[0].join("threads");
    fs::create_dir(&threads).unwrap();
    groups.paths.push(threads.clone());
    fs::write(threads.join("cgroup.type"), "threaded").unwrap();
    fs::write(threads.join("cgroup.threads"), pid.to_string()).unwrap();
    let targets = Targets::find(Selection::Cgroup(Cgroup::at(&name).unwrap())).unwrap();
    assert_eq!(living(&targets), [pid]);
    groups.end(pid);
}
