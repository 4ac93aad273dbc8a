//! The lab of these tests: the veth lab of `quell bench`, and `quell run` in its server's namespace with its own
//! journal directory. Reads the state of the queues and of the command from the kernel.

use std::fs::File;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use quell_change::journal::Journal;
use quell_host::snapshot::{SnapshotScope, take};
use quell_linux::Pid;
use quell_linux::epoll_params::EpollParams;
use quell_linux::netdev::{Napi, Netdev};
use quell_linux::pidfd::{PidFd, Signal};
use quell_linux::proc::ProcRoot;
use quell_linux::sched;
use quell_mode::NapiSettings;
use quell_subject::cpus;
use quell_subject::lab::veth::{VethLab, VethPlan};
use quell_subject::requirements::missing;
use quell_subject::server::ServerCommand;
use quell_test_support::{LabTurn, Lacks, skip, skip_missing, wait_until};
use tempfile::TempDir;

pub(crate) const QUELL: &str = env!("CARGO_BIN_EXE_quell");
/// Time limit after which a process counts as hanging.
const BOUND: Duration = Duration::from_secs(30);
const MEMCACHED_PORT: u16 = 11_211;
/// UDP port of the server in C.
const UDP_PORT: u16 = 7_001;

/// A veth lab for `quell run`.
pub(crate) struct RunLab {
    veth: VethLab,
    dir: TempDir,
    _turn: LabTurn,
}

/// A running `quell run`.
pub(crate) struct Running {
    child: Child,
    stdin: Mutex<ChildStdin>,
    out: PathBuf,
    err: PathBuf,
}

/// How it exited.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) signal: Option<i32>,
    pub(crate) err: String,
}

/// Process group, session and terminal from `/proc/PID/stat`.
pub(crate) struct Place {
    pub(crate) pgrp: i64,
    pub(crate) session: i64,
    pub(crate) tty: i64,
}

impl RunLab {
    /// Creates a lab with two queues that softirqs poll. Returns `None`, with the reason on stderr, if that is not
    /// possible.
    pub(crate) fn raise(test: &str) -> Option<Self> {
        Self::raise_for(test, &ServerCommand::memcached())
    }

    /// Like [`Self::raise`], but does not need memcached.
    pub(crate) fn raise_without_memcached(test: &str) -> Option<Self> {
        Self::raise_for(test, &ServerCommand::Other(vec![QUELL.to_owned()]))
    }

    fn raise_for(test: &str, server: &ServerCommand) -> Option<Self> {
        let missing = missing(server);
        if !missing.is_empty() {
            skip_missing(missing.iter().map(|missing| missing.what.as_str()));
            return None;
        }
        let turn = LabTurn::wait();
        let dir = tempfile::tempdir().unwrap();
        let cpus: Vec<u32> = sched::affinity(Pid::of_this_process()).unwrap().iter().collect();
        let cpus = cpus::assign(&cpus, 2, 1, true).unwrap();
        let plan = VethPlan { queues: 2, cpus, interrupt_stand_in: false, client_napi: NapiSettings::default() };
        let name = format!("qt-run-{test}-{}", std::process::id());
        let veth = VethLab::raise(&Journal::in_dir(dir.path().join("lab")), name, plan).unwrap();
        Some(Self { veth, dir, _turn: turn })
    }

