//! What `quell status` says of modes that have ended.

use quell_linux::Pid;
use quell_linux::pidfd::{PidFd, Signal};
use quell_mode::PartialNapiSettings;
use quell_test_support::lab::ARRIVES_WITHIN;
use serde_json::Value;

use super::stage::{MODE, Stage, wait_until};
use crate::command;

fn history(stage: &Stage) -> Vec<Value> {
    let text = command::says(0, &mut stage.quell(&["status", "--json"]));
    let status: Value = serde_json::from_str(&text).unwrap();
    status["history"].as_array().cloned().unwrap_or_default()
}

#[test]
fn a_mode_that_ended_is_in_the_history_with_the_time_and_the_reason() {
    let Some(mut stage) = Stage::enter("history") else { return };
    let pid = stage.pid();
    stage.says(0, &["attach", MODE, &pid, "--yes", "--seconds", "0"]);
    assert!(history(&stage).is_empty());
    stage.says(0, &["detach", &pid]);
    stage.assert_back();
    let said = stage.says(0, &["status"]);
    assert!(said.starts_with("nothing is applied\nhistory:\n  attach suspend200 to memcached"), "{said}");
    assert!(
        said.contains(": ended at 20") && said.contains(" UTC, by `quell detach`, or another SIGTERM to its keeper"),
        "{said}"
    );

    stage.says(0, &["attach", "base", &pid, "--yes", "--seconds", "0"]);
    stage.server.terminate(ARRIVES_WITHIN).unwrap();
    wait_until(|| history(&stage).len() == 2, "the keeper does not record the end");
    assert_eq!(history(&stage)[0]["by"], "its keeper: the programs exited");
}

#[test]
fn a_mode_that_was_followed_is_in_the_history_too() {
    let Some(stage) = Stage::enter("followed") else { return };
    let mut follower = stage.follow();
    PidFd::open(Pid::from_kernel(follower.id()).unwrap()).unwrap().signal(Signal::INT).unwrap();
    assert!(follower.wait().unwrap().success());
    let history = history(&stage);
    assert_eq!(history.len(), 1, "{history:?}");
    assert_eq!(history[0]["by"], "`quell attach --follow`: stopped by SIGINT");
}

#[test]
fn a_detach_of_a_followed_mode_is_in_the_history_and_leaves_the_value_of_another_program() {
    let Some(stage) = Stage::enter("follow-foreign") else { return };
    let follower = stage.follow();
    stage.lab.set_napi(&PartialNapiSettings { gro_flush_timeout_ns: Some(77_000), ..PartialNapiSettings::NONE });
    let said = stage.says(0, &["detach", &stage.pid()]);
    assert_eq!(said.matches("left alone").count(), 1, "{said}");
    assert!(said.contains("  left alone: another program has changed NAPI"), "{said}");
    let output = follower.wait_with_output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(
        text.contains("everything was restored except what another program has changed since\n  left alone: "),
        "{text}"
    );
    let by = history(&stage)[0]["by"].as_str().unwrap().to_owned();
    assert_eq!(by, "`quell attach --follow`: stopped by SIGTERM, as by `quell detach`");
}
