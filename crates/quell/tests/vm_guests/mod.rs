//! What the tests of the vm lab share: which kernels are here, and commands that run in a guest one after the other.

use std::process::{Command, Output};

use quell_test_support::{Lacks, skip};
use serde_json::Value;

/// A command whose guest's kernel broke down is run once more: on a host with more to do than CPUs, emulation lets one
/// do so now and then.
pub(crate) fn quell(arguments: &[&str]) -> Output {
    let run = || Command::new(env!("CARGO_BIN_EXE_quell")).args(arguments).output().unwrap();
    let first = run();
    if !text(&first.stderr).contains("the guest exited before its command") {
        return first;
    }
    eprintln!("once more: {}", text(&first.stderr));
    run()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The kernels that are here; none, and said so, where guests cannot run.
pub(crate) fn kernels() -> Vec<String> {
    if Command::new("qemu-system-x86_64").arg("--version").output().is_err() {
        skip(Lacks::Guest, "there is no qemu-system-x86_64 here");
        return Vec::new();
    }
    let listed: Value = serde_json::from_slice(&quell(&["vm", "list", "--json"]).stdout).unwrap();
    let names = listed["kernels"].as_array().unwrap().iter().map(|kernel| kernel["name"].as_str().unwrap().to_owned());
    let names: Vec<String> = names.collect();
    if names.is_empty() {
        skip(Lacks::Guest, "no kernel is here; `quell vm get` fetches some");
    }
    names
}

/// What became of commands in a guest of this kernel with two NICs and a server under load: an object each, with
/// `code`,
/// `output` and `diagnostics`.
pub(crate) fn done_in(kernel: &str, options: &[&str], commands: &Value) -> Vec<Value> {
    let run = ["vm", "run", "--limit-s", "300", "--kernel", kernel];
    let ran = quell(&[&run, options, &["--", "vm-commands", &commands.to_string()]].concat());
    assert!(ran.status.success(), "{kernel}: {}", text(&ran.stderr));
    let done: Vec<Value> = text(&ran.stdout).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(done.len(), commands.as_array().unwrap().len(), "{kernel}: {}", text(&ran.stderr));
    done
}
