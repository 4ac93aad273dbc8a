//! Tests of C programs with the preload library: parameters of their epolls and sockets, and changes to their waits.
//! Results, `errno`, signals and cancellation must not change.

use crate::programs::{Programs, Written};
use quell_test_support::{Lacks, skip};

const SUSPEND: &str = "1,epoll=0/64/1,zero-waits=timed";
const FULLBUSY: &str = "1,epoll=1000/64/1,wait-at-most-ms=1";
const SPIN: &str = "1,spin-usecs=200";

/// Output of the test program about its waits. It is the same for all settings.
const WAITS: &str = "ready 10 -\nready-p 10 -\nready-p2 10 -\nzero 0 -\nzero-p 0 -\nzero-p2 0 -\nbad-max -1 EINVAL\n\
                     bad-max-p -1 EINVAL\nbad-time -1 EINVAL\nbad-file -1 EBADF\n";

/// Whether the kernel supports epoll parameters. If not, prints a message.
fn there_are_parameters(programs: &Programs) -> bool {
    let supported = !programs.bare().run(&["executed"]).out.contains("ENOTTY");
    if !supported {
        skip(Lacks::KernelFeature, "this kernel has no EPIOCGPARAMS");
    }
    supported
}

#[test]
fn every_new_epoll_has_its_parameters() {
    let Some(programs) = Programs::compile() else { return };
    if !there_are_parameters(programs) {
        return;
    }
    let runtime = programs.path("runtime");
    let written = programs.with(SUSPEND).run(&["births", runtime.to_str().unwrap()]);
    let expected = "create1 0/64/1\ncreate 0/64/1\nerrno ENOTTY\nthread 0/64/1\nforked 0/64/1\nclosed 0/64/1\n\
                    dlopened 0/64/1\nrefused -1 EINVAL\nexecuted 0/64/1\n";
    assert_eq!(written.out, expected);
}

#[test]
fn an_epoll_created_before_the_librarys_constructor_also_has_parameters() {
    let Some(programs) = Programs::compile() else { return };
    if !there_are_parameters(programs) {
        return;
    }
    let run = programs.with(SUSPEND).and("runtime").variable("MAKE_AN_EPOLL_EARLY", "1");
    assert_eq!(run.run(&["waits"]).err, "early 0/64/1\n");
}

#[test]
fn invalid_settings_change_nothing() {
    let Some(programs) = Programs::compile() else { return };
    let bare = programs.bare().and("recorder").run(&["waits"]);
    for settings in ["", "1,epoll=0/64/1,zero-waits=always", "9,epoll=0/64/1"] {
        let with = programs.with(settings).and("recorder").run(&["waits"]);
        assert_eq!((&with.out, &with.err), (&bare.out, &bare.err), "{settings}");
    }
}

#[test]
fn errno_is_unchanged_if_the_kernel_refuses_the_parameters() {
    let Some(programs) = Programs::compile() else { return };
    let run = programs.with(SUSPEND).and("recorder").variable("REFUSE", "ioctl").variable("REFUSE_WITH", "5");
    let written = run.run(&["births", "/nonexistent"]);
    assert!(written.out.contains("errno EIO\n"), "{written:?}");
}

#[test]
fn results_and_errors_of_waits_are_those_of_the_kernel() {
    let Some(programs) = Programs::compile() else { return };
    assert_eq!(programs.bare().run(&["waits"]).out, WAITS);
    for settings in [SUSPEND, FULLBUSY, SPIN, "1,events-max=64"] {
        assert_eq!(programs.with(settings).run(&["waits"]).out, WAITS, "{settings}");
    }
}

#[test]
fn under_suspension_a_zero_wait_becomes_1_ns_and_all_others_are_unchanged() {
    let Some(programs) = Programs::compile() else { return };
    let written = programs.with(SUSPEND).and("recorder").run(&["waits"]);
    let timed = "epoll_pwait2 64 0.000000001\n";
    let expected = format!(
        "epoll_wait 64 -1\n{timed}epoll_pwait2 64 -\n{timed}{timed}{timed}epoll_pwait2 0 0.000000001\n\
         epoll_pwait -1 -1\nepoll_pwait2 1 0.-00000001\nepoll_wait 1 -1\n"
    );
    assert_eq!((written.out.as_str(), written.err), (WAITS, expected));
}

