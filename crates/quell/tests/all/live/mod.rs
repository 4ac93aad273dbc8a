//! Shared code of the live tests of quell: a machine-wide lock, a journal directory per test, and the state of the
//! machine before the test.

mod machine_state;

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use quell_linux::Pid;
use quell_linux::netns::{Namespace, NamespaceName};
use quell_linux::pidfd::{PidFd, Signal};
use quell_linux::process::{Child, Output, Spawn};
use quell_subject::requirements::missing;
use quell_subject::server::ServerCommand;
use quell_test_support::{LabTurn, skip_missing, wait_until};
use serde_json::Value;
use tempfile::TempDir;

use machine_state::{MachineState, comm_of, started_with};

/// Time limit after which a process counts as hanging.
const BOUND: Duration = Duration::from_secs(60);
const KEPT: usize = 1 << 20;

/// Environment in which a test runs quell.
pub(crate) struct Stage {
    dir: TempDir,
    before: MachineState,
    _turn: LabTurn,
}

/// A running quell process.
pub(crate) struct Running(Child);

/// Exit status and output of a quell process.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Exit code. Absent if a signal killed the process.
    pub(crate) code: Option<i32>,
    /// Number of the signal that killed the process. Absent if it exited.
    pub(crate) signal: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Stage {
    /// Waits for the machine-wide lock and records the state of the machine. If no lab is possible, records the test as
    /// skipped and returns `None`.
    pub(crate) fn enter() -> Option<Self> {
        let missing = missing(&ServerCommand::memcached());
        if !missing.is_empty() {
            skip_missing(missing.iter().map(|missing| missing.what.as_str()));
            return None;
        }
        let turn = LabTurn::wait();
        make_the_first_named_namespace_of_this_boot();
        let dir = tempfile::tempdir().unwrap();
        let before = MachineState::now(&mark(&dir));
        Some(Self { dir, before, _turn: turn })
    }

    /// Returns the path of a file in this test's directory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts quell with these arguments.
    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        self.start_as(&[], arguments)
    }

    /// Starts quell through another program, for example `setpriv`.
    pub(crate) fn start_as(&self, wrapper: &[&str], arguments: &[&str]) -> Running {
        let words: Vec<&str> = wrapper.iter().chain(&[env!("CARGO_BIN_EXE_quell")]).chain(arguments).copied().collect();
        let spawn = Spawn::new(words[0]).args(&words[1..]).env("QUELL_JOURNAL_DIR", self.file("journal"));
        Running(spawn.stdout(Output::Tail(KEPT)).stderr(Output::Tail(KEPT)).start().unwrap())
    }

    /// Runs quell until it exits.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ended {
        self.start(arguments).end()
    }

    /// Starts a bench with the options `more`. `--insist` ignores failed lab checks, because other programs of the
    /// machine may cause softirqs.
    pub(crate) fn start_bench(&self, modes: &str, more: &[&str]) -> Running {
        let output = self.file("result.json");
        let fixed = ["bench", "--modes", modes, "--connections=16", "--insist"];
        let output = ["--output", output.to_str().unwrap()];
        self.start(&[&fixed[..], &output, more].concat())
    }

    /// Reads the result file that a bench wrote.
    pub(crate) fn result(&self) -> Value {
        serde_json::from_slice(&std::fs::read(self.file("result.json")).unwrap()).unwrap()
    }

    /// Returns the labs that `quell lab` lists.
    pub(crate) fn labs(&self) -> Vec<Value> {
        let listed = self.run(&["lab", "list", "--json"]);
        assert_eq!(listed.code, Some(0), "{listed:?}");
        let report: Value = serde_json::from_str(&listed.stdout).unwrap();
        assert_eq!(report["schema"], "quell-labs/1");
        report["labs"].as_array().unwrap().clone()
    }

    /// Returns the names of the existing journals.
    pub(crate) fn journals(&self) -> Vec<String> {
        crate::command::journals_in(&self.file("journal"))
    }

    /// Kills the processes named `comm` that this test's quell process started.
    pub(crate) fn kill_the_server(&self, comm: &str) {
        let mark = mark(&self.dir);
        let servers: Vec<Pid> = started_with(&mark).into_iter().filter(|pid| comm_of(*pid) == comm).collect();
        assert!(!servers.is_empty(), "{comm} is not running");
        for pid in servers {
            PidFd::open(pid).unwrap().signal(Signal::KILL).unwrap();
        }
    }

    /// Waits until the machine is in the same state as before the test. The kernel removes some objects with a delay.
    pub(crate) fn assert_as_before(&self) {
        wait_until(|| {
            let diff = self.before.diff(&MachineState::now(&mark(&self.dir)));
            if diff.is_empty() { Ok(()) } else { Err(format!("the state of the machine differs:\n{diff}")) }
        });
        assert!(self.journals().is_empty(), "journals remain: {:?}", self.journals());
    }
}

/// Cleans up after failed tests too.
impl Drop for Stage {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let clean = Command::new(env!("CARGO_BIN_EXE_quell"))
                .args(["lab", "clean"])
                .env("QUELL_JOURNAL_DIR", self.file("journal"))
                .output();
            eprintln!("cleaned up after a failure: {clean:?}");
        }
    }
}

impl Running {
    pub(crate) fn pid(&self) -> u32 {
        self.0.pid().get().unsigned_abs()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        self.0.pidfd().signal(signal).unwrap();
    }

    /// Returns the stderr output of quell so far.
    pub(crate) fn stderr(&self) -> String {
        String::from_utf8(self.0.stderr_tail().unwrap()).unwrap()
    }

    /// Waits until quell exits. Does not stop other processes that it started.
    pub(crate) fn end(self) -> Ended {
        self.end_within(BOUND)
    }

    /// As [`Self::end`], with another time limit.
    pub(crate) fn end_within(mut self, bound: Duration) -> Ended {
        let status = self.0.wait(bound).unwrap();
        let text = |tail: Option<Vec<u8>>| String::from_utf8(tail.unwrap()).unwrap();
        let (stdout, stderr) = (text(self.0.stdout_tail()), text(self.0.stderr_tail()));
        let status = status.unwrap_or_else(|| panic!("quell hangs; its output: {stdout}{stderr}"));
        Ended { code: status.code(), signal: status.signal(), stdout, stderr }
    }
}

/// Text that occurs in the environment of all child processes of a test.
fn mark(dir: &TempDir) -> String {
    format!("QUELL_JOURNAL_DIR={}", dir.path().join("journal").display())
}

/// Creates the first named namespace since boot. It makes `/run/netns` a shared mount, as `ip netns` does, and the
/// mount remains. Later tests therefore see no difference.
fn make_the_first_named_namespace_of_this_boot() {
    let name = NamespaceName::new(format!("qt-first-{}", std::process::id())).unwrap();
    Namespace::create_named(&name).unwrap();
    Namespace::delete_named(&name).unwrap();
}
