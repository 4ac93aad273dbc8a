//! A command inherits from `quell run` what it would inherit without it. A probe in C prints everything that a program
//! inherits, started directly and through `quell run` from the same state.

use std::process::{Command, Output};

use super::lab::{RunLab, compile};

const QUELL: &str = env!("CARGO_BIN_EXE_quell");
/// Environment variables that a command gets with the preload library.
const PRELOAD: [&str; 2] = ["variable LD_PRELOAD=", "variable QUELL_PRELOAD_SETTINGS="];

/// Prepares the command `inherited STATE quell run OPTIONS --`.
fn probe(program: &str, state: &str, options: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args([state, QUELL, "run"]).args(options).arg("--").env_remove("LD_PRELOAD");
    command
}

/// Splits off the variables of the preload library. Returns the other lines and the number of those variables.
fn without_the_library(lines: &str) -> (String, usize) {
    let is_the_librarys = |line: &&str| PRELOAD.iter().any(|variable| line.starts_with(variable));
    let kept: Vec<&str> = lines.lines().filter(|line| !is_the_librarys(line)).collect();
    (kept.join("\n"), lines.lines().filter(is_the_librarys).count())
}

/// Compares both outputs. Returns the number of variables of the preload library.
fn compare(output: &Output) -> usize {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    let (direct, by_quell) = text.split_once("===\n").unwrap();
    let (by_quell, of_the_library) = without_the_library(by_quell);
    let changed: Vec<(&str, &str)> =
        direct.lines().zip(by_quell.lines()).filter(|(before, after)| before != after).collect();
    assert!(changed.is_empty() && direct.lines().count() == by_quell.lines().count(), "{changed:#?}\n{text}\n{err}");
    assert!(output.status.success(), "the exit code of the command was lost: {:?} {err}", output.status);
    of_the_library
}

#[test]
fn a_command_inherits_everything_in_every_mode() {
    let dir = tempfile::tempdir().unwrap();
    let Some(program) = compile("inherited", &[], dir.path()) else { return };
    for state in ["usual", "unusual"] {
        for (mode, of_the_library) in [("base", 0), ("sockpoll50", 2)] {
            let output = probe(&program, state, &[mode, "--no-queues"]).output().unwrap();
            assert_eq!(compare(&output), of_the_library, "{state} {mode}");
        }
    }
}

#[test]
fn a_command_with_configured_queues_inherits_everything_too() {
    let Some(lab) = RunLab::raise("inherits") else { return };
    let Some(program) = compile("inherited", &[], lab.file("").as_path()) else { return };
    for state in ["usual", "unusual"] {
        let output = lab.output(probe(&program, state, &["suspend200"]).envs(lab.environment()));
        assert_eq!(compare(&output), 2, "{state}");
    }
}
