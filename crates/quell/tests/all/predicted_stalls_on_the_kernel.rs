//! Commands refuse modes that would stall a program, and insist with `--accept-stalls`. Needs root and Linux 6.13.

use std::io::{BufRead as _, BufReader};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::attach_on_the_kernel::stage::{Stage as MemcachedStage, assert_answers};
use crate::command;
use crate::userbusy_on_the_kernel::Ends;
use quell_linux::pidfd::Signal;
use quell_test_support::lab::TestLab;
use quell_test_support::shapes::{Shape, answering};
use quell_test_support::wait_until;

const UNCHANGED: &str = "Nothing was changed; --accept-stalls";

/// A program of a shape in a lab, and a journal directory.
struct Stage {
    // Dropped in this order.
    program: Shape,
    lab: TestLab,
    dir: tempfile::TempDir,
}

impl Stage {
    fn enter(test: &str, shape: &'static str) -> Option<Self> {
        Self::enter_with(test, shape, Vec::new)
    }

    fn enter_with(test: &str, shape: &'static str, connections: fn() -> Vec<TcpStream>) -> Option<Self> {
        let mut lab = TestLab::raise_beside_others(test, 1)?;
        let program = Shape::start(&mut lab, shape, connections)?;
        Some(Self { program, lab, dir: tempfile::tempdir().unwrap() })
    }

    fn pid(&self) -> String {
        self.program.child.pid().to_string()
    }

    fn quell(&self, arguments: &[&str]) -> Command {
        command::quell(&self.dir.path().join("journal"), arguments)
    }

    /// Output of a command that exits with `code`, without line breaks.
    fn says(&self, code: i32, arguments: &[&str]) -> String {
        command::says(code, &mut self.quell(arguments))
    }

    fn is_suspended(&self) -> bool {
        self.lab.napi().settings.irq_suspend_timeout_ns != Some(0)
    }

    /// Checks that every command that would suspend refuses, with these words, that doctor has them, and that the others
    /// do not refuse.
    fn assert_refused(&self, words: &str) {
        let pid = self.pid();
        let pid = pid.as_str();
        for arguments in [
            &["attach", "suspend20", pid, "--dry-run"][..],
            &["attach", "suspend200", pid, "--yes"],
            &["bench", "--pid", pid, "--modes", "base,suspend20", "--quick", "--yes"],
        ] {
            let text = self.says(3, arguments);
            assert!(text.contains(words) && text.contains(UNCHANGED) && text.contains("defer20"), "{text}");
            assert!(!self.is_suspended(), "{arguments:?}");
        }
        let text = self.says(0, &["doctor", pid, "--seconds", "1"]);
        assert!(text.contains("would stall") && text.contains(words) && !text.contains("nothing prevents"), "{text}");
        let text = self.says(0, &["tune", "--pid", pid, "--goal", "least cpu", "--dry-run"]);
        assert!(text.contains(words) && text.contains("would stall these programs"), "{text}");
        let text = self.says(0, &["bench", "--pid", pid, "--dry-run"]);
        assert!(text.contains("suspend200") && text.contains("would stall these programs"), "nobody asked: {text}");
        self.says(0, &["attach", "defer20", pid, "--dry-run"]);
        self.says(0, &["attach", "suspend20", pid, "--dry-run", "--accept-stalls"]);
    }
}

#[test]
fn a_mode_under_which_a_writable_socket_stalls_the_program_is_refused() {
    let Some(stage) = Stage::enter("cli-stall", "writable") else { return };
    stage.assert_refused("is registered for EPOLLOUT and can be written");
    // With the mode set, doctor has the same verdict.
    let pid = stage.pid();
    stage.says(0, &["attach", "suspend20", &pid, "--yes", "--accept-stalls", "--seconds", "0"]);
    assert!(stage.is_suspended());
    let text = stage.says(3, &["doctor", &pid, "--seconds", "1"]);
    assert!(text.contains("is registered for EPOLLOUT and can be written"), "{text}");
    stage.says(0, &["detach", &pid]);
}

#[test]
fn a_mode_under_which_waits_with_timeout_zero_stall_the_program_is_refused() {
    let Some(stage) = Stage::enter("cli-nested", "nested") else { return };
    stage.assert_refused("which watches it");
    let pid = stage.pid();
    stage.says(0, &["attach", "suspend20", &pid, "--yes", "--accept-stalls", "--seconds", "0"]);
    let text = stage.says(0, &["status"]);
    assert!(text.contains("which watches it"), "its packets wait for longer than gro-flush-timeout: {text}");
    stage.says(0, &["detach", &pid]);
}

#[test]
fn a_mode_under_which_a_program_sleeps_for_a_packet_of_its_own_queue_is_refused() {
    let Some(stage) = Stage::enter_with("cli-asks", "asks", answering) else { return };
    stage.assert_refused("a thread slept for a socket of this queue");
}

#[test]
fn a_mode_that_stalls_nothing_is_not_refused() {
    let Some(stage) = Stage::enter("cli-edge", "writable-edge") else { return };
    let pid = stage.pid();
    stage.says(0, &["attach", "suspend20", &pid, "--dry-run"]);
    let text = stage.says(0, &["tune", "--pid", &pid, "--goal", "least cpu", "--dry-run"]);
    assert!(!text.contains("would stall"), "{text}");
}

