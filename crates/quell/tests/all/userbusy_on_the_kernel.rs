//! `userbusy` for a program that waits in recvfrom(2), under 25,000 packets a second, whatever ends its poller. A packet
//! that does not fit the ring of a veth counts as `tx_dropped` of the peer. Needs root, Linux 6.13 and Python.

use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quell_linux::link::Links;
use quell_linux::netdev::Netdev;
use quell_linux::pidfd::{PidFd, Signal};
use quell_linux::proc::ProcRoot;
use quell_linux::process::Spawn;
use quell_linux::queue_drops::QueueDrops;
use quell_linux::{NapiId, Pid};
use quell_test_support::lab::TestLab;
use quell_test_support::{Lacks, skip, wait_until};
use serde_json::Value;
use tempfile::TempDir;

use crate::command;

const SERVER: &str = "import socket\n\
                      s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
                      s.bind(('192.0.2.1', 5300))\n\
                      while True:\n    \
                          data, sender = s.recvfrom(64)\n    \
                          if data == b'?': s.sendto(data, sender)";
const PACKETS_PER_MS: u32 = 25;
/// Packets that are sent at once after the sender was late: less than a quarter of the ring.
const BURST_MAX: u32 = 60;

struct Stage {
    lab: TestLab,
    server: quell_linux::process::Child,
    dir: TempDir,
}

impl Stage {
    fn raise(test: &str) -> Option<Self> {
        if std::process::Command::new("python3").arg("-V").output().is_err() {
            skip(Lacks::Tool("python3"), "python3 is not installed");
            return None;
        }
        let mut lab = TestLab::raise_beside_others(test, 1)?;
        let server = lab.start(Spawn::new("python3").args(["-c", SERVER]));
        let stage = Self { lab, server, dir: tempfile::tempdir().unwrap() };
        stage.answers();
        Some(stage)
    }

    fn says(&self, code: i32, arguments: &[&str]) -> String {
        command::says(code, &mut command::quell(self.dir.path(), arguments))
    }

    /// Attaches the mode; `None` if this kernel does not permit the poller.
    fn attach(&self, mode: &str) -> Option<String> {
        let pid = self.server.pid().to_string();
        let mut command = command::quell(self.dir.path(), &["attach", mode, &pid, "--yes"]);
        let output = command.output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        if output.status.code() == Some(5) {
            skip(Lacks::KernelFeature, &text);
            return None;
        }
        assert_eq!(output.status.code(), Some(0), "{text}");
        Some(text)
    }

    /// Waits for an answer of the server.
    fn answers(&self) {
        let ask = || {
            let socket = UdpSocket::bind("192.0.2.2:0").unwrap();
            socket.connect("192.0.2.1:5300").unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
            wait_until(|| {
                socket.send(b"?").map_err(|error| error.to_string())?;
                socket.recv(&mut [0]).map_err(|error| error.to_string())
            });
        };
        self.lab.client.run(ask).unwrap();
    }

    fn lost(&self) -> u64 {
        QueueDrops::open_in(&self.lab.server).unwrap().received(self.lab.server_index).unwrap()
    }

