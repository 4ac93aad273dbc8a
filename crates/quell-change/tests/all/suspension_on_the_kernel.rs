//! Undoing never stalls a suspended queue, and the program loses no event. For each wrong order, one test shows the
//! stall, and another shows that undoing the journal avoids it. Needs root and Linux 6.13.

use quell_change::resume::{Freed, Resumer};
use quell_linux::Pid;
use quell_linux::epoll_params::EpollParams;
use quell_linux::event::{Epoll, Trigger};
use quell_linux::netdev::PartialNapiSettings;
use quell_linux::proc::ProcRoot;
use quell_test_support::lab::{ARRIVES_WITHIN, PREFER, SUSPENDED_FOR, SUSPENDING, TestLab, UdpProgram, WATCHED};
use quell_test_support::{Lacks, skip};

const NO_SUSPENSION: PartialNapiSettings =
    PartialNapiSettings { irq_suspend_timeout_ns: Some(0), ..PartialNapiSettings::NONE };
const NO_DEFERRAL: PartialNapiSettings = PartialNapiSettings { defer_hard_irqs: Some(0), ..PartialNapiSettings::NONE };

/// Starts a program that keeps a queue suspended, without any journal.
fn held(test: &str, trigger: Trigger) -> Option<(TestLab, UdpProgram)> {
    let lab = TestLab::raise(test, 1)?;
    let mut program = UdpProgram::start(&lab, trigger);
    lab.set_napi(&SUSPENDING);
    program.set_epoll(PREFER);
    program.hold();
    Some((lab, program))
}

/// Checks that the wrong order leaves the program stalled, and that a poll still frees it.
fn stalled_until_polled(lab: &TestLab, program: &UdpProgram) {
    assert_eq!(program.receives_within(WATCHED), None, "the wrong order stalls");
    // A poll frees the queue even if the values that suspended it are gone.
    let resumer = Resumer::of_queue(&ProcRoot::default(), &lab.napi(), &[Pid::of_this_process()]);
    assert!(matches!(resumer.poll_through_socket(), Some(Freed::ThroughSocket { .. })));
    assert_eq!(program.receives_within(ARRIVES_WITHIN), Some(2));
}

#[test]
fn clearing_prefer_first_stalls() {
    let Some((lab, program)) = held("prefer", Trigger::Level) else { return };
    program.set_epoll(EpollParams::default());
    stalled_until_polled(&lab, &program);
}

#[test]
fn clearing_prefer_and_closing_the_epoll_stalls() {
    let Some((lab, mut program)) = held("close", Trigger::Level) else { return };
    program.set_epoll(EpollParams::default());
    program.epoll = Epoll::new(1).unwrap();
    stalled_until_polled(&lab, &program);
}

#[test]
fn clearing_irq_suspend_timeout_first_stalls() {
    let Some((lab, program)) = held("suspend", Trigger::Level) else { return };
    lab.set_napi(&NO_SUSPENSION);
    stalled_until_polled(&lab, &program);
}

#[test]
fn clearing_deferral_first_stalls() {
    let Some((lab, program)) = held("defer", Trigger::Level) else { return };
    lab.set_napi(&NO_DEFERRAL);
    stalled_until_polled(&lab, &program);
}

/// Undoes the change of `journalled` during the suspension, and checks that the program receives datagram 2.
fn undone_while_held(
    test: &str,
    before: PartialNapiSettings,
    prefers_before: bool,
    journalled: impl FnOnce(&mut quell_change::transaction::Transaction, &TestLab, &UdpProgram) -> bool,
) -> Option<(TestLab, UdpProgram)> {
    let lab = TestLab::raise(test, 1)?;
    let mut program = UdpProgram::start(&lab, Trigger::Level);
    lab.set_napi(&before);
    if prefers_before {
        program.set_epoll(PREFER);
    }
    let unchanged = lab.napi();
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = lab.transaction(&dir, &format!("{test}-t"));
    assert!(journalled(&mut transaction, &lab, &program));
    program.hold();
    let reverted = transaction.revert().unwrap();
    assert_eq!((reverted.undone.len(), reverted.failed.len()), (1, 0), "{reverted:?}");
    assert_eq!(program.receives_within(ARRIVES_WITHIN), Some(2), "the queue is free");
    assert_eq!(lab.napi(), unchanged);
    Some((lab, program))
}

fn journal_napi(
    change: PartialNapiSettings,
) -> impl FnOnce(&mut quell_change::transaction::Transaction, &TestLab, &UdpProgram) -> bool {
    move |transaction, lab, _| transaction.set_napi(&lab.server, lab.napis[0], &change).unwrap()
}

fn journal_epoll(transaction: &mut quell_change::transaction::Transaction, _: &TestLab, program: &UdpProgram) -> bool {
    transaction.set_epoll(UdpProgram::process(), program.epoll_fd(), PREFER).unwrap()
}

#[test]
fn undoing_prefer_does_not_stall() {
    let Some((_lab, program)) = undone_while_held("u-prefer", SUSPENDING, false, journal_epoll) else { return };
    assert_eq!(quell_linux::epoll_params::get(&program.epoll).unwrap(), EpollParams::default());
}

