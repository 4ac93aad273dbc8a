//! Runs `quell bench -- COMMAND` with memcached and ends the experiment in every possible way. Each test checks that no
//! memcached is left and that the queue is restored. No test asserts a verdict. The tests need root, Linux 6.13 and
//! memcached.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;

use quell_linux::ethtool::Ethtool;
use quell_linux::pidfd::Signal;
use quell_linux::proc::ProcRoot;
use quell_linux::process::{Child, Output, Spawn};
use quell_test_support::lab::{ARRIVES_WITHIN, TestLab};
use quell_test_support::{Lacks, skip, wait_until};

const QUELL: &str = env!("CARGO_BIN_EXE_quell");
const OUTPUT_KEPT: usize = 64 * 1024;
const MEMCACHED: &str = "memcached -u root -U 0 -t 1 -l 192.0.2.1";

struct Stage {
    lab: TestLab,
    dir: tempfile::TempDir,
    before: String,
}

impl Stage {
    fn enter(test: &str) -> Option<Self> {
        let lab = TestLab::raise_beside_others(test, 1)?;
        if Command::new("memcached").arg("-V").output().is_err() {
            skip(Lacks::Server("memcached"), "memcached is not installed");
            return None;
        }
        let before = format!("{:?}", lab.napi().settings);
        Some(Self { lab, dir: tempfile::tempdir().unwrap(), before })
    }

    /// Creates a judge that runs in the client's namespace, and returns its path.
    fn judge(&self) -> String {
        let client = self.lab.server_name.replace("-server", "-client");
        let load = "192.0.2.1:11211 --rate 2K -c 4 --keys 100 --polling epoll --warm-up 0.02 --seconds 0.1 --figures";
        let runs = self.runs().display().to_string();
        self.script("judge", &format!("echo >> {runs}; exec nsenter --net=/run/netns/{client} {QUELL} load {load}"))
    }

    /// File with a line for each run of the judge.
    fn runs(&self) -> PathBuf {
        self.dir.path().join("runs")
    }

    /// Writes a program and returns its path.
    fn script(&self, name: &str, text: &str) -> String {
        let path = self.dir.path().join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("result.json")
    }

    fn start(&self, options: &[&str], command: &str) -> Child {
        let (file, judge) = (self.file(), self.judge());
        let fixed = ["bench", "--yes", "--slice=100", "--settle=20", "--latency", &judge];
        let output = ["--output", file.to_str().unwrap()];
        let command: Vec<&str> = command.split(' ').collect();
        let arguments = [&fixed[..], &output, options, &["--"], &command].concat();
        let spawn = Spawn::new(QUELL).args(arguments).env("QUELL_JOURNAL_DIR", self.dir.path().join("journal"));
        let spawn = spawn.netns(&self.lab.server);
        spawn.stdout(Output::Tail(OUTPUT_KEPT)).stderr(Output::Tail(OUTPUT_KEPT)).start().unwrap()
    }

    /// Runs quell until it exits. Returns its exit code, stdout and stderr.
    fn run(&self, options: &[&str], command: &str) -> (Option<i32>, String, String) {
        end(self.start(options, command))
    }

    /// Interrupts quell after a rehearsal and a block of three slices. Returns its stdout and stderr.
    fn interrupt_after_a_block(&self, quell: Child) -> (String, String) {
        wait_until(|| match std::fs::read_to_string(self.runs()).unwrap_or_default().lines().count() {
            5.. => Ok(()),
            runs => Err(format!("the judge ran {runs} times")),
        });
        quell.pidfd().signal(Signal::INT).unwrap();
        let (code, stdout, stderr) = end(quell);
        assert_eq!(code, Some(130), "{stdout}\n{stderr}");
        (stdout, stderr)
    }

    fn result(&self) -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(self.file()).unwrap()).unwrap()
    }

    /// Returns the names of the processes in the server's namespace.
    fn processes(&self) -> Vec<String> {
        let proc = ProcRoot::default();
        let namespace = std::fs::metadata(format!("/run/netns/{}", self.lab.server_name)).unwrap();
        let is_there = |pid: &quell_linux::Pid| {
            use std::os::unix::fs::MetadataExt as _;
            let of_process = std::fs::metadata(format!("/proc/{}/ns/net", pid.get()));
            of_process.is_ok_and(|of_process| of_process.ino() == namespace.ino())
        };
        let pids = proc.pids().unwrap().into_iter().filter(is_there);
        let name = |pid: quell_linux::Pid| std::fs::read_to_string(format!("/proc/{}/comm", pid.get())).ok();
        pids.filter_map(name).map(|name| name.trim().to_owned()).collect()
    }

    fn assert_as_before(&self) {
        let journal = || crate::command::journals_in(&self.dir.path().join("journal"));
        wait_until(|| match (format!("{:?}", self.lab.napi().settings), self.processes(), journal()) {
            (now, processes, left) if now == self.before && processes.is_empty() && left.is_empty() => Ok(()),
            other => Err(format!("before {:?}, now {other:?}", self.before)),
        });
    }
}

fn end(mut quell: Child) -> (Option<i32>, String, String) {
    let status = quell.wait(ARRIVES_WITHIN).unwrap().expect("quell exits in time");
    let text = |bytes: Option<Vec<u8>>| String::from_utf8(bytes.unwrap()).unwrap();
    (status.code(), text(quell.stdout_tail()), text(quell.stderr_tail()))
}