    fn records(&self) -> Vec<Value> {
        let Some(journal) = command::journals_in(self.dir.path()).into_iter().next() else { return Vec::new() };
        let text = std::fs::read_to_string(self.dir.path().join(journal)).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line.split_once(' ')?.1).ok()).collect()
    }

    fn pid_in(&self, is_meant: impl Fn(&Value) -> bool) -> PidFd {
        let records = self.records();
        let record = records.iter().find(|record| is_meant(record)).unwrap_or_else(|| panic!("{records:?}"));
        let pid = record["pid"].as_i64().or_else(|| record["outcome"]["pid"].as_i64());
        PidFd::open(Pid::new(i32::try_from(pid.unwrap()).unwrap()).unwrap()).unwrap()
    }

    fn poller(&self) -> PidFd {
        self.pid_in(|record| record["record"] == "done" && record["outcome"]["pid"].is_i64())
    }

    fn keeper(&self) -> PidFd {
        self.pid_in(|record| record["record"] == "maintained-by")
    }

    fn is_restored(&self) -> Result<(), String> {
        let journals = command::journals_in(self.dir.path());
        if journals.is_empty() { Ok(()) } else { Err(format!("{journals:?} remain")) }
    }

    fn assert_restored(&self, poller: &PidFd) {
        wait_until(|| self.is_restored());
        assert_eq!(self.settings(), (Some(0), Some(0)));
        assert!(poller.wait_for_exit(Duration::from_secs(60)).unwrap(), "the poller runs");
        self.answers();
    }

    fn settings(&self) -> (Option<u32>, Option<u64>) {
        let settings = self.lab.napi().settings;
        (settings.defer_hard_irqs, settings.gro_flush_timeout_ns)
    }

    /// Attaches the mode under load and runs `end` on its poller and its keeper. Checks that the mode was reverted and that
    /// no packet was lost, and that `quell status` says so with the words `recorded`.
    fn ends(test: &str, recorded: &str, end: impl Fn(&Self, &PidFd, &PidFd)) {
        let Some(stage) = Self::raise(test) else { return };
        under_load(&stage.lab, || {
            let lost = loses_no_packet(|| {
                stage.attach("userbusy")?;
                let (poller, keeper, lost) = (stage.poller(), stage.keeper(), stage.lost());
                end(&stage, &poller, &keeper);
                stage.assert_restored(&poller);
                Some(stage.lost() - lost)
            });
            if lost.is_some() {
                // The end is recorded after everything is restored.
                let is_recorded = || {
                    let status = stage.says(0, &["status"]);
                    if status.contains(recorded) { Ok(()) } else { Err(status) }
                };
                wait_until(is_recorded);
            }
        });
    }
}

/// Tries three times, because the host of a virtual machine can take the CPU of the queue's timer for longer than the ring
/// lasts. `None` if the mode is not possible here.
fn loses_no_packet(lost: impl Fn() -> Option<u64>) -> Option<()> {
    let mut losses = Vec::new();
    while losses.len() < 3 {
        match lost()? {
            0 => return Some(()),
            packets => losses.push(packets),
        }
    }
    panic!("packets were lost each time: {losses:?}");
}

/// Sends 25,000 packets a second to the server while `work` runs.
fn under_load<T>(lab: &TestLab, work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    let socket = lab.client.run(|| UdpSocket::bind("192.0.2.2:0").unwrap()).unwrap();
    socket.connect("192.0.2.1:5300").unwrap();
    socket.set_nonblocking(true).unwrap();
    let send = || {
        let (mut sent_until, tick) = (Instant::now(), Duration::from_millis(1));
        while !is_over.load(Ordering::Relaxed) {
            std::thread::sleep(tick);
            let late = u32::try_from(sent_until.elapsed().as_micros()).unwrap_or(u32::MAX) / 1_000;
            let packets = late.saturating_mul(PACKETS_PER_MS).min(BURST_MAX);
            // A full socket buffer of the server is of no interest here.
            (0..packets).for_each(|_| drop(socket.send(&[0; 16])));
            sent_until = Instant::now();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(send);
        // Also ends the sender after a panic.
        let _ends = Ends(&is_over);
        work()
    })
}

/// Ends what waits for the flag.
pub(crate) struct Ends<'a>(pub(crate) &'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A cgroup of its own, which is removed on drop.
struct Group(PathBuf);

impl Group {
    /// Creates a group with this file under one of the hierarchies; `None`, and a skip, if none of them has it.
    fn with(file: &str, hierarchies: &[&str], test: &str) -> Option<Self> {
        for hierarchy in hierarchies {
            let path = Path::new(hierarchy).join(format!("quell-{test}-{}", std::process::id()));
            if std::fs::create_dir(&path).is_err() {
                continue;
            }
            let group = Self(path);
            if group.0.join(file).exists() {
                return Some(group);
            }
        }
        skip(Lacks::Machine, format_args!("no cgroup has {file}"));
        None
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.0.join(file), text).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        wait_until(|| std::fs::remove_dir(&self.0).map_err(|error| error.to_string()));
    }
}

