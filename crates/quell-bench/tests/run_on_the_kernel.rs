//! Complete bench runs on the real kernel with a real memcached: content of the result, refusals, marked trials. No
//! test asserts performance. The tests need root and report when they are skipped.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use common::{can_raise_a_lab, request, run_to_the_end};
use quell_bench::cpus::CpuError;
use quell_bench::result::{BenchResult, Trial};
use quell_bench::run::{BenchError, Event};
use quell_bench::server::ServerCommand;
use quell_linux::netns::Namespace;
use quell_linux::{Pid, bpf, kernel, sched};
use quell_mode::{EpollSettings, NapiSettings, Threaded};
use quell_test_support::{Lacks, skip_part};

/// Settings that a trial's mode requests for queues and epolls, in a lab whose NAPI threads stand in for interrupts.
fn asked(result: &BenchResult, trial: &Trial) -> (NapiSettings, EpollSettings) {
    let mode = &result.plan.modes[trial.id.mode].mode;
    (NapiSettings { threaded: Threaded::Thread, ..mode.napi() }, mode.epoll().unwrap_or_default())
}

fn labels(result: &BenchResult) -> BTreeSet<&str> {
    result.trials.iter().map(|trial| result.plan.modes[trial.id.mode].label.as_str()).collect()
}

#[test]
fn a_small_run_gives_a_complete_result() {
    if !can_raise_a_lab() {
        return;
    }
    let affinity = sched::affinity(Pid::of_this_thread()).unwrap();
    let result = run_to_the_end(&request("base,suspend50", &["50%", "max"]), |_| {}).unwrap();
    assert_eq!(sched::affinity(Pid::of_this_thread()).unwrap(), affinity, "the caller's thread is where it was");

    let written = serde_json::to_string(&result).unwrap();
    let read: BenchResult = serde_json::from_str(&written).unwrap();
    assert!(serde_json::to_string(&read).unwrap() == written, "the file reads back as it was, to the last bit");
    assert_eq!(labels(&result), ["base", "base again", "suspend50"].into());
    assert_eq!(result.trials.len(), 3 * 2);
    assert_eq!((result.not_a_measurement.as_deref(), result.interrupted), (None, false));
    assert!(result.refused.is_empty());
    assert!(
        result.lab.veth().unwrap().checks.iter().all(|check| check.holds),
        "{:?}",
        result.lab.veth().unwrap().checks
    );
    assert_eq!(result.server.as_ref().unwrap().workers.len(), 1);
    assert!(result.server.as_ref().unwrap().workers[0].cpu.is_some(), "the worker is pinned");
    for trial in &result.trials {
        let (napi, epoll) = asked(&result, trial);
        assert_eq!(trial.settings.napi, [napi]);
        assert_eq!(trial.settings.epoll, [epoll]);
        assert_eq!(trial.counters.drops, Some(0));
        assert!(trial.load.answered_in_window > 0);
        assert!(trial.load.errors.is_empty(), "{:?}", trial.load.errors);
        assert_eq!(trial.load.misses, 0, "every key was stored");
    }
}

#[test]
fn every_readable_counter_is_present() {
    if !can_raise_a_lab() {
        return;
    }
    let result = run_to_the_end(&request("suspend200", &["max"]), |_| {}).unwrap();
    let [trial] = &result.trials[..] else { panic!("{:?}", result.trials) };
    let counters = &trial.counters;
    assert!(counters.server_run_ns > Some(0), "{counters:?}");
    assert!(counters.napi_run_ns.is_some(), "{counters:?}");
    assert!(counters.napi_wakeups.is_some(), "{counters:?}");
    assert!(counters.retransmits.is_some(), "{counters:?}");
    assert!(counters.busy_poll_rx_packets > Some(0), "a suspended queue is polled by the server: {counters:?}");
    let (server, client) = (counters.server_cpus.unwrap(), counters.client_cpus.unwrap());
    assert!(server.lab_ns > 0 && server.capacity_ns > 0, "{server:?}");
    assert!(client.lab_ns > 0 && client.capacity_ns > 0, "{client:?}");

    let napi = quell_linux::NapiId::from_kernel(u32::MAX).unwrap();
    if let Err(error) = bpf::NapiPollCounter::attach(kernel::sysfs(), &[napi]) {
        skip_part(Lacks::KernelFeature, format_args!("polls are not counted here: {error}"));
        assert_eq!((counters.polls, counters.empty_polls, counters.epoll_waits), (None, None, None));
        return;
    }
    assert!(counters.polls > Some(0) && counters.polled_packets > Some(0), "{counters:?}");
    assert!(counters.empty_polls <= counters.polls, "{counters:?}");
    assert!(counters.epoll_waits > Some(0) && counters.epoll_events >= counters.epoll_waits, "{counters:?}");
}

