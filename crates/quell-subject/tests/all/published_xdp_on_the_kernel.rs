//! The published AF_XDP experiment in a lab, shortened: two points, two ways, few blocks.

use quell_change::journal::Journal;
use quell_linux::Pid;
use quell_linux::sched::scheduling;
use quell_result::published_xdp::{CLIENT_CPU, RECEIVER, RESPONDER, SENDER, cpus_of, poll_share};
use quell_sampler::QueuePoller;
use quell_subject::experiment::ComparisonError;
use quell_subject::extent::Extent;
use quell_subject::question::{SubjectStep, Timing};
use quell_subject::replay::{XdpReplay, play_xdp};
use quell_subject::run::LabRunError;
use quell_test_support::{LabTurn, Lacks, skip};
use quell_xdp::PollWay;

use crate::common::can_raise_a_lab;

#[test]
fn each_point_compares_the_ways_and_says_who_polled_on_which_cpu() {
    if !can_raise_a_lab() {
        return;
    }
    let timing = Timing { budget_ms: 6_000, slice_ms: 40, settle_ms: 10, margin: 0.05, seed: 3 };
    let mut replay = XdpReplay::published(2, timing, Extent::Quick, false).unwrap();
    replay.points.retain(|(_, delay_us)| [0.0, 38.0].contains(delay_us));
    replay.ways.retain(|way| !way.sleeps && way.poller != PollWay::NapiThread);
    let dir = tempfile::tempdir().unwrap();
    let before = scheduling(Pid::of_this_thread()).unwrap();
    let played = {
        let _turn = LabTurn::wait();
        play_xdp(&replay, "/proc/self/exe", &Journal::in_dir(dir.path()), &mut |_| {}, &|| false)
    };
    let run = match played {
        Err(LabRunError::Experiment(ComparisonError::Xdp(error))) => return skip(Lacks::KernelFeature, error),
        run => run.unwrap(),
    };
    assert_eq!(scheduling(Pid::of_this_thread()).unwrap(), before);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "a journal remains");
    assert_eq!((run.ended.as_deref(), run.points.len(), run.placement.poller), (None, 2, None));
    assert_ne!(run.placement.receiver, run.placement.sender);

    for point in &run.points {
        let result = point.result.as_ref().unwrap();
        assert_eq!(result.treatment_names().collect::<Vec<_>>(), ["interrupts", "udp-busy-poll"]);
        if let Some(why) = result.record.dropped.values().next() {
            return skip(Lacks::KernelFeature, why);
        }
        assert!(result.record.slices.len() >= 3, "{:?}", result.end);
        for way in ["interrupts", "udp-busy-poll"] {
            assert!(!result.latencies(way).is_empty(), "{way}");
            for metric in [CLIENT_CPU.to_owned(), cpus_of(RECEIVER), cpus_of(SENDER), cpus_of(RESPONDER)] {
                assert!(result.median(way, &metric).is_some_and(|value| value > 0.0), "{way}: {metric}");
            }
        }
        assert!(point.receive_calls["udp-busy-poll"].count() > 0);
        assert_eq!(result.analyse().contrasts.len(), 1);
    }
    let quiet = run.points[0].result.as_ref().unwrap();
    let share = |way, poller| quiet.median(way, &poll_share(poller));
    let softirqs = [QueuePoller::Interrupt, QueuePoller::Ksoftirqd, QueuePoller::Rescheduled];
    let kernel: Vec<f64> = softirqs.into_iter().filter_map(|poller| share("interrupts", poller)).collect();
    if kernel.is_empty() {
        return skip(Lacks::Root, "polls could not be sampled");
    }
    assert!(kernel.iter().sum::<f64>() > 0.5, "{kernel:?}");
    assert!(share("udp-busy-poll", QueuePoller::Program) > Some(0.0));
    assert_eq!(share("interrupts", QueuePoller::Program), Some(0.0));
}

#[test]
fn a_run_that_is_stopped_has_the_points_so_far_and_leaves_nothing() {
    if !can_raise_a_lab() {
        return;
    }
    let timing = Timing { budget_ms: 60_000, slice_ms: 40, settle_ms: 10, margin: 0.05, seed: 3 };
    let replay = XdpReplay::published(2, timing, Extent::Quick, false).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let slices = std::cell::Cell::new(0);
    let _turn = LabTurn::wait();
    let mut count = |step: SubjectStep<'_>| {
        if let SubjectStep::Slice { .. } = step {
            slices.set(slices.get() + 1);
        }
    };
    let played = play_xdp(&replay, "/proc/self/exe", &Journal::in_dir(dir.path()), &mut count, &|| slices.get() > 6);
    let run = match played {
        Err(LabRunError::Experiment(ComparisonError::Xdp(error))) => return skip(Lacks::KernelFeature, error),
        run => run.unwrap(),
    };
    assert_eq!((run.ended.as_deref(), run.points.len()), (Some("interrupted"), 1));
    assert!(!run.points[0].result.as_ref().unwrap().record.slices.is_empty());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "a journal remains");
}