#[test]
fn undoing_prefer_does_not_stall_if_the_epoll_is_closed_afterwards() {
    let Some((_lab, mut program)) = undone_while_held("u-close", SUSPENDING, false, journal_epoll) else { return };
    program.epoll = Epoll::new(1).unwrap();
    program.send(3);
    assert_eq!(program.receives_within(ARRIVES_WITHIN), Some(3));
}

#[test]
fn undoing_irq_suspend_timeout_does_not_stall() {
    let before = PartialNapiSettings { irq_suspend_timeout_ns: Some(0), ..SUSPENDING };
    undone_while_held("u-suspend", before, true, journal_napi(SUSPENDING));
}

#[test]
fn undoing_deferral_does_not_stall() {
    let before = PartialNapiSettings { defer_hard_irqs: Some(0), ..SUSPENDING };
    undone_while_held("u-defer", before, true, journal_napi(SUSPENDING));
}

#[test]
fn undoing_both_after_a_kill_does_not_stall() {
    let Some(lab) = TestLab::raise("killed", 1) else { return };
    let mut program = UdpProgram::start(&lab, Trigger::Edge);
    let unchanged = lab.napi();
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = lab.transaction(&dir, "killed-t");
    assert!(transaction.set_napi(&lab.server, lab.napis[0], &SUSPENDING).unwrap());
    assert!(transaction.set_epoll(UdpProgram::process(), program.epoll_fd(), PREFER).unwrap());
    program.hold();

    // The copy on disk has no owner, as after a `kill -9`.
    let left_behind = tempfile::tempdir().unwrap();
    let written =
        std::fs::read(dir.path().join(format!("{}.journal", quell_test_support::lab::id("killed-t")))).unwrap();
    std::fs::write(left_behind.path().join("left.journal"), written).unwrap();
    let journal = quell_change::journal::Journal::in_dir(left_behind.path());
    let found = quell_change::recovery::recover(&journal).unwrap();
    let [quell_change::recovery::Found::Recovered { reverted, .. }] = &found[..] else { panic!("{found:?}") };
    assert_eq!((reverted.undone.len(), reverted.failed.len()), (2, 0), "{reverted:?}");
    assert!(program.has_event_within(ARRIVES_WITHIN));
    assert_eq!(lab.napi(), unchanged);

    let again = transaction.revert().unwrap();
    assert_eq!((again.undone.len(), again.already_gone.len()), (0, 2), "reverting twice does no harm");
}

/// Waiting on the program's own epoll frees the queue, but consumes the program's event.
fn lost_to_a_wait_on_the_programs_epoll(test: &str, trigger: Trigger) {
    let Some((_lab, mut program)) = held(test, trigger) else { return };
    let taken_by_somebody_else = (0..1_000).any(|_| program.has_event_within(std::time::Duration::from_millis(1)));
    assert!(taken_by_somebody_else);
    assert!(!program.has_event_within(WATCHED), "the program gets no event");
    assert_eq!(program.receives_within(ARRIVES_WITHIN), Some(2), "but the datagram is there");
}

/// Checks that the program still gets its event after an undo.
fn kept_by_undoing(test: &str, trigger: Trigger) {
    let Some(lab) = TestLab::raise(test, 1) else { return };
    let mut program = UdpProgram::start(&lab, trigger);
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = lab.transaction(&dir, &format!("{test}-t"));
    assert!(transaction.set_napi(&lab.server, lab.napis[0], &SUSPENDING).unwrap());
    assert!(transaction.set_epoll(UdpProgram::process(), program.epoll_fd(), PREFER).unwrap());
    program.hold();
    let reverted = transaction.revert().unwrap();
    assert_eq!((reverted.undone.len(), reverted.failed.len()), (2, 0), "{reverted:?}");
    assert!(program.has_event_within(ARRIVES_WITHIN), "the program gets the event");
    assert_eq!(program.receives_within(ARRIVES_WITHIN), Some(2));
}

#[test]
fn an_edge_triggered_event_is_lost_to_a_wait_on_the_programs_epoll() {
    lost_to_a_wait_on_the_programs_epoll("edge", Trigger::Edge);
}

#[test]
fn an_edge_triggered_event_is_kept_by_undoing() {
    kept_by_undoing("u-edge", Trigger::Edge);
}

#[test]
fn a_one_shot_event_is_lost_to_a_wait_on_the_programs_epoll() {
    lost_to_a_wait_on_the_programs_epoll("oneshot", Trigger::OneShot);
}

#[test]
fn a_one_shot_event_is_kept_by_undoing() {
    kept_by_undoing("u-oneshot", Trigger::OneShot);
}

#[test]
fn a_level_triggered_event_is_kept_by_undoing() {
    kept_by_undoing("u-level", Trigger::Level);
}

#[test]
fn a_queue_is_freed_by_its_napi_id_if_no_socket_can_be_duplicated() {
    let Some((lab, program)) = held("ring", Trigger::Level) else { return };
    let resumer = Resumer::of_queue(&ProcRoot::default(), &lab.napi(), &[]);
    match resumer.poll() {
        Err(error) => skip(Lacks::KernelFeature, &error),
        Ok(freed) => {
            assert_eq!(freed, Freed::ThroughIoUring);
            assert_eq!(program.receives_within(ARRIVES_WITHIN), Some(2));
        }
    }
    assert!(
        lab.napi().settings.irq_suspend_timeout_ns == Some(SUSPENDED_FOR.as_nanos() as u64),
        "no other value is changed"
    );
}
