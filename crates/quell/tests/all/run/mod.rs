//! `quell run` on the kernel: starts memcached and small servers in C with a delivery mode in a lab. Checks their
//! settings from the start, the queues, their exit, and that nothing remains. Needs root, Linux 6.13 and memcached;
//! reports when it is skipped.

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
fn memcached_has_the_mode_before_its_first_connection_and_everything_is_restored() {
    let Some(lab) = RunLab::raise("memcached") else { return };
    let before = lab.queues();
    let quell = lab.run(&["--details", "suspend200"], &MEMCACHED);
    let memcached = lab.wait_for_memcached(&quell);
    let epolls = lab.epolls(memcached);
    assert!(epolls.len() >= 2 && epolls.iter().all(|params| *params == SUSPEND), "{epolls:?}");
    assert!(lab.queues().iter().all(|queue| *queue == SUSPEND200), "{:?}", lab.queues());
    assert!(lab.maps(memcached).contains("libquell-preload-"));
    lab.ask_memcached();
    let status = lab.quell(&["status"]);
    assert!(status.contains("run suspend200") && status.contains("by `quell run`"), "{status}");
    assert!(lab.quell(&["detach", "--all"]).contains("skipped: run suspend200, which is undone"));
    let pid = memcached.to_string();
    for arguments in [&["detach", &pid][..], &["attach", "base", &pid, "--yes"]] {
        let said = lab.quell(arguments);
        assert!(said.contains("undoes the mode when it exits") && !said.contains("quell detach"), "{said}");
    }

    quell.signal(Signal::TERM);
    let ended = quell.end();
    assert_eq!((ended.code, ended.signal), (Some(0), None), "memcached exits with 0 after SIGTERM: {ended:?}");
    assert!(ended.err.contains("mode        suspend200 (command line)"), "{ended:?}");
    assert!(ended.err.contains("everything was restored"), "{ended:?}");
    assert_eq!(lab.queues(), before);
    assert!(lab.journals().is_empty(), "{:?}", lab.journals());
}

