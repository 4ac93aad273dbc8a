//! Binds workers to the CPU of their queue and restores their affinity, except for workers that another program has
//! bound since. Needs root, Linux 6.13 and two CPUs.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::steered::{BOTH, Steered};
use crate::workers::{count, open};
use quell_host::behavior::ReadQueues;
use quell_host::steer::{Baseline, NotPinned, Pins, WhyNotPinned, alignment, connections, pins};
use quell_linux::{CpuList, Pid, sched};
use quell_test_support::{Lacks, kernel_threads_are_out_of_sight, skip, wait_until};

const CONNECTIONS: usize = 200;

/// Decides once all workers wait. A worker waits as soon as it has answered.
fn decide(steered: &Steered, baseline: &Baseline) -> Pins {
    let decided = || pins(&steered.look(), &[steered.server.pid()], baseline);
    let all_wait = |pins: &Pins| !pins.not_pinned.iter().any(|one| one.why == WhyNotPinned::NoThread);
    std::iter::repeat_with(decided).find(all_wait).unwrap()
}

fn affinity(tid: Pid) -> CpuList {
    sched::affinity(tid).unwrap()
}

#[test]
fn a_worker_whose_connections_predate_the_filter_is_not_bound_for_that_reason() {
    let Some(steered) = Steered::start("pin-old", 2) else { return };
    let _connections = open(&steered.lab.client, &BOTH, CONNECTIONS);
    let steering = steered.plan(&[]).1.unwrap();
    let alignment = alignment(&steering, &steered.look());
    assert_eq!(alignment.connections, CONNECTIONS);
    assert!(alignment.aligned < CONNECTIONS, "the kernel's hash ignores the queue: {alignment:?}");
    let baseline = Baseline::of(&connections(&steering.group.key).unwrap());
    let decided = decide(&steered, &baseline);
    let older = |one: &NotPinned| matches!(one.why, WhyNotPinned::OlderThanFilter(1..));
    assert!(decided.not_pinned.len() == 2 && decided.not_pinned.iter().all(older), "{decided:?}");
    let reason = decided.not_pinned[0].to_string();
    assert!(reason.contains("let the clients reconnect") && !reason.contains("has arrived"), "{reason}");
}

#[test]
fn workers_are_bound_to_the_cpu_of_their_queue_and_restored_unless_another_program_bound_them() {
    if kernel_threads_are_out_of_sight() {
        return;
    }
    let Some(steered) = Steered::start("pin", 4) else { return };
    let everywhere = affinity(Pid::of_this_process());
    if everywhere.len() < 2 {
        return skip(Lacks::Machine, "needs two CPUs");
    }
    steered.thread_queues();
    let cpus = steered.bind_queues(&everywhere);
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = steered.lab.transaction(&dir, "pin-t");
    let steering = steered.plan(&[]).1.unwrap();
    transaction.steer(&steering).unwrap();
    let baseline = Baseline::of(&connections(&steering.group.key).unwrap());

    let early = decide(&steered, &baseline);
    assert_eq!(early.not_pinned.len(), 4);
    assert!(early.not_pinned.iter().all(|one| one.why == WhyNotPinned::NoConnection), "{early:?}");

    let _connections = open(&steered.lab.client, &BOTH, CONNECTIONS);
    let decided = decide(&steered, &baseline);
    assert_eq!((decided.pins.len(), decided.not_pinned.len()), (4, 0), "{decided:?}");
    for pin in &decided.pins {
        assert_eq!((&pin.old, &pin.new), (&everywhere, &cpus[&pin.napi]));
        assert!(transaction.pin(pin).unwrap());
        assert_eq!(affinity(pin.tid), pin.new);
        assert!(!transaction.pin(pin).unwrap(), "the thread is already bound");
    }
    assert_eq!(decide(&steered, &baseline).in_place.len(), 4);
    // As after `--take-over`: all connections predate the second filter, and the first one has sorted them.
    let taken_over = Baseline::of(&connections(&steering.group.key).unwrap());
    assert_eq!(decide(&steered, &taken_over).in_place.len(), 4);

    let by_somebody_else = decided.pins.iter().find(|pin| pin.new == CpuList::from_iter([0])).unwrap();
    sched::set_affinity(by_somebody_else.tid, &CpuList::from_iter([1])).unwrap();
    let reverted = transaction.revert().unwrap();
    assert_eq!((reverted.undone.len(), reverted.left_alone.len(), reverted.failed.len()), (4, 1, 0), "{reverted:?}");
    for pin in &decided.pins {
        let expected = if pin.tid == by_somebody_else.tid { CpuList::from_iter([1]) } else { everywhere.clone() };
        assert_eq!(affinity(pin.tid), expected);
    }
}

