//! Runs complete lab measurements on the real kernel with memcached. The tests check the content of the result,
//! refusals and marked results, not performance. They need root.

use std::collections::BTreeSet;

use crate::common::{can_raise_a_lab, request, run_to_the_end};
use quell_experiment::{Criterion, SliceFlag, SliceObservation};
use quell_host::steer::SteerRequest;
use quell_linux::netns::Namespace;
use quell_linux::{Pid, kernel, sched};
use quell_load::{HttpGet, Workload};
use quell_result::experiment::{EndOfExperiment, ExperimentResult, SubjectFacts};
use quell_result::facts::{LabFacts, ServerFacts};
use quell_sampler::Sampler;
use quell_subject::cpus::CpuError;
use quell_subject::experiment::ComparisonError;
use quell_subject::question::SubjectStep;
use quell_subject::run::{LabRunError, LabSpec};
use quell_subject::server::ServerCommand;
use quell_test_support::{Lacks, skip, skip_part};

fn lab(result: &ExperimentResult) -> (&LabFacts, &ServerFacts) {
    match &result.subject {
        SubjectFacts::Veth { lab, server, .. } => (lab, server),
        other => panic!("{other:?}"),
    }
}

fn slices(result: &ExperimentResult) -> impl Iterator<Item = &SliceObservation> {
    result.experiments.iter().flat_map(|experiment| &experiment.record.slices).map(|slice| &slice.observation)
}

#[test]
fn a_small_run_gives_a_complete_result() {
    if !can_raise_a_lab() {
        return;
    }
    let affinity = sched::affinity(Pid::of_this_thread()).unwrap();
    let result = run_to_the_end(&request("base,suspend50", &["50%", "max"]), &mut |_| {}).unwrap();
    assert_eq!(
        sched::affinity(Pid::of_this_thread()).unwrap(),
        affinity,
        "the affinity of the caller's thread is restored"
    );

    let written = serde_json::to_string(&result).unwrap();
    let read: ExperimentResult = serde_json::from_str(&written).unwrap();
    assert!(serde_json::to_string(&read).unwrap() == written, "a result survives writing and reading unchanged");
    assert_eq!(result.not_a_measurement, None);
    let (facts, server) = lab(&result);
    assert!(facts.checks.iter().all(|check| check.holds), "{:?}", facts.checks);
    assert_eq!(server.workers.len(), 1);
    assert!(server.workers[0].cpu.is_some(), "the worker is pinned");
    assert_eq!(result.experiments.len(), 2);
    for experiment in &result.experiments {
        assert!(matches!(experiment.end, EndOfExperiment::Stopped(_)), "{:?}", experiment.end);
        let analysis = experiment.analyse();
        assert!(analysis.blocks >= 6, "{analysis:?}");
        let is_cpu =
            |criterion: &Criterion| matches!(criterion, Criterion::Metric { name, .. } if name.starts_with("cpu"));
        let cpu = analysis.contrasts.iter().find(|contrast| is_cpu(&contrast.criterion)).unwrap();
        assert!(cpu.estimate.is_some(), "{analysis:?}");
    }
    for slice in slices(&result) {
        // Other programs can take all CPUs for the time of a slice.
        let is_starved = slice.foreign_cpu.is_some_and(|share| share > 0.9);
        assert!(is_starved || slice.metric("requests-per-s") > Some(0.0), "{slice:?}");
        assert!(!slice.flags.contains(&SliceFlag::RequestsFailed), "{slice:?}");
    }
}