#[test]
fn modes_that_need_the_preload_library_are_measured_and_the_command_is_stopped() {
    let Some(stage) = Stage::enter("bc-modes") else { return };
    let quell = stage.start(&["--modes=base,eventspin50", "--budget=600s"], MEMCACHED);
    let (stdout, _) = stage.interrupt_after_a_block(quell);
    let result = stage.result();
    assert_eq!(result["subject"]["kind"], "command");
    let record = &result["experiments"][0]["record"];
    assert_eq!(record["dropped"], serde_json::json!({}));
    let slices = record["slices"].as_array().unwrap();
    assert!(slices.iter().any(|slice| slice["arm"] == 2), "no slice of eventspin50");
    assert!(slices.iter().all(|slice| slice["observation"]["metrics"]["p99-us"].as_f64().unwrap() > 0.0));
    assert!(stdout.contains("CPU/request"), "{stdout}");
    stage.assert_as_before();
}

#[test]
fn connections_that_no_queue_delivers_are_named_beside_the_comparison() {
    let Some(stage) = Stage::enter("bc-queueless") else { return };
    Ethtool::open_in(&stage.lab.server).unwrap().set_features(stage.lab.server_index, &[("rx-gro", false)]).unwrap();
    let quell = stage.start(&["--modes=base,suspend200", "--budget=600s"], MEMCACHED);
    let (stdout, stderr) = stage.interrupt_after_a_block(quell);
    let problems = &stage.result()["subject"]["problems"];
    assert_eq!(problems[0]["id"], "connections-without-napi", "{problems}\n{stdout}\n{stderr}");
    assert_eq!(problems[0]["modes"], serde_json::json!(["suspend200"]));
    assert!(stdout.contains("warning under suspend200: connections-without-napi"), "{stdout}");
}

#[test]
fn a_mode_without_effect_on_the_command_is_dropped_with_the_reason() {
    let Some(stage) = Stage::enter("bc-reach") else { return };
    // `env -i` removes the environment variable that loads the preload library.
    let command = format!("env -i PATH=/usr/bin:/bin {MEMCACHED}");
    let (code, _, stderr) = stage.run(&["--modes=base,sockpoll50", "--budget=600s"], &command);
    assert_eq!(code, Some(5), "{stderr}");
    let dropped = stderr.lines().find(|line| line.starts_with("quell: ")).unwrap();
    assert!(dropped.contains("memcached") && dropped.contains("without the preload library"), "{stderr}");
    let (code, _, stderr) = stage.run(&["--modes=base,sockpoll50", "--budget=600s"], MEMCACHED);
    assert_eq!(code, Some(5), "{stderr}");
    assert!(stderr.contains("it waits in epoll_wait(2): sockets poll in blocking receives only"), "{stderr}");
    stage.assert_as_before();
}

#[test]
fn a_command_that_exits_at_once_is_an_error_with_its_output() {
    let Some(stage) = Stage::enter("bc-exits") else { return };
    let (code, _, stderr) = stage.run(&["--modes=base,suspend200"], "memcached --no-such-option");
    assert_eq!(code, Some(5), "{stderr}");
    assert!(stderr.contains("exited (exit status: ") && stderr.contains("no-such-option"), "{stderr}");
    stage.assert_as_before();
}

#[test]
fn a_budget_for_fewer_than_six_blocks_including_the_starts_is_refused() {
    let Some(stage) = Stage::enter("bc-budget") else { return };
    // Without the second that the command takes to start, six blocks of three slices of 120 ms would fit.
    let slow = stage.script("slow", &format!("sleep 1; exec {MEMCACHED}"));
    let (code, _, stderr) = stage.run(&["--modes=base,suspend200", "--budget=15s"], &slow);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("a budget of 15 s has no time") && stderr.contains("--budget"), "{stderr}");
    stage.assert_as_before();
}

#[test]
fn a_signal_stops_the_experiment_and_the_command() {
    let Some(stage) = Stage::enter("bc-signal") else { return };
    let quell = stage.start(&["--modes=base,suspend200", "--budget=600s"], MEMCACHED);
    wait_until(|| {
        if stage.processes().iter().any(|name| name == "memcached") {
            Ok(())
        } else {
            Err("memcached is not running".to_owned())
        }
    });
    quell.pidfd().signal(Signal::INT).unwrap();
    let (code, _, stderr) = end(quell);
    assert_eq!(code, Some(130), "{stderr}");
    stage.assert_as_before();
}

#[test]
fn after_a_kill_the_command_is_stopped_and_the_queue_is_restored() {
    let Some(stage) = Stage::enter("bc-kill") else { return };
    let quell = stage.start(&["--modes=base,suspend200", "--budget=600s"], MEMCACHED);
    let suspends = || stage.lab.napi().settings.irq_suspend_timeout_ns.is_some_and(|timeout| timeout > 0);
    wait_until(|| if suspends() { Ok(()) } else { Err("suspend200 was never set".to_owned()) });
    quell.pidfd().signal(Signal::KILL).unwrap();
    let _ = end(quell);
    stage.assert_as_before();
}
