//! `quell top` in a veth lab: polls and programs of a queue with traffic, missing privileges, and every way to end.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use quell_linux::Pid;
use quell_linux::event::Trigger;
use quell_linux::netdev::PartialNapiSettings;
use quell_linux::pidfd::{PidFd, Signal};
use quell_test_support::lab::{ARRIVES_WITHIN, TestLab, UdpProgram};
use quell_test_support::{Lacks, skip};
use serde_json::Value;

fn top(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    command.args(["top", "-i", "0.2"]).args(arguments);
    command.env("QUELL_JOURNAL_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/no-journal"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn reports(command: &mut Command) -> Vec<Value> {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Runs the command while datagrams arrive at a program on the only queue of the lab.
fn with_traffic<T>(lab: &TestLab, command: impl FnOnce() -> T) -> T {
    let program = UdpProgram::start(lab, Trigger::Level);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let send_and_receive = || {
            while !over.load(Ordering::Relaxed) {
                program.send(1);
                assert_eq!(program.receives_within(ARRIVES_WITHIN), Some(1));
            }
        };
        scope.spawn(send_and_receive);
        let result = command();
        over.store(true, Ordering::Relaxed);
        result
    })
}

#[test]
fn each_report_has_the_polls_of_the_queue_and_the_program_on_it() {
    let Some(lab) = TestLab::raise("top", 1) else { return };
    let pid = std::process::id();
    let arguments = [&pid.to_string(), "--netns", &lab.server_name, "-n", "3", "-j"];
    let all = with_traffic(&lab, || reports(&mut top(&arguments)));
    assert_eq!(all.len(), 3);
    for report in &all {
        assert_eq!(report["polls-unknown"], Value::Null, "{report}");
        let queues = report["queues"].as_array().unwrap();
        let queue = queues.iter().find(|queue| queue["napi"] == lab.napis[0].get()).unwrap();
        assert_eq!((&queue["device"], &queue["rx-queues"][0]), (&"server0".into(), &0.into()), "{report}");
        let sample = &queue["sample"];
        let packets = sample["packets"].as_u64().unwrap();
        let with_wait = sample["wait"]["packets"].as_u64().unwrap();
        let without = sample["wait"]["interrupt-packets"].as_u64().unwrap();
        // One poll can be half counted at either end of the interval, and it has the one datagram that is under way.
        assert!(packets > 1 && (with_wait + without).abs_diff(packets) <= 1, "{report}");
        assert!(sample["polls"]["interrupt"].as_u64().unwrap() > 0, "{report}");
        let mut programs = report["programs"].as_array().unwrap().iter();
        assert!(programs.all(|program| program["cpus"].as_f64().is_some()), "also in the first report: {report}");
    }
    let programs = all[2]["programs"].as_array().unwrap();
    let program = programs.iter().find(|program| program["pid"] == pid).unwrap_or_else(|| panic!("{}", all[2]));
    assert_eq!((&program["napis"][0], &program["mode"]), (&lab.napis[0].get().into(), &Value::Null), "{program}");
}

#[test]
fn the_text_has_a_line_for_each_queue_and_program() {
    let Some(lab) = TestLab::raise("top-text", 2) else { return };
    let pid = std::process::id().to_string();
    let print = || top(&[&pid, "--netns", &lab.server_name, "-n", "1"]).output().unwrap().stdout;
    let text = String::from_utf8(with_traffic(&lab, print)).unwrap();
    let begins = |word: &str| text.lines().filter(|line| line.split_whitespace().next() == Some(word)).count();
    assert_eq!((begins("DEVICE"), begins("server0"), begins("PID")), (1, 2, 1), "{text}");
    assert_eq!(begins(&pid), 1, "{text}");
}

#[test]
fn a_recording_has_every_report_and_is_shown_and_drawn_with_what_changed() {
    let Some(lab) = TestLab::raise("top-record", 1) else { return };
    let dir = tempfile::tempdir().unwrap();
    let [file, page] = ["top.jsonl", "top.html"].map(|name| dir.path().join(name).to_str().unwrap().to_owned());
    let pid = std::process::id().to_string();
    let record = || {
        let mut command = top(&[&pid, "--netns", &lab.server_name, "-j", "--record", &file]);
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        lines.next().unwrap().unwrap();
        lab.set_napi(&PartialNapiSettings { gro_flush_timeout_ns: Some(123_000), ..PartialNapiSettings::NONE });
        // The next snapshot of the host shows the change.
        let has_changed = |line: &String| line.contains("\"gro-flush-timeout\":123000");
        lines.map(Result::unwrap).find(has_changed).unwrap();
        PidFd::open(Pid::new(child.id().try_into().unwrap()).unwrap()).unwrap().signal(Signal::INT).unwrap();
        let mut said = String::new();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(child.wait().unwrap().success() && said.contains("quell report"), "{said}");
    };
    with_traffic(&lab, record);
    lab.set_napi(&PartialNapiSettings { gro_flush_timeout_ns: Some(0), ..PartialNapiSettings::NONE });
    let text = std::fs::read_to_string(&file).unwrap();
    let (header, reports) = text.split_once('\n').unwrap();
    let header: Value = serde_json::from_str(header).unwrap();
    assert_eq!(header["schema"], "quell-recording/1");
    let reports: Vec<Value> = reports.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(reports.len() > 1 && reports.iter().all(|report| report["schema"] == "quell-top/1"), "{reports:?}");
    let quell = |arguments: &[&str]| Command::new(env!("CARGO_BIN_EXE_quell")).args(arguments).output().unwrap();
    let shown = String::from_utf8(quell(&["results", "show", &file]).stdout).unwrap();
    let change =
        format!("server0 queue 0 (NAPI {}): gro-flush-timeout 123 µs (before: gro-flush-timeout 0 ns)", lab.napis[0]);
    assert!(shown.contains("Polls: ") && shown.contains(&change), "{shown}");
    assert!(quell(&["report", &file, "-o", &page]).status.success());
    let html = std::fs::read_to_string(page).unwrap();
    for text in ["Polls by who polled", ">Packets<", &change] {
        assert!(html.contains(text), "{text}");
    }
}

#[test]
fn without_capabilities_polls_are_unknown_and_not_zero() {
    let Some(lab) = TestLab::raise("top-caps", 1) else { return };
    let program = ["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"];
    let mut command = Command::new("setpriv");
    // The network namespace is entered with the privileges of the test.
    command.args(program).arg(env!("CARGO_BIN_EXE_quell")).args(["top", "-i", "0.1", "-n", "1", "-j"]);
    let output = lab.server.run(|| command.output()).unwrap();
    let Ok(output) = output else { return skip(Lacks::Tool("setpriv"), "setpriv is not installed") };
    if !output.status.success() {
        return skip(Lacks::Machine, String::from_utf8_lossy(&output.stderr));
    }
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["polls-unknown"].as_str().unwrap().contains("CAP_BPF"), "{report}");
    assert_eq!(report["queues"][0]["device"], "server0", "{report}");
    assert_eq!(report["queues"][0]["sample"], Value::Null, "{report}");
}