#[test]
fn every_readable_counter_is_present() {
    if !can_raise_a_lab() {
        return;
    }
    let result = run_to_the_end(&request("base,suspend200", &["max"]), &mut |_| {}).unwrap();
    // On a busy machine the counters of a slice can be read too late. They are then absent.
    let slices: Vec<_> = slices(&result).filter(|slice| slice.foreign_cpu.is_some()).collect();
    assert!(!slices.is_empty());
    for slice in &slices {
        for name in ["cpu-us-per-request", "process-us-per-request", "sleeps-per-request", "busy-share"] {
            assert!(slice.metric(name).is_some(), "{name}: {slice:?}");
        }
        assert_eq!(slice.metric("irqs-per-request"), None, "a veth has no interrupts");
    }
    let napi = quell_linux::NapiId::from_kernel(u32::MAX).unwrap();
    if let Err(error) = Sampler::of(kernel::sysfs(), [napi]) {
        skip_part(Lacks::KernelFeature, format_args!("this machine cannot count polls: {error}"));
        assert!(slices.iter().all(|slice| slice.metric("polls-per-request").is_none()));
        return;
    }
    for slice in &slices {
        assert!(slice.metric("polls-per-request") > Some(0.0), "{slice:?}");
        assert!(slice.metric("empty-poll-share") <= Some(1.0), "{slice:?}");
    }
}

#[test]
fn modes_that_cannot_be_set_are_dropped_with_the_reason_and_the_others_are_measured() {
    if !can_raise_a_lab() {
        return;
    }
    let result =
        run_to_the_end(&request("base,sockpoll50,eventspin50,defer200,threaded,threadedbusy", &["max"]), &mut |_| {})
            .unwrap();
    let record = &result.experiments[0].record;
    let dropped = |name: &str| {
        let arm = (0..record.design.arms()).find(|arm| record.design.treatment(*arm).unwrap().name == name).unwrap();
        record.dropped.get(&arm).map(String::as_str)
    };
    assert!(dropped("sockpoll50").unwrap().contains("SO_BUSY_POLL"), "{:?}", record.dropped);
    assert!(dropped("eventspin50").unwrap().contains("spinning"), "{:?}", record.dropped);
    assert!(dropped("threadedbusy").unwrap().contains("needs its own CPU"), "{:?}", record.dropped);
    assert!(dropped("threaded").unwrap().contains("--no-interrupt-stand-in"), "{:?}", record.dropped);
    assert_eq!(dropped("defer200"), None);
    let estimates = result.experiments[0].analyse().contrasts;
    assert!(estimates.iter().any(|contrast| contrast.treatment == "defer200" && contrast.estimate.is_some()));
}

#[test]
fn a_reference_that_cannot_be_set_is_an_error_with_the_reason() {
    if !can_raise_a_lab() {
        return;
    }
    let error = run_to_the_end(&request("sockpoll50,base", &["max"]), &mut |_| {}).unwrap_err();
    let LabRunError::Experiment(ComparisonError::Reference { why, .. }) = &error else { panic!("{error}") };
    assert!(why.contains("SO_BUSY_POLL"), "{why}");
}

#[test]
fn too_many_workers_and_generators_are_refused_before_any_change() {
    if !can_raise_a_lab() {
        return;
    }
    let (mut request, comparison) = request("base", &["max"]);
    request.lab.queues = 1_000;
    let names = Namespace::list_named().unwrap();
    let mut lab_was_up = false;
    let error = run_to_the_end(&(request, comparison), &mut |step| {
        lab_was_up |= matches!(step, SubjectStep::Doing("measuring in the lab"))
    })
    .unwrap_err();
    assert!(matches!(error, LabRunError::Cpus(CpuError::TooFew { workers: 1_000, .. })), "{error}");
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
    let (mut request, comparison) = request("base,suspend200", &["max"]);
    (request.lab.queues, request.lab.connections, request.lab.insist) = (4, 32, true);
    let result = run_to_the_end(&(request, comparison), &mut |_| {}).unwrap();
    let (facts, server) = lab(&result);
    let queues: BTreeSet<u32> = facts.server_napi_ids.iter().copied().collect();
    let seen: Vec<u32> = server.workers.iter().flat_map(|worker| worker.napi_ids.iter().copied()).collect();
    assert_eq!((queues.len(), seen.len()), (4, 4), "{:?}", server.workers);
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), queues);
    if result.host.cpus.len() > 4 {
        skip_part(
            Lacks::Machine,
            format_args!("{} CPUs are enough for four workers and a generator", result.host.cpus.len()),
        );
        return;
    }
    let why = result.not_a_measurement.unwrap();
    assert!(why.contains("4 server workers and 1 generator thread share"), "{why}");
}