#[test]
fn a_worker_whose_connections_close_at_once_is_bound_according_to_its_reads() {
    if kernel_threads_are_out_of_sight() {
        return;
    }
    let Some(steered) = Steered::start("pin-reads", 4) else { return };
    steered.thread_queues();
    let cpus = steered.bind_queues(&affinity(Pid::of_this_process()));
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = steered.lab.transaction(&dir, "pin-reads-t");
    let steering = steered.plan(&[]).1.unwrap();
    transaction.steer(&steering).unwrap();
    let baseline = Baseline::of(&connections(&steering.group.key).unwrap());
    let is_over = AtomicBool::new(false);
    let decided = std::thread::scope(|scope| {
        let (client, is_over) = (&steered.lab.client, &is_over);
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                count(client, &BOTH, 20);
            }
        });
        let decided = wait_until(|| {
            let mut snapshot = steered.look();
            ReadQueues::observe(&snapshot, |pid| pid == steered.server.pid()).add_to(&mut snapshot);
            let decided = pins(&snapshot, &[steered.server.pid()], &baseline);
            if decided.pins.len() == 4 { Ok(decided) } else { Err(format!("{decided:?}")) }
        });
        is_over.store(true, Ordering::Relaxed);
        decided
    });
    assert!(decided.pins.iter().all(|pin| pin.new == cpus[&pin.napi]), "{decided:?}");
}

#[test]
fn workers_whose_queues_have_one_cpu_keep_the_others() {
    if kernel_threads_are_out_of_sight() {
        return;
    }
    if affinity(Pid::of_this_process()).len() < 2 {
        return skip(Lacks::Machine, "needs two CPUs");
    }
    let Some(steered) = Steered::start("pin-crowd", 4) else { return };
    steered.thread_queues();
    steered.bind_queues(&CpuList::from_iter([0]));
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = steered.lab.transaction(&dir, "pin-crowd-t");
    transaction.steer(&steered.plan(&[]).1.unwrap()).unwrap();
    let _connections = open(&steered.lab.client, &BOTH, CONNECTIONS);
    let decided = decide(&steered, &Baseline::default());
    assert_eq!((decided.pins.len(), decided.not_pinned.len()), (0, 4), "{decided:?}");
    let is_crowd = |one: &NotPinned| matches!(one.why, WhyNotPinned::CrowdedCpus { workers: 4, .. });
    assert!(decided.not_pinned.iter().all(is_crowd), "{decided:?}");
}

#[test]
fn a_worker_with_connections_from_several_queues_is_not_bound() {
    if kernel_threads_are_out_of_sight() {
        return;
    }
    let Some(steered) = Steered::start("pin-mixed", 2) else { return };
    steered.thread_queues();
    steered.bind_queues(&affinity(Pid::of_this_process()));
    let _connections = open(&steered.lab.client, &BOTH, CONNECTIONS);
    let decided = decide(&steered, &Baseline::default());
    assert!(decided.pins.is_empty());
    assert!(decided.not_pinned.iter().all(|one| matches!(one.why, WhyNotPinned::SeveralNapis { .. })), "{decided:?}");
}

#[test]
fn a_queue_without_a_fixed_cpu_binds_no_worker() {
    let Some(steered) = Steered::start("pin-none", 4) else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = steered.lab.transaction(&dir, "pin-none-t");
    transaction.steer(&steered.plan(&[]).1.unwrap()).unwrap();
    let _connections = open(&steered.lab.client, &BOTH, CONNECTIONS);
    let decided = decide(&steered, &Baseline::default());
    assert_eq!((decided.pins.len(), decided.not_pinned.len()), (0, 4));
    assert!(decided.not_pinned.iter().all(|one| matches!(one.why, WhyNotPinned::QueueWithoutCpu(..))), "{decided:?}");
}
