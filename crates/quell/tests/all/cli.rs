//! The command line on its own: help, invalid command lines and recorded results, each with its exit code, as
//! transcripts in `cmd/`. After an intended change: `TRYCMD=overwrite cargo test -p quell --test all cli::`, then read the
//! diff.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

#[test]
fn the_output_matches_the_transcripts() {
    let directory = tempfile::tempdir().unwrap();
    trycmd::TestCases::new()
        .env("QUELL_JOURNAL_DIR", directory.path().join("journal").to_str().unwrap())
        .env("QUELL_RESULTS_DIR", "tests/fixtures")
        .env("XDG_CACHE_HOME", "/nonexistent/cache")
        .env("COLUMNS", "100")
        .case("tests/cmd/*.trycmd");
}

#[test]
fn a_closed_pipe_is_not_an_error() {
    let shown = ["results", "show", "tests/fixtures/result.json", "--json"];
    for arguments in [&["results", "schema", "experiment"][..], &shown] {
        let mut program = Command::new(env!("CARGO_BIN_EXE_quell"));
        let mut child = program.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        BufReader::with_capacity(16, child.stdout.take().unwrap()).read_line(&mut first).unwrap();
        assert_eq!(first, "{\n");
        let ended = child.wait_with_output().unwrap();
        assert_eq!((ended.status.code(), String::from_utf8(ended.stderr).unwrap()), (Some(0), String::new()));
    }
}

fn quell(arguments: &[&str]) -> Command {
    let mut program = Command::new(env!("CARGO_BIN_EXE_quell"));
    program.args(arguments);
    program
}

#[test]
fn a_guest_without_qemu_is_refused_before_any_other_output() {
    let cache = tempfile::tempdir().unwrap();
    let kernel = cache.path().join("quell/kernels/6.1");
    std::fs::create_dir_all(&kernel).unwrap();
    std::fs::write(kernel.join("kernel.json"), r#"{"name":"6.1","version":"6.1-1","suite":"none"}"#).unwrap();
    std::fs::write(kernel.join("vmlinuz"), b"an image").unwrap();
    for arguments in [&["bench", "--on", "vm"][..], &["vm", "run", "--", "lab", "list"], &["vm", "shell"]] {
        let mut program = quell(arguments);
        let ended = program.env("XDG_CACHE_HOME", cache.path()).env("PATH", "/nonexistent").output().unwrap();
        let said = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(5), "{arguments:?}: {said}");
        assert!(said.starts_with("quell: qemu-system-x86_64 is not on the PATH"), "{arguments:?}: {said}");
    }
}

#[test]
fn a_namespace_and_a_process_can_be_selected_together() {
    let pid = std::process::id().to_string();
    let ended = quell(&["show", "--netns", "quell-no-such-namespace", &pid]).output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(said.contains("quell-no-such-namespace") && !said.contains("cannot be used with"), "{said}");
}

#[test]
fn devices_without_napi_share_one_line_unless_requested() {
    let shown = |arguments: &[&str]| String::from_utf8(quell(arguments).output().unwrap().stdout).unwrap();
    let begins = |text: &str, name: &str| text.lines().any(|line| line.split_whitespace().next() == Some(name));
    let short = shown(&["show"]);
    let line = short.lines().find(|line| line.starts_with("without NAPI")).expect(&short);
    assert!(line.split_whitespace().any(|word| word == "lo") && !begins(&short, "lo"), "{short}");
    for whole in [shown(&["show", "--details"]), shown(&["show", "--device", "lo"])] {
        assert!(begins(&whole, "lo") && !whole.contains("without NAPI"), "{whole}");
    }
}

/// As for a root shell that has the `HOME` of the user who called `sudo`.
#[test]
fn a_cache_that_others_can_write_to_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let list = || quell(&["vm", "list"]).env("XDG_CACHE_HOME", dir.path()).output().unwrap();
    let refused = list();
    let text = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(5), "{text}");
    assert!(text.contains("is writable by others") && text.contains("XDG_CACHE_HOME"), "{text}");
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    assert_eq!(list().status.code(), Some(0));
}