/// Whether a thread of this process polls the instance.
fn polls(poller: &PidFd, napi: NapiId) -> Result<(), String> {
    let process = ProcRoot::default().process(poller.pid());
    let names: Vec<String> = process
        .tids()
        .unwrap_or_default()
        .into_iter()
        .filter_map(|tid| Some(process.thread(tid).stat().ok()?.name()))
        .collect();
    if names.contains(&format!("poll-{napi}")) { Ok(()) } else { Err(format!("{names:?}")) }
}

#[test]
fn a_blocking_server_gets_a_poller_until_it_is_detached() {
    let Some(stage) = Stage::raise("ub-attach") else { return };
    let pid = stage.server.pid().to_string();
    assert!(stage.says(5, &["attach", "suspend20", &pid, "--dry-run"]).contains("only epoll polls a queue"));
    assert!(
        stage.says(0, &["attach", "userbusy", &pid, "--dry-run"]).contains("its 1 polling thread uses a whole CPU")
    );
    let Some(said) = under_load(&stage.lab, || stage.attach("userbusy")) else { return };
    assert!(said.contains("server0 rx 0: in effect: ") && said.contains("by the poller"), "{said}");
    assert_eq!(stage.settings(), (Some(100), Some(1_000_000)));
    let poller = stage.poller();
    polls(&poller, stage.lab.napis[0]).unwrap();
    stage.answers();
    stage.says(0, &["detach", &pid]);
    stage.assert_restored(&poller);
}

#[test]
fn a_poller_runs_on_the_cpu_and_in_the_class_of_the_mode() {
    let Some(stage) = Stage::raise("ub-class") else { return };
    if stage.attach("userbusy,poller-cpu=0,poller-class=batch").is_none() {
        return;
    }
    let process = ProcRoot::default().process(stage.poller().pid());
    let name = format!("poll-{}", stage.lab.napis[0]);
    let mut tids = process.tids().unwrap().into_iter();
    let tid = tids.find(|tid| process.thread(*tid).stat().unwrap().name() == name).unwrap();
    assert_eq!(quell_linux::sched::affinity(tid).unwrap().to_string(), "0");
    let policy = quell_linux::sched::scheduling(tid).unwrap().policy;
    assert_eq!(policy, quell_linux::sched::Policy::Batch { nice: 0 });
    stage.says(0, &["detach", &stage.server.pid().to_string()]);
}

#[test]
fn a_cpu_that_does_not_exist_is_refused_also_by_a_dry_run() {
    let Some(stage) = Stage::raise("ub-cpu") else { return };
    let pid = stage.server.pid().to_string();
    for option in ["--dry-run", "--yes"] {
        let said = stage.says(5, &["attach", "userbusy,poller-cpu=8000", &pid, option]);
        assert!(said.contains("CPU 8000 is not online"), "{said}");
    }
    assert_eq!(stage.settings(), (Some(0), Some(0)));
    stage.is_restored().unwrap();
}

#[test]
fn a_killed_poller_loses_no_packet() {
    let end = |_: &Stage, poller: &PidFd, _: &PidFd| poller.signal(Signal::KILL).unwrap();
    Stage::ends("ub-kill", "has exited", end);
}

#[test]
fn a_stopped_poller_loses_no_packet() {
    let end = |_: &Stage, poller: &PidFd, _: &PidFd| poller.signal(Signal::STOP).unwrap();
    Stage::ends("ub-stop", "is stopped", end);
}

#[test]
fn the_command_that_attaches_says_why_the_poller_ended_while_it_checks_the_mode() {
    let Some(stage) = Stage::raise("ub-checks") else { return };
    let pid = stage.server.pid().to_string();
    let mut command = command::quell(stage.dir.path(), &["attach", "userbusy", &pid, "--yes", "--seconds", "60"]);
    let mut attaching = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let is_kept = || {
        let has_ended = attaching.try_wait().unwrap().is_some();
        let is_kept = stage.records().iter().any(|record| record["record"] == "maintained-by");
        if has_ended || is_kept { Ok(is_kept) } else { Err("no keeper yet".to_owned()) }
    };
    if wait_until(is_kept) {
        stage.poller().signal(Signal::STOP).unwrap();
    }
    let output = attaching.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    if output.status.code() == Some(5) {
        return skip(Lacks::KernelFeature, said);
    }
    assert!(output.status.code() == Some(3) && said.contains("is stopped"), "{said}");
}

