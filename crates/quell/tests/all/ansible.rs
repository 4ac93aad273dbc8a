//! The Ansible role: linted, and run by its local connection against a network namespace.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use quell_test_support::lab::TestLab;
use quell_test_support::{Lacks, skip};

fn has(tool: &'static str) -> bool {
    let found = Command::new(tool).arg("--version").output().is_ok_and(|output| output.status.success());
    if !found {
        skip(Lacks::Tool(tool), format_args!("{tool} is not installed"));
    }
    found
}

fn role() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/ansible"))
}

#[test]
fn the_role_is_free_of_complaints() {
    if !has("ansible-lint") {
        return;
    }
    let home = tempfile::tempdir().unwrap();
    let mut lint = Command::new("ansible-lint");
    // `--offline` installs no collections: the role uses only those of ansible-core.
    let linted = lint.args(["--offline", "--profile=production", "--nocolor"]).current_dir(role());
    let linted = linted.env("HOME", home.path()).output().unwrap();
    assert!(linted.status.success(), "{}", String::from_utf8_lossy(&linted.stderr));
}

struct Host {
    lab: TestLab,
    dir: tempfile::TempDir,
}

impl Host {
    /// Plays the role with these profiles, and returns whether it succeeded, with the output.
    fn play(&self, state: &str, profiles: &[&str]) -> (bool, String) {
        self.play_with(&[], state, profiles)
    }

    fn play_with(&self, options: &[&str], state: &str, profiles: &[&str]) -> (bool, String) {
        let dir = self.dir.path();
        let variables = serde_json::json!({
            "quell_state": state,
            "quell_profiles": profiles.iter().map(|name| dir.join(name)).collect::<Vec<_>>(),
            "quell_program": env!("CARGO_BIN_EXE_quell"),
            "quell_directory": dir.join("etc"),
            "quell_journals": dir.join("journal"),
            "quell_netns": self.lab.server_name,
            "quell_units": false,
            "ansible_python_interpreter": "{{ ansible_playbook_python }}",
        });
        let mut playbook = Command::new("ansible-playbook");
        playbook.args(["--connection=local", "--inventory=localhost,", "-e", &variables.to_string()]);
        playbook.args(options).arg(role().join("site.yml")).env("HOME", dir).env("ANSIBLE_BECOME", "false");
        let played = playbook.env("ANSIBLE_NOCOLOR", "1").output().unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&played.stdout), String::from_utf8_lossy(&played.stderr));
        (played.status.success(), said)
    }

    /// What a command prints about the journals of the role.
    fn quell(&self, arguments: &[&str]) -> String {
        let mut quell = Command::new(env!("CARGO_BIN_EXE_quell"));
        let output = quell.args(arguments).env("QUELL_JOURNAL_DIR", self.dir.path().join("journal")).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn flush_timeout_ns(&self) -> Option<u64> {
        self.lab.napi().settings.gro_flush_timeout_ns
    }
}

#[test]
fn the_role_applies_a_profile_verifies_it_and_rolls_back() {
    if !has("ansible-playbook") {
        return;
    }
    let Some(lab) = TestLab::raise_beside_others("ansible", 1) else { return };
    let host = Host { lab, dir: tempfile::tempdir().unwrap() };
    let profile = |name: &str, device: &str| {
        let text = format!("[device.nic]\nname = '{device}'\n[device.nic.queues.all]\nmode = 'defer50'\n");
        fs::write(host.dir.path().join(name), text).unwrap();
    };
    profile("good.toml", "server0");
    profile("wrong.toml", "absent0");
    let sysctl = |name: &str, value: u32| {
        fs::write(host.dir.path().join(name), format!("[sysctl]\n'net.core.somaxconn' = {value}\n")).unwrap();
    };
    sysctl("second.toml", 77);
    sysctl("others.toml", 88);
    // A profile that the role has not applied.
    let others = TestLab::raise_beside_others("ansible-others", 1).unwrap();
    host.quell(&["apply", "--netns", &others.server_name, &host.dir.path().join("others.toml").to_string_lossy()]);

    let before = host.flush_timeout_ns();
    for (profile, is_possible) in [("good.toml", true), ("wrong.toml", false)] {
        let (played, said) = host.play_with(&["--check"], "present", &[profile]);
        assert!(played == is_possible && is_possible != said.contains("selects no device"), "{profile}: {said}");
        assert_eq!(host.flush_timeout_ns(), before, "{profile}");
    }
    let (played, said) = host.play("present", &["good.toml"]);
    assert!(played, "{said}");
    assert_eq!(host.flush_timeout_ns(), Some(50_000));
    let (played, said) = host.play("present", &["good.toml"]);
    assert!(played && said.contains("changed=0"), "a second run changes nothing: {said}");

    let (played, said) = host.play("present", &["good.toml", "wrong.toml"]);
    assert!(!played && said.contains("selects no device") && !said.contains("rolled back after"), "{said}");
    assert_eq!(host.flush_timeout_ns(), Some(50_000), "a profile that is not possible replaces none");

    let (played, said) = host.play("present", &["good.toml"]);
    assert!(played, "{said}");
    let (played, said) = host.play("present", &["good.toml", "second.toml"]);
    assert!(played, "profiles are applied together: {said}");
    assert_eq!(host.flush_timeout_ns(), Some(50_000));
    let (played, said) = host.play("absent", &["good.toml", "second.toml", "wrong.toml"]);
    assert!(played, "{said}");
    assert_eq!(host.flush_timeout_ns(), Some(0));
    let status = host.quell(&["status"]);
    let (applied, _) = status.split_once("history:").unwrap();
    assert!(applied.contains("others.toml") && !applied.contains("good.toml"), "others keep theirs: {status}");
    host.quell(&["revert"]);
    assert_eq!(fs::read_dir(host.dir.path().join("etc")).unwrap().count(), 0);
}
