//! Runs the program in tests.

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// The program with its journals in this directory.
pub(crate) fn quell(journals: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    command.args(arguments).env("QUELL_JOURNAL_DIR", journals).stdin(Stdio::null());
    command
}

/// Names of the journals in a directory, without the history of ends.
pub(crate) fn journals_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter(|name| !name.ends_with(".journal-history")).collect()
}

/// Runs `command`, checks that it exits with `code`, and returns its output.
pub(crate) fn says(code: i32, command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(code), "{command:?}\n{text}");
    text
}
