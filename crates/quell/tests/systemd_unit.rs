//! The units for a service manager: what they say is understood, and what they give is enough.

use quell_test_support::{Lacks, skip};
use std::process::Command;

const UNIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/quell.service");

/// The unit that follows another one.
const ATTACH_UNIT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/quell-attach@.service");

/// What is so on a machine where neither the program nor the unit that is followed is installed.
const NOT_INSTALLED: [&str; 2] = ["/usr/bin/quell is not executable", "Unit i.service not found"];

#[test]
fn systemd_understands_every_line_of_the_units() {
    for unit in [UNIT, ATTACH_UNIT] {
        let Ok(verified) = Command::new("systemd-analyze").args(["verify", "--man=no", unit]).output() else {
            skip(Lacks::Tool("systemd-analyze"), "there is no systemd-analyze");
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
fn the_capabilities_of_the_unit_are_enough_to_apply_and_to_revert() {
    let unit = std::fs::read_to_string(UNIT).expect("the unit is there");
    let bounds = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).expect("it bounds them");
    let bounds: Vec<String> = bounds.split(' ').map(|name| name.replace("CAP_", "+").to_lowercase()).collect();
    let journal = tempfile::tempdir().expect("a directory");
    let profile = journal.path().join("p.toml");
    // In a network namespace of its own, whose settings are nobody else's.
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