/// A running `quell top` that has printed its first line.
fn started(arguments: &[&str]) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = top(arguments).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert!(!line.is_empty());
    (child, stdout)
}

#[test]
fn it_ends_when_nobody_reads_its_output() {
    let (mut child, stdout) = started(&["-j"]);
    drop(stdout);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn it_ends_on_ctrl_c() {
    let (mut child, _stdout) = started(&["-j"]);
    let pid = Pid::new(child.id().try_into().unwrap()).unwrap();
    PidFd::open(pid).unwrap().signal(Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn it_ends_with_the_name_of_a_namespace_that_vanished() {
    let Some(lab) = TestLab::raise("top-gone", 1) else { return };
    let name = lab.server_name.clone();
    let (child, stdout) = started(&["-j", "--netns", &name]);
    drop(lab);
    ends_with(child, stdout, &name);
}

/// Requires that the program ends with exit code 1 and this text.
fn ends_with(mut child: Child, mut stdout: BufReader<std::process::ChildStdout>, text: &str) {
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains(text), "{said}");
}

#[test]
fn it_ends_with_the_name_of_a_device_that_vanished() {
    let Some(lab) = TestLab::raise("top-dev", 1) else { return };
    let (child, stdout) = started(&["-j", "--netns", &lab.server_name, "--device", "server0"]);
    quell_linux::link::Links::open_in(&lab.server).unwrap().delete(lab.server_index).unwrap();
    ends_with(child, stdout, "server0");
}

#[test]
fn it_ends_with_the_number_of_a_process_that_exited() {
    let mut program = Command::new("sleep").arg("600").spawn().unwrap();
    let pid = program.id().to_string();
    let (child, stdout) = started(&["-j", &pid]);
    program.kill().unwrap();
    program.wait().unwrap();
    ends_with(child, stdout, &pid);
}

#[test]
fn a_report_says_whether_a_queue_stalled_and_what_its_device_dropped() {
    let Some(lab) = TestLab::raise("top-stall", 1) else { return };
    // The timer polls after 0.2 s, and the interrupt stays masked.
    lab.set_napi(&PartialNapiSettings {
        defer_hard_irqs: Some(1_000_000),
        gro_flush_timeout_ns: Some(200_000_000),
        irq_suspend_timeout_ns: None,
        threaded: None,
    });
    let all = with_traffic(&lab, || reports(&mut top(&["--netns", &lab.server_name, "-n", "5", "-j"])));
    assert!(all.iter().any(|report| report["queues"][0]["stalled"] == true), "{all:#?}");
    for report in &all {
        let device = &report["devices"][0];
        assert_eq!((&device["name"], &device["rx-dropped"]), (&"server0".into(), &0.into()), "{report}");
        assert_eq!(report["queues"][0]["unsampled"], Value::Null, "{report}");
    }
}
