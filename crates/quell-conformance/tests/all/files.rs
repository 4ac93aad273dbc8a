//! The scenario files: all of them ship, the table in `conformance/README.md` lists them, and an invalid file is
//! rejected with the position.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;
use quell_conformance::scenario::Scenario;
use quell_conformance::{FileError, parse, suite};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance")
}

#[test]
fn every_file_of_the_directory_ships_and_nothing_else() {
    let files = fs::read_dir(directory()).unwrap().map(|entry| entry.unwrap().path());
    let files: BTreeSet<String> = files
        .filter(|path| path.extension().is_some_and(|extension| extension == "toml"))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    let shipped: Vec<&str> = suite::FILES.iter().map(|(name, _)| *name).collect();
    assert_eq!(shipped, files.iter().map(String::as_str).collect::<Vec<_>>());
}

#[test]
fn an_unknown_scenario_is_refused_with_the_most_similar_name() {
    let error = suite::scenario("deferral-counts-up").unwrap_err().to_string();
    assert_eq!(error, "unknown scenario `deferral-counts-up`; did you mean `deferral-counts-down`?");
    let error = suite::scenario("xyzzy").unwrap_err().to_string();
    assert_eq!(error, "unknown scenario `xyzzy`");
}

const ROWS_BEGIN: &str = "| scenario | shows | played on |\n| --- | --- | --- |\n";

fn row(scenario: &Scenario) -> String {
    let on_veth = if scenario.needs.is_empty() { ", kernel" } else { "" };
    let in_a_guest = if scenario.queues.len() == 1 && !scenario.past_napi { ", guest" } else { "" };
    let arms = format!("model{on_veth}{in_a_guest}");
    let Scenario { name, statement, .. } = scenario;
    format!("| [{name}]({name}.toml) | {statement} | {arms} |\n")
}

/// `CONFORMANCE_TABLE=overwrite` updates the table.
#[test]
fn the_readme_lists_every_scenario_with_its_statement() {
    let path = directory().join("README.md");
    let text = fs::read_to_string(&path).unwrap();
    let rows: String = suite::all().unwrap().iter().map(row).collect();
    let begin = text.find(ROWS_BEGIN).unwrap() + ROWS_BEGIN.len();
    let end = begin + text[begin..].find("\n\n").unwrap() + 1;
    if std::env::var_os("CONFORMANCE_TABLE").is_some_and(|value| value == "overwrite") {
        fs::write(&path, format!("{}{rows}{}", &text[..begin], &text[end..])).unwrap();
        return;
    }
    assert_eq!(&text[begin..end], rows, "update it with CONFORMANCE_TABLE=overwrite");
}

fn shipped(name: &str) -> &'static str {
    suite::FILES.iter().find(|(known, _)| *known == name).unwrap().1
}

/// Parses a shipped file with one replacement, which must be rejected.
fn refused(from: &str, to: &str) -> FileError {
    let content = shipped("deferral-counts-down");
    assert!(content.contains(from), "{from}");
    parse::scenario("x", &content.replacen(from, to, 1)).unwrap_err()
}

#[test]
fn an_undefined_name_is_refused_with_line_and_caret() {
    let error = refused("to = \"socket\"", "to = \"sockets\"");
    let text = error.to_string();
    assert!(text.contains("unknown socket `sockets`; defined: `socket`"), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[2].ends_with("to = \"sockets\"") && lines[3].ends_with("|      ^^^^^^^^^"), "{text}");
}

#[test]
fn an_invalid_scenario_is_refused() {
    for (from, to, message) in [
        ("defer-hard-irqs = 3", "defer-hard-irq = 3", "unknown field `defer-hard-irq`"),
        ("gro-flush-timeout = \"10ms\"", "gro-flush-timeout = \"10\"", "invalid duration `10`"),
        ("queue = 0\nepoll", "queue = 1\nepoll", "there is no queue 1"),
        ("holds = 2, of = 5", "holds = 6, of = 5", "holds must be at least 1"),
        ("at = \"50ms\"", "at = \"5ms\"", "another packet to the same socket"),
        ("at = \"50ms\"", "at = \"50s\"", "ends before this time"),
        ("name = \"first\"\nat", "name = \"after the interrupt is back\"\nat", "is used twice"),
        ("seen-after = \"0\"", "", "seen-after or unseen"),
        ("{ wait = \"forever\" }", "{ wait = \"ever\" }", "or forever"),
        ("polls = 7", "polls = { at-last = 7 }", "Count"),
    ] {
        let error = refused(from, to);
        assert!(error.message.contains(message), "{to}: {error}");
        assert!(error.line > 1 || message.contains("used twice"), "{error}");
    }
}

proptest! {
    #[test]
    fn a_file_with_a_missing_or_duplicate_line_never_causes_a_panic(
        file in 0..suite::FILES.len(), line in 0usize..80, doubled: bool,
    ) {
        let (name, content) = suite::FILES[file];
        let mut lines: Vec<&str> = content.lines().collect();
        let line = line % lines.len();
        if doubled { lines.insert(line, lines[line]) } else { lines.remove(line); }
        let _ = parse::scenario(name, &lines.join("\n"));
    }
}
