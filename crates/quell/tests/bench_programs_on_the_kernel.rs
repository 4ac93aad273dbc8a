//! Runs `quell bench --pid` on memcached with live traffic and ends the run in every possible way. Each test checks that
//! the queues and epolls are restored. No test asserts a verdict. The tests need root, Linux 6.13 and memcached.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use quell_host::snapshot::{SnapshotScope, take};
use quell_linux::Pid;
use quell_linux::pidfd::Signal;
use quell_linux::process::{Child, Output, Spawn};
use quell_test_support::lab::{ARRIVES_WITHIN, TestLab};
use quell_test_support::small_disk::SmallDisk;
use quell_test_support::{Lacks, skip, wait_until};

const OUTPUT_KEPT: usize = 64 * 1024;
const LONG: &[&str] = &["--modes=base,suspend200", "--budget=600s", "--yes"];

/// memcached in a lab, and a client that sends requests continuously.
struct Stage {
    lab: TestLab,
    server: Child,
    asks: Arc<AtomicBool>,
    client: Option<JoinHandle<()>>,
    dir: tempfile::TempDir,
    before: BTreeMap<String, String>,
}

impl Stage {
    fn enter(test: &str) -> Option<Self> {
        let mut lab = TestLab::raise(test, 1)?;
        if Command::new("memcached").arg("-V").output().is_err() {
            skip(Lacks::Server("memcached"), "memcached is not installed");
            return None;
        }
        let server = lab.start(Spawn::new("memcached").args(["-u", "root", "-U", "0", "-t", "1", "-l", "192.0.2.1"]));
        let connect = || wait_until(|| TcpStream::connect("192.0.2.1:11211").map_err(|error| error.to_string()));
        let mut connection = BufReader::new(lab.client.run(connect).unwrap());
        connection.get_ref().set_read_timeout(Some(ARRIVES_WITHIN)).unwrap();
        ask(&mut connection).unwrap();
        let asks = Arc::new(AtomicBool::new(true));
        let goes_on = Arc::clone(&asks);
        // The client exits when the server closes its connections.
        let client =
            std::thread::spawn(move || while goes_on.load(Ordering::Relaxed) && ask(&mut connection).is_ok() {});
        let mut stage = Self {
            lab,
            server,
            asks,
            client: Some(client),
            dir: tempfile::tempdir().unwrap(),
            before: BTreeMap::new(),
        };
        stage.before = stage.state();
        Some(stage)
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("result.json")
    }

    fn start(&self, options: &[&str]) -> Child {
        self.start_with_output(self.file().to_str().unwrap(), options)
    }

    fn start_with_output(&self, output: &str, options: &[&str]) -> Child {
        let pid = self.server.pid().to_string();
        let fixed = ["bench", "--slice=50", "--settle=5", "--pid", &pid, "--output", output];
        let spawn = Spawn::new(env!("CARGO_BIN_EXE_quell")).args([&fixed[..], options].concat());
        let spawn = spawn.env("QUELL_JOURNAL_DIR", self.dir.path().join("journal"));
        spawn.stdout(Output::Tail(OUTPUT_KEPT)).stderr(Output::Tail(OUTPUT_KEPT)).start().unwrap()
    }

    /// Runs the bench until it exits. Returns exit code, stdout and stderr.
    fn run(&self, options: &[&str]) -> (Option<i32>, String, String) {
        end(self.start(options))
    }

    fn result(&self) -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(self.file()).unwrap()).unwrap()
    }

    /// Returns the settings of the server's queue and epolls, by name.
    fn state(&self) -> BTreeMap<String, String> {
        let scope = SnapshotScope { netns: Some(self.lab.server_name.clone()), ..SnapshotScope::default() };
        let snapshot = take(&scope).unwrap().0;
        let napis = snapshot.devices.iter().flat_map(|device| device.napis.known_elements());
        let mut state: BTreeMap<String, String> =
            napis.map(|napi| (format!("NAPI {}", napi.id), format!("{napi:?}"))).collect();
        for process in snapshot.processes.iter().filter(|process| process.pid == self.server.pid()) {
            for epoll in &process.files.known().unwrap().epolls {
                state.insert(format!("epoll {}", epoll.fd), format!("{:?}", epoll.params));
            }
        }
        state
    }

    fn wait_until_switched(&self) {
        let suspends = || self.lab.napi().settings.irq_suspend_timeout_ns.is_some_and(|timeout| timeout > 0);
        wait_until(|| if suspends() { Ok(()) } else { Err("suspend200 was never set".to_owned()) });
    }

    /// Waits until a slice of suspend200 is complete, which shows as a change to another mode.
    fn wait_until_a_slice_was_measured(&self) {
        self.wait_until_switched();
        let base = || self.lab.napi().settings.irq_suspend_timeout_ns == Some(0);
        wait_until(|| if base() { Ok(()) } else { Err("the mode never changed again".to_owned()) });
    }

    fn assert_as_before(&self) {
        wait_until(|| {
            let now = self.state();
            if now == self.before { Ok(()) } else { Err(format!("before {:?}, now {now:?}", self.before)) }
        });
        wait_until(|| {
            let left: Vec<_> = std::fs::read_dir(self.dir.path().join("journal")).into_iter().flatten().collect();
            if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
        });
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.asks.store(false, Ordering::Relaxed);
        if let Some(client) = self.client.take() {
            let _ = client.join();
        }
    }
}

