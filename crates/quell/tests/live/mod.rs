//! What the live tests of the program share: a turn on the machine, a journal directory of the test's own, the program
//! started in a session of its own, and the state of the machine before.

mod machine_state;

use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use quell_bench::requirements::missing;
use quell_bench::server::ServerCommand;
use quell_linux::Pid;
use quell_linux::netns::{Namespace, NamespaceName};
use quell_linux::pidfd::{PidFd, Signal};
use quell_linux::process::{Child, Output, Spawn};
use quell_test_support::{LabTurn, skip_missing, wait_until};
use serde_json::Value;
use tempfile::TempDir;

use machine_state::{MachineState, comm_of, started_with};

/// How long anything may take before it is taken for a hang.
const BOUND: Duration = Duration::from_secs(60);
const KEPT: usize = 1 << 20;

/// A test's place to run the program in.
pub(crate) struct Stage {
    dir: TempDir,
    before: MachineState,
    _turn: LabTurn,
}

/// The program, running.
pub(crate) struct Running(Child);

/// How the program ended.
#[derive(Debug)]
pub(crate) struct Ended {
    /// Its exit code; absent when a signal ended it.
    pub(crate) code: Option<i32>,
    /// The signal that ended it.
    pub(crate) signal: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Stage {
    /// Waits for this test's turn and takes the state of the machine down; `None`, with the reason on stderr, where no
    /// lab can be raised.
    pub(crate) fn enter() -> Option<Self> {
        let missing = missing(&ServerCommand::Memcached { program: "memcached".into() });
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

    /// A file of this test's own.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts the program.
    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        self.start_as(&[], arguments)
    }

    /// Starts the program by way of another one, `setpriv` for example.
    pub(crate) fn start_as(&self, wrapper: &[&str], arguments: &[&str]) -> Running {
        let words: Vec<&str> = wrapper.iter().chain(&[env!("CARGO_BIN_EXE_quell")]).chain(arguments).copied().collect();
        let spawn = Spawn::new(words[0]).args(&words[1..]).env("QUELL_JOURNAL_DIR", self.file("journal"));
        Running(spawn.stdout(Output::Tail(KEPT)).stderr(Output::Tail(KEPT)).start().unwrap())
    }

    /// Runs the program to its end.
    pub(crate) fn run(&self, arguments: &[&str]) -> Ended {
        self.start(arguments).end()
    }

    /// A bench with `more` options. Insists: on a machine where others are at work
    /// their softirqs must not decide whether the lab is raised.
    pub(crate) fn start_bench(&self, modes: &str, more: &[&str]) -> Running {
        let output = self.file("result.json");
        let fixed = ["bench", "--modes", modes, "--connections=16", "--insist"];
        let output = ["--output", output.to_str().unwrap()];
        self.start(&[&fixed[..], &output, more].concat())
    }

    /// The result that a bench wrote.
    pub(crate) fn result(&self) -> Value {
        serde_json::from_slice(&std::fs::read(self.file("result.json")).unwrap()).unwrap()
    }

    /// The labs that the program lists.
    pub(crate) fn labs(&self) -> Vec<Value> {
        let listed = self.run(&["lab", "list", "--json"]);
        assert_eq!(listed.code, Some(0), "{listed:?}");
        let report: Value = serde_json::from_str(&listed.stdout).unwrap();
        assert_eq!(report["schema"], "quell-labs/1");
        report["labs"].as_array().unwrap().clone()
    }

    /// Names of the journals that there are.
    pub(crate) fn journals(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.file("journal")).into_iter().flatten();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Kills what this test's program started under the name `comm`.
    pub(crate) fn kill_the_server(&self, comm: &str) {
        let mark = mark(&self.dir);
        let servers: Vec<Pid> = started_with(&mark).into_iter().filter(|pid| comm_of(*pid) == comm).collect();
        assert!(!servers.is_empty(), "no {comm} runs");
        for pid in servers {
            PidFd::open(pid).unwrap().signal(Signal::KILL).unwrap();
        }
    }

    /// Fails unless the machine becomes what it was when the test began; what the kernel removes late is waited for.
    pub(crate) fn assert_as_before(&self) {
        wait_until(|| {
            let diff = self.before.diff(&MachineState::now(&mark(&self.dir)));
            if diff.is_empty() { Ok(()) } else { Err(format!("the machine is not as before:\n{diff}")) }
        });
        assert!(self.journals().is_empty(), "journals are left: {:?}", self.journals());
    }
}

/// A test that fails leaves nothing behind either.
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

    /// What it has written to stderr until now.
    pub(crate) fn stderr(&self) -> String {
        String::from_utf8(self.0.stderr_tail().unwrap()).unwrap()
    }

    /// Waits for its end. What it started stays as it is.
    pub(crate) fn end(mut self) -> Ended {
        let status = self.0.wait(BOUND).unwrap();
        let text = |tail: Option<Vec<u8>>| String::from_utf8(tail.unwrap()).unwrap();
        let (stdout, stderr) = (text(self.0.stdout_tail()), text(self.0.stderr_tail()));
        let status = status.unwrap_or_else(|| panic!("it hangs; it said {stdout}{stderr}"));
        Ended { code: status.code(), signal: status.signal(), stdout, stderr }
    }
}

/// What the environment of everything that a test starts holds.
fn mark(dir: &TempDir) -> String {
    format!("QUELL_JOURNAL_DIR={}", dir.path().join("journal").display())
}

/// The first one makes `/run/netns` a shared mount, as `ip netns` does, and that stays.
fn make_the_first_named_namespace_of_this_boot() {
    let name = NamespaceName::new(format!("qt-first-{}", std::process::id())).unwrap();
    Namespace::create_named(&name).unwrap();
    Namespace::delete_named(&name).unwrap();
}
