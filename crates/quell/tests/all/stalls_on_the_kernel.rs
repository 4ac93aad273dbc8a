//! Programs that change after a suspending mode was attached, so that its prediction fails. The watch frees their queues
//! and takes the mode back; `quell status` keeps the cause. Needs root, Linux 6.13, BPF and python3.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::command;
use quell_change::journal::Journal;
use quell_host::attach::attached::attachments;
use quell_linux::pidfd::{PidFd, Signal};
use quell_linux::proc::ProcRoot;
use quell_linux::process::{Child, Spawn};
use quell_test_support::lab::{ARRIVES_WITHIN, TestLab};
use quell_test_support::{Lacks, skip, wait_until};
use tempfile::TempDir;

const ADDRESS: &str = "192.0.2.1:7001";
const MODE: &str = "suspend20";
/// Many times that after which a queue is suspect.
const OBSERVED: Duration = Duration::from_secs(4);

/// A level-triggered server. A request is one byte, which selects how the server changes; the answer is the same byte.
const SERVER: &str = r#"
import os, resource, select, socket, sys, time
listener = socket.create_server(("192.0.2.1", 7001))
listener.setblocking(False)
epoll = select.epoll()
epoll.register(listener, select.EPOLLIN)
connections = {}
while True:
    for fd, events in epoll.poll():
        if fd == listener.fileno():
            try:
                connection, _ = listener.accept()
            except OSError:
                continue
            connections[connection.fileno()] = connection
            epoll.register(connection, select.EPOLLIN)
            continue
        if not events & select.EPOLLIN:
            continue
        request = connections[fd].recv(1)
        if request == b"o":
            epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT)
        elif request == b"f":
            resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, 4096))
        elif request == b"h":
            epoll.modify(fd, select.EPOLLRDHUP)
        elif request == b"s":
            time.sleep(0.3)
        elif request == b"":
            continue
        connections[fd].send(request)
"#;

struct Stage {
    lab: TestLab,
    server: Child,
    connections: Vec<TcpStream>,
    dir: TempDir,
}

impl Stage {
    fn enter(test: &str) -> Option<Self> {
        Self::with_program(test, "python3 server.py")
    }

    /// Runs `program` in the directory of the stage.
    fn with_program(test: &str, program: &str) -> Option<Self> {
        if Command::new("python3").arg("-V").output().is_err() {
            skip(Lacks::Tool("python3"), "python3 is not installed");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("server.py"), SERVER).unwrap();
        let mut lab = TestLab::raise_beside_others(test, 1)?;
        let script = format!("cd {}; export QUELL_JOURNAL_DIR=$PWD/journal; exec {program}", dir.path().display());
        let server = lab.start(Spawn::new("sh").args(["-c", &script]));
        let mut stage = Self { lab, server, connections: Vec::new(), dir };
        (0..2).for_each(|_| stage.connect());
        (0..2).for_each(|at| stage.ask(at, b'r'));
        Some(stage)
    }

    fn connect(&mut self) {
        let connect = || wait_until(|| TcpStream::connect(ADDRESS).map_err(|error| error.to_string()));
        let connection = self.lab.client.run(connect).unwrap();
        connection.set_read_timeout(Some(ARRIVES_WITHIN)).unwrap();
        connection.set_nodelay(true).unwrap();
        self.connections.push(connection);
    }

    /// Sends a request on a connection, and waits for the answer.
    fn ask(&mut self, connection: usize, request: u8) {
        let (connection, mut answer) = (&mut self.connections[connection], [0]);
        connection.write_all(&[request]).unwrap();
        connection.read_exact(&mut answer).unwrap();
        assert_eq!(answer, [request]);
    }

    fn quell(&self, arguments: &[&str]) -> Command {
        command::quell(&self.dir.path().join("journal"), arguments)
    }

    fn says(&self, code: i32, arguments: &[&str]) -> String {
        command::says(code, &mut self.quell(arguments))
    }