    /// Environment variables for every `quell` in this lab.
    pub(crate) fn environment(&self) -> [(&'static str, PathBuf); 1] {
        [("QUELL_JOURNAL_DIR", self.dir.path().join("journal"))]
    }

    /// Path of a file in this test's directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Names of the journals of `quell run`.
    pub(crate) fn journals(&self) -> Vec<String> {
        let [(_, dir)] = self.environment();
        crate::command::journals_in(dir.as_ref())
    }

    /// Whether the journal lists the process as a target of the mode.
    pub(crate) fn is_written_down(&self, pid: Pid) -> bool {
        let [(_, dir)] = self.environment();
        let texts = self.journals().into_iter().map(|name| std::fs::read_to_string(dir.join(name)).unwrap_or_default());
        texts.into_iter().any(|text| text.contains(&format!("\"pid\":{pid},")))
    }

    /// Starts `quell run OPTIONS -- COMMAND` in the server's namespace.
    pub(crate) fn run(&self, options: &[&str], command: &[&str]) -> Running {
        self.run_by(Command::new(QUELL), options, command)
    }

    /// Like [`Self::run`], but as the first process of a new PID namespace. The returned process is its parent.
    pub(crate) fn run_in_a_pid_namespace(&self, options: &[&str], command: &[&str]) -> Running {
        let mut unshare = Command::new("unshare");
        unshare.args(["--pid", "--fork", "--kill-child", "--mount-proc", QUELL]);
        self.run_by(unshare, options, command)
    }

    fn run_by(&self, mut quell: Command, options: &[&str], command: &[&str]) -> Running {
        let (out, err) = (self.file("out"), self.file("err"));
        quell.arg("run").args(options).arg("--").args(command).envs(self.environment()).stdin(Stdio::piped());
        quell.stdout(File::create(&out).unwrap()).stderr(File::create(&err).unwrap());
        let mut child = self.veth.server.namespace.run(|| quell.spawn().unwrap()).unwrap();
        let stdin = Mutex::new(child.stdin.take().unwrap());
        Running { child, stdin, out, err }
    }

    /// Runs another `quell` command and returns its output.
    pub(crate) fn quell(&self, arguments: &[&str]) -> String {
        let output = Command::new(QUELL).args(arguments).envs(self.environment()).output().unwrap();
        String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap()
    }

    /// Compiles a small server in C and returns its path. Returns `None`, with the reason on stderr, if it cannot be
    /// compiled.
    pub(crate) fn compile(&self, options: &[&str]) -> Option<String> {
        compile("waiter", options, self.dir.path())
    }

    /// Runs a command in the server's namespace to its end.
    pub(crate) fn output(&self, command: &mut Command) -> Output {
        self.veth.server.namespace.run(|| command.output().unwrap()).unwrap()
    }

    /// Returns defer-hard-irqs, gro-flush-timeout and irq-suspend-timeout of each queue.
    pub(crate) fn queues(&self) -> Vec<(u32, u64, u64)> {
        let server = &self.veth.server;
        let napis = Netdev::open_in(&server.namespace).unwrap().napis(server.ifindex).unwrap();
        let values = napis.into_iter().map(|Napi { settings, .. }| {
            let (defer, flush) = (settings.defer_hard_irqs.unwrap(), settings.gro_flush_timeout_ns.unwrap());
            (defer, flush, settings.irq_suspend_timeout_ns.unwrap())
        });
        values.collect()
    }

    /// Returns the parameters of a process's epolls that watch a socket.
    pub(crate) fn epolls(&self, pid: Pid) -> Vec<EpollParams> {
        let Ok((snapshot, _)) = take(&SnapshotScope { pids: vec![pid], ..SnapshotScope::default() }) else {
            return Vec::new();
        };
        let files = snapshot.processes.iter().filter_map(|process| process.files.known());
        files.flat_map(|files| files.epolls.iter().filter_map(|epoll| epoll.params.known().copied())).collect()
    }

    pub(crate) fn maps(&self, pid: Pid) -> String {
        std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap()
    }

    pub(crate) fn stat(&self, pid: Pid) -> Place {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        let fields: Vec<&str> = text[text.rfind(')').unwrap() + 2..].split(' ').collect();
        let number = |at: usize| fields[at].parse().unwrap();
        Place { pgrp: number(2), session: number(3), tty: number(4) }
    }

    /// PID of the memcached in this lab, if it runs.
    pub(crate) fn memcached(&self) -> Option<Pid> {
        let proc = ProcRoot::default();
        let here = self.veth.server.namespace.processes(proc.path()).unwrap().pids;
        here.into_iter().find(|pid| proc.process(*pid).stat().is_ok_and(|stat| stat.comm == b"memcached"))
    }

    /// Waits until memcached accepts connections, without opening one.
    pub(crate) fn wait_for_memcached(&self, quell: &Running) -> Pid {
        wait_until(|| {
            let pid = self.memcached().filter(|pid| self.epolls(*pid).len() >= 2);
            let listens = |pid: &Pid| {
                let (snapshot, _) = take(&SnapshotScope { pids: vec![*pid], ..SnapshotScope::default() }).unwrap();
                snapshot.sockets.iter().any(|socket| socket.state == quell_host::snapshot::SocketState::Listen)
            };
            pid.filter(listens).ok_or_else(|| format!("memcached does not listen: {}", quell.err()))
        })
    }

    /// Asks memcached for its version from the client's namespace, and waits for the answer.
    pub(crate) fn ask_memcached(&self) {
        use std::io::Read as _;
        let address = SocketAddr::new(self.veth.server.address, MEMCACHED_PORT);
        let mut stream = self.veth.client.namespace.run(|| TcpStream::connect(address).unwrap()).unwrap();
        stream.set_read_timeout(Some(BOUND)).unwrap();
        stream.write_all(b"version\r\n").unwrap();
        let mut answer = [0; 8];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(&answer, b"VERSION ");
    }

    /// Sends two datagrams: the second after the first was received and the queue's timer has expired. Returns the time
    /// until the server has received the second.
    pub(crate) fn time_to_hear(&self, quell: &Running, number: u32) -> Duration {
        let socket =
            self.veth.client.namespace.run(|| UdpSocket::bind((self.veth.client.address, 0)).unwrap()).unwrap();
        let address = SocketAddr::new(self.veth.server.address, UDP_PORT);
        let send = |word: String| {
            let begin = Instant::now();
            socket.send_to(word.as_bytes(), address).unwrap();
            wait_until(|| if quell.out().contains(&word) { Ok(()) } else { Err(format!("{word} was not received")) });
            begin.elapsed()
        };
        send(format!("first-{number}."));
        send(format!("second-{number}."))
    }

    pub(crate) fn kill(&self, pid: Pid) {
        PidFd::open(pid).unwrap().signal(Signal::KILL).unwrap();
    }
}

impl Running {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_kernel(self.child.id()).unwrap()
    }