#[test]
fn without_epoll_pwait2_a_zero_wait_becomes_1_ms() {
    let Some(programs) = Programs::compile() else { return };
    for refused_with in ["1", "38"] {
        let run = programs.with(SUSPEND).and("recorder").variable("REFUSE", "epoll_pwait2");
        let written = run.variable("REFUSE_WITH", refused_with).run(&["waits"]);
        assert!(written.out.contains("zero 0 -\nzero-p 0 -\n"), "{written:?}");
        assert!(written.err.contains("epoll_pwait2 64 0.000000001\nepoll_pwait 64 1\n"), "{written:?}");
        let error = if refused_with == "1" { "EPERM" } else { "ENOSYS" };
        let expected = format!("zero-p2 -1 {error}\n");
        assert!(written.out.contains(&expected), "the program's own epoll_pwait2 call must fail: {written:?}");
    }
}

#[test]
fn a_wait_of_zero_is_not_ended_by_a_signal() {
    let Some(programs) = Programs::compile() else { return };
    let run = programs.with(SUSPEND).and("recorder").variable("REFUSE", "epoll_pwait2").variable("REFUSE_WITH", "4");
    let written = run.run(&["waits"]);
    assert!(written.out.contains("zero 0 -\nzero-p 0 -\nzero-p2 0 -\n"), "{written:?}");
}

#[test]
fn long_waits_are_split_and_do_not_end_early() {
    let Some(programs) = Programs::compile() else { return };
    let written = programs.with(FULLBUSY).and("recorder").run(&["long-waits"]);
    assert_eq!(written.out, "40ms 0 -\nearly 0\n30.5ms 0 -\nearly 0\n1ms 0 -\n");
    let longest = |line: &str| matches!(line, "epoll_pwait 64 1" | "epoll_pwait 64 0");
    let exact =
        |line: &str| line.strip_prefix("epoll_pwait2 64 0.").is_some_and(|ns| ns.parse::<u32>().unwrap() <= 1_000_000);
    assert!(written.err.lines().all(|line| longest(line) || exact(line)), "{written:?}");
    assert!(written.err.lines().filter(|line| longest(line)).count() >= 3, "{written:?}");
    assert!(written.err.lines().filter(|line| exact(line)).count() >= 3, "{written:?}");
}

#[test]
fn before_it_sleeps_a_wait_spins() {
    let Some(programs) = Programs::compile() else { return };
    let written = programs.with("1,spin-usecs=10000").and("recorder").run(&["long-waits"]);
    assert_eq!(written.out, "40ms 0 -\nearly 0\n30.5ms 0 -\nearly 0\n1ms 0 -\n");
    let timeouts_ms = written.err.lines().map_while(|line| line.strip_prefix("epoll_pwait 64 ")?.parse::<u32>().ok());
    let spins = timeouts_ms.take_while(|&ms| ms == 0).count();
    assert!(spins > 2, "{written:?}");
    let slept = written.err.lines().nth(spins).unwrap();
    assert!(
        (1..=30).any(|ms| slept == format!("epoll_pwait 64 {ms}")),
        "the wait must sleep for the rest of 40 ms: {written:?}"
    );
}

#[test]
fn no_wait_returns_more_events_than_the_maximum() {
    let Some(programs) = Programs::compile() else { return };
    let written = programs.with("1,events-max=3").and("recorder").run(&["waits"]);
    assert!(written.out.starts_with("ready 3 -\nready-p 3 -\nready-p2 3 -\n"), "{written:?}");
    assert!(written.out.ends_with(&WAITS[WAITS.find("zero").unwrap()..]), "{written:?}");
    assert!(
        written.err.contains("epoll_wait 1 -1\n"),
        "a smaller maxevents of the program must not change: {written:?}"
    );
}

#[test]
fn a_signal_ends_a_wait_and_sees_the_programs_mask() {
    let Some(programs) = Programs::compile() else { return };
    // A signal that is handled while the program does not wait ends no wait. For `epoll_pwait`, the mask prevents this.
    // On a busy machine it happens occasionally, but not in half of the cases.
    let were_not_lost = |written: &Written| {
        let handled: u32 = written.err.trim().strip_prefix("handled ").unwrap().parse().unwrap();
        assert!((50..75).contains(&handled), "{written:?}");
    };
    let expected = "wait interrupted 50\npwait interrupted 50 handled 50 unblocked 0\nblocked 0 -\nhandled 0\n\
                    handled 1\nmask kept 1\n";
    assert_eq!(programs.bare().run(&["signals"]).out, expected);
    for settings in [SUSPEND, FULLBUSY, SPIN] {
        let written = programs.with(settings).run(&["signals"]);
        assert_eq!(written.out, expected, "{settings}");
        were_not_lost(&written);
    }
}