#[test]
fn without_the_interrupt_stand_in_no_thread_polls_the_servers_queue_and_the_result_records_it() {
    if !can_raise_a_lab() {
        return;
    }
    let (mut request, comparison) = request("base,defer200", &["max"]);
    request.lab.interrupt_stand_in = false;
    // Without the stand-in, softirqs run on the sending CPU. The check of the server's CPUs may therefore fail, and
    // `insist` ignores it.
    request.lab.insist = true;
    let result = run_to_the_end(&(request, comparison), &mut |_| {}).unwrap();
    assert!(!lab(&result).0.interrupt_stand_in);
    // On a busy machine a slice can pass without a response.
    assert!(slices(&result).any(|slice| slice.metric("cpu-us-per-request").is_some()));
}

#[test]
fn another_server_is_started_with_its_address_and_measured() {
    if !can_raise_a_lab() {
        return;
    }
    let words = "memcached -u root -U 0 -l {address} -p {port} -t {workers}".split(' ').map(str::to_owned);
    let (mut request, comparison) = request("base,defer200", &["2000"]);
    request.lab.server = ServerCommand::Other(words.collect());
    let result = run_to_the_end(&(request, comparison), &mut |_| {}).unwrap();
    assert_eq!(lab(&result).1.version.as_deref(), None, "Quell cannot query the version of other servers");
    assert_eq!(result.experiments[0].offered_per_s, Some(2_000.0));
}

/// nginx with a listening socket for each of its two workers.
fn nginx(dir: &std::path::Path) -> ServerCommand {
    let config = dir.join("nginx.conf");
    let text = format!(
        "daemon off; worker_processes 2; error_log /dev/null; pid {};\nevents {{}}\nhttp {{ access_log off; \
         keepalive_requests 1000000000; server {{ listen 192.0.2.1:11211 reuseport; location / {{ return 200 ok; }} }} }}\n",
        dir.join("pid").display()
    );
    std::fs::write(&config, text).unwrap();
    ServerCommand::Other(["nginx", "-c", config.to_str().unwrap()].map(str::to_owned).into())
}

#[test]
fn a_server_with_a_listening_socket_per_worker_has_one_queue_per_worker_if_it_is_steered() {
    if !can_raise_a_lab() {
        return;
    }
    if std::process::Command::new("nginx").arg("-v").output().is_err() {
        return skip(Lacks::Server("nginx"), "nginx is not installed");
    }
    let dir = tempfile::tempdir().unwrap();
    for steer in [None, Some(SteerRequest::default())] {
        let (mut asked, comparison) = request("base,suspend200", &["max"]);
        asked.workload = Workload::Http(HttpGet { path: "/".to_owned() });
        asked.lab = LabSpec {
            server: nginx(dir.path()),
            queues: 2,
            // So many that the kernel's hash mixes their queues.
            connections: 64,
            insist: true,
            steer: steer.clone(),
            ..asked.lab
        };
        let result = run_to_the_end(&(asked, comparison), &mut |_| {}).unwrap();
        let (facts, server) = lab(&result);
        let queues: Vec<usize> = server.workers.iter().map(|worker| worker.napi_ids.len()).collect();
        assert_eq!(queues.iter().all(|queues| *queues == 1), steer.is_some(), "{queues:?}");
        assert_eq!(facts.steered, steer.is_some());
    }
}

#[test]
fn a_server_with_one_listening_socket_is_not_steered_and_the_lab_is_removed() {
    if !can_raise_a_lab() {
        return;
    }
    let (mut asked, comparison) = request("base,suspend200", &["max"]);
    asked.lab.steer = Some(SteerRequest::default());
    let error = run_to_the_end(&(asked, comparison), &mut |_| {}).unwrap_err();
    assert!(matches!(error, LabRunError::NotSteered(_)) && error.to_string().contains("only one socket"), "{error}");
}
