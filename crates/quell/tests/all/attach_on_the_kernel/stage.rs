//! A lab with memcached and a journal directory, in which tests run `quell`.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::command;
use quell_linux::Pid;
use quell_linux::pidfd::{PidFd, Signal};
use quell_linux::process::Spawn;
use quell_test_support::lab::{ARRIVES_WITHIN, TestLab};
use quell_test_support::{Lacks, skip};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) const ADDRESS: &str = "192.0.2.1:11211";
pub(crate) const MODE: &str = "suspend200";

/// A lab with memcached in it, and a journal directory.
pub(crate) struct Stage {
    pub(crate) lab: TestLab,
    pub(crate) server: quell_linux::process::Child,
    pub(crate) connections: Vec<TcpStream>,
    pub(crate) dir: TempDir,
}

impl Stage {
    /// Creates the lab; `None`, with the reason on stderr, if that is not possible.
    pub(crate) fn enter(test: &str) -> Option<Self> {
        let mut stage = Self::without_connections(test)?;
        // Enough connections that each of the two queues gets some.
        stage.connect(24);
        Some(stage)
    }

    pub(crate) fn without_connections(test: &str) -> Option<Self> {
        Self::with_workers(test, 2)
    }

    pub(crate) fn with_workers(test: &str, workers: u32) -> Option<Self> {
        Self::raise(test, workers, &["memcached", "-u", "root"])
    }

