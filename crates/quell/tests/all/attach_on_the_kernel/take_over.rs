//! `quell attach --follow --take-over`: a restart continues the attachment of the process before, and flips no queue.

use std::io::Read as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};

use quell_linux::Pid;
use quell_linux::epoll_params::{self, EpollParams};
use quell_linux::netdev::{Netdev, PartialNapiSettings};
use quell_linux::pidfd::{PidFd, Signal};
use quell_linux::proc::{FdKind, ProcRoot};

use super::stage::{MODE, Stage, wait_until};
use crate::command::journals_in;

const TAKE_OVER: &[&str] = &["--take-over"];

/// Waits for the end of a follower, and returns what it printed.
fn ended(mut follower: Child) -> String {
    assert!(follower.wait().unwrap().success());
    let mut said = String::new();
    follower.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    said
}

/// Ends a follower as the unit does.
fn leave(follower: Child) {
    PidFd::open(Pid::from_kernel(follower.id()).unwrap()).unwrap().signal(Signal::USR1).unwrap();
    let said = ended(follower);
    assert!(said.contains("the mode stays applied"), "{said}");
}

fn epolls_of(program: Pid) -> Vec<EpollParams> {
    let program = PidFd::open(program).unwrap();
    let files = ProcRoot::default().process(program.pid()).fds().unwrap();
    let epolls = files.iter().filter(|file| file.kind == FdKind::Epoll);
    epolls.map(|epoll| epoll_params::get(program.duplicate(epoll.number).unwrap()).unwrap()).collect()
}

impl Stage {
    /// Runs `act` while another thread looks at the queue and the epolls. Fails if they had another value at any time.
    fn while_nothing_changes(&self, act: impl FnOnce()) {
        let (napi, program) = (self.lab.napi(), self.server.pid());
        let (over, epolls) = (AtomicBool::new(false), epolls_of(program));
        let mut netdev = Netdev::open_in(&self.lab.server).unwrap();
        std::thread::scope(|scope| {
            let watcher = scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    assert_eq!(netdev.napi(napi.id).unwrap().settings, napi.settings);
                    assert_eq!(epolls_of(program), epolls);
                }
            });
            // A failure of `act` must end the watcher, too.
            let acted = catch_unwind(AssertUnwindSafe(act));
            over.store(true, Ordering::Relaxed);
            watcher.join().unwrap();
            acted.unwrap();
        });
    }
}

#[test]
fn a_follower_that_is_restarted_continues_its_attachment_and_changes_no_setting() {
    let Some(mut stage) = Stage::enter("cli-take") else { return };
    let before = epolls_of(stage.server.pid());
    let first = stage.follow();
    let journals = journals_in(&stage.journals());
    stage.while_nothing_changes(|| {
        leave(first);
        assert!(stage.says(0, &["status"]).contains(MODE));
        let planned = stage.says(0, &["attach", MODE, &stage.pid(), "--follow", "--take-over", "--yes", "--dry-run"]);
        assert!(planned.contains("(unchanged)") && !planned.contains(" → "), "{planned}");
        let second = stage.follow_with(MODE, TAKE_OVER);
        assert_eq!(journals_in(&stage.journals()), journals);
        leave(second);
        // An owner that still runs leaves, too.
        let third = stage.follow_with(MODE, TAKE_OVER);
        let fourth = stage.follow_with(MODE, TAKE_OVER);
        assert!(ended(third).contains("the mode stays applied"));
        leave(fourth);
    });
    stage.answers();
    assert!(stage.says(0, &["detach", &stage.pid()]).contains("restored"));
    stage.assert_back();
    assert_eq!(epolls_of(stage.server.pid()), before);
}

#[test]
fn an_attachment_that_was_taken_over_is_maintained_and_ends_like_any_other() {
    let Some(mut stage) = Stage::enter("cli-taken") else { return };
    leave(stage.follow());
    let follower = stage.follow_with(MODE, TAKE_OVER);
    // As a driver that recreates its queues.
    let reset = PartialNapiSettings {
        defer_hard_irqs: Some(0),
        gro_flush_timeout_ns: Some(0),
        irq_suspend_timeout_ns: Some(0),
        ..PartialNapiSettings::NONE
    };
    stage.lab.set_napi(&reset);
    wait_until(|| stage.is_set(), "the queue stays as it was before the first owner");
    stage.answers();
    assert!(stage.says(0, &["revert"]).contains("restored"));
    ended(follower);
    stage.assert_back();

    let mut follower = stage.follow();
    leave(follower);
    follower = stage.follow_with(MODE, TAKE_OVER);
    follower.kill().unwrap();
    follower.wait().unwrap();
    stage.assert_back();
    stage.answers();
}

#[test]
fn an_attachment_with_another_mode_is_restored_first() {
    let Some(stage) = Stage::enter("cli-take-2") else { return };
    leave(stage.follow());
    let follower = stage.follow_with("defer50", TAKE_OVER);
    let settings = stage.lab.napi().settings;
    assert_eq!((settings.gro_flush_timeout_ns, settings.irq_suspend_timeout_ns), (Some(50_000), Some(0)));
    assert_eq!(journals_in(&stage.journals()).len(), 1);
    stage.says(0, &["detach", &stage.pid()]);
    assert!(ended(follower).contains("restores attach"), "it names what it restores");
    stage.assert_back();
}
