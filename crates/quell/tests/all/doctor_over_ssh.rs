//! `quell doctor` and `quell run` as a user runs them over SSH: they warn if the session's own queue is delayed. A real
//! sshd runs in the test's namespace. Needs root, Linux 6.13 and OpenSSH.

use std::path::Path;
use std::process::{Command, Output};

use quell_linux::netdev::PartialNapiSettings;
use quell_linux::process::{self, Child, Spawn};
use quell_test_support::lab::TestLab;
use quell_test_support::{Lacks, skip, wait_until};
use serde_json::Value;

const SSHD: &str = "/usr/sbin/sshd";
const FINDING: &str = "ssh-session-on-delayed-queue";

/// Creates a key without a passphrase.
fn make_key(path: &Path) {
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path).status().unwrap();
    assert!(made.success());
}

/// Starts sshd on the server's side of the lab. Its `/run` is its own, because it needs `/run/sshd`.
fn start_sshd(lab: &mut TestLab, keys: &Path) -> Child {
    let place = |name: &str| keys.join(name).to_str().unwrap().to_owned();
    let script = "mount -t tmpfs tmpfs /run && mkdir /run/sshd && exec \"$@\"";
    let options = [
        format!("AuthorizedKeysFile={}", place("user.pub")),
        "ListenAddress=192.0.2.1".to_owned(),
        "PermitRootLogin=prohibit-password".to_owned(),
        "PidFile=none".to_owned(),
        "StrictModes=no".to_owned(),
        "UsePAM=no".to_owned(),
    ];
    let mut words =
        ["-m", "sh", "-c", script, "sh", SSHD, "-D", "-e", "-f", "/dev/null", "-h"].map(str::to_owned).to_vec();
    words.push(place("host"));
    words.extend(options.into_iter().flat_map(|option| ["-o".to_owned(), option]));
    lab.start(Spawn::new("unshare").args(words).stderr(process::Output::Tail(2_000)))
}

/// Runs a command in an SSH session from the client's side.
fn over_ssh(lab: &TestLab, keys: &Path, command: &str) -> Output {
    let mut ssh = Command::new("ssh");
    ssh.args(["-F", "/dev/null", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no"])
        .args(["-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR", "-i"])
        .arg(keys.join("user"))
        .args(["root@192.0.2.1", command]);
    lab.client.run(|| ssh.output().unwrap()).unwrap()
}

#[test]
fn a_session_whose_own_queue_is_suspended_is_warned() {
    if !Path::new(SSHD).exists() || Command::new("ssh").arg("-V").output().is_err() {
        return skip(Lacks::Tool("sshd"), "needs OpenSSH's server and client");
    }
    let Some(mut lab) = TestLab::raise_beside_others("ssh", 1) else { return };
    let keys = tempfile::tempdir().unwrap();
    make_key(&keys.path().join("user"));
    make_key(&keys.path().join("host"));
    let sshd = start_sshd(&mut lab, keys.path());
    wait_until(|| {
        let output = over_ssh(&lab, keys.path(), "true");
        output
            .status
            .success()
            .then_some(())
            .ok_or_else(|| format!("sshd does not answer: {output:?} {:?}", sshd.stderr_tail()))
    });

    let quell = env!("CARGO_BIN_EXE_quell");
    let doctor = format!("{quell} doctor --seconds 0 --json");
    let severity = |command: &str| {
        let output = over_ssh(&lab, keys.path(), command);
        let report: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        let finding = report["findings"].as_array().unwrap().iter().find(|finding| finding["id"] == FINDING);
        finding.map(|finding| finding["severity"].as_str().unwrap().to_owned())
    };
    let by_ancestors = format!("env -u SSH_CONNECTION {doctor}");
    // As in a terminal multiplexer, whose ancestor is init.
    let made = keys.path().join("made");
    let made = made.to_str().unwrap();
    let by_environment = format!(
        "setsid -f sh -c '{doctor} >{made}.part; mv {made}.part {made}'; \
         until [ -e {made} ]; do sleep 0.05; done; cat {made}; rm {made}"
    );
    let run = format!("{quell} run --dry-run suspend20 -- true");
    assert_eq!(severity(&by_ancestors), None, "the queue has no mode");
    let said = String::from_utf8(over_ssh(&lab, keys.path(), &run).stdout).unwrap();
    assert!(said.contains(FINDING), "said before the mode is set: {said}");

    lab.set_napi(&PartialNapiSettings {
        defer_hard_irqs: Some(100),
        gro_flush_timeout_ns: Some(20_000),
        irq_suspend_timeout_ns: Some(20_000_000),
        threaded: None,
    });
    for command in [&by_ancestors, &by_environment] {
        assert_eq!(severity(command).as_deref(), Some("warning"), "{command}");
    }
    lab.set_napi(&PartialNapiSettings { irq_suspend_timeout_ns: Some(2_000_000_000), ..PartialNapiSettings::NONE });
    assert_eq!(severity(&doctor).as_deref(), Some("serious"));
}
