//! `quell bench` with `--steer` and `--pin`, on a server whose workers have a listening socket each.

use quell_linux::netdev::{NapiThreading, Netdev, PartialNapiSettings};
use quell_linux::pidfd::Signal;
use quell_linux::proc::ProcRoot;
use quell_linux::process::Child;
use quell_linux::reuseport::Detachment;
use quell_linux::sock_diag::InetProtocol;
use quell_linux::{CpuList, Pid, sched};
use quell_test_support::{Lacks, skip, wait_until};

use super::stage::{Stage, WORKERS_ADDRESS, end};
use crate::servers::steered::detach_filter;

const FIXED: [&str; 5] = ["bench", "--modes=base,suspend200", "--slice=50", "--settle=5", "--yes"];

fn start(stage: &Stage, options: &[&str]) -> Child {
    let output = stage.file();
    stage.start(&[&FIXED[..], &["--output", output.to_str().unwrap()], options].concat())
}

impl Stage {
    fn assert_no_filter_remains(&self) {
        self.assert_no_journal_remains();
        let left =
            detach_filter(&self.lab.server, self.server.pid(), WORKERS_ADDRESS.parse().unwrap(), InetProtocol::Tcp);
        assert_eq!(left, Detachment::WasAbsent);
    }

    fn has_recorded_filter(&self) -> bool {
        let journals = self.dir.path().join("journal");
        let has_filter = |name: String| {
            std::fs::read_to_string(journals.join(name)).is_ok_and(|journal| journal.contains("reuseport-filter"))
        };
        crate::command::journals_in(&journals).into_iter().any(has_filter)
    }

    fn affinities(&self) -> Vec<CpuList> {
        let tids = ProcRoot::default().process(self.server.pid()).tids().unwrap();
        tids.into_iter().map(|tid| sched::affinity(tid).unwrap()).collect()
    }
}

/// A load of 16 connections that does not belong to the experiment.
fn live(stage: &Stage) -> Child {
    let words = stage.load_of_workers();
    let words: Vec<&str> = words.split(' ').collect();
    let spawn = quell_linux::process::Spawn::new(words[0]).args(&words[1..]);
    spawn.start().unwrap()
}

#[test]
fn the_load_connects_again_through_the_filter_which_stays_for_all_modes() {
    let Some(stage) = Stage::of_workers("bps-load") else { return };
    let load = format!("--load={}", stage.load_of_workers());
    let (code, stdout, stderr) = end(start(&stage, &["--steer", "--budget=4s", &load]));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("existing connections stay with their workers"), "{stderr}");
    assert!(stdout.contains("arrived through the filter"), "{stdout}");
    let placement = &stage.result()["subject"]["placement"];
    assert_eq!(placement["options"], serde_json::json!(["--steer"]), "{placement}");
    let steered = &placement["steered"][0];
    assert_eq!(steered["sockets"], 2, "{placement}");
    // The load may still be connecting when they are counted.
    for connections in ["connections-before", "new-connections"] {
        assert!(matches!(steered[connections].as_u64(), Some(1..=16)), "{placement}");
    }
    stage.assert_as_before();
    stage.assert_no_filter_remains();
}

#[test]
fn connections_of_a_judge_alone_are_steered_and_no_longer_a_problem() {
    let Some(stage) = Stage::of_workers("bps-judge") else { return };
    let judge = stage.load_of_workers().replace("--seconds 600", "--warm-up 0 --seconds 0.5 --figures");
    let (code, stdout, stderr) = end(start(&stage, &["--steer", "--budget=20s", &format!("--latency={judge}")]));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("arrived through the filter"), "{stdout}");
    assert!(!stdout.contains("epoll-mixes-napis"), "{stdout}");
    stage.assert_as_before();
    stage.assert_no_filter_remains();
}

#[test]
fn a_judge_with_new_connections_does_not_hide_that_the_load_has_not_reconnected() {
    let Some(stage) = Stage::of_workers("bps-mix") else { return };
    let mut clients = live(&stage);
    wait_until(|| {
        let accepted = ProcRoot::default().process(stage.server.pid()).fds().unwrap().len();
        if accepted > 16 { Ok(()) } else { Err(format!("{accepted} descriptors")) }
    });
    let judge = stage.load_of_workers().replace("--seconds 600", "--warm-up 0 --seconds 0.5 --figures");
    let (code, stdout, stderr) = end(start(&stage, &["--steer", "--budget=20s", &format!("--latency={judge}")]));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("conclusion: no answer for steered connections"), "{stdout}");
    assert!(stdout.contains("stayed unsorted"), "{stdout}");
    stage.assert_as_before();
    clients.terminate(std::time::Duration::ZERO).unwrap();
}

#[test]
fn clients_that_reconnect_soon_after_a_judge_are_awaited() {
    let Some(stage) = Stage::of_workers("bps-soon") else { return };
    let descriptors = || ProcRoot::default().process(stage.server.pid()).fds().unwrap().len();
    let without_judge = descriptors() + 16;
    let mut clients = live(&stage);
    let all_accepted = || if descriptors() == without_judge { Ok(()) } else { Err(format!("{}", descriptors())) };
    wait_until(all_accepted);
    let judge = stage.load_of_workers().replace("--seconds 600", "--warm-up 0 --seconds 0.5 --figures");
    let bench = start(&stage, &["--steer", "--budget=20s", &format!("--latency={judge}")]);
    wait_until(|| if stage.has_recorded_filter() { Ok(()) } else { Err("no filter is in a journal".to_owned()) });
    for judges in [true, false] {
        let is_so = || (descriptors() > without_judge) == judges;
        wait_until(|| if is_so() { Ok(()) } else { Err(format!("judge: {judges} is awaited")) });
    }
    clients.terminate(std::time::Duration::ZERO).unwrap();
    let mut clients = live(&stage);
    let (code, stdout, stderr) = end(bench);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("arrived through the filter"), "{stdout}");
    assert!(!stdout.contains("stayed unsorted"), "{stdout}");
    stage.assert_as_before();
    clients.terminate(std::time::Duration::ZERO).unwrap();
}