    /// Attaches; `None` if the mode cannot be watched.
    fn attach(&self, more: &[&str]) -> Option<()> {
        self.attach_as(MODE, more)
    }

    fn attach_as(&self, mode: &str, more: &[&str]) -> Option<()> {
        let pid = self.server.pid().to_string();
        let said = self.says(0, &[&["attach", mode, &pid, "--yes", "--seconds", "0"], more].concat());
        assert!(self.is_set());
        if said.contains("not watched for stalls") {
            skip(Lacks::KernelFeature, said);
            return None;
        }
        Some(())
    }

    fn is_set(&self) -> bool {
        self.lab.napi().settings.irq_suspend_timeout_ns.is_some_and(|timeout| timeout > 0)
    }

    /// Number of stalls that the owner has recorded.
    fn stalls(&self) -> u64 {
        let boot_id = ProcRoot::default().boot_id().unwrap().to_string();
        let records = Journal::in_dir(self.dir.path().join("journal")).stall_records(&boot_id).unwrap();
        records.iter().map(|record| record.stalls).sum()
    }

    fn asks_until_taken_back(&mut self) {
        let deadline = Instant::now() + ARRIVES_WITHIN;
        while self.is_set() {
            self.ask(1, b'r');
            assert!(Instant::now() < deadline, "the mode was not reverted");
        }
        (0..100).for_each(|_| self.ask(1, b'r'));
        let status = self.says(3, &["status"]);
        assert!(status.contains("reverted") && status.contains("stalled"), "{status}");
        let journals = Journal::in_dir(self.dir.path().join("journal"));
        wait_until(|| match journals.list().unwrap().len() {
            0 => Ok(()),
            left => Err(format!("{left} journals remain")),
        });
    }
}

#[test]
fn a_socket_that_becomes_ready_for_ever_does_not_cause_an_outage() {
    let Some(mut stage) = Stage::enter("stall-out") else { return };
    if stage.attach(&[]).is_none() {
        return;
    }
    stage.ask(0, b'o');
    stage.asks_until_taken_back();
    // The next attachment of the program forgets the record.
    let pid = stage.server.pid().to_string();
    stage.says(0, &["attach", "defer20", &pid, "--yes", "--seconds", "0"]);
    assert!(!stage.says(0, &["status"]).contains("reverted"));
}

#[test]
fn attach_says_if_it_cannot_watch_for_stalls() {
    let Some(stage) = Stage::enter("stall-blind") else { return };
    let pid = stage.server.pid().to_string();
    let mut attach = Command::new("setpriv");
    attach.args(["--bounding-set=-bpf,-perfmon,-sys_admin", env!("CARGO_BIN_EXE_quell"), "attach", MODE, &pid]);
    attach.args(["--yes", "--seconds", "0"]).env("QUELL_JOURNAL_DIR", stage.dir.path().join("journal"));
    let said = match stage.lab.server.run(|| attach.stdin(Stdio::null()).output()).unwrap() {
        Ok(said) => said,
        Err(error) => return skip(Lacks::Tool("setpriv"), error),
    };
    let text = String::from_utf8(said.stderr).unwrap();
    assert_eq!(said.status.code(), Some(0), "{text}");
    assert!(text.contains("applied and verified") && text.contains("\nnot watched for stalls: "), "{text}");
    assert!(text.contains("CAP_BPF"), "{text}");
    let with_all = stage.says(0, &["detach", &pid]);
    assert!(!with_all.contains("not watched"), "{with_all}");
}

#[test]
fn a_listener_without_free_descriptors_does_not_cause_an_outage() {
    let Some(mut stage) = Stage::enter("stall-emfile") else { return };
    if stage.attach(&[]).is_none() {
        return;
    }
    stage.ask(0, b'f');
    // The kernel completes the connection; the server cannot accept it.
    stage.connect();
    stage.asks_until_taken_back();
    let status = stage.says(3, &["status"]);
    let name = status.split_once("): reverted").and_then(|(what, _)| what.rsplit_once('(')).map(|(_, name)| name);
    let forgotten = stage.says(0, &["revert", name.unwrap_or_else(|| panic!("{status}"))]);
    assert!(forgotten.starts_with("forgot the stalls of attach suspend20"), "{forgotten}");
    assert!(!stage.says(0, &["status"]).contains("reverted"));
}

