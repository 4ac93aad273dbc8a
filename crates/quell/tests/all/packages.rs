//! The packages, installed in an empty root: the programs of the root run them, an upgrade changes no setting, removal
//! restores the host and leaves no file. `QUELL_PACKAGES` names the directory that `make package` filled.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use quell_test_support::{Lacks, skip};
use serde_json::Value;

/// What `tests/packages/install.sh` printed.
struct Installed(tempfile::TempDir);

impl Installed {
    fn text(&self, file: &str) -> String {
        let path = self.0.path().join(file);
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    fn files(&self, when: &str) -> BTreeSet<String> {
        self.text(when).lines().map(str::to_owned).collect()
    }
}

/// The package with this extension.
fn package(extension: &str) -> Option<PathBuf> {
    let Some(directory) = std::env::var_os("QUELL_PACKAGES") else {
        skip(Lacks::LeftTo("make check-packages"), "QUELL_PACKAGES names no directory with packages");
        return None;
    };
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let package = files.into_iter().find(|path| path.extension().is_some_and(|found| found == extension));
    Some(package.expect("`make package` makes a package of each kind"))
}

/// Installs and removes a package in a root of this Debian release.
fn installed(extension: &str, suite: &str) -> Option<Installed> {
    let package = package(extension)?;
    for tool in ["mmdebstrap", "rpm", "unshare"] {
        if Command::new(tool).arg("--version").output().is_err() {
            skip(Lacks::Tool(tool), format_args!("{tool} is not installed"));
            return None;
        }
    }
    let out = tempfile::tempdir().unwrap();
    let root = out.path().join("root.tar");
    let mut debian = Command::new("mmdebstrap");
    let debian = debian.args(["--quiet", "--variant=minbase", "--include=bash-completion,man-db", suite]).arg(&root);
    if !debian.status().unwrap().success() {
        skip(Lacks::Tool("Debian mirror"), format_args!("mmdebstrap could not fetch {suite}"));
        return None;
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/packages/install.sh");
    let mut command = Command::new("unshare");
    command.args(["--mount", "--net", "--pid", "--fork", "bash"]).arg(script).arg(&root).arg(package).arg(out.path());
    let ran = command.output().unwrap();
    assert!(out.path().join("complete").exists(), "{}", String::from_utf8_lossy(&ran.stderr));
    Some(Installed(out))
}

fn works_and_leaves_nothing(installed: &Installed) {
    assert_eq!(installed.text("version"), format!("quell {}\n", env!("CARGO_PKG_VERSION")));
    let parsed = |file: &str| -> Value { serde_json::from_str(&installed.text(file)).unwrap() };
    assert!(parsed("show")["devices"].as_array().is_some_and(|devices| !devices.is_empty()));
    assert!(parsed("doctor")["findings"].is_array());
    assert!(installed.text("bench").contains("Changes relative to base"), "{}", installed.text("bench"));
    assert!(installed.text("man").contains("quell attach"));
    assert!(installed.text("man7").contains("irq-suspend-timeout"));
    assert_eq!(installed.text("completion"), "attach\n");

    let [before, applied, upgraded, removed] =
        ["before", "applied", "upgraded", "removed"].map(|when| installed.text(&format!("limit.{when}")));
    assert_eq!(applied, "77\n");
    assert_eq!(upgraded, "77\n", "an upgrade changes no setting");
    assert_eq!(removed, before, "removal restores what was applied");

    let (before, now) = (installed.files("before"), installed.files("installed"));
    assert!(now.is_superset(&before) && now.contains("./usr/bin/quell"));
    assert!(now.difference(&before).all(|file| !file.contains(".wants/")), "installing enables no unit");
    let left: Vec<String> = installed.files("purged").difference(&before).cloned().collect();
    assert_eq!(left, Vec::<String>::new(), "left after removal");
}

#[test]
fn the_deb_works_in_an_empty_debian_12_and_leaves_nothing() {
    installed("deb", "bookworm").iter().for_each(works_and_leaves_nothing);
}

#[test]
fn the_deb_works_in_an_empty_debian_13_and_leaves_nothing() {
    installed("deb", "trixie").iter().for_each(works_and_leaves_nothing);
}

#[test]
fn the_rpm_works_in_an_unpacked_root_and_leaves_nothing() {
    installed("rpm", "bookworm").iter().for_each(works_and_leaves_nothing);
}
