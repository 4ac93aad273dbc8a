//! The units for a service manager: systemd parses them, and their capabilities suffice.

use quell_test_support::{Lacks, skip};
use std::process::Command;

const UNIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/quell.service");

/// Unit that attaches a mode to another unit.
const ATTACH_UNIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/quell-attach@.service");

/// Unit that exports metrics.
const EXPORT_UNIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/quell-export.service");

/// Messages that are expected if neither the program nor the other unit is installed.
const NOT_INSTALLED: [&str; 2] = ["/usr/bin/quell is not executable", "Unit i.service not found"];

#[test]
fn systemd_understands_every_line_of_the_units() {
    for unit in [UNIT, ATTACH_UNIT, EXPORT_UNIT] {
        let Ok(verified) = Command::new("systemd-analyze").args(["verify", "--man=no", unit]).output() else {
            skip(Lacks::Tool("systemd-analyze"), "systemd-analyze is not installed");
            return;
        };
        let said = String::from_utf8_lossy(&verified.stderr);
        let ours = said.lines().filter(|line| line.starts_with("quell") || line.contains(unit));
        let complaints: Vec<&str> =
            ours.filter(|line| NOT_INSTALLED.iter().all(|reason| !line.contains(reason))).collect();
        assert!(complaints.is_empty(), "{complaints:#?}");
    }
}

#[test]
fn the_capabilities_of_the_unit_suffice_for_apply_and_revert() {
    let unit = std::fs::read_to_string(UNIT).expect("the unit exists");
    let bounds = unit
        .lines()
        .find_map(|line| line.strip_prefix("CapabilityBoundingSet="))
        .expect("it has a capability bounding set");
    let bounds: Vec<String> = bounds.split(' ').map(|name| name.replace("CAP_", "+").to_lowercase()).collect();
    let journal = tempfile::tempdir().expect("a directory");
    let profile = journal.path().join("p.toml");
    // The network namespace is new, so its settings belong to this test alone.
    std::fs::write(&profile, "[sysctl]\n\"net.core.somaxconn\" = 77\n").expect("written");
    let script = "set -e; \"$0\" apply \"$1\"; \"$0\" status; \"$0\" revert";
    let mut command = Command::new("unshare");
    command.args(["--net", "setpriv", "--inh-caps=-all"]).arg(format!("--bounding-set=-all,{}", bounds.join(",")));
    command.args(["sh", "-c", script, env!("CARGO_BIN_EXE_quell")]).arg(&profile);
    match command.env("QUELL_JOURNAL_DIR", journal.path().join("journal")).output() {
        Err(error) => skip(Lacks::Tool("unshare"), &error),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            if said.contains("unshare failed")
                || said.contains("setpriv:")
                || said.contains("failed to execute setpriv")
            {
                skip(Lacks::Root, &said);
                return;
            }
            assert!(output.status.success(), "{said}");
            assert!(String::from_utf8_lossy(&output.stdout).contains("1 setting restored"), "{output:?}");
        }
    }
}
