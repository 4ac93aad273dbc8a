//! `quell run` and `quell apply` beside other programs: they ask on a terminal, and go on without one.

use std::process::{Command, Stdio};

use quell_test_support::{Lacks, skip};

use super::stage::Stage;
use crate::command;

/// `quell` in the network namespace of the server.
fn words(stage: &Stage, arguments: &str) -> String {
    format!("nsenter --net=/run/netns/{} {} {arguments}", stage.lab.server_name, env!("CARGO_BIN_EXE_quell"))
}

/// Runs it on a terminal of its own, and answers its question. Returns its exit code and output.
fn answered(stage: &Stage, arguments: &str, answer: &str) -> Option<(Option<i32>, String)> {
    let mut script = Command::new("script");
    script.args(["-q", "-e", "-c", &words(stage, arguments), "/dev/null"]);
    script.env("QUELL_JOURNAL_DIR", stage.journals()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let Ok(mut script) = script.spawn() else {
        skip(Lacks::Tool("script"), "script(1) is not installed");
        return None;
    };
    std::io::Write::write_all(script.stdin.as_mut().unwrap(), answer.as_bytes()).unwrap();
    let output = script.wait_with_output().unwrap();
    Some((output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned()))
}

#[test]
fn run_asks_on_a_terminal_if_other_programs_are_affected_and_goes_on_without_one() {
    let Some(stage) = Stage::enter("ask-run") else { return };
    const RUN: &str = "run suspend200 -- true";
    let Some((code, said)) = answered(&stage, RUN, "n\n") else { return };
    assert_eq!(code, Some(130), "{said}");
    assert!(said.contains("start the command with the mode? [y/N]") && said.contains("memcached"), "{said}");
    assert!(!stage.is_set());
    let (code, said) = answered(&stage, RUN, "y\n").unwrap();
    assert_eq!(code, Some(0), "{said}");
    let (code, said) = answered(&stage, "run --yes suspend200 -- true", "").unwrap();
    assert!(code == Some(0) && !said.contains("[y/N]"), "{said}");
    let mut without = Command::new("sh");
    without.args(["-c", &words(&stage, RUN)]).env("QUELL_JOURNAL_DIR", stage.journals()).stdin(Stdio::null());
    let said = command::says(0, &mut without);
    assert!(said.contains("memcached") && !said.contains("[y/N]"), "{said}");
    stage.assert_back();
}