    /// Like [`Self::enter`], with the user ID set before the program is executed, as a service manager does.
    pub(crate) fn of_another_user(test: &str) -> Option<Self> {
        if Command::new("setpriv").arg("--version").output().is_err() {
            skip(Lacks::Tool("setpriv"), "setpriv is not installed");
            return None;
        }
        let words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "memcached"];
        let mut stage = Self::raise(test, 2, &words)?;
        stage.connect(24);
        Some(stage)
    }

    fn raise(test: &str, workers: u32, program: &[&str]) -> Option<Self> {
        if Command::new("memcached").arg("-V").output().is_err() {
            skip(Lacks::Server("memcached"), "memcached is not installed");
            return None;
        }
        let mut lab = TestLab::raise_beside_others(test, 2)?;
        let workers = workers.to_string();
        let words = ["-U", "0", "-t", &workers, "-l", "192.0.2.1", "-p", "11211"];
        let words = program[1..].iter().chain(&words);
        let server = lab.start(Spawn::new(program[0]).args(words));
        Some(Self { lab, server, connections: Vec::new(), dir: tempfile::tempdir().unwrap() })
    }

    pub(crate) fn connect(&mut self, count: usize) {
        let deadline = Instant::now() + ARRIVES_WITHIN;
        let connect = || {
            loop {
                match TcpStream::connect(ADDRESS) {
                    Ok(connection) => return connection,
                    Err(error) => assert!(Instant::now() < deadline, "memcached does not answer: {error}"),
                }
                std::thread::yield_now();
            }
        };
        self.connections.extend(self.lab.client.run(|| (0..count).map(|_| connect()).collect::<Vec<_>>()).unwrap());
        self.answers();
    }

    /// Checks that every connection gets an answer.
    pub(crate) fn answers(&mut self) {
        self.connections.iter_mut().for_each(assert_answers);
    }

    /// Starts another memcached, which shares the queues, and connects to it.
    pub(crate) fn second_server(&mut self) -> (quell_linux::process::Child, TcpStream) {
        let words = ["-u", "root", "-U", "0", "-t", "1", "-l", "192.0.2.1", "-p", "11301"];
        let server = self.lab.start(Spawn::new("memcached").args(words));
        let mut connection = None;
        let connect = || TcpStream::connect("192.0.2.1:11301").ok();
        wait_until(
            || {
                connection = self.lab.client.run(connect).unwrap();
                connection.is_some()
            },
            "the second server does not listen",
        );
        let mut connection = connection.unwrap();
        assert_answers(&mut connection);
        (server, connection)
    }

    pub(crate) fn pid(&self) -> String {
        self.server.pid().to_string()
    }

    pub(crate) fn quell(&self, arguments: &[&str]) -> Command {
        command::quell(&self.journals(), arguments)
    }

    pub(crate) fn journals(&self) -> PathBuf {
        self.dir.path().join("journal")
    }

    pub(crate) fn says(&self, code: i32, arguments: &[&str]) -> String {
        command::says(code, &mut self.quell(arguments))
    }

    pub(crate) fn is_set(&self) -> bool {
        self.lab.napi().settings.irq_suspend_timeout_ns == Some(20_000_000)
    }

    /// Waits until everything is as before any attachment; fails on timeout.
    pub(crate) fn assert_back(&self) {
        wait_until(|| command::journals_in(&self.journals()).is_empty(), "a journal remains");
        assert!(!self.is_set());
    }

    /// The process that the journal names as keeper.
    pub(crate) fn keeper(&self) -> PidFd {
        self.some_keeper().unwrap()
    }

    /// The process that the first of the journals names as keeper, if it runs.
    pub(crate) fn some_keeper(&self) -> Option<PidFd> {
        let journal = self.journals().join(command::journals_in(&self.journals()).first()?);
        let text = std::fs::read_to_string(journal).ok()?;
        let maintained_by = text.lines().rfind(|line| line.contains("maintained-by"))?;
        let record: Value = serde_json::from_str(maintained_by.split_once(' ')?.1).ok()?;
        PidFd::open(Pid::new(i32::try_from(record["pid"].as_i64()?).ok()?)?).ok()
    }

    /// Starts `quell attach --follow` and waits until it has notified readiness.
    pub(crate) fn follow(&self) -> Child {
        self.follow_with(MODE, &[])
    }

    pub(crate) fn follow_with(&self, mode: &str, options: &[&str]) -> Child {
        let path = self.dir.path().join("notify");
        let notified = UnixDatagram::bind(&path).unwrap();
        notified.set_read_timeout(Some(ARRIVES_WITHIN)).unwrap();
        let mut command = self.quell(&["attach", mode, &self.pid(), "--follow", "--yes", "--seconds", "0"]);
        command.args(options);
        let child = command.env("NOTIFY_SOCKET", &path).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut said = [0; 512];
        let mut read = receive(&notified, &mut said);
        // An earlier follower, which this one takes over, has the same socket.
        while said[..read] == *b"STOPPING=1\n" {
            read = receive(&notified, &mut said);
        }
        let said = std::str::from_utf8(&said[..read]).unwrap();
        assert!(said.lines().any(|line| line == "READY=1") && said.contains("STATUS=1 process"), "{said}");
        std::fs::remove_file(&path).unwrap();
        child
    }
}

/// A signal interrupts a receive with a timeout, also under SA_RESTART (signal(7)).
fn receive(from: &UnixDatagram, said: &mut [u8]) -> usize {
    loop {
        match from.recv(said) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            read => return read.unwrap(),
        }
    }
}

/// Checks that memcached answers on a connection.
pub(crate) fn assert_answers(connection: &mut TcpStream) {
    connection.set_read_timeout(Some(ARRIVES_WITHIN)).unwrap();
    connection.write_all(b"version\r\n").unwrap();
    let mut answer = [0; 64];
    let read = connection.read(&mut answer).unwrap();
    assert!(answer[..read].starts_with(b"VERSION"), "{:?}", &answer[..read]);
}

pub(crate) fn wait_until(mut is_so: impl FnMut() -> bool, otherwise: &str) {
    let deadline = Instant::now() + ARRIVES_WITHIN;
    while !is_so() {
        assert!(Instant::now() < deadline, "{otherwise}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) fn kill(process: &PidFd) {
    process.signal(Signal::KILL).unwrap();
    assert!(process.wait_for_exit(ARRIVES_WITHIN).unwrap());
}
