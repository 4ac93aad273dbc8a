//! `quell results`: the list of a store, also of a hostile one, and documents of all commands, which are read back as they
//! were printed.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use quell_result::list::{ListedContent, ResultsList};
use quell_result::{Document as _, ResultDocument};
use quell_test_support::wait_until;

fn quell(store: &Path, arguments: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_quell"));
    program.args(arguments).env("QUELL_RESULTS_DIR", store).output().unwrap()
}

#[track_caller]
fn printed(store: &Path, arguments: &[&str]) -> String {
    let output = quell(store, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn listed(store: &Path) -> ResultsList {
    ResultsList::from_json(&printed(store, &["results", "--json"])).unwrap()
}

const SHORT: [&str; 10] =
    ["--on", "sim", "--modes", "base,suspend200", "--loads", "20000", "--queues", "1", "--connections", "16"];

fn measure(store: &Path) -> String {
    let arguments =
        [&["bench"], &SHORT[..], &["--slice", "20", "--settle", "20", "--budget", "5s", "--seed", "1"]].concat();
    String::from_utf8(quell(store, &arguments).stderr).unwrap()
}

#[test]
fn a_measurement_ends_with_the_command_that_prints_it_again() {
    let store = tempfile::tempdir().unwrap();
    let said = measure(store.path());
    let (_, command) = said.trim_end().rsplit_once("to print it again: quell ").unwrap_or_else(|| panic!("{said}"));
    let command: Vec<&str> = command.split(' ').collect();
    let shown = printed(store.path(), &command);
    assert!(shown.contains("20K") || shown.contains("requests/s"), "{shown}");
    let [result] = &listed(store.path()).results[..] else { panic!("{said}") };
    assert_eq!(command, ["results", "show", &result.id]);
    let ListedContent::Read { question, subject, answer, .. } = &result.content else { panic!("{result:?}") };
    assert!(answer.starts_with("keep base, unless CPU/request −") && answer.contains(" is worth p50 "), "{answer}");
    assert!(question.starts_with("base, suspend200 at ") && subject.starts_with("model of "), "{result:?}");
}

#[test]
fn the_newest_result_is_listed_first_and_a_broken_one_with_its_reason_in_one_line() {
    let store = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &[u8]| fs::write(store.path().join(name), content).unwrap();
    write("old.json", &fs::read("tests/fixtures/tune.json").unwrap());
    write("new.json", &fs::read("tests/fixtures/result.json").unwrap());
    let stamps = listed(store.path()).results.iter().map(|one| one.id.clone()).collect::<Vec<_>>();
    assert_eq!(stamps, ["new", "old"]);

    write("binary.json", b"\xff\x1b[2J\n{");
    write("escape.json", br#"{"schema": "quell-tune/1", "\u001b[2J\n": 1}"#);
    write("deep.json", "[".repeat(1 << 20).as_bytes());
    write("empty.json", b"");
    fs::create_dir(store.path().join("directory.json")).unwrap();
    std::os::unix::fs::symlink("/dev/zero", store.path().join("endless.json")).unwrap();
    std::os::unix::fs::symlink("/nonexistent", store.path().join("nowhere.json")).unwrap();
    let broken = ["binary", "escape", "deep", "empty", "directory", "endless", "nowhere"];
    let list = listed(store.path());
    assert_eq!(list.results.len(), broken.len() + 2);
    let text = printed(store.path(), &["results"]);
    for id in broken {
        let one = list.results.iter().find(|one| one.id == id).unwrap();
        assert!(matches!(one.content, ListedContent::Unreadable { .. }), "{one:?}");
        let line = text.lines().find(|line| line.starts_with(&format!("{id}  "))).unwrap_or_else(|| panic!("{text}"));
        assert!(line.contains("  not a result: "), "{line}");
        let shown = quell(store.path(), &["results", "show", id]);
        let said = String::from_utf8(shown.stderr).unwrap();
        assert_eq!((shown.status.code(), said.lines().count()), (Some(1), 1), "{said}");
        assert!(!said.trim_end().contains(char::is_control), "{said:?}");
    }
    assert!(!text.contains(|letter: char| letter.is_control() && letter != '\n'), "{text:?}");
}

/// A responder on this machine, killed at the end.
struct Responder(Child, String);

impl Drop for Responder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Responder {
    fn start() -> Self {
        let free = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = free.local_addr().unwrap().to_string();
        drop(free);
        let mut program = Command::new(env!("CARGO_BIN_EXE_quell"));
        program.args(["respond", &address]).stdout(Stdio::null()).stderr(Stdio::null());
        let responder = Self(program.spawn().unwrap(), address);
        wait_until(|| TcpStream::connect(&responder.1).map_err(|error| format!("{}: {error}", responder.1)));
        responder
    }
}

#[test]
fn what_a_command_prints_as_json_is_read_back_as_it_was() {
    let store = tempfile::tempdir().unwrap();
    let responder = Responder::start();
    let bench = [&["bench"], &SHORT[..], &["--slice", "20", "--settle", "20", "--budget", "5s", "-j"]].concat();
    let load = ["load", &responder.1, "--protocol", "request-response", "--warm-up", "0", "--seconds", "0.1", "-j"];
    let commands: [&[&str]; 8] = [
        &bench,
        &["results", "show", "tests/fixtures/tune.json", "-j"],
        &["sim", "run", "--mode", "base", "--load", "20K", "--seconds", "0.01", "--queues", "1", "-j"],
        &["conformance", "--on", "model", "-j"],
        &["show", "-j"],
        &["top", "-n", "1", "-i", "0.1", "-j"],
        &load,
        &["results", "-j"],
    ];
    for arguments in commands {
        let file = store.path().join("document.json");
        let text = printed(store.path(), arguments);
        fs::write(&file, &text).unwrap();
        let file = file.to_str().unwrap();
        let written = |text: &str| serde_json::to_string(&ResultDocument::parse(text).unwrap()).unwrap();
        let shown = printed(store.path(), &["results", "show", file, "-j"]);
        assert_eq!(written(&shown), written(&text), "{arguments:?}");
        assert!(!printed(store.path(), &["results", "show", file]).is_empty(), "{arguments:?}");
        fs::remove_file(file).unwrap();
    }
}

#[test]
fn the_output_of_a_sweep_is_shown_as_a_table() {
    let store = tempfile::tempdir().unwrap();
    let (points, rows) = (store.path().join("points.txt"), store.path().join("rows.jsonl"));
    fs::write(&points, "base,suspend20 20K 1\n").unwrap();
    let (points, rows) = (points.to_str().unwrap(), rows.to_str().unwrap());
    printed(store.path(), &["sim", "run", "--sweep", points, "--seconds", "0.01", "--queues", "1", "-o", rows]);
    let shown = printed(store.path(), &["results", "show", rows]);
    assert!(shown.contains("\nbase ") && shown.contains("\nsuspend20 "), "{shown}");
}