#[test]
fn unsupported_modes_are_refused_with_the_reason_and_the_others_are_measured() {
    if !can_raise_a_lab() {
        return;
    }
    let mut told = BTreeMap::new();
    let result = run_to_the_end(&request("sockpoll50,eventspin50,defer200,threaded,threadedbusy", &["max"]), |event| {
        if let Event::Refused { label, reason } = event {
            told.insert((*label).to_owned(), (*reason).to_owned());
        }
    })
    .unwrap();
    assert_eq!(told, result.refused);
    assert!(result.refused["sockpoll50"].contains("SO_BUSY_POLL"), "{told:?}");
    assert!(result.refused["eventspin50"].contains("spins"), "{told:?}");
    assert!(result.refused["threadedbusy"].contains("a CPU of its own"), "{told:?}");
    assert!(result.refused["threaded"].contains("--no-interrupt-stand-in"), "{told:?}");
    let measured: BTreeSet<&str> = labels(&result);
    assert!(measured.contains("defer200"));
    assert!(measured.iter().all(|label| !result.refused.contains_key(*label)));
}

#[test]
fn a_run_without_any_supported_mode_reports_the_reason() {
    if !can_raise_a_lab() {
        return;
    }
    let error = run_to_the_end(&request("sockpoll50", &["max"]), |_| {}).unwrap_err();
    assert!(matches!(&error, BenchError::NoModeLeft(why) if why.contains("SO_BUSY_POLL")), "{error}");
}

#[test]
fn too_many_workers_and_generators_are_refused_before_any_change() {
    if !can_raise_a_lab() {
        return;
    }
    let mut request = request("base", &["max"]);
    request.queues = 1_000;
    let names = Namespace::list_named().unwrap();
    let mut lab_was_up = false;
    let error = run_to_the_end(&request, |event| lab_was_up |= matches!(event, Event::LabIsUp(_))).unwrap_err();
    assert!(matches!(error, BenchError::Cpus(CpuError::TooFew { workers: 1_000, .. })), "{error}");
    assert!(!lab_was_up);
    let made: Vec<_> = Namespace::list_named().unwrap().into_iter().filter(|name| !names.contains(name)).collect();
    let own = format!("quell-{:x}-", std::process::id());
    assert!(made.iter().all(|name| !name.as_str().starts_with(&own)), "{made:?}");
}

#[test]
fn four_workers_on_shared_cpus_have_one_napi_each_and_the_result_is_marked() {
    if !can_raise_a_lab() {
        return;
    }
    let mut request = request("suspend200", &["max"]);
    (request.queues, request.connections, request.insist) = (4, 32, true);
    let result = run_to_the_end(&request, |_| {}).unwrap();
    let queues: BTreeSet<u32> = result.lab.veth().unwrap().server_napi_ids.iter().copied().collect();
    let seen: Vec<u32> =
        result.server.as_ref().unwrap().workers.iter().flat_map(|worker| worker.napi_ids.iter().copied()).collect();
    assert_eq!((queues.len(), seen.len()), (4, 4), "{:?}", result.server.as_ref().unwrap().workers);
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), queues);
    assert_eq!((result.trials[0].settings.napi.len(), result.trials[0].settings.epoll.len()), (4, 4));
    if result.host.cpus.len() > 4 {
        skip_part(
            Lacks::Machine,
            format_args!("{} CPUs are enough for four workers and a generator", result.host.cpus.len()),
        );
        return;
    }
    let why = result.not_a_measurement.unwrap();
    assert!(why.contains("4 server worker(s) and 1 generator thread(s) share"), "{why}");
}

#[test]
fn without_the_interrupt_stand_in_no_thread_polls_the_servers_queue_and_the_result_records_it() {
    if !can_raise_a_lab() {
        return;
    }
    let mut request = request("base", &["max"]);
    request.interrupt_stand_in = false;
    // Softirqs then run on the sending CPU, so the last check, about the server's CPUs, may fail.
    request.insist = true;
    let result = run_to_the_end(&request, |_| {}).unwrap();
    assert!(!result.lab.veth().unwrap().interrupt_stand_in);
    for trial in &result.trials {
        assert_eq!(trial.settings.napi[0].threaded, Threaded::Off);
        let counters = &trial.counters;
        assert_eq!((counters.napi_run_ns, counters.napi_wakeups), (None, None), "no thread, so nothing is known of it");
    }
}

#[test]
fn another_server_gets_its_address_and_is_measured_unmodified() {
    if !can_raise_a_lab() {
        return;
    }
    let words = "memcached -u root -U 0 -l {address} -p {port} -t {workers}".split(' ').map(str::to_owned);
    let mut request = request("defer200", &["2000"]);
    request.server = ServerCommand::Other(words.collect());
    let result = run_to_the_end(&request, |_| {}).unwrap();
    assert_eq!(result.server.as_ref().unwrap().version.as_deref(), None, "nobody knows how to ask it");
    assert_eq!(result.trials[0].offered_per_s, Some(2_000.0));
    assert!(result.base_reaches.is_empty(), "a rate is no share of what base reaches");
}
