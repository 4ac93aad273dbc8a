//! Shared by the tests of the vm lab: the available kernels, and commands that run in a guest one after the other.

use std::process::{Command, Output};

use quell_test_support::{Lacks, skip};
use serde_json::Value;

/// Runs `quell`. If the guest's kernel crashed, runs it again: on an overloaded host, emulation sometimes causes a
/// crash.
pub(crate) fn quell(arguments: &[&str]) -> Output {
    let run = || Command::new(env!("CARGO_BIN_EXE_quell")).args(arguments).output().unwrap();
    let first = run();
    if !text(&first.stderr).contains("the guest exited before its command") {
        return first;
    }
    eprintln!("running it again: {}", text(&first.stderr));
    run()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The available kernels. If guests cannot run, skips the test with the reason.
pub(crate) fn kernels() -> Vec<String> {
    if Command::new("qemu-system-x86_64").arg("--version").output().is_err() {
        skip(Lacks::Guest, "qemu-system-x86_64 is not installed");
        return Vec::new();
    }
    let listed: Value = serde_json::from_slice(&quell(&["vm", "list", "--json"]).stdout).unwrap();
    let names = listed["kernels"].as_array().unwrap().iter().map(|kernel| kernel["name"].as_str().unwrap().to_owned());
    let names: Vec<String> = names.collect();
    if names.is_empty() {
        skip(Lacks::Guest, "no kernel was fetched; run `quell vm get`");
    }
    names
}

/// Results of commands in a guest of this kernel with two NICs and a server under load: an object each, with `code`,
/// `output` and `diagnostics`.
pub(crate) fn done_in(kernel: &str, options: &[&str], commands: &Value) -> Vec<Value> {
    let run = ["vm", "run", "--limit-s", "300", "--kernel", kernel];
    let ran = quell(&[&run, options, &["--", "vm-commands", &commands.to_string()]].concat());
    assert!(ran.status.success(), "{kernel}: {}", text(&ran.stderr));
    let done: Vec<Value> = text(&ran.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(done.len(), commands.as_array().unwrap().len(), "{kernel}: {}", text(&ran.stderr));
    done
}