#[test]
fn half_closed_peers_do_not_cause_an_outage() {
    for (test, request) in [("stall-rdhup", b'h'), ("stall-eof", b'r')] {
        let Some(mut stage) = Stage::enter(test) else { return };
        if stage.attach(&[]).is_none() {
            return;
        }
        stage.ask(0, request);
        stage.connections[0].shutdown(Shutdown::Write).unwrap();
        stage.asks_until_taken_back();
    }
}

#[test]
fn accepted_stalls_are_freed_and_the_mode_stays() {
    let Some(mut stage) = Stage::enter("stall-accept") else { return };
    if stage.attach(&["--accept-stalls"]).is_none() {
        return;
    }
    stage.ask(0, b'o');
    let began = Instant::now();
    while began.elapsed() < OBSERVED {
        stage.ask(1, b'r');
    }
    assert!(stage.is_set() && stage.stalls() > 0);
    let pid = stage.server.pid().to_string();
    assert!(stage.says(0, &["status"]).contains("stalled"));
    stage.says(0, &["detach", &pid]);
    assert!(!stage.is_set());
    assert_eq!(stage.stalls(), 0, "the record ends with the attachment");
}

#[test]
fn a_followed_program_that_stalls_is_given_its_interrupts_back() {
    let Some(mut stage) = Stage::enter("stall-follow") else { return };
    let pid = stage.server.pid().to_string();
    let follow = ["attach", MODE, &pid, "--follow", "--yes", "--seconds", "0"];
    let follow = stage.quell(&follow).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until(|| if stage.is_set() { Ok(()) } else { Err("not set".to_owned()) });
    stage.ask(0, b'o');
    let deadline = Instant::now() + ARRIVES_WITHIN;
    while stage.is_set() {
        stage.ask(1, b'r');
        assert!(Instant::now() < deadline, "the mode was not reverted");
    }
    let Output { status, stderr, .. } = follow.wait_with_output().unwrap();
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(3), "{said}");
    assert!(said.contains("freed the stalled queue") && said.contains("was reverted"), "{said}");
}

#[test]
fn busy_idle_slow_and_stopped_servers_do_not_stall() {
    let Some(mut stage) = Stage::enter("stall-none") else { return };
    if stage.attach(&[]).is_none() {
        return;
    }
    let server = PidFd::open(stage.server.pid()).unwrap();
    let during = |mut act: Box<dyn FnMut() + '_>| {
        let began = Instant::now();
        while began.elapsed() < OBSERVED {
            act();
        }
    };
    during(Box::new(|| stage.ask(0, b'r')));
    during(Box::new(|| stage.ask(0, b's')));
    during(Box::new(|| std::thread::sleep(Duration::from_millis(10))));
    server.signal(Signal::STOP).unwrap();
    stage.connections[0].write_all(b"r").unwrap();
    during(Box::new(|| std::thread::sleep(Duration::from_millis(10))));
    server.signal(Signal::CONT).unwrap();
    stage.connections[0].read_exact(&mut [0]).unwrap();
    stage.ask(1, b'r');
    assert!(stage.is_set());
    assert_eq!(stage.stalls(), 0);
    let pid = stage.server.pid().to_string();
    stage.says(0, &["detach", &pid]);
    assert!(!stage.is_set());
}