#[test]
fn a_frozen_poller_loses_no_packet() {
    let hierarchies = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
    let Some(group) = Group::with("cgroup.freeze", &hierarchies, "ub-freeze") else { return };
    let end = |_: &Stage, poller: &PidFd, _: &PidFd| {
        group.write("cgroup.procs", &poller.pid().to_string());
        group.write("cgroup.freeze", "1");
    };
    Stage::ends("ub-freeze", "frozen, or without a CPU", end);
}

#[test]
fn a_poller_that_gets_a_twentieth_of_a_cpu_loses_no_packet() {
    let Some(group) = Group::with("cpu.cfs_quota_us", &["/sys/fs/cgroup/cpu"], "ub-quota") else { return };
    let end = |_: &Stage, poller: &PidFd, _: &PidFd| {
        group.write("cpu.cfs_quota_us", "5000");
        group.write("cgroup.procs", &poller.pid().to_string());
    };
    Stage::ends("ub-quota", "frozen, or without a CPU", end);
}

#[test]
fn a_command_that_quell_runs_gets_a_poller_until_it_exits() {
    let Some(stage) = Stage::raise("ub-run") else { return };
    let run = || {
        let napi = stage.lab.napis[0];
        let script = format!("cat /proc/[0-9]*/task/*/comm 2>/dev/null | grep -cx poll-{napi}");
        let words = ["run", "userbusy", "--device", "server0", "--yes", "--", "sh", "-c", &script];
        let output = command::quell(stage.dir.path(), &words).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned(), output.stderr)
    };
    let (code, said, errors) = stage.lab.server.run(run).unwrap();
    if code == Some(5) {
        return skip(Lacks::KernelFeature, String::from_utf8_lossy(&errors));
    }
    assert_eq!(code, Some(0), "{said}{}", String::from_utf8_lossy(&errors));
    assert_eq!(said.trim(), "1", "one thread polls the queue while the command runs");
    wait_until(|| stage.is_restored());
    assert_eq!(stage.settings(), (Some(0), Some(0)));
}

#[test]
fn the_poller_restores_the_queue_after_its_keeper_was_killed() {
    let end = |_: &Stage, _: &PidFd, keeper: &PidFd| keeper.signal(Signal::KILL).unwrap();
    Stage::ends("ub-keeper", "its keeper was killed", end);
}

#[test]
fn the_next_command_restores_the_queue_after_poller_and_keeper_were_killed() {
    let end = |stage: &Stage, poller: &PidFd, keeper: &PidFd| {
        // A keeper that is stopped cannot restore the queue before it is killed.
        keeper.signal(Signal::STOP).unwrap();
        poller.signal(Signal::KILL).unwrap();
        keeper.signal(Signal::KILL).unwrap();
        assert!(keeper.wait_for_exit(Duration::from_secs(60)).unwrap());
        stage.answers();
        stage.says(0, &["revert"]);
    };
    Stage::ends("ub-both", "", end);
}

#[test]
fn after_a_link_flap_the_new_instance_is_polled_and_the_end_of_the_poller_loses_no_packet() {
    let Some(stage) = Stage::raise("ub-flap") else { return };
    let device = stage.lab.server_index;
    let napi = || Netdev::open_in(&stage.lab.server).unwrap().napis(device).unwrap()[0].id;
    under_load(&stage.lab, || {
        loses_no_packet(|| {
            let before = napi();
            stage.attach("userbusy")?;
            let poller = stage.poller();
            let mut links = Links::open_in(&stage.lab.server).unwrap();
            links.set_down(device).unwrap();
            links.set_up(device).unwrap();
            assert_ne!(napi(), before);
            wait_until(|| polls(&poller, napi()));
            stage.answers();
            let lost = stage.lost();
            poller.signal(Signal::KILL).unwrap();
            wait_until(|| stage.is_restored());
            let lost = stage.lost() - lost;
            stage.answers();
            Some(lost)
        });
    });
}
