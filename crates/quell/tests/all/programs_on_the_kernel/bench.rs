//! Runs `quell bench --pid` on memcached with live traffic and ends the run in every possible way. Each test checks that
//! the queues and epolls are restored. No test asserts a verdict.

use std::process::Command;
use std::time::Duration;

use quell_linux::link::Links;
use quell_linux::pidfd::Signal;
use quell_linux::process::{Child, Spawn};
use quell_linux::{Ifindex, Pid};
use quell_test_support::small_disk::SmallDisk;
use serde_json::Value;

use super::stage::{Stage, assert_reported_and_restored, end};

const LONG: &[&str] = &["--modes=base,suspend200", "--budget=600s", "--yes"];

fn start(stage: &Stage, options: &[&str]) -> Child {
    start_with_output(stage, stage.file().to_str().unwrap(), options)
}

fn start_with_output(stage: &Stage, output: &str, options: &[&str]) -> Child {
    let fixed = ["bench", "--slice=50", "--settle=5", "--output", output];
    stage.start(&[&fixed[..], options].concat())
}

/// Runs the bench until it exits. Returns exit code, stdout and stderr.
fn run(stage: &Stage, options: &[&str]) -> (Option<i32>, String, String) {
    end(start(stage, options))
}

#[test]
fn under_live_traffic_server_metrics_are_compared_and_the_server_is_restored() {
    let Some(stage) = Stage::enter("bp-live") else { return };
    let (code, stdout, stderr) = run(&stage, &["--modes=base,suspend200,defer200", "--budget=3s", "--yes"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("CPU/packet") && stdout.contains("suspend200"), "{stdout}");
    assert!(stdout.contains("live traffic"), "{stdout}");
    let result = stage.result();
    assert_eq!(result["experiments"][0]["end"]["kind"], "stopped");
    assert_eq!(result["subject"]["queues"].as_array().unwrap().len(), 1);
    assert_reported_and_restored(&result["experiments"][0]["settings"], &["base", "suspend200", "defer200"]);
    stage.assert_as_before();
}

#[test]
fn figures_printed_by_a_command_are_compared() {
    let Some(stage) = Stage::enter("bp-judge") else { return };
    let judge = "--latency=sh -c 'echo p99 17; echo served/s 5'";
    let (code, stdout, stderr) = run(&stage, &["--modes=base,suspend200", "--budget=3s", "--yes", judge]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("p99") && stdout.contains("served/s"), "{stdout}");
    stage.assert_as_before();
}

#[test]
fn a_judge_without_latency_is_reported_and_costs_are_per_packet_because_others_can_send() {
    let Some(stage) = Stage::enter("bp-wrk") else { return };
    let wrk = "--latency=sh -c 'echo Running 1s test @ x; echo 10 requests in 1.00s; echo Requests/sec: 10'";
    let (code, stdout, stderr) = run(&stage, &["--modes=base,suspend200", "--budget=6s", "--yes", wrk]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("prints no p99, only errors, requests, requests-per-s: add --latency to wrk"), "{stderr}");
    assert!(stdout.contains("CPU/packet") && !stdout.contains("CPU/request"), "{stdout}");
    stage.assert_as_before();
}

#[test]
fn the_queues_of_a_judge_are_switched_beside_those_of_the_clients() {
    let Some(stage) = Stage::enter_on("bp-queues", 2, Duration::ZERO) else { return };
    let load = stage.load("--rate 1K --warm-up 0.1 --seconds 0.5 --figures").replace("-c 4", "-c 32");
    let judge = format!("--latency={load}");
    let (code, _, stderr) = run(&stage, &["--modes=base,defer200", "--budget=30s", "--yes", &judge]);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(stage.result()["subject"]["queues"].as_array().unwrap().len(), 2, "the client uses one: {stderr}");
    stage.assert_as_before();
}

#[test]
fn the_command_that_measures_an_idle_server_is_its_load_on_every_queue_that_its_connections_may_use() {
    let Some(mut stage) = Stage::enter_on("bp-idle", 2, Duration::ZERO) else { return };
    stage.stop_clients();
    stage.begin_here();
    let load = stage.load("--rate 1K --warm-up 0.1 --seconds 0.5 --figures").replace("-c 4", "-c 1");
    let judge = format!("--latency={load}");
    let (code, _, stderr) = run(&stage, &["--modes=base,defer200", "--dry-run", &judge]);
    assert!(code == Some(5) && stderr.contains("without --dry-run its requests show the queues"), "{stderr}");
    let (code, stdout, stderr) = run(&stage, &["--modes=base,defer200", "--budget=30s", "--yes", &judge]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("2 queues of") && stdout.contains("p99-us"), "{stdout}");
    let result = stage.result();
    let slices = result["experiments"][0]["record"]["slices"].as_array().unwrap();
    // On a busy machine the counters of a slice can be read too late. They are then absent.
    let packets = |slice: &Value| slice["observation"]["metrics"]["packets-per-s"].as_f64();
    assert!(slices.iter().filter_map(packets).all(|per_s| per_s > 0.0), "{slices:?}");
    stage.assert_as_before();
}

#[test]
fn a_judge_on_the_host_of_the_server_is_refused_and_one_that_reaches_another_program_is_named() {
    let Some(mut stage) = Stage::enter("bp-local") else { return };
    let loopback = Ifindex::new(1).unwrap();
    Links::open_in(&stage.lab.server).unwrap().set_up(loopback).unwrap();
    stage.begin_here();
    let load = stage.load("--rate 500 --warm-up 0.1 --seconds 2 --figures");
    let judge = format!("--latency={}", load.replace("-client ", "-server "));
    let (code, _, stderr) = run(&stage, &["--modes=base,defer200", "--yes", &judge]);
    assert!(code == Some(5) && stderr.contains("come through no queue"), "{stderr}");
    let elsewhere = "--latency=sh -c 'sleep 1; echo requests 500; echo p99-us 7'";
    let (_, _, stderr) = run(&stage, &["--modes=base,defer200", "--budget=1s", "--yes", elsewhere]);
    assert!(stderr.contains("no new connection to these programs was seen while `sh -c"), "{stderr}");
    stage.assert_as_before();
}

#[test]
fn quick_with_a_judge_compares_three_modes_for_as_long_as_its_slices_need() {
    let Some(stage) = Stage::enter("bp-quick") else { return };
    let judge = "--latency=sh -c 'sleep 2; echo p99-us 7'";
    let quell = start(&stage, &["--quick", "--yes", judge]);
    stage.wait_until_switched();
    quell.pidfd().signal(Signal::INT).unwrap();
    let (code, _, stderr) = end(quell);
    assert_eq!(code, Some(130), "{stderr}");
    assert!(stderr.contains("as long as --latency runs"), "{stderr}");
    let design = &stage.result()["experiments"][0]["record"]["design"];
    assert_eq!(design["treatments"].as_array().unwrap().len(), 2, "besides base");
    assert!(design["budget-ms"].as_u64().unwrap() > 40_000, "{design}");
    stage.assert_as_before();
}

#[test]
fn a_budget_without_time_for_slow_judges_is_refused_before_the_plan_with_one_that_works() {
    let Some(stage) = Stage::enter("bp-slow") else { return };
    let judge = "--latency=sh -c 'sleep 0.9; echo p99-us 7'";
    let plan = "switches 1 queue";
    for command in [&["bench", "--modes=base,suspend200"][..], &["tune", "--goal=least cpu"]] {
        let refused = [command, &["--slice=50", "--settle=5", "--budget=12s", "--yes", judge]].concat();
        let (code, _, stderr) = end(stage.start(&[&refused[..], &["--output", "/dev/null"]].concat()));
        assert_eq!(code, Some(1), "{stderr}");
        assert!(stderr.contains("use --budget"), "{stderr}");
        assert!(!stderr.contains(plan), "{stderr}");
    }
    stage.assert_as_before();
}

#[test]
fn a_search_whose_budget_is_too_short_is_refused_before_a_judge_runs() {
    let Some(stage) = Stage::enter("bp-short") else { return };
    let dir = tempfile::tempdir().unwrap();
    let ran = dir.path().join("ran");
    let judge = format!("--latency=sh -c 'touch {}; echo p99-us 7'", ran.display());
    let tune = ["tune", "--goal=least cpu", "--slice=1000", "--budget=5s", "--yes", "--output=/dev/null", &judge];
    let (code, _, stderr) = end(stage.start(&tune));
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("use --budget") && !ran.exists(), "{stderr}");
    stage.assert_as_before();
}