/// Each function is tested 20 times with and without a timeout, and with deferred and asynchronous cancellation.
#[test]
fn a_waiting_thread_can_be_cancelled_and_sees_its_signal_mask() {
    let Some(programs) = Programs::compile() else { return };
    let expected = "20 20 20\n".repeat(18);
    assert_eq!(programs.bare().run(&["cancel"]).out, expected);
    for settings in ["", SUSPEND, FULLBUSY, SPIN, "1,events-max=3"] {
        let written = programs.with(settings).run(&["cancel"]);
        assert_eq!(written.out, expected, "{settings}");
    }
}

/// The first call only polls. The second and the tenth call run with signals blocked. The spin time must exceed the
/// time of ten calls on any machine. Otherwise the thread would sleep and never make the tenth call.
#[test]
fn a_cancellation_between_the_calls_of_a_wait_restores_the_signal_mask() {
    let Some(programs) = Programs::compile() else { return };
    for settings in [FULLBUSY, "1,spin-usecs=2000000000"] {
        for call in ["1", "2", "10"] {
            let written = programs.with(settings).and("recorder").variable("CANCEL_AT", call).run(&["cancelled"]);
            assert_eq!(written.out, "1 1 1\n".repeat(3), "{settings} at call {call}");
        }
    }
}

#[test]
fn a_handler_may_leave_a_wait_by_longjmp_and_the_thread_can_still_end() {
    let Some(programs) = Programs::compile() else { return };
    for settings in ["", SUSPEND, FULLBUSY, SPIN, "1,spin-usecs=1000000"] {
        let written = programs.with(settings).run(&["jumps"]);
        assert_eq!(written.out, "jumps 20 mask kept 1\nended 1\n", "{settings}");
    }
}

/// The test includes a wait that spins for ten seconds before it sleeps.
#[test]
fn a_signal_ends_a_spinning_wait_at_once() {
    let Some(programs) = Programs::compile() else { return };
    for settings in ["", FULLBUSY, SPIN, "1,spin-usecs=10000000"] {
        let written = programs.with(settings).run(&["interruptions"]);
        assert_eq!(written.out, "wait -1 EINTR\nin time 1\n".repeat(9), "{settings}");
    }
}

/// An ignored signal that arrives between the check for pending signals and the next call still ends a wait. On a busy
/// machine several do; without the check, each one does.
#[test]
fn ignored_signals_end_no_wait() {
    let Some(programs) = Programs::compile() else { return };
    for settings in ["", SUSPEND, FULLBUSY, SPIN, "1,spin-usecs=10000"] {
        let ended: u32 = programs.with(settings).run(&["ignored"]).out.trim().parse().unwrap();
        assert!(ended < 10, "{settings}: {ended} of 20");
    }
}

#[test]
fn new_and_accepted_internet_sockets_have_their_options() {
    let Some(programs) = Programs::compile() else { return };
    let written = programs.with("1,sockets=50/64/1").run(&["sockets"]);
    if written.out.contains("tcp 0 ") {
        skip(Lacks::Root, "SO_BUSY_POLL needs CAP_NET_ADMIN");
        return;
    }
    let expected = "tcp 50 prefer 1\nudp6 50 prefer 1\nunix 0 prefer 0\nrefused -1 EINVAL\naccepted 50 prefer 1\n";
    assert_eq!(written.out, expected);
}

#[test]
fn the_busy_poll_budget_of_a_socket_is_set_too() {
    let Some(programs) = Programs::compile() else { return };
    let written = programs.with("1,sockets=50/32/0").and("recorder").run(&["sockets"]);
    let (so_busy_poll, so_prefer_busy_poll, so_busy_poll_budget) = (46, 69, 70);
    let one = format!(
        "setsockopt {so_busy_poll} 50\nsetsockopt {so_prefer_busy_poll} 0\nsetsockopt {so_busy_poll_budget} 32\n"
    );
    assert_eq!(written.err, one.repeat(3), "two TCP sockets and one UDP socket, but no Unix socket and no failed call");
}
