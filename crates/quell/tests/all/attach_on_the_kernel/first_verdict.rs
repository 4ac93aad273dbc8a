//! What a follower says that began before the first packet.

use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use quell_linux::Pid;
use quell_linux::pidfd::{PidFd, Signal};
use quell_test_support::lab::ARRIVES_WITHIN;

use super::stage::{MODE, Stage};

#[test]
fn a_follower_that_began_before_the_first_packet_gives_the_first_verdict() {
    let Some(mut stage) = Stage::without_connections("cli-first") else { return };
    let mut command = stage.quell(&["attach", MODE, &stage.pid(), "--follow", "--yes"]);
    let mut follower = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(follower.stderr.take().unwrap()).lines().map(|line| line.unwrap());
    assert!(lines.any(|line| line.starts_with("following: ")));
    stage.connect(24);
    let over = AtomicBool::new(false);
    let is_judged = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let is_judged = lines.any(|line| line.contains("server0 rx") && line.contains("in effect"));
            over.store(true, Ordering::Relaxed);
            lines.for_each(drop);
            is_judged
        });
        let deadline = Instant::now() + ARRIVES_WITHIN;
        while !over.load(Ordering::Relaxed) && Instant::now() < deadline {
            stage.answers();
        }
        PidFd::open(Pid::from_kernel(follower.id()).unwrap()).unwrap().signal(Signal::TERM).unwrap();
        reader.join().unwrap()
    });
    assert!(is_judged);
    assert!(follower.wait().unwrap().success());
    stage.assert_back();
}