#[test]
fn a_launched_program_that_stalls_continues_with_interrupts() {
    let quell = env!("CARGO_BIN_EXE_quell");
    let program = format!("{quell} run {MODE} -- python3 server.py 2> stderr");
    let Some(mut stage) = Stage::with_program("stall-run", &program) else { return };
    wait_until(|| if stage.is_set() { Ok(()) } else { Err("not set".to_owned()) });
    (0..2).for_each(|at| stage.ask(at, b'r'));
    stage.ask(0, b'o');
    let deadline = Instant::now() + ARRIVES_WITHIN;
    while stage.is_set() {
        stage.ask(1, b'r');
        assert!(Instant::now() < deadline, "the mode was not reverted");
    }
    (0..100).for_each(|_| stage.ask(1, b'r'));
    let said = || std::fs::read_to_string(stage.dir.path().join("stderr")).unwrap();
    wait_until(|| if said().contains("continues with interrupts") { Ok(()) } else { Err(said()) });
    assert_eq!(said().matches("was reverted").count(), 1, "{}", said());
    assert!(stage.says(3, &["status"]).contains("reverted"));
}

#[test]
fn an_experiment_drops_a_mode_that_stalls_the_program() {
    let experiments: [&[&str]; 2] = [
        &["bench", "--modes=base,suspend20", "--budget=30s", "--output"],
        &["tune", "--goal=least cpu", "--budget=30s", "--seed=1", "--output"],
    ];
    for experiment in experiments {
        let Some(mut stage) = Stage::enter(&format!("stall-{}", experiment[0])) else { return };
        let (pid, file) = (stage.server.pid().to_string(), stage.dir.path().join("result"));
        let more = [file.to_str().unwrap(), "--pid", &pid, "--slice=350", "--settle=5", "--yes"];
        let mut command = stage.quell(&[experiment, &more].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let is_over = |child: &mut std::process::Child| child.try_wait().unwrap().is_some();
        while !stage.is_set() && !is_over(&mut child) {
            stage.ask(1, b'r');
        }
        stage.ask(0, b'o');
        while !is_over(&mut child) {
            stage.ask(1, b'r');
        }
        let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
        let said = String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap();
        // A search may have left the mode for another reason before its queue stalls three times.
        assert!(said.contains("its queues stalled") || experiment[0] == "tune", "{status} {said}");
        assert!(status.code().is_some(), "{status} {said}");
        assert!(!stage.is_set());
    }
}

#[test]
fn an_experiment_keeps_a_mode_whose_stalls_are_accepted() {
    let Some(mut stage) = Stage::enter("stall-accepted") else { return };
    stage.ask(0, b'o');
    let pid = stage.server.pid().to_string();
    let mut command = stage.quell(&["bench", "--modes=base,suspend20", "--budget=10s", "--accept-stalls", "--yes"]);
    command.args(["--pid", &pid, "--slice=350", "--settle=5"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while child.try_wait().unwrap().is_none() {
        stage.ask(1, b'r');
    }
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let said = String::from_utf8(stdout).unwrap() + &String::from_utf8(stderr).unwrap();
    assert!(said.contains("suspend20") && !said.contains("its queues stalled"), "{status} {said}");
    assert!(!stage.is_set());
}

#[test]
fn the_keeper_of_an_attachment_leaves_the_stalls_of_an_experiment_to_it() {
    let Some(mut stage) = Stage::enter("stall-below") else { return };
    if stage.attach(&[]).is_none() {
        return;
    }
    let pid = stage.server.pid().to_string();
    // Slices of base free the queue: nobody else does, because stalls are accepted.
    let mut command = stage.quell(&["bench", "--modes=base,suspend20", "--budget=10s", "--accept-stalls", "--yes"]);
    command.args(["--pid", &pid, "--slice=350", "--settle=5"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    while stage.is_set() {
        stage.ask(1, b'r');
    }
    stage.ask(0, b'o');
    let mut seen = 0;
    while child.try_wait().unwrap().is_none() {
        stage.ask(1, b'r');
        let stalls = stage.stalls();
        // After the end of its journal, they are the keeper's again.
        if Journal::in_dir(stage.dir.path().join("journal")).list().unwrap().len() == 2 {
            seen = stalls;
        }
    }
    assert_eq!(seen, 0, "the keeper has polled the queue during the experiment");
    stage.asks_until_taken_back();
}

/// A stopped process, which goes on when the test ends.
struct Stopped(PidFd);

impl Stopped {
    fn stop(process: PidFd) -> Self {
        process.signal(Signal::STOP).unwrap();
        Self(process)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.0.signal(Signal::CONT);
    }
}

/// The keeper is stopped, so that only observers see the stall.
#[test]
fn observers_call_a_queue_suspect_that_nobody_polls_and_do_not_poll_it() {
    let Some(mut stage) = Stage::enter("stall-suspect") else { return };
    // On a busy machine the program runs too rarely to re-arm a shorter suspension, which then ends.
    if stage.attach_as("suspend20,irq-suspend-timeout=2000000000", &[]).is_none() {
        return;
    }
    let journal = Journal::in_dir(stage.dir.path().join("journal"));
    let keeper = attachments(&journal).unwrap()[0].keeper.unwrap();
    let keeper = Stopped::stop(PidFd::open(keeper.pid).unwrap());
    stage.ask(0, b'o');
    stage.connections[1].write_all(b"r").unwrap();
    let status = || stage.says(0, &["status"]);
    wait_until(|| if status().contains("suspect: nobody polled") { Ok(()) } else { Err(status()) });
    let netns = ["doctor", "--netns", &stage.lab.server_name, "--seconds", "1"];
    let doctor = String::from_utf8(stage.quell(&netns).output().unwrap().stdout).unwrap();
    assert!(doctor.contains("stalled-queue") && doctor.contains("suspect"), "{doctor}");
    stage.connections[1].set_nonblocking(true).unwrap();
    assert!(stage.connections[1].read(&mut [0]).is_err(), "an observer has polled the queue");
    stage.connections[1].set_nonblocking(false).unwrap();
    drop(keeper);
    stage.connections[1].read_exact(&mut [0]).unwrap();
    stage.asks_until_taken_back();
}

/// The polls by which the keeper frees the queue are no polls of the program.
#[test]
fn a_stall_that_was_accepted_is_no_effect_of_the_mode() {
    let Some(mut stage) = Stage::enter("st-accepted") else { return };
    stage.ask(0, b'o');
    if stage.attach(&["--accept-stalls"]).is_none() {
        return;
    }
    let (mut client, is_over) = (stage.connections.remove(1), Arc::new(AtomicBool::new(false)));
    let over = Arc::clone(&is_over);
    let asks = std::thread::spawn(move || {
        let mut answer = [0];
        while !over.load(Ordering::Relaxed) {
            client.write_all(b"r").unwrap();
            client.read_exact(&mut answer).unwrap();
        }
    });
    wait_until(|| {
        let status = stage.says(0, &["status"]);
        let is_said = status.contains("not in effect: packets waited up to") && status.contains("quell detach");
        if is_said { Ok(()) } else { Err(status) }
    });
    wait_until(|| {
        let report = stage.says(0, &["top", &stage.server.pid().to_string(), "-i", "1", "-n", "1", "-j"]);
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        let program = &report["programs"][0];
        let is_said = program["effect"]["verdict"] == "not-in-effect"
            && program["payoff"]["pays"]["not-in-effect"]["on-unset-epolls"] == false;
        if is_said { Ok(()) } else { Err(program.to_string()) }
    });
    assert!(stage.is_set(), "the stall was accepted");
    let pid = stage.server.pid().to_string();
    wait_until(|| {
        stage.says(0, &["detach", &pid]);
        let said = stage.says(0, &["attach", MODE, &pid, "--yes", "--accept-stalls"]);
        let predicted = format!("conclusion: ready-object-holds-suspension was predicted for {MODE}");
        let is_said = said.contains(&predicted) && said.contains(&format!("\n  quell detach {pid}\n"));
        if is_said { Ok(()) } else { Err(said) }
    });
    is_over.store(true, Ordering::Relaxed);
    asks.join().unwrap();
    stage.says(0, &["detach", &pid]);
}
