//! Commands of this program in guests of the vm lab, on every kernel that is here. Skipped without QEMU and without
//! kernels: `quell vm get` fetches them, and `make test-vm` does both.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "helpers of tests fail by panicking and say when they skip"
)]

use std::process::{Command, Output};

use serde_json::Value;

fn quell(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_quell")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The kernels that are here; none, and said so, where guests cannot run.
fn kernels() -> Vec<String> {
    if Command::new("qemu-system-x86_64").arg("--version").output().is_err() {
        eprintln!("skipped: there is no qemu-system-x86_64 here");
        return Vec::new();
    }
    let listed: Value = serde_json::from_slice(&quell(&["vm", "list", "--json"]).stdout).unwrap();
    let names = listed["kernels"].as_array().unwrap().iter().map(|kernel| kernel["name"].as_str().unwrap().to_owned());
    let names: Vec<String> = names.collect();
    if names.is_empty() {
        eprintln!("skipped: no kernel is here; `quell vm get` fetches some");
    }
    names
}

#[test]
fn a_command_runs_in_a_guest_of_every_kernel_as_it_would_outside() {
    for kernel in kernels() {
        let ran = quell(&["vm", "run", "--kernel", &kernel, "--", "lab", "list", "--json"]);
        assert!(ran.status.success(), "{kernel}: {}", text(&ran.stderr));
        let document: Value = serde_json::from_slice(&ran.stdout).unwrap();
        assert_eq!(document["schema"], "quell-labs/1");
        let series = kernel.trim_end_matches("-full");
        assert!(text(&ran.stderr).contains(&format!("Linux {series}.")), "{kernel}: {}", text(&ran.stderr));
    }
}

#[test]
fn the_exit_code_and_the_words_of_a_command_in_a_guest_are_those_outside() {
    let Some(kernel) = kernels().pop() else { return };
    let outside = quell(&["lab", "tidy"]);
    let inside = quell(&["vm", "run", "--kernel", &kernel, "--", "lab", "tidy"]);
    assert_eq!(inside.status.code(), outside.status.code());
    assert!(text(&inside.stderr).contains(text(&outside.stderr).lines().next().unwrap()));
}

#[test]
fn a_guest_that_does_not_end_is_ended_with_its_last_words() {
    let Some(kernel) = kernels().pop() else { return };
    let ran = quell(&["vm", "run", "--kernel", &kernel, "--limit-s", "30", "--", "respond", "127.0.0.1:7000"]);
    assert_eq!(ran.status.code(), Some(4));
    let said = text(&ran.stderr);
    assert!(said.contains("did not end within 30 s") && said.contains("listening on 127.0.0.1:7000"), "{said}");
}
