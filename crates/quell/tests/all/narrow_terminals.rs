//! Output on narrow terminals: sentences wrap, tables have their columns below each other, and commands stay whole.

use std::process::Command;

use quell_test_support::{Lacks, skip};

use crate::attach_on_the_kernel::stage::{MODE, Stage};

/// What a command prints on a terminal with this number of columns. `None` without script(1).
fn printed(columns: usize, arguments: &str) -> Option<String> {
    printed_by(columns, env!("CARGO_BIN_EXE_quell"), arguments)
}

fn printed_by(columns: usize, quell: &str, arguments: &str) -> Option<String> {
    // Progress is on standard error.
    let command = format!("{quell} {arguments} 2>/dev/null");
    let ran = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .env("COLUMNS", columns.to_string())
        .env("NO_COLOR", "1")
        .output();
    let Ok(ran) = ran else {
        skip(Lacks::Tool("script"), "no script(1) for a terminal");
        return None;
    };
    let text = String::from_utf8(ran.stdout).unwrap().replace("\r\n", "\n");
    // 3: `quell doctor` has a serious finding.
    assert!(matches!(ran.status.code(), Some(0 | 3)), "{command}: {text}");
    Some(text)
}

/// Lines that are wider than the terminal, except for those that are, or contain, a command that a reader copies.
fn too_wide(columns: usize, text: &str) -> Vec<&str> {
    let is_command =
        |line: &str| line.contains('`') || ["quell ", "ssh "].iter().any(|it| line.trim_start().starts_with(it));
    text.lines().filter(|line| line.chars().count() > columns && !is_command(line)).collect()
}

#[test]
fn no_line_but_a_command_is_wider_than_the_terminal() {
    let fixture = |name: &str| format!("results show --details {}/tests/fixtures/{name}", env!("CARGO_MANIFEST_DIR"));
    let of_documents = ["result.json", "tune.json", "interrupts.json", "recording.json"].map(fixture);
    let others = [
        "sim run --mode base,suspend20 --load 600K --queues 1 --seed 1",
        "sim run --server xsk --period 40us --delay 38us",
        "sim explain suspend20",
        "sim hosts",
        "doctor --list",
        "tune --on sim --goal 'p99<=300us,least cpu' --dry-run",
        "bench --on sim --dry-run",
    ];
    for columns in [60, 80, 120] {
        for arguments in of_documents.iter().map(String::as_str).chain(others) {
            let Some(text) = printed(columns, arguments) else { return };
            let wide = too_wide(columns, &text);
            assert!(wide.is_empty(), "{columns} columns, {arguments}: {wide:#?}");
        }
    }
}

#[test]
fn no_line_about_a_host_but_a_command_is_wider_than_the_terminal() {
    let Some(stage) = Stage::enter("narrow") else { return };
    let (pid, dir, netns) = (stage.pid(), stage.dir.path().display(), &stage.lab.server_name);
    let quell = format!(
        "QUELL_JOURNAL_DIR={dir}/journal QUELL_RESULTS_DIR={dir}/results ip netns exec {netns} {}",
        env!("CARGO_BIN_EXE_quell")
    );
    let attach = format!("attach {MODE} {pid}");
    stage.says(0, &["attach", MODE, &pid, "--yes"]);
    let plan = format!("bench --pid {pid} --dry-run");
    let of_the_host = ["", "doctor", "show", "show --details", "status", "revert --dry-run"];
    for columns in [60, 80] {
        for arguments in of_the_host.into_iter().chain(["results", "top -n 1", "conformance --list", &plan]) {
            let Some(text) = printed_by(columns, &quell, arguments) else { return };
            let wide = too_wide(columns, &text);
            assert!(wide.is_empty(), "{columns} columns, {arguments}: {wide:#?}");
        }
    }
    stage.says(0, &["detach", "--all"]);
    let attach = printed_by(60, &quell, &format!("{attach} --dry-run")).unwrap_or_default();
    assert!(too_wide(60, &attach).is_empty(), "{attach}");
    stage.assert_back();
}

#[test]
fn a_command_stays_on_one_line() {
    let fixture = concat!("results show ", env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/result.json");
    let Some(text) = printed(60, fixture) else { return };
    let is_whole =
        |line: &str| line.trim_start().starts_with("quell bench --modes") && line.ends_with("--connections 16");
    assert!(text.lines().any(is_whole), "{text}");
}