    /// PID of the command that `quell run` has started.
    pub(crate) fn command(&self) -> Pid {
        // The keeper has its own session.
        let session = |pid: Pid| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            text[text.rfind(')')? + 2..].split(' ').nth(3).map(str::to_owned)
        };
        // Before exec, the child has the command line of this `quell`.
        let own = |pid: &Pid| session(*pid) == session(self.pid()) && self.has_executed(*pid);
        wait_until(|| {
            self.children().into_iter().find(own).ok_or_else(|| format!("the command does not run: {}", self.err()))
        })
    }

    fn has_executed(&self, pid: Pid) -> bool {
        let words = |pid: Pid| std::fs::read(format!("/proc/{pid}/cmdline")).ok();
        words(pid) != words(self.pid())
    }

    fn children(&self) -> Vec<Pid> {
        let pids = std::fs::read_to_string(format!("/proc/{0}/task/{0}/children", self.pid())).unwrap();
        pids.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        PidFd::open(self.pid()).unwrap().signal(signal).unwrap();
    }

    pub(crate) fn signal_first_child(&self, signal: Signal) {
        PidFd::open(self.children()[0]).unwrap().signal(signal).unwrap();
    }

    pub(crate) fn write(&self, text: &str) {
        self.stdin.lock().unwrap().write_all(text.as_bytes()).unwrap();
    }

    pub(crate) fn out(&self) -> String {
        read(&self.out)
    }

    pub(crate) fn err(&self) -> String {
        read(&self.err)
    }

    /// Waits until it exits.
    pub(crate) fn end(mut self) -> Ended {
        let status =
            wait_until(|| self.child.try_wait().unwrap().ok_or_else(|| format!("`quell run` hangs: {}", self.err())));
        Ended { code: status.code(), signal: status.signal(), err: self.err() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Processes that it has started end with the lab.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// Compiles a C program of this directory into `dir`. Returns `None`, with the reason on stderr, if that fails.
pub(crate) fn compile(name: &str, options: &[&str], dir: &Path) -> Option<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/run").join(name).with_extension("c");
    let program = dir.join(format!("{name}{}", options.concat()));
    let output = Command::new("cc").args(options).arg(source).arg("-o").arg(&program).output();
    match output {
        Ok(output) if output.status.success() => Some(program.to_str().unwrap().to_owned()),
        failed => {
            skip(Lacks::Tool("C compiler"), format_args!("cc {options:?}: {failed:?}"));
            None
        }
    }
}
