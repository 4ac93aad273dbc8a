//! `quell sim run --sweep FILE -o FILE`: a sweep that was killed is continued, and rows of different sweeps are never mixed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::command::{quell, says};
use quell_test_support::wait_until;

const POINTS: &str = "base,suspend20 75K,max 1..20\ndefer20 50K";
const ROWS: usize = 81;

struct Sweep {
    directory: tempfile::TempDir,
}

impl Sweep {
    fn new(points: &str) -> Self {
        let sweep = Self { directory: tempfile::tempdir().unwrap() };
        sweep.list(points);
        sweep
    }

    fn list(&self, points: &str) {
        fs::write(self.directory.path().join("points.txt"), points).unwrap();
    }

    fn output(&self) -> PathBuf {
        self.directory.path().join("rows.jsonl")
    }

    fn lines(&self) -> Vec<String> {
        fs::read_to_string(self.output()).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    fn command(&self, options: &str) -> Command {
        let points = self.directory.path().join("points.txt");
        let mut words = vec!["sim", "run", "--queues", "1", "--connections", "64", "--sweep", points.to_str().unwrap()];
        words.extend(options.split_whitespace());
        quell(self.directory.path(), &words)
    }

    fn to_file(&self, options: &str) -> Command {
        let mut command = self.command(options);
        command.arg("-o").arg(self.output());
        command
    }

    /// Kills the sweep once its output has at least `lines` lines.
    fn kill_after(&self, lines: usize, options: &str) {
        let mut program = self.to_file(options).stderr(Stdio::null()).spawn().unwrap();
        wait_until(|| if self.lines().len() >= lines { Ok(()) } else { Err(format!("{} lines", self.lines().len())) });
        program.kill().unwrap();
        program.wait().unwrap();
    }
}

fn contents(file: &Path) -> String {
    fs::read_to_string(file).unwrap()
}

const SHORT: &str = "--seconds 0.002 --warm-up 0";

#[test]
fn a_killed_sweep_continues_and_has_the_same_rows_as_one_that_was_not() {
    let (whole, killed) = (Sweep::new(POINTS), Sweep::new(POINTS));
    let options = "--seconds 0.02 --warm-up 0";
    says(0, &mut whole.to_file(options));
    for lines in [1, 5, 20] {
        killed.kill_after(lines, options);
    }
    let before = contents(&killed.output());
    let said = says(0, &mut killed.to_file(options));
    assert!(said.contains("81 rows in"), "{said}");
    let after = contents(&killed.output());
    let complete = before.rfind('\n').unwrap();
    assert_eq!(after[..complete], before[..complete]);
    assert_eq!(after, contents(&whole.output()));
    assert_eq!(after.lines().count(), 1 + ROWS);
}

#[test]
fn an_incomplete_last_line_is_dropped() {
    let sweep = Sweep::new(POINTS);
    says(0, &mut sweep.to_file(SHORT));
    let whole = contents(&sweep.output());
    for cut in [0, 40, whole.find('\n').unwrap(), whole.find('\n').unwrap() + 1, whole.len() / 2, whole.len() - 1] {
        fs::write(sweep.output(), &whole[..cut]).unwrap();
        says(0, &mut sweep.to_file(SHORT));
        assert_eq!(contents(&sweep.output()), whole, "cut off at {cut}");
    }
}

#[test]
fn points_can_be_appended_to_a_finished_sweep() {
    let sweep = Sweep::new("base 75K 1..3");
    says(0, &mut sweep.to_file(SHORT));
    sweep.list("base 75K 1..3\nfullbusy 75K");
    let said = says(0, &mut sweep.to_file(SHORT));
    assert!(said.contains("4 rows in") && said.contains("3 of them from before"), "{said}");
}

#[test]
fn the_output_of_another_sweep_is_refused_with_the_difference_and_not_changed() {
    let sweep = Sweep::new("base 75K,max");
    says(0, &mut sweep.to_file(SHORT));
    let before = contents(&sweep.output());
    let refused = |options: &str, difference: &str| {
        let said = says(1, &mut sweep.to_file(options));
        assert!(said.contains("cannot be continued") && said.contains(difference), "{said}");
        assert_eq!(contents(&sweep.output()), before);
    };
    refused("--seconds 0.003 --warm-up 0", "measured time in ns of 2000000, this sweep has 3000000");
    refused("--seconds 0.002 --warm-up 0 --irqs-apart", "--irqs-apart false, this sweep has true");
    refused("--seconds 0.002 --warm-up 0 --host af-xdp-2025", "host epyc7662-cx5");
    sweep.list("base 75K 1..2");
    refused(SHORT, "line 3 is base max with seed 1, this sweep has base 75K with seed 2 there");
    sweep.list("base 75K");
    refused(SHORT, "more rows than this sweep has points (1)");
}

#[test]
fn rows_of_another_model_are_refused() {
    let sweep = Sweep::new("base 75K,max");
    says(0, &mut sweep.to_file(SHORT));
    let (header, rows) = contents(&sweep.output()).split_once('\n').map(|(a, b)| (a.to_owned(), b.to_owned())).unwrap();
    let mut header: serde_json::Value = serde_json::from_str(&header).unwrap();
    header["model"] = "0123456789abcdef".into();
    fs::write(sweep.output(), format!("{header}\n{rows}")).unwrap();
    let said = says(1, &mut sweep.to_file(SHORT));
    assert!(said.contains("another version of the model"), "{said}");
}

#[test]
fn a_file_that_is_no_output_of_a_sweep_is_not_overwritten() {
    let sweep = Sweep::new("base 75K");
    for text in ["my notes", "my notes\n", "{\"schema\": 1}\n"] {
        fs::write(sweep.output(), text).unwrap();
        let said = says(1, &mut sweep.to_file(SHORT));
        assert!(said.contains("not the output of a sweep"), "{said}");
        assert_eq!(contents(&sweep.output()), text);
    }
}

#[test]
fn without_a_file_the_rows_go_to_standard_output() {
    let sweep = Sweep::new(POINTS);
    says(0, &mut sweep.to_file(SHORT));
    let rows = contents(&sweep.output()).lines().skip(1).map(|line| format!("{line}\n")).collect::<String>();
    assert_eq!(says(0, &mut sweep.command(SHORT)), rows);
}
