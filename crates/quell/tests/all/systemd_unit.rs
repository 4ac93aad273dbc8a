//! The units for a service manager: systemd parses them, and their capabilities suffice.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use quell_linux::link::Links;
use quell_linux::netdev::Netdev;
use quell_test_support::lab::TestLab;
use quell_test_support::{Lacks, skip};
use serde_json::Value;

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

/// Ten times the exposure level of systemd 252, in which 0 is the safest.
#[test]
fn the_exposure_of_the_units_does_not_rise() {
    for (unit, exposure) in [(UNIT, 46), (ATTACH_UNIT, 66), (EXPORT_UNIT, 37)] {
        let threshold = format!("--threshold={exposure}");
        let mut command = Command::new("systemd-analyze");
        let Ok(rated) = command.args(["security", "--offline=true", "--no-pager", &threshold, unit]).output() else {
            skip(Lacks::Tool("systemd-analyze"), "systemd-analyze is not installed");
            return;
        };
        let table = String::from_utf8_lossy(&rated.stdout);
        assert!(rated.status.success(), "{unit}: {}", table.lines().last().unwrap_or_default());
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

/// `quell apply` with these arguments and a profile, in the server's namespace.
fn apply(lab: &TestLab, dir: &Path, arguments: &[&str]) -> Command {
    let profile = dir.join("p.toml");
    std::fs::write(&profile, "[device.nic]\nname = 'server0'\n[device.nic.queues.all]\nmode = 'defer50'\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    command.args(arguments).arg(profile).args(["--netns", &lab.server_name]);
    command.env("QUELL_JOURNAL_DIR", dir.join("journal"));
    command
}

#[test]
fn queues_of_a_link_that_is_down_are_refused_with_the_reason_and_set_by_the_unit_when_it_comes_up() {
    let Some(lab) = TestLab::raise_beside_others("unit-down", 2) else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut links = Links::open_in(&lab.server).unwrap();
    links.set_down(lab.server_index).unwrap();
    let refused = apply(&lab, dir.path(), &["apply"]).output().unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(5), "{said}");
    assert!(said.contains("the link is down"), "{said}");

    let unit = std::fs::read_to_string(UNIT).unwrap();
    let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/quell ")).unwrap();
    let mut command = apply(&lab, dir.path(), &start.split(' ').collect::<Vec<_>>());
    let mut waiting = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(waiting.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
    assert!(said.contains("waiting for the link of"), "{said}");
    links.set_up(lab.server_index).unwrap();
    assert!(waiting.wait().unwrap().success());
    let napis = Netdev::open_in(&lab.server).unwrap().napis(lab.server_index).unwrap();
    assert_eq!(napis.len(), 2);
    assert!(napis.iter().all(|napi| napi.settings.gro_flush_timeout_ns == Some(50_000)), "{napis:?}");
    let mut revert = Command::new(env!("CARGO_BIN_EXE_quell"));
    let reverted = revert.arg("revert").env("QUELL_JOURNAL_DIR", dir.path().join("journal")).status().unwrap();
    assert!(reverted.success());
}

/// Boots systemd in a container and returns the directory with what `tests/systemd/probe.sh` printed there.
fn booted() -> Option<tempfile::TempDir> {
    for needed in ["/lib/systemd/systemd", "/usr/sbin/ethtool", "/usr/bin/memcached", "/usr/sbin/nginx"] {
        if !Path::new(needed).exists() {
            skip(Lacks::Tool(needed), format_args!("{needed} is not installed"));
            return None;
        }
    }
    // The units need what a lab needs.
    TestLab::raise_beside_others("systemd", 1)?;
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (out, scripts) = (tempfile::tempdir().unwrap(), here.join("tests/systemd"));
    let mut command = Command::new("unshare");
    command.args(["--mount", "bash"]).arg(scripts.join("boot.sh")).arg(env!("CARGO_BIN_EXE_quell"));
    let booted = command.arg(here.join("../../dist")).arg(&scripts).arg(out.path()).output().unwrap();
    let log = std::fs::read_to_string(out.path().join("log")).unwrap_or_default();
    assert!(out.path().join("complete").exists(), "{}\n{log}", String::from_utf8_lossy(&booted.stderr));
    Some(out)
}

/// `gro-flush-timeout` of the only NAPI instance, in ns, and the number of journals, when the probe looked.
fn settings(out: &tempfile::TempDir, when: &str) -> (u64, usize) {
    let read = |kind: &str| -> Value {
        serde_json::from_slice(&std::fs::read(out.path().join(format!("{when}.{kind}"))).unwrap()).unwrap()
    };
    let (snapshot, status) = (read("show"), read("status"));
    let napi = &snapshot["devices"][0]["napis"][0];
    assert_eq!(status["left-behind"].as_array().unwrap().len(), 0, "{status}");
    (napi["gro-flush-timeout-ns"].as_u64().unwrap(), status["applied"].as_array().unwrap().len())
}

#[test]
fn systemd_starts_the_units_with_their_capabilities_and_a_restart_or_an_upgrade_flips_no_queue() {
    let Some(out) = booted() else { return };
    assert_eq!(settings(&out, "before"), (0, 0));
    assert_eq!(settings(&out, "attached"), (200_000, 1), "quell-attach@memcached");
    assert_eq!(settings(&out, "left"), (200_000, 1), "a stop changes no setting");
    assert_eq!(settings(&out, "detached"), (0, 0));
    assert_eq!(settings(&out, "restarted"), (200_000, 1), "a killed unit is restored and started again");
    assert_eq!(settings(&out, "applied"), (30_000, 1), "quell");
    for when in ["both", "upgraded", "stopped", "started", "handed_over", "kept", "continued"] {
        assert_eq!(settings(&out, when), (200_000, 2), "{when}: the profile and the attachment stay");
    }
    let runs = |when: &str| std::fs::read_to_string(out.path().join(format!("{when}.runs"))).unwrap();
    assert!(["upgraded", "stopped", "started"].iter().all(|when| runs(when) == runs("both")), "no unit was restarted");
    assert!(runs("handed_over") != runs("both") && runs("continued") != runs("handed_over"), "the unit was restarted");
    let looks = std::fs::read_to_string(out.path().join("every-look")).unwrap();
    assert!(
        looks.lines().count() > 0 && looks.lines().all(|look| look.contains(" 200000,")),
        "a queue flipped: {looks}"
    );
    let load: Value = serde_json::from_slice(&std::fs::read(out.path().join("upgrade.load")).unwrap()).unwrap();
    let errors: u64 = load["report"]["errors"].as_object().unwrap().values().filter_map(Value::as_u64).sum();
    assert_eq!(errors, 0, "no request fails: {load}");
    let newer = std::fs::read_to_string(out.path().join("newer.log")).unwrap();
    assert!(newer.contains("quell-journal/99") && !out.path().join("newer-understood").exists(), "{newer}");
    assert_eq!(settings(&out, "refused"), (30_000, 1), "a changed profile needs `quell revert` first");
    assert!(!out.path().join("changed").exists());
    assert_eq!(settings(&out, "changed_profile"), (40_000, 1));
    assert_eq!(settings(&out, "stopped_for_removal"), (200_000, 2));
    assert_eq!(settings(&out, "reverted"), (0, 0));
    assert_eq!(settings(&out, "steered"), (50_000, 1), "quell-attach@nginx has the mode of its drop-in");
    let steered = std::fs::read_to_string(out.path().join("steered.command")).unwrap();
    assert!(steered.starts_with("/usr/bin/quell attach suspend50 --steer --pin --unit nginx.service "), "{steered}");
    assert_eq!(settings(&out, "unsteered"), (0, 0));
    let metrics = std::fs::read_to_string(out.path().join("metrics")).unwrap();
    let program = |line: &str| line.contains("comm=\"memcached\",unit=\"memcached.service\"");
    assert!(metrics.lines().any(program), "quell-export finds the program and its unit: {metrics}");
}
