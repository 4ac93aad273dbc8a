//! Commands of this program in guests of the vm lab, on every kernel that is here. Skipped without QEMU and without
//! kernels: `quell vm get` fetches them, and `make test-vm` does both.

#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "helpers of tests fail by panicking and say when they skip"
)]

use std::fmt::Write as _;
use std::path::Path;
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

/// The kernels of the table, and the modes that it speaks of.
const TABLE_KERNELS: [&str; 3] = ["6.1", "6.12", "7.3"];
const TABLE_MODES: [&str; 7] = ["base", "defer20", "napibusy", "fullbusy", "suspend20", "threaded", "threadedbusy"];

/// What a kernel says in a guest: its features, and which modes can be set.
fn asked(kernel: &str) -> Value {
    let modes = TABLE_MODES.join(",");
    let run = ["bench", "--on", "vm", "--json", "--repeats", "1", "--seconds", "0.2", "--kernel", kernel, "--modes"];
    let ran = quell(&[&run[..], &[modes.as_str()]].concat());
    // How often interrupts come in a moment of a busy machine is not asked here.
    assert!(matches!(ran.status.code(), Some(0 | 3)), "{kernel}: {}", text(&ran.stderr));
    serde_json::from_slice(&ran.stdout).unwrap()
}

fn table_of_kernels(said: &[Value]) -> String {
    let mut page = String::from(TABLE_HEAD);
    let head = TABLE_KERNELS.map(|kernel| format!(" Linux {kernel} |")).concat();
    write!(page, "| |{head}\n| --- |{}\n", " --- |".repeat(TABLE_KERNELS.len())).unwrap();
    for (index, feature) in said[0]["features"].as_array().unwrap().iter().enumerate() {
        let states = said.iter().map(|kernel| format!(" {} |", kernel["features"][index]["state"].as_str().unwrap()));
        writeln!(page, "| {} |{}", feature["name"].as_str().unwrap(), states.collect::<String>()).unwrap();
    }
    for mode in TABLE_MODES {
        let states = said.iter().map(|kernel| if kernel["refused"][mode].is_null() { " set |" } else { " refused |" });
        writeln!(page, "| mode `{mode}` |{}", states.collect::<String>()).unwrap();
    }
    page
}

const TABLE_HEAD: &str = "\
# What Quell finds on older kernels

Asked in guests of the vm lab, with virtio-net NICs, by `make test-vm`, which fails when this page no longer says what
the kernels say. Every line was asked of the running kernel; nothing is inferred from a version. A mode that is refused
is never silently another one.

";

/// After a wanted change: `QUELL_OVERWRITE=1 make test-vm`, then read the diff.
#[test]
fn the_table_of_kernels_in_the_docs_says_what_the_kernels_say() {
    let here = kernels();
    if let Some(missing) = TABLE_KERNELS.iter().find(|kernel| !here.contains(&(**kernel).to_owned())) {
        eprintln!("skipped: kernel {missing} is not here");
        return;
    }
    let page = table_of_kernels(&TABLE_KERNELS.map(asked));
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/kernels.md");
    if std::env::var_os("QUELL_OVERWRITE").is_some() {
        std::fs::write(&file, &page).unwrap();
    }
    assert_eq!(page, std::fs::read_to_string(&file).unwrap());
}
