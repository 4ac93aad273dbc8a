//! Network namespaces on the running kernel.

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{LabNamespace, can_make_namespaces, drop_all_capabilities, fresh_name};
use quell_linux::Pid;
use quell_linux::link::Links;
use quell_linux::netns::{Deletion, Namespace, NamespaceError};
use quell_test_support::{Lacks, skip};

fn mounts_below_run_netns() -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    mounts.lines().filter(|line| line.contains("/run/netns/qt-")).map(str::to_owned).collect()
}

#[test]
fn creating_and_deleting_a_namespace_leaves_nothing() {
    if !can_make_namespaces() {
        return;
    }
    let name = fresh_name("plain");
    let made = Namespace::create_named(&name).unwrap();
    assert!(Namespace::list_named().unwrap().contains(&name));
    assert_eq!(Namespace::open_named(&name).unwrap(), made);
    assert_eq!(Namespace::delete_named(&name).unwrap(), Deletion::Deleted);
    assert_eq!(Namespace::delete_named(&name).unwrap(), Deletion::WasAbsent);
    assert!(!Namespace::list_named().unwrap().contains(&name));
    assert!(!mounts_below_run_netns().iter().any(|line| line.contains(name.as_str())));
    assert!(Namespace::open_named(&name).unwrap_err().is_absent());
}

#[test]
fn an_existing_name_is_refused_and_unchanged() {
    if !can_make_namespaces() {
        return;
    }
    let lab = LabNamespace::create("taken");
    let error = Namespace::create_named(&lab.name).unwrap_err();
    assert!(error.to_string().contains("already exists"), "{error}");
    assert_eq!(Namespace::open_named(&lab.name).unwrap(), lab.namespace);
}

#[test]
fn a_file_left_by_a_crash_before_the_mount_is_reported_and_removed() {
    if !can_make_namespaces() {
        return;
    }
    let name = fresh_name("half");
    File::create(format!("/run/netns/{name}")).unwrap();
    let error = Namespace::open_named(&name).unwrap_err();
    assert!(error.to_string().contains("no network namespace is mounted"), "{error}");
    assert!(Namespace::list_named().unwrap().contains(&name));
    assert_eq!(Namespace::delete_named(&name).unwrap(), Deletion::Deleted);
}

#[test]
fn work_runs_inside_and_the_caller_stays_outside() {
    if !can_make_namespaces() {
        return;
    }
    let lab = LabNamespace::create("inside");
    let before = Namespace::current().unwrap();
    let inside = lab.namespace.run(|| Namespace::current().unwrap()).unwrap();
    assert_eq!(inside, lab.namespace);
    assert_ne!(inside, before);
    assert_eq!(Namespace::current().unwrap(), before);
}

#[test]
fn a_panic_inside_leaves_the_caller_outside() {
    if !can_make_namespaces() {
        return;
    }
    let lab = LabNamespace::create("panic");
    let before = Namespace::current().unwrap();
    let run = || lab.namespace.run(|| panic!("inside"));
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
    assert_eq!(Namespace::current().unwrap(), before);
}

#[test]
fn a_new_namespace_has_only_the_loopback() {
    if !can_make_namespaces() {
        return;
    }
    let lab = LabNamespace::create("lo");
    let names: Vec<_> = Links::open_in(&lab.namespace).unwrap().list().unwrap();
    // Some kernels add fallback tunnel devices of built-in modules.
    assert_eq!(names.first().map(|link| link.name.as_str()), Some("lo"));
    assert!(!names.iter().any(|link| link.name == "eth0"));
}

#[test]
fn a_process_started_inside_is_found_there_and_nowhere_else() {
    if !can_make_namespaces() {
        return;
    }
    let lab = LabNamespace::create("child");
    let mut command = Command::new("cat");
    command.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = lab.namespace.run(|| command.spawn().unwrap()).unwrap();
    let pid = Pid::new(child.id().try_into().unwrap()).unwrap();
    let proc_root = Path::new("/proc");
    let inside = lab.namespace.processes(proc_root).unwrap();
    let outside = Namespace::current().unwrap().processes(proc_root).unwrap();
    let of_child = Namespace::open_pid(proc_root, pid).unwrap();
    drop(child.stdin.take());
    child.wait().unwrap();
    assert_eq!(inside.pids, [pid]);
    assert!(!outside.pids.contains(&pid));
    assert_eq!(of_child, lab.namespace);
    assert!(Namespace::open_pid(proc_root, pid).unwrap_err().is_absent());
}

#[test]
fn iproute2_sees_a_namespace_created_here() {
    if !can_make_namespaces() {
        return;
    }
    let lab = LabNamespace::create("iproute2");
    let Ok(output) =
        Command::new("ip").args(["netns", "exec", lab.name.as_str(), "readlink", "/proc/self/ns/net"]).output()
    else {
        skip(Lacks::Tool("ip"), "no ip");
        return;
    };
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), lab.namespace.to_string());
    assert_eq!(std::fs::metadata(format!("/run/netns/{}", lab.name)).unwrap().ino(), lab.namespace.inode());
}

#[test]
fn a_namespace_created_later_under_the_same_name_has_another_cookie() {
    if !can_make_namespaces() {
        return;
    }
    let name = fresh_name("cookie");
    let make = || {
        let made = Namespace::create_named(&name).unwrap();
        let found = Namespace::open_named(&name).unwrap();
        let cookie = made.cookie();
        assert_eq!(found.cookie(), cookie, "the cookie does not depend on how the namespace was opened");
        Namespace::delete_named(&name).unwrap();
        cookie
    };
    let (first, second) = (make(), make());
    if matches!(first, Err(NamespaceError::NoCookie { .. })) {
        skip(Lacks::KernelFeature, "needs Linux 5.14");
        return;
    }
    assert_ne!(first.unwrap(), second.unwrap());
}

#[test]
fn without_the_capability_nothing_is_created_entered_or_deleted() {
    if !can_make_namespaces() {
        return;
    }
    let lab = LabNamespace::create("denied");
    let name = fresh_name("never");
    let (created, entered, deleted) = std::thread::scope(|scope| {
        let unprivileged = scope.spawn(|| {
            drop_all_capabilities();
            (Namespace::create_named(&name).map(drop), lab.namespace.run(|| ()), Namespace::delete_named(&lab.name))
        });
        unprivileged.join().unwrap()
    });
    for error in [created.unwrap_err(), entered.unwrap_err(), deleted.unwrap_err()] {
        assert!(error.is_denied(), "{error}");
        assert!(error.to_string().contains("CAP_SYS_ADMIN"), "{error}");
    }
    assert!(!Namespace::list_named().unwrap().contains(&name));
    assert_eq!(Namespace::open_named(&lab.name).unwrap(), lab.namespace);
}
