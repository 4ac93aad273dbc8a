//! In the steady state nothing is allocated, and the only system calls are the kicks and waits of the way to poll. A long
//! run and a short one differ by the steady state alone.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;

use quell_test_support::{Lacks, skip};
use quell_xdp::PollWay;

use crate::lab::{PORT, V4, XdpLab, responder};
use crate::process::{Counted, closed_loop, run_load, start_responder};

const ADDRESS: SocketAddr = SocketAddr::new(V4, PORT);
/// Requests of a short and of a long run. A run ends at the next look of the thread that watches it.
const SHORT: u64 = 100;
const LONG: u64 = 6_000;
/// Requests by which a long run exceeds a short one, at least.
const MORE: u64 = 100;
/// Differences that have other causes: a signal, the libraries.
const NOISE: u64 = 20;

type Calls = BTreeMap<String, u64>;

fn has_strace() -> bool {
    let has = std::process::Command::new("strace").arg("-V").output().is_ok();
    if !has {
        skip(Lacks::Tool("strace"), "strace is not installed");
    }
    has
}

fn strace(file: &Path) -> [&str; 7] {
    ["strace", "-f", "-c", "-U", "name,calls", "-o", file.to_str().unwrap()]
}

fn calls(file: &Path) -> Calls {
    let text = std::fs::read_to_string(file).unwrap();
    let line = |line: &str| {
        let (name, calls) = line.trim().split_once(' ')?;
        Some((name.to_owned(), calls.trim().parse().ok()?))
    };
    text.lines().filter_map(line).filter(|(name, _)| name != "total").collect()
}

/// System calls of which there are more in the long run, with their number.
fn grown(short: &Calls, long: &Calls) -> Calls {
    let more = |(name, calls): (&String, &u64)| {
        let more = calls.saturating_sub(short.get(name).copied().unwrap_or(0));
        (more > NOISE).then(|| (name.clone(), more))
    };
    long.iter().filter_map(more).collect()
}

/// Runs a short and a long load, by a prefix of the command and a number of requests. Checks that the longer one
/// allocates no more. Returns the system calls of which it makes more, and how many requests more it sends.
fn steady(run: impl Fn(&[&str], u64) -> Counted) -> (Calls, u64) {
    let (short, long) = (run(&[], SHORT), run(&[], LONG));
    assert!(long.requests > short.requests + MORE, "{short:?} {long:?}");
    assert!(long.allocations.abs_diff(short.allocations) < NOISE, "{short:?} {long:?}");
    let dir = tempfile::tempdir().unwrap();
    let [short_file, long_file] = ["short", "long"].map(|name| dir.path().join(name));
    let (short, long) = (run(&strace(&short_file), SHORT), run(&strace(&long_file), LONG));
    (grown(&calls(&short_file), &calls(&long_file)), long.requests.saturating_sub(short.requests))
}

#[test]
fn a_load_allocates_nothing_and_makes_the_calls_of_its_way_alone() {
    let Some(lab) = XdpLab::raise("xdp-steady") else { return };
    if !has_strace() {
        return;
    }
    let _answering = lab.respond(&responder(V4, PollWay::Interrupts));
    for (way, of_way) in [
        (PollWay::Interrupts, &["poll", "ppoll", "recvfrom", "sendto"][..]),
        (PollWay::UdpBusyPoll, &["recvfrom", "sendto"]),
        (PollWay::IoUring, &["io_uring_enter", "sendto"]),
        (PollWay::IoUringThread, &["io_uring_enter", "sendto"]),
    ] {
        let run = |before: &[&str], requests| run_load(&lab.lab.client, before, ADDRESS, way, requests);
        let (grown, more) = steady(run);
        // The thread that watches the run sleeps.
        let others = grown.keys().filter(|name| !of_way.contains(&name.as_str()) && *name != "clock_nanosleep");
        assert_eq!(others.count(), 0, "{way:?}: {grown:?} for {more} requests");
        let sent = grown.get("sendto").copied().unwrap_or(0);
        assert!(sent <= more + more / 10 + NOISE, "{way:?}: one kick per request: {grown:?} for {more} requests");
    }
}

#[test]
fn a_responder_allocates_nothing_and_makes_the_calls_of_its_way_alone() {
    let Some(lab) = XdpLab::raise("xdp-steady-r") else { return };
    if !has_strace() {
        return;
    }
    let run = |before: &[&str], requests| -> Counted {
        let process = start_responder(&lab.lab.server, before, ADDRESS);
        lab.lab.client.run(|| closed_loop(ADDRESS, PollWay::Interrupts, requests)).unwrap();
        process.end()
    };
    let (grown, more) = steady(run);
    let others = grown.keys().filter(|name| !["poll", "ppoll", "recvfrom", "sendto"].contains(&name.as_str()));
    assert_eq!(others.count(), 0, "{grown:?} for {more} requests");
}