#[test]
fn killing_quell_leaves_memcached_running_and_restores_the_queues() {
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
fn a_program_stops_spinning_when_quell_is_killed() {
    let Some(lab) = RunLab::raise("spinning") else { return };
    let before = lab.queues();
    let quell = lab.run(&["fullbusy"], &MEMCACHED);
    let memcached = lab.wait_for_memcached(&quell);
    lab.ask_memcached();
    assert!(lab.epolls(memcached).iter().all(|params| params.busy_poll_usecs == 1_000), "{:?}", lab.epolls(memcached));
    wait_until(|| {
        if lab.is_written_down(memcached) { Ok(()) } else { Err("the journal does not list memcached".to_owned()) }
    });
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
fn quell_exits_like_a_killed_command_and_restores_everything() {
    let Some(lab) = RunLab::raise("command") else { return };
    let before = lab.queues();
    let quell = lab.run(&["suspend200"], &MEMCACHED);
    let memcached = lab.wait_for_memcached(&quell);
    lab.kill(memcached);
    let ended = quell.end();
    assert_eq!((ended.code, ended.signal), (None, Some(9)), "{ended:?}");
    assert_eq!((lab.queues(), lab.journals()), (before, Vec::new()));
    let status = lab.quell(&["status"]);
    assert!(
        status.contains("run suspend200 to memcached") && status.contains("by `quell run`: the command exited"),
        "{status}"
    );
}

#[test]
fn a_command_that_cannot_be_executed_changes_nothing() {
    let Some(lab) = RunLab::raise_without_memcached("none") else { return };
    let before = lab.queues();
    let ended = lab.run(&["suspend200"], &["/etc/passwd"]).end();
    assert_eq!(ended.code, Some(126), "{ended:?}");
    assert_eq!((lab.queues(), lab.journals()), (before, Vec::new()));
}

#[test]
fn an_impossible_queue_setting_starts_nothing() {
    let Some(lab) = RunLab::raise_without_memcached("refused") else { return };
    for option in ["--device=eth7", "--steer=eth7", "--steer=server0,eth7"] {
        for arguments in [&["suspend200", option][..], &["suspend200", option, "--dry-run"]] {
            let ended = lab.run(arguments, &["true"]).end();
            assert_eq!(ended.code, Some(1), "{option}: {ended:?}");
            assert!(ended.err.contains("there is no device eth7"), "{option}: {ended:?}");
        }
    }
}

#[test]
fn processes_left_by_a_command_keep_the_mode_until_they_exit() {
    let Some(lab) = RunLab::raise("daemon") else { return };
    let before = lab.queues();
    let quell = lab.run(&["suspend200"], &["sh", "-c", "memcached -u nobody -t 2 & read line"]);
    let memcached = lab.wait_for_memcached(&quell);
    wait_until(|| {
        if lab.is_written_down(memcached) { Ok(()) } else { Err("the journal does not list memcached".to_owned()) }
    });
    quell.write("enough\n");
    let ended = quell.end();
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert!(ended.err.contains(&format!("memcached {memcached} keeps running with the mode until exit")), "{ended:?}");
    assert!(lab.queues().iter().all(|queue| *queue == SUSPEND200));
    lab.kill(memcached);
    wait_until(|| {
        let (queues, journals) = (lab.queues(), lab.journals());
        if queues == before && journals.is_empty() { Ok(()) } else { Err(format!("{queues:?} {journals:?}")) }
    });
}

#[test]
fn a_static_program_is_reported_and_set_from_outside() {
    let Some(lab) = RunLab::raise_without_memcached("static") else { return };
    let Some(server) = lab.compile(&["-static"]) else { return };
    let quell = lab.run(&["--details", "suspend200"], &[&server, "sleeps"]);
    wait_until(|| {
        let said = quell.err();
        if said.contains("was set from outside") { Ok(()) } else { Err(said) }
    });
    assert!(quell.err().contains("it is statically linked"), "{}", quell.err());
    let epolls = lab.epolls(quell.command());
    assert_eq!(epolls, [SUSPEND]);
    quell.signal(Signal::TERM);
    assert_eq!(quell.end().signal, Some(15));
}

/// Waits until `quell run` has printed `text` about its command.
fn wait_until_said(quell: &lab::Running, text: &str) {
    let expected = format!("{} {text}", quell.command());
    wait_until(|| if quell.err().contains(&expected) { Ok(()) } else { Err(format!("{expected:?}: {}", quell.err())) });
}

#[test]
fn the_reach_of_a_mode_is_printed_once_it_is_verified() {
    let Some(lab) = RunLab::raise_without_memcached("verified") else { return };
    let Some(server) = lab.compile(&[]) else { return };
    for (mode, said) in [
        ("sockpoll50", "has SO_BUSY_POLL 50 on its sockets"),
        ("eventspin50", "calls epoll_wait through the preload library"),
        (
            "fullbusy",
            "has busy poll 1000/64/1 on every epoll with sockets; it calls epoll_wait through the preload library",
        ),
    ] {
        let quell = lab.run(&[mode], &[&server, "sleeps"]);
        wait_until_said(&quell, said);
        quell.signal(Signal::TERM);
        assert_eq!(quell.end().err.matches(said).count(), 1, "printed once");
    }
}

#[test]
fn a_program_with_direct_system_calls_is_reported() {
    let Some(lab) = RunLab::raise_without_memcached("raw") else { return };
    let Some(server) = lab.compile(&["-DRAW"]) else { return };
    for (options, said) in [
        (&["eventspin50"][..], "calls epoll_wait without the C library, so eventspin50 has no effect on it"),
        (
            &["sockpoll50"],
            "lacks SO_BUSY_POLL 50 on 1 of its 1 socket: it creates its sockets without the C library, or inherited \
             them, so sockpoll50 has no effect on it",
        ),
        (&["--no-queues", "napibusy"], "lacks busy poll 64/64/1 on 1 of its 1 epoll with sockets"),
        (
            &["fullbusy"],
            "has busy poll 1000/64/1 on every epoll with sockets; it calls epoll_wait without the C library, so its \
             waits are not limited to 1 ms",
        ),
    ] {
        let quell = lab.run(options, &[&server, "sleeps"]);
        wait_until_said(&quell, said);
        quell.signal(Signal::TERM);
        quell.end();
    }
}

#[test]
fn a_child_with_direct_system_calls_is_judged_apart_from_its_parent() {
    let Some(lab) = RunLab::raise_without_memcached("child") else { return };
    let Some(server) = lab.compile(&["-DRAW", "-DFORKS"]) else { return };
    let quell = lab.run(&["eventspin50"], &[&server, "sleeps"]);
    let said = "calls epoll_wait without the C library, so eventspin50 has no effect on it";
    wait_until(|| if quell.err().contains(said) { Ok(()) } else { Err(quell.err()) });
    assert!(!quell.err().contains(&format!("{} makes", quell.command())), "{}", quell.err());
}

#[test]
fn a_static_program_started_by_a_script_is_reported() {
    let Some(lab) = RunLab::raise_without_memcached("script") else { return };
    let Some(server) = lab.compile(&["-static"]) else { return };
    let quell = lab.run(&["eventspin50"], &["sh", "-c", &format!("exec {server} sleeps")]);
    wait_until_said(
        &quell,
        "runs without the preload library (it is statically linked), so eventspin50 has no effect on it",
    );
}

#[test]
fn nothing_is_claimed_about_a_command_without_observed_sockets() {
    let Some(lab) = RunLab::raise_without_memcached("unseen") else { return };
    let ended = lab.run(&["eventspin50"], &["true"]).end();
    assert_eq!(
        ended.err,
        "quell: whether eventspin50 reached the command is unknown: no sockets of it were observed\n"
    );
}

#[test]
fn a_command_whose_data_passes_no_queue_is_reported() {
    let Some(lab) = RunLab::raise("queueless") else { return };
    let path = lab.file("memcached.sock");
    for (mode, command, why) in [
        (
            "suspend200",
            ["memcached", "-u", "root", "-s", path.to_str().unwrap()].as_slice(),
            "the programs listen on Unix or vsock sockets only",
        ),
        ("defer200", &[lab::QUELL, "respond", "127.0.0.1:7003"], "all sockets of the programs have loopback addresses"),
    ] {
        let quell = lab.run(&[mode], command);
        let said = format!("quell: {mode} has no effect on the command: {why}");
        wait_until(|| if quell.err().contains(&said) { Ok(()) } else { Err(quell.err()) });
        quell.signal(Signal::TERM);
        assert_eq!(quell.end().err.matches("no effect on the command").count(), 1, "printed once");
    }
}

/// Quell's own responder is a program like any other.
#[test]
fn the_sockets_of_quell_respond_busy_poll() {
    let Some(lab) = RunLab::raise_without_memcached("respond") else { return };
    for (options, waits_in_epoll) in [(&[][..], true), (&["--shape", "blocking"], false), (&["--udp"], true)] {
        let respond = [&[lab::QUELL, "respond", "0.0.0.0:7002"], options].concat();
        let quell = lab.run(&["sockpoll50"], &respond);
        wait_until_said(&quell, "has SO_BUSY_POLL 50 on its sockets");
        let no_effect = format!("sockpoll50 has no effect on quell {}: it waits in epoll_wait(2)", quell.command());
        if waits_in_epoll {
            wait_until(|| quell.err().contains(&no_effect).then_some(()).ok_or_else(|| quell.err()));
        }
        quell.signal(Signal::TERM);
        quell.end();
    }
    let quell = lab.run(&["eventspin50"], &[lab::QUELL, "respond", "0.0.0.0:7002"]);
    wait_until_said(&quell, "calls epoll_wait through the preload library");
}

/// Under suspension, the kernel does not poll in calls with a timeout of zero. A program that spins on them is stalled
/// until the timeout, or until Quell frees the queue.
#[test]
fn a_spinning_program_is_not_stalled_with_the_library_and_freed_without_it() {
    const TIMEOUT: Duration = Duration::from_secs(60);
    let Some(lab) = RunLab::raise_without_memcached("spins") else { return };
    let slowest = |options: &[&str]| {
        let server = lab.compile(options)?;
        let quell = lab.run(&["suspend200,irq-suspend-timeout=60s"], &[&server, "spins"]);
        wait_until(|| if lab.epolls(quell.command()) == [SUSPEND] { Ok(()) } else { Err("no epoll".to_owned()) });
        let slowest = (0..2).map(|number| lab.time_to_hear(&quell, number)).max()?;
        quell.signal(Signal::TERM);
        Some((slowest, quell.end().err.contains("freed the stalled queue")))
    };
    let Some(with_library) = slowest(&[]) else { return };
    assert!(with_library.0 < TIMEOUT / 2 && !with_library.1, "{with_library:?}");
    let Some(from_outside) = slowest(&["-static"]) else { return };
    assert!(from_outside.1, "the program must stall without the library: {from_outside:?}");
    assert!(from_outside.0 < TIMEOUT / 2, "{from_outside:?}");
}

#[test]
fn the_command_is_the_foreground_job_like_quell() {
    let Some(lab) = RunLab::raise_without_memcached("place") else { return };
    let quell = lab.run(&["suspend200"], &["sh", "-c", "read line; echo \"$line\"; exec sleep 1000"]);
    quell.write("a line\n");
    wait_until(|| if quell.out() == "a line\n" { Ok(()) } else { Err(quell.out()) });
    let (own, its) = (lab.stat(quell.pid()), lab.stat(quell.command()));
    assert_eq!((own.pgrp, own.session, own.tty), (its.pgrp, its.session, its.tty));
    quell.signal(Signal::USR2);
    assert_eq!(quell.end().signal, Some(12));
}

/// As in a container, where the kernel reports 0 for the session and for senders of signals outside.
#[test]
fn signals_are_forwarded_if_the_session_leader_is_invisible() {
    let Some(lab) = RunLab::raise_without_memcached("container") else { return };
    let tells = "trap 'exit 3' USR1; echo ready; while :; do sleep 0.02; done";
    let container = lab.run_in_a_pid_namespace(&["base"], &["sh", "-c", tells]);
    wait_until(|| if container.out() == "ready\n" { Ok(()) } else { Err(container.err()) });
    container.signal_first_child(Signal::USR1);
    let ended = container.end();
    assert_eq!(ended.code, Some(3), "{ended:?}");
}

#[test]
fn a_hang_up_of_the_terminal_reaches_the_command() {
    let Some(lab) = RunLab::raise_without_memcached("hang-up") else { return };
    let marker = lab.file("marker");
    let Some(()) = terminal::hang_up_terminal(&lab, &marker) else { return };
    wait_until(|| match std::fs::read_to_string(&marker) {
        Ok(said) if said == "hung up\n" => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

#[test]
fn ctrl_c_reaches_the_command_once() {
    let Some(lab) = RunLab::raise_without_memcached("keys") else { return };
    let begin = Instant::now();
    let Some((code, shown)) = terminal::interrupted(&lab) else { return };
    assert_eq!(code, Some(3), "{shown}");
    assert_eq!(shown.matches("interrupted").count(), 1, "{shown} after {:?}", begin.elapsed());
}
