//! The cause that a snapshot of this host shows for a program whose epoll polls no queue. Needs root and Linux 6.13.

use std::collections::BTreeSet;
use std::os::fd::{AsFd as _, AsRawFd as _};

use quell_host::attach::no_poll::{NoPollCause, no_poll_cause_now};
use quell_host::behavior;
use quell_host::snapshot::{SnapshotScope, take};
use quell_linux::epoll_params::EpollParams;
use quell_linux::event::{Epoll, Trigger, WakeEvent};
use quell_linux::{NapiId, Pid, socket_options};
use quell_test_support::lab::{TestLab, UdpProgram};
use quell_test_support::wait_until;

const PREFERS: EpollParams = EpollParams { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true };
const NO_POLLING: EpollParams = EpollParams { prefer_busy_poll: false, ..PREFERS };

fn cause(napi: NapiId) -> NoPollCause {
    no_poll_cause_now(None, &BTreeSet::from([Pid::of_this_process()]), napi)
}

/// Waits for a cause that takes a thread some time to reach.
fn becomes(napi: NapiId, is_it: fn(&NoPollCause) -> bool) -> String {
    wait_until(|| match cause(napi) {
        found if is_it(&found) => Ok(found.to_string()),
        other => Err(other.to_string()),
    })
}

/// Runs `observe` while a thread sleeps in the epoll.
fn asleep_in<T>(mut epoll: Epoll, observe: impl FnOnce() -> T) -> T {
    let wake = WakeEvent::new().unwrap();
    epoll.add(&wake, u64::MAX, Trigger::Level).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || epoll.wait(None).unwrap());
        let observed = observe();
        wake.raise().unwrap();
        observed
    })
}

#[test]
fn who_sleeps_in_which_epoll_decides_the_cause() {
    let Some(lab) = TestLab::raise("causes", 2) else { return };
    let program = UdpProgram::start(&lab, Trigger::Level);
    let napi = socket_options::incoming_napi_id(&program.socket).unwrap().unwrap();
    program.set_epoll(PREFERS);
    let fd = program.epoll_fd();

    becomes(napi, |cause| matches!(cause, NoPollCause::NobodySleeps { .. }));

    let outer = Epoll::new(8).unwrap();
    outer.add(&program.epoll, 1, Trigger::Level).unwrap();
    let said = asleep_in(outer, || becomes(napi, |cause| matches!(cause, NoPollCause::WatchedByAnother { .. })));
    assert!(said.starts_with(&format!("nobody slept in epoll {fd} of ")), "{said}");

    asleep_in(program.epoll.duplicate().unwrap(), || {
        program.set_epoll(NO_POLLING);
        becomes(napi, |cause| matches!(cause, NoPollCause::NotEnabled { .. }));
        program.set_epoll(PREFERS);
    });
    // Every queue of the device can deliver to an unconnected UDP socket.
    let other_queue = *lab.napis.iter().find(|other| **other != napi).unwrap();
    becomes(other_queue, |cause| matches!(cause, NoPollCause::NobodySleeps { .. }));
}

#[test]
fn a_thread_that_sleeps_in_its_epoll_since_before_the_observation_sleeps_in_it() {
    let Some(lab) = TestLab::raise("causes-before", 1) else { return };
    let program = UdpProgram::start(&lab, Trigger::Level);
    let this = Pid::of_this_process();
    let (snapshot, _) =
        take(&SnapshotScope { netns: Some(lab.server_name.clone()), ..SnapshotScope::default() }).unwrap();
    let epoll = program.epoll.duplicate().unwrap();
    let key = (this, epoll.as_fd().as_raw_fd());
    asleep_in(epoll, || {
        wait_until(|| {
            let behavior = behavior::observe(&snapshot, &[this].into(), true);
            let waits = behavior.waits.get(&key).copied().unwrap_or_default();
            let is_seen = waits.is_slept_in || behavior.not_counted.is_some() && waits.sleeping > 0;
            if is_seen && waits.zero == 0 { Ok(()) } else { Err(format!("{waits:?}")) }
        });
    });
}
