//! `quell run` on the kernel: a memcached and small servers in C, started with a delivery mode in a lab. What they have
//! from their birth on, what the queues have meanwhile, how they end, and that nothing is left. Needs root, Linux 6.13 and
//! memcached; says so when it is skipped.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests fail by panicking")]

mod inherited;
mod lab;
mod terminal;

use std::time::{Duration, Instant};

use lab::RunLab;
use quell_linux::epoll_params::EpollParams;
use quell_linux::pidfd::Signal;
use quell_test_support::wait_until;

const SUSPEND: EpollParams = EpollParams { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true };
const MEMCACHED: [&str; 6] = ["memcached", "-u", "nobody", "-t", "2", "-v"];
/// defer-hard-irqs, gro-flush-timeout, irq-suspend-timeout.
const SUSPEND200: (u32, u64, u64) = (100, 200_000, 20_000_000);

#[test]
fn a_memcached_has_the_mode_before_its_first_connection_and_nothing_is_left_of_it() {
    let Some(lab) = RunLab::raise("memcached") else { return };
    let before = lab.queues();
    let quell = lab.run(&["-v", "suspend200"], &MEMCACHED);
    let memcached = lab.wait_for_memcached(&quell);
    let epolls = lab.epolls(memcached);
    assert!(epolls.len() >= 2 && epolls.iter().all(|params| *params == SUSPEND), "{epolls:?}");
    assert!(lab.queues().iter().all(|queue| *queue == SUSPEND200), "{:?}", lab.queues());
    assert!(lab.maps(memcached).contains("libquell-preload-"));
    lab.ask_memcached();
    let status = lab.quell(&["status"]);
    assert!(status.contains("attach suspend200") && status.contains("by `quell run`"), "{status}");
    assert!(lab.quell(&["detach", "--all"]).contains("left alone: attach suspend200, by `quell run`"));

    quell.signal(Signal::TERM);
    let ended = quell.end();
    assert_eq!((ended.code, ended.signal), (Some(0), None), "memcached ends like this by SIGTERM: {ended:?}");
    assert!(ended.err.contains("mode        suspend200 (command line)"), "{ended:?}");
    assert!(ended.err.contains("everything was restored"), "{ended:?}");
    assert_eq!(lab.queues(), before);
    assert!(lab.journals().is_empty(), "{:?}", lab.journals());
}

#[test]
fn a_quell_that_is_killed_leaves_a_memcached_that_answers_and_queues_as_they_were() {
    let Some(lab) = RunLab::raise("killed") else { return };
    let before = lab.queues();
    let quell = lab.run(&["suspend200"], &MEMCACHED);
    let memcached = lab.wait_for_memcached(&quell);
    lab.ask_memcached();
    quell.signal(Signal::KILL);
    assert_eq!(quell.end().signal, Some(9));
    wait_until(|| {
        let (queues, journals) = (lab.queues(), lab.journals());
        if queues == before && journals.is_empty() { Ok(()) } else { Err(format!("{queues:?} {journals:?}")) }
    });
    lab.ask_memcached();
    lab.kill(memcached);
}

#[test]
fn a_program_in_a_mode_that_spins_stops_spinning_when_its_quell_is_killed() {
    let Some(lab) = RunLab::raise("spinning") else { return };
    let before = lab.queues();
    let quell = lab.run(&["fullbusy"], &MEMCACHED);
    let memcached = lab.wait_for_memcached(&quell);
    lab.ask_memcached();
    assert!(lab.epolls(memcached).iter().all(|params| params.busy_poll_usecs == 1_000), "{:?}", lab.epolls(memcached));
    wait_until(|| if lab.is_written_down(memcached) { Ok(()) } else { Err("nobody knows its number".to_owned()) });
    quell.signal(Signal::KILL);
    assert_eq!(quell.end().signal, Some(9));
    wait_until(|| {
        let (queues, epolls) = (lab.queues(), lab.epolls(memcached));
        let are_back = epolls.iter().all(|params| *params == EpollParams::default());
        if queues == before && are_back { Ok(()) } else { Err(format!("{queues:?} {epolls:?}")) }
    });
    lab.ask_memcached();
    lab.kill(memcached);
}

#[test]
fn a_command_that_is_killed_ends_quell_alike_and_everything_is_put_back() {
    let Some(lab) = RunLab::raise("command") else { return };
    let before = lab.queues();
    let quell = lab.run(&["suspend200"], &MEMCACHED);
    let memcached = lab.wait_for_memcached(&quell);
    lab.kill(memcached);
    let ended = quell.end();
    assert_eq!((ended.code, ended.signal), (None, Some(9)), "{ended:?}");
    assert_eq!((lab.queues(), lab.journals()), (before, Vec::new()));
}

#[test]
fn a_command_that_cannot_be_executed_changes_nothing() {
    let Some(lab) = RunLab::raise("none") else { return };
    let before = lab.queues();
    let ended = lab.run(&["suspend200"], &["/etc/passwd"]).end();
    assert_eq!(ended.code, Some(126), "{ended:?}");
    assert_eq!((lab.queues(), lab.journals()), (before, Vec::new()));
}

#[test]
fn a_mode_that_the_queues_cannot_have_starts_nothing() {
    let Some(lab) = RunLab::raise("refused") else { return };
    let ended = lab.run(&["suspend200", "--device", "eth7"], &["true"]).end();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    assert!(ended.err.contains("there is no device eth7"), "{ended:?}");
}

