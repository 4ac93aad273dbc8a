//! The command line by itself: help, wrong command lines, recorded results shown again, each with its exit code, as
//! transcripts in `cmd/`. After a wanted change: `TRYCMD=overwrite cargo test -p quell --test cli`, then read the diff.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

#[test]
fn the_program_answers_as_recorded() {
    trycmd::TestCases::new()
        .env("QUELL_JOURNAL_DIR", "/nonexistent/journal")
        .env("XDG_CACHE_HOME", "/nonexistent/cache")
        .env("COLUMNS", "100")
        .case("tests/cmd/*.trycmd");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_error() {
    for arguments in [&["bench", "--schema"][..], &["bench", "--show", "tests/fixtures/result.json", "--json"]] {
        let mut program = Command::new(env!("CARGO_BIN_EXE_quell"));
        let mut child = program.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        BufReader::with_capacity(16, child.stdout.take().unwrap()).read_line(&mut first).unwrap();
        assert_eq!(first, "{\n");
        let ended = child.wait_with_output().unwrap();
        assert_eq!((ended.status.code(), String::from_utf8(ended.stderr).unwrap()), (Some(0), String::new()));
    }
}

#[test]
fn a_result_that_is_shown_as_json_is_the_one_in_the_file() {
    let shown = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(["bench", "--json", "--show", "tests/fixtures/result.json"])
        .output()
        .unwrap();
    let value = |bytes: &[u8]| serde_json::from_slice::<serde_json::Value>(bytes).unwrap();
    assert!(value(&shown.stdout) == value(&std::fs::read("tests/fixtures/result.json").unwrap()));
}