#[test]
fn no_command_is_started_with_a_mode_on_a_queue_that_an_experiment_switches() {
    let Some(stage) = Stage::enter("bp-run") else { return };
    let experiment = stage.start(&[&["bench"], LONG].concat());
    stage.wait_until_switched();
    let dir = tempfile::tempdir().unwrap();
    let started = dir.path().join("started");
    let run = ["run", "suspend200", "--", "touch", started.to_str().unwrap()];
    let (code, _, stderr) = end(stage.start_with(&run, |spawn| spawn.netns(&stage.lab.server)));
    assert_eq!(code, Some(5), "{stderr}");
    assert!(stderr.contains("experiment") && !started.exists(), "{stderr}");
    end(stage.start_without_pid(&["revert"]));
    stage.assert_as_before();
    end(experiment);
}

#[test]
fn the_plan_has_the_length_of_slices_and_its_reason() {
    let Some(stage) = Stage::enter("bp-length") else { return };
    let judge = "--latency=sh -c 'sleep 0.9; echo p99-us 7'";
    let planned = |options: &[&str]| {
        let fixed = ["bench", "--dry-run", "--modes=base,suspend200", "--slice=150", "--settle=10"];
        end(stage.start(&[&fixed[..], options].concat())).1
    };
    let plan = planned(&[]);
    assert!(plan.contains("every 160 ms") && plan.contains("10 ms to settle and 150 ms to measure\n"), "{plan}");
    let plan = planned(&[judge]);
    assert!(plan.contains("150 ms to measure, or as long as --latency runs"), "{plan}");
    stage.assert_as_before();
}