#[test]
fn a_mode_whose_timer_stalls_the_queue_is_refused() {
    let Some(stage) = Stage::enter("cli-timer", "writable-edge") else { return };
    let pid = stage.pid();
    let pid = pid.as_str();
    for mode in ["defer60000", "suspend5000000", "napibusy,gro-flush-timeout=3s"] {
        let modes = format!("base,{mode}");
        for arguments in
            [&["attach", mode, pid, "--yes"][..], &["bench", "--pid", pid, "--modes", &modes, "--quick", "--yes"]]
        {
            let text = stage.says(3, arguments);
            assert!(text.contains("timer-delays-packets") && text.contains(UNCHANGED), "{text}");
        }
    }
    stage.says(0, &["attach", "defer60000", pid, "--dry-run", "--accept-stalls"]);
    stage.says(0, &["attach", "defer5000", pid, "--dry-run"]);
    let profile = stage.dir.path().join("long.toml");
    std::fs::write(&profile, "[device.a]\nname = \"*\"\nqueues.all.mode = \"defer60000\"\n").unwrap();
    let text = stage.says(3, &["apply", "--dry-run", "--skip-impossible", profile.to_str().unwrap()]);
    assert!(text.contains("serious: the timer of a queue is so long that packets stall"), "{text}");
}

#[test]
fn a_mode_that_would_poll_one_of_the_queues_whose_data_an_epoll_receives_is_refused() {
    let Some(mut stage) = MemcachedStage::with_workers("cli-mixed", 1) else { return };
    stage.connect(24);
    let pid = stage.pid();
    let pid = pid.as_str();
    let says = |code, arguments: &[&str]| stage.says(code, arguments);
    let idle = says(0, &["attach", "suspend200", pid, "--dry-run"]);
    assert!(idle.contains("not refused: no stall is predicted"), "no data come from the other queue: {idle}");
    let mut connections: Vec<TcpStream> = stage.connections.iter().map(|one| one.try_clone().unwrap()).collect();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _load = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                connections.iter_mut().for_each(assert_answers);
            }
        });
        // Also ends the load after a panic.
        let _ends = Ends(&is_over);
        for arguments in [&["attach", "suspend200", pid, "--yes"][..], &["attach", "suspend200", pid, "--dry-run"]] {
            let text = says(3, arguments);
            let why = "epoll-mixes-napis: the sockets of one epoll are on several queues: sockets by NAPI";
            assert!(text.contains(why) && text.contains("data came from several of them"), "{text}");
            assert!(text.contains(UNCHANGED) && text.contains("-N 2") && !text.contains("not refused"), "{text}");
            assert!(!stage.is_set(), "{arguments:?}");
        }
        says(0, &["attach", "defer20", pid, "--dry-run"]);
        let insisted = says(0, &["attach", "suspend200", pid, "--yes", "--accept-stalls"]);
        let said = "conclusion: an epoll polls one queue, and here it has connections of several";
        assert!(insisted.contains(said) && stage.is_set(), "{insisted}");
        says(0, &["detach", pid]);
    });
}

#[test]
fn a_follower_warns_of_a_socket_that_is_registered_later_and_ends_the_mode() {
    let Some(stage) = Stage::enter("cli-later", "later") else { return };
    let mut follower = stage
        .quell(&["attach", "suspend20", &stage.pid(), "--follow", "--yes"])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(follower.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.starts_with("following: ")));
    stage.program.child.pidfd().signal(Signal::USR1).unwrap();
    let warned = lines.any(|line| line.contains("is registered for EPOLLOUT and can be written"));
    assert!(warned, "the follower ended without a warning");
    assert!(lines.any(|line| line.contains("suspend20 was reverted because its queues ")));
    assert_eq!(follower.wait().unwrap().code(), Some(3));
    assert!(!stage.is_suspended());
}

/// Runs a program of a shape under suspend20 until Quell has printed these words.
fn assert_run_says(test: &str, shape: &'static str, words: &[&str]) {
    let Some(mut lab) = TestLab::raise_beside_others(test, 1) else { return };
    let dir = tempfile::tempdir().unwrap();
    let journals = format!("QUELL_JOURNAL_DIR={}", dir.path().join("journal").display());
    let run = ["env", &journals, env!("CARGO_BIN_EXE_quell"), "run", "suspend20", "--"].map(str::to_owned);
    let launch = |program: Vec<String>| run.into_iter().chain(program).collect();
    let Some(quell) = Shape::start_by(&mut lab, launch, shape, Vec::new) else { return };
    wait_until(|| {
        let said = String::from_utf8(quell.child.stderr_tail().unwrap()).unwrap();
        if words.iter().all(|words| said.contains(words)) { Ok(()) } else { Err(said) }
    });
    assert_eq!(lab.napi().settings.irq_suspend_timeout_ns, Some(0));
    quell.child.pidfd().signal(Signal::TERM).unwrap();
}

#[test]
fn run_warns_of_an_object_that_stays_ready_and_ends_the_mode() {
    let words = ["is registered for EPOLLOUT and can be written", "suspend20 was reverted because its queues "];
    assert_run_says("cli-run", "writable", &words);
}

#[test]
fn run_ends_a_mode_under_which_two_observations_predict_a_stall() {
    let reverted = "suspend20 was reverted because its queues would stall: waits-with-timeout-zero";
    assert_run_says("cli-run-nested", "nested", &[reverted, "the command continues with interrupts"]);
}
