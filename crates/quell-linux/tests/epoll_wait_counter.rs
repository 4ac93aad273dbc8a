//! Counts a process's epoll waits by their result, on the live kernel.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::time::Duration;

use quell_linux::Pid;
use quell_linux::bpf::{CounterError, EpollWaitCounter};
use quell_linux::event::{Epoll, Trigger, WakeEvent};
use quell_linux::kernel::sysfs;
use quell_test_support::{Lacks, skip};

#[test]
fn only_waits_that_return_events_count_as_successful() {
    let this = Pid::of_this_process();
    let counter = match EpollWaitCounter::attach(sysfs(), &[this]) {
        Err(error @ (CounterError::Denied { .. } | CounterError::Unsupported(_) | CounterError::InContainer)) => {
            skip(Lacks::Root, &error);
            return;
        }
        counter => counter.unwrap(),
    };
    let mut epoll = Epoll::new(8).unwrap();
    let events = [WakeEvent::new().unwrap(), WakeEvent::new().unwrap(), WakeEvent::new().unwrap()];
    for (token, event) in (0..).zip(&events) {
        epoll.add(event, token, Trigger::Level).unwrap();
    }
    epoll.wait(Some(Duration::ZERO)).unwrap();
    assert_eq!(counter.read().unwrap()[&this].successful, 0, "a wait without events");
    for event in &events {
        event.raise().unwrap();
    }
    for _ in 0..100 {
        epoll.wait(Some(Duration::ZERO)).unwrap();
    }
    let waits = counter.read().unwrap()[&this];
    // Counters are updated without locking. A count is lost if the thread migrates during the update.
    assert!((99..=100).contains(&waits.successful), "{waits:?}");
    assert!((297..=300).contains(&waits.events), "{waits:?}");
}