#[test]
fn the_plan_names_a_mode_that_is_not_possible() {
    let Some(stage) = Stage::enter("bp-left-out") else { return };
    let (code, plan, stderr) = end(stage.start(&["bench", "--dry-run", "--modes=base,sockpoll50,suspend200"]));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(plan.contains("sockpoll50 is left out: sockpoll50 for memcached"), "{plan}");
    assert!(!plan.contains("suspend200 is left out"), "{plan}");
    stage.assert_as_before();
}

#[test]
fn a_failing_or_unparsable_command_ends_the_run_before_any_change() {
    let Some(stage) = Stage::enter("bp-wrong") else { return };
    for (judge, why) in [("--latency=false", "exit status: 1"), ("--latency=echo hello", "printed no usable figures")] {
        let (code, _, stderr) = run(&stage, &["--modes=base,suspend200", "--budget=3s", "--yes", judge]);
        assert_eq!(code, Some(1), "{stderr}");
        assert!(stderr.contains(why), "{stderr}");
        assert!(!stage.file().exists());
        stage.assert_as_before();
    }
}

#[test]
fn a_load_that_exits_ends_the_experiment_with_its_output() {
    let Some(stage) = Stage::enter("bp-load") else { return };
    let load = "--load=sh -c 'sleep 2; echo out of connections >&2; exit 7'";
    let (code, _, stderr) = run(&stage, &[LONG, &[load]].concat());
    assert_eq!(code, Some(4), "{stderr}");
    assert!(stderr.contains("exit status: 7") && stderr.contains("out of connections"), "{stderr}");
    stage.assert_as_before();
}