fn ask(connection: &mut BufReader<TcpStream>) -> std::io::Result<()> {
    connection.get_mut().write_all(b"version\r\n")?;
    match connection.skip_until(b'\n')? {
        0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}

fn end(mut quell: Child) -> (Option<i32>, String, String) {
    let status = quell.wait(ARRIVES_WITHIN).unwrap().expect("quell exits in time");
    let text = |bytes: Option<Vec<u8>>| String::from_utf8(bytes.unwrap()).unwrap();
    (status.code(), text(quell.stdout_tail()), text(quell.stderr_tail()))
}

#[test]
fn under_live_traffic_server_metrics_are_compared_and_the_server_is_restored() {
    let Some(stage) = Stage::enter("bp-live") else { return };
    let (code, stdout, stderr) = stage.run(&["--modes=base,suspend200,defer200", "--budget=3s", "--yes"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("CPU/packet") && stdout.contains("suspend200"), "{stdout}");
    assert!(stdout.contains("live traffic"), "{stdout}");
    let result = stage.result();
    assert_eq!(result["experiments"][0]["end"]["kind"], "stopped");
    assert_eq!(result["subject"]["queues"].as_array().unwrap().len(), 1);
    stage.assert_as_before();
}

#[test]
fn figures_printed_by_a_command_are_compared() {
    let Some(stage) = Stage::enter("bp-judge") else { return };
    let judge = "--latency=sh -c 'echo p99 17; echo served/s 5'";
    let (code, stdout, stderr) = stage.run(&["--modes=base,suspend200", "--budget=3s", "--yes", judge]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("p99") && stdout.contains("served/s"), "{stdout}");
    stage.assert_as_before();
}

#[test]
fn a_failing_or_unparsable_command_ends_the_run_before_any_change() {
    let Some(stage) = Stage::enter("bp-wrong") else { return };
    for (judge, why) in [("--latency=false", "exit status: 1"), ("--latency=echo hello", "printed no figures")] {
        let (code, _, stderr) = stage.run(&["--modes=base,suspend200", "--budget=3s", "--yes", judge]);
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
    let (code, _, stderr) = stage.run(&[LONG, &[load]].concat());
    assert_eq!(code, Some(4), "{stderr}");
    assert!(stderr.contains("exit status: 7") && stderr.contains("out of connections"), "{stderr}");
    stage.assert_as_before();
}

#[test]
fn a_signal_ends_the_run_and_the_server_is_restored() {
    let Some(stage) = Stage::enter("bp-int") else { return };
    let quell = stage.start(LONG);
    stage.wait_until_switched();
    quell.pidfd().signal(Signal::INT).unwrap();
    let (code, _, stderr) = end(quell);
    assert_eq!(code, Some(130), "{stderr}");
    stage.assert_as_before();
}

#[test]
fn after_a_kill_the_keeper_restores_the_server() {
    let Some(stage) = Stage::enter("bp-kill") else { return };
    let quell = stage.start(LONG);
    stage.wait_until_switched();
    quell.pidfd().signal(Signal::KILL).unwrap();
    let _ = end(quell);
    stage.assert_as_before();
}

#[test]
fn if_the_server_dies_its_pid_is_reported_and_the_measurements_are_kept() {
    let Some(mut stage) = Stage::enter("bp-dies") else { return };
    let quell = stage.start(LONG);
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
    let (code, _, stderr) = stage.run(&["--modes=base,suspend200", "--budget=3s", "--yes"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("No space left on device"), "{stderr}");
    disk.clear();
    stage.assert_as_before();
}

#[test]
fn a_result_that_does_not_fit_on_the_disk_is_printed_and_the_server_is_restored() {
    let Some(stage) = Stage::enter("bp-disk-r") else { return };
    let quell = stage.start_with_output("/dev/full", &["--modes=base,suspend200", "--budget=3s", "--yes"]);
    let (code, stdout, stderr) = end(quell);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stdout.contains("CPU/packet"), "{stdout}");
    assert!(stderr.contains("/dev/full") && stderr.contains("No space left on device"), "{stderr}");
    stage.assert_as_before();
}

#[test]
fn a_program_without_packets_is_refused() {
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
    assert!(stderr.contains("no socket of the programs has received a packet"), "{stderr}");
    let (code, stderr) = bench("2147483646");
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("there is no process 2147483646"), "{stderr}");
    stage.assert_as_before();
}
