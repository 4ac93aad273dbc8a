//! Counts the waits of this process on the live kernel: which timeouts, and what they returned.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;
use std::time::Duration;

use quell_linux::Pid;
use quell_linux::event::{Epoll, Trigger, WakeEvent};
use quell_sampler::{SamplerError, WaitCounts, WaitPlace, WaitSampler};
use quell_test_support::{Lacks, skip};

fn sampler_of(pids: impl IntoIterator<Item = Pid>) -> Option<WaitSampler> {
    match WaitSampler::attach(Path::new("/sys"), &pids.into_iter().collect()) {
        Err(error @ (SamplerError::Denied { .. } | SamplerError::Unsupported(_) | SamplerError::Refused { .. })) => {
            skip(Lacks::Root, &error);
            None
        }
        sampler => Some(sampler.unwrap()),
    }
}

#[test]
fn calls_of_epoll_wait_are_counted_by_timeout_and_result() {
    let Some(sampler) = sampler_of([Pid::of_this_process()]) else { return };
    let event = WakeEvent::new().unwrap();
    let mut epoll = Epoll::new(7).unwrap();
    epoll.add(&event, 1, Trigger::Level).unwrap();
    (0..3).for_each(|_| epoll.wait(Some(Duration::ZERO)).unwrap());
    epoll.wait(Some(Duration::from_millis(1))).unwrap();
    event.raise().unwrap();
    epoll.wait(Some(Duration::ZERO)).unwrap();
    epoll.wait(None).unwrap();
    let place = WaitPlace::Epoll(epoll.as_fd().as_raw_fd());
    let counts = sampler.read().unwrap();
    let own: Vec<_> = counts.iter().filter(|((_, _, at), _)| *at == place).collect();
    let [((pid, tid, _), counts)] = own[..] else { panic!("{counts:?}") };
    assert_eq!((*pid, *tid), (Pid::of_this_process(), Pid::of_this_thread()));
    assert_eq!(*counts, WaitCounts { calls: 6, zero: 4, zero_empty: 3, with_events: 2, max_events: 7 });
    assert_eq!(counts.sleeping(), 2);
}

#[test]
fn other_programs_are_not_counted() {
    let Some(sampler) = sampler_of([Pid::new(1).unwrap()]) else { return };
    Epoll::new(1).unwrap().wait(Some(Duration::ZERO)).unwrap();
    let counts = sampler.read().unwrap();
    assert!(counts.keys().all(|(pid, _, _)| *pid != Pid::of_this_process()), "{counts:?}");
}