#[test]
fn a_signal_ends_the_run_and_the_server_is_restored() {
    let Some(stage) = Stage::enter("bp-int") else { return };
    // Ctrl-C, and Ctrl-Z, after which a stopped process would leave the mode of the moment.
    for signal in [Signal::INT, Signal::TSTP] {
        let quell = start(&stage, LONG);
        stage.wait_until_switched();
        quell.pidfd().signal(signal).unwrap();
        let (code, _, stderr) = end(quell);
        assert_eq!(code, Some(130), "{stderr}");
        stage.assert_as_before();
    }
}

#[test]
fn after_a_kill_the_keeper_restores_the_server() {
    let Some(stage) = Stage::enter("bp-kill") else { return };
    let quell = start(&stage, LONG);
    stage.wait_until_switched();
    quell.pidfd().signal(Signal::KILL).unwrap();
    let _ = end(quell);
    stage.assert_as_before();
}

#[test]
fn if_the_server_dies_its_pid_is_reported_and_the_measurements_are_kept() {
    let Some(mut stage) = Stage::enter("bp-dies") else { return };
    let quell = start(&stage, LONG);
    stage.wait_until_a_slice_was_measured();
    let pid: Pid = stage.server.pid();
    stage.server.terminate(std::time::Duration::ZERO).unwrap();
    let (code, _, stderr) = end(quell);
    assert_eq!(code, Some(4), "{stderr}");
    assert!(stderr.contains(&format!("process {pid} has exited")), "{stderr}");
    assert_eq!(stage.result()["experiments"][0]["end"]["kind"], "failed");
}

#[test]
fn a_full_disk_for_journals_ends_the_run_before_any_change() {
    let Some(stage) = Stage::enter("bp-disk-j") else { return };
    let Some(disk) = SmallDisk::mount(stage.dir.path().join("journal")) else { return };
    disk.fill();
    let (code, _, stderr) = run(&stage, &["--modes=base,suspend200", "--budget=3s", "--yes"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("No space left on device"), "{stderr}");
    disk.clear();
    stage.assert_as_before();
}

#[test]
fn a_result_that_does_not_fit_on_the_disk_is_printed_and_the_server_is_restored() {
    let Some(stage) = Stage::enter("bp-disk-r") else { return };
    let quell = start_with_output(&stage, "/dev/full", &["--modes=base,suspend200", "--budget=3s", "--yes"]);
    let (code, stdout, stderr) = end(quell);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stdout.contains("CPU/packet"), "{stdout}");
    assert!(stderr.contains("/dev/full") && stderr.contains("No space left on device"), "{stderr}");
    stage.assert_as_before();
}

#[test]
fn a_program_without_sockets_is_refused() {
    let Some(stage) = Stage::enter("bp-none") else { return };
    let sleeps = Spawn::new("sleep").args(["1000"]).start().unwrap();
    let bench = |pid: &str| {
        let journal = stage.dir.path().join("journal");
        let file = stage.file();
        let arguments = ["bench", "--pid", pid, "--yes", "--budget=3s", "--output", file.to_str().unwrap()];
        let ended =
            Command::new(env!("CARGO_BIN_EXE_quell")).args(arguments).env("QUELL_JOURNAL_DIR", journal).output();
        let ended = ended.unwrap();
        (ended.status.code(), String::from_utf8(ended.stderr).unwrap())
    };
    let (code, stderr) = bench(&sleeps.pid().to_string());
    assert_eq!(code, Some(5), "{stderr}");
    assert!(stderr.contains("the programs have no TCP or UDP socket"), "{stderr}");
    let (code, stderr) = bench("2147483646");
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("there is no process 2147483646"), "{stderr}");
    stage.assert_as_before();
}