#[test]
fn connections_that_do_not_reconnect_are_the_reason_that_workers_are_not_pinned() {
    let Some(stage) = Stage::of_workers("bps-old") else { return };
    let mut clients = live(&stage);
    let bench = start(&stage, &["--steer", "--pin", "--budget=600s"]);
    stage.wait_until_slices_of_the_present_setting_were_measured();
    bench.pidfd().signal(Signal::INT).unwrap();
    let (code, stdout, stderr) = end(bench);
    assert_eq!(code, Some(130), "{stderr}");
    assert!(stdout.contains("no client has reconnected"), "{stdout}");
    let not_pinned = stage.result()["subject"]["placement"]["not-pinned"].to_string();
    assert!(not_pinned.contains("let the clients reconnect") && !not_pinned.contains("has arrived"), "{not_pinned}");
    stage.assert_as_before();
    stage.assert_no_filter_remains();
    clients.terminate(std::time::Duration::ZERO).unwrap();
}

#[test]
fn after_a_kill_no_filter_remains() {
    let Some(stage) = Stage::of_workers("bps-kill") else { return };
    let load = format!("--load={}", stage.load_of_workers());
    let bench = start(&stage, &["--steer", "--budget=600s", &load]);
    stage.wait_until_switched();
    bench.pidfd().signal(Signal::KILL).unwrap();
    let _ = end(bench);
    stage.assert_as_before();
    stage.assert_no_filter_remains();
}

/// Gives each queue of the server a NAPI thread.
fn thread_queues(stage: &Stage) -> Vec<Pid> {
    let mut netdev = Netdev::open_in(&stage.lab.server).unwrap();
    let threaded = PartialNapiSettings { threaded: Some(NapiThreading::Enabled), ..PartialNapiSettings::default() };
    let mut thread = |napi| {
        netdev.set_napi(napi, &threaded).unwrap();
        netdev.napi(napi).unwrap().pid.unwrap()
    };
    stage.lab.napis.iter().map(|napi| thread(*napi)).collect()
}

#[test]
fn workers_are_pinned_for_all_modes_and_unpinned_at_the_end() {
    let Some(stage) = Stage::of_workers("bps-pin") else { return };
    if CpuList::online(quell_linux::kernel::sysfs()).unwrap().len() < 2 {
        return skip(Lacks::Machine, "needs two CPUs");
    }
    for (cpu, thread) in (0..).zip(thread_queues(&stage)) {
        sched::set_affinity(thread, &CpuList::from_iter([cpu])).unwrap();
    }
    let before = stage.affinities();
    let load = format!("--load={}", stage.load_of_workers());
    let (code, stdout, stderr) = end(start(&stage, &["--steer", "--pin", "--budget=4s", &load]));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("pinned to the CPUs of their queues: 2 threads"), "{stdout}");
    assert!(stdout.contains("base (threaded)"), "the queues have NAPI threads: {stdout}");
    assert_eq!(stage.affinities(), before);
    stage.assert_no_filter_remains();
}

#[test]
fn a_command_is_steered_in_each_slice_keeps_napi_threads_from_before_and_leaves_no_history() {
    let Some(stage) = Stage::of_workers("bps-command") else { return };
    thread_queues(&stage);
    let (output, load) = (stage.file(), stage.load_of_workers().replace(":7000", ":7001"));
    let load = format!("--load={load}");
    let fixed = ["bench", "--modes=base,suspend200", "--slice=100", "--settle=100", "--budget=60s", "--yes", "--steer"];
    let output = ["--output", output.to_str().unwrap(), &load];
    let command = ["--", env!("CARGO_BIN_EXE_quell"), "respond", "192.0.2.1:7001", "--workers", "2"];
    let words = [&fixed[..], &output, &command].concat();
    let quell = |words: &[&str]| end(stage.start_with(words, |spawn| spawn.netns(&stage.lab.server)));
    let (code, stdout, stderr) = quell(&words);
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    assert!(stdout.contains("started for each slice with --steer"), "{stdout}");
    assert!(stdout.contains("modes set all queues of this network namespace: "), "{stdout}");
    assert!(stdout.contains(" base (threaded) ") && !stdout.contains("withheld: other programs"), "{stdout}");
    assert_eq!(stage.result()["subject"]["placement"], serde_json::json!(["--steer"]));
    let (code, status, stderr) = quell(&["status"]);
    assert!(code == Some(0) && !status.contains("history:"), "{status}{stderr}");
    stage.assert_no_filter_remains();
}

#[test]
fn programs_that_cannot_be_steered_are_refused_with_the_reason() {
    let Some(stage) = Stage::enter("bps-none") else { return };
    let (code, _, stderr) = end(start(&stage, &["--steer", "--budget=4s"]));
    assert_eq!(code, Some(5), "{stderr}");
    assert!(stderr.contains("nothing can be steered: ") && stderr.contains("nothing was changed"), "{stderr}");
    stage.assert_as_before();
}