#[test]
fn what_a_command_leaves_running_keeps_the_mode_until_it_ends() {
    let Some(lab) = RunLab::raise("daemon") else { return };
    let before = lab.queues();
    let quell = lab.run(&["suspend200"], &["sh", "-c", "memcached -u nobody -t 2 & read line"]);
    let memcached = lab.wait_for_memcached(&quell);
    wait_until(|| if lab.is_written_down(memcached) { Ok(()) } else { Err("it was not seen".to_owned()) });
    quell.write("enough\n");
    let ended = quell.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.err.contains(&format!("memcached {memcached} run on with the mode, until they end")), "{ended:?}");
    assert!(lab.queues().iter().all(|queue| *queue == SUSPEND200));
    lab.kill(memcached);
    wait_until(|| {
        let (queues, journals) = (lab.queues(), lab.journals());
        if queues == before && journals.is_empty() { Ok(()) } else { Err(format!("{queues:?} {journals:?}")) }
    });
}

#[test]
fn a_static_program_is_told_of_and_gets_the_mode_from_outside() {
    let Some(lab) = RunLab::raise("static") else { return };
    let Some(server) = lab.compile(&["-static"]) else { return };
    let quell = lab.run(&["-v", "suspend200"], &[&server, "sleeps"]);
    wait_until(|| {
        let said = quell.err();
        if said.contains("got the mode from outside") { Ok(()) } else { Err(said) }
    });
    assert!(quell.err().contains("it is linked statically"), "{}", quell.err());
    let epolls = lab.epolls(quell.command());
    assert_eq!(epolls, [SUSPEND]);
    quell.signal(Signal::TERM);
    assert_eq!(quell.end().signal, Some(15));
}

/// Under suspension the kernel polls in no wait of zero: a program that spins on them waits for the timeout, or for the
/// watch over stalled queues.
#[test]
fn a_program_that_spins_is_not_stalled_where_the_library_reaches_it_and_freed_where_it_does_not() {
    const TIMEOUT: Duration = Duration::from_secs(60);
    let Some(lab) = RunLab::raise("spins") else { return };
    let slowest = |options: &[&str]| {
        let server = lab.compile(options)?;
        let quell = lab.run(&["suspend200,irq-suspend-timeout=60s"], &[&server, "spins"]);
        wait_until(|| if lab.epolls(quell.command()) == [SUSPEND] { Ok(()) } else { Err("no epoll".to_owned()) });
        let slowest = (0..2).map(|number| lab.time_to_hear(&quell, number)).max()?;
        quell.signal(Signal::TERM);
        Some((slowest, quell.end().err.contains("was stalled")))
    };
    let Some(with_library) = slowest(&[]) else { return };
    assert!(with_library.0 < TIMEOUT / 2 && !with_library.1, "{with_library:?}");
    let Some(from_outside) = slowest(&["-static"]) else { return };
    assert!(from_outside.1, "without the library it is stalled, or this test shows nothing: {from_outside:?}");
    assert!(from_outside.0 < TIMEOUT / 2, "{from_outside:?}");
}

#[test]
fn the_command_has_the_place_of_quell() {
    let Some(lab) = RunLab::raise("place") else { return };
    let quell = lab.run(&["suspend200"], &["sh", "-c", "read line; echo \"$line\"; exec sleep 1000"]);
    quell.write("a line\n");
    wait_until(|| if quell.out() == "a line\n" { Ok(()) } else { Err(quell.out()) });
    let (own, its) = (lab.stat(quell.pid()), lab.stat(quell.command()));
    assert_eq!((own.pgrp, own.session, own.tty), (its.pgrp, its.session, its.tty));
    quell.signal(Signal::USR2);
    assert_eq!(quell.end().signal, Some(12));
}

/// As in a container: the kernel says 0 for the session, and for whoever sends a signal from outside.
#[test]
fn signals_are_passed_on_where_the_leader_of_the_session_is_out_of_sight() {
    let Some(lab) = RunLab::raise("container") else { return };
    let tells = "trap 'exit 3' USR1; echo ready; while :; do sleep 0.02; done";
    let container = lab.run_in_a_pid_namespace(&["base"], &["sh", "-c", tells]);
    wait_until(|| if container.out() == "ready\n" { Ok(()) } else { Err(container.err()) });
    container.signal_first_child(Signal::USR1);
    let ended = container.end();
    assert_eq!(ended.code, Some(3), "{ended:?}");
}

#[test]
fn a_terminal_that_hangs_up_reaches_the_command() {
    let Some(lab) = RunLab::raise("hang-up") else { return };
    let told = lab.file("told");
    let Some(()) = terminal::hung_up(&lab, &told) else { return };
    wait_until(|| match std::fs::read_to_string(&told) {
        Ok(said) if said == "hung up\n" => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

#[test]
fn a_key_that_interrupts_reaches_the_command_once() {
    let Some(lab) = RunLab::raise("keys") else { return };
    let begin = Instant::now();
    let Some((code, shown)) = terminal::interrupted(&lab) else { return };
    assert_eq!(code, Some(3), "{shown}");
    assert_eq!(shown.matches("interrupted").count(), 1, "{shown} after {:?}", begin.elapsed());
}