/// A metric in all slices of a treatment; 0 is the reference, 2 the first treatment.
fn in_slices(result: &serde_json::Value, arm: u64, metric: &str) -> Vec<f64> {
    let slices = result["experiments"][0]["record"]["slices"].as_array().unwrap();
    let of_arm = slices.iter().filter(|slice| slice["arm"] == arm);
    of_arm.filter_map(|slice| slice["observation"]["metrics"][metric].as_f64()).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

#[test]
fn a_mode_with_a_poller_has_the_polls_and_the_cpu_time_of_its_poller() {
    let Some(stage) = Stage::enter("bp-userbusy") else { return };
    let modes = "--modes=base,userbusy,userbusy,poller-cpu=8000";
    let (code, stdout, stderr) = run(&stage, &[modes, "--budget=6s", "--yes"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(format!("{stdout}{stderr}").contains("its poller would have CPU 8000"), "{stdout}{stderr}");
    let result = stage.result();
    let polls = |arm| mean(&in_slices(&result, arm, "polls-per-packet"));
    let process = |arm| mean(&in_slices(&result, arm, "process-us-per-packet"));
    assert!(polls(2) > 2.0 * polls(0) && process(2) > process(0), "{result}");
    stage.assert_as_before();
}

#[test]
fn a_plan_names_the_programs_that_keep_the_cpus_busy() {
    let Some(stage) = Stage::enter("bp-busy") else { return };
    let spin = || Command::new("nice").args(["-n", "-10", "sh", "-c", "while :; do :; done"]).spawn().unwrap();
    let mut spinning: Vec<_> = std::iter::repeat_with(spin).take(2).collect();
    let (code, stdout, stderr) = run(&stage, &["--modes=base,defer200", "--dry-run"]);
    spinning.iter_mut().for_each(|one| one.kill().unwrap());
    let named: Vec<String> = spinning.iter().map(|one| format!("sh {}: ", one.id())).collect();
    spinning.iter_mut().for_each(|one| drop(one.wait()));
    assert_eq!(code, Some(0), "{stderr}");
    let said = format!("{stdout}{stderr}");
    assert!(said.contains("of the server's CPUs now (") && named.iter().any(|name| said.contains(name)), "{said}");
}

#[test]
fn the_poller_of_an_attachment_pauses_while_an_experiment_switches_its_program() {
    let Some(mut stage) = Stage::enter("bp-ub-pause") else { return };
    let pid = stage.server.pid().to_string();
    stage.says(0, &["attach", "userbusy", &pid, "--yes", "--seconds", "0"]);
    let before = stage.begin_here();
    let (code, _, stderr) = run(&stage, &["--modes=base,defer200", "--budget=6s", "--yes"]);
    assert_eq!(code, Some(0), "{stderr}");
    let plan = stage.says(0, &["tune", "--pid", &pid, "--goal", "least cpu", "--dry-run"]);
    assert!(plan.contains("against userbusy") && plan.contains("the present setting, and base"), "{plan}");
    let polls = in_slices(&stage.result(), 0, "polls-per-packet");
    assert!(!polls.is_empty() && mean(&polls) < 10.0, "a poller polls hundreds of times per packet: {polls:?}");
    stage.assert_settings_as_before();
    stage.says(0, &["detach", &pid]);
    stage.expect(before);
    stage.assert_as_before();
}

#[test]
fn settings_of_the_operator_are_the_reference_and_stay() {
    let Some(mut stage) = Stage::enter("bp-own") else { return };
    stage.set_as_an_operator();
    let (code, _, stderr) = run(&stage, &["--modes=base,defer200", "--budget=6s", "--yes"]);
    assert_eq!(code, Some(0), "{stderr}");
    let design = &stage.result()["experiments"][0]["record"]["design"];
    assert_eq!(design["reference"]["setting"], "base,defer-hard-irqs=3,gro-flush-timeout=123us");
    let treatments: Vec<&str> =
        design["treatments"].as_array().unwrap().iter().map(|row| row["setting"].as_str().unwrap()).collect();
    assert_eq!(treatments, ["base", "defer200"]);
    stage.assert_as_before();
}
