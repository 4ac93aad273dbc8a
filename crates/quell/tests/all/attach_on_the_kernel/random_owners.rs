//! Commands in random order on two programs that share their queues, with kills and a link that goes down: afterwards
//! every queue and epoll has its values from before. `QUELL_COMMAND_SEQUENCES` sets the number of sequences,
//! `QUELL_OWNER_SEED` the seed of the first.

use std::net::TcpStream;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Child, Stdio};

use quell_linux::Pid;
use quell_linux::link::Links;
use quell_linux::pidfd::{PidFd, Signal};
use quell_linux::proc::{FdKind, ProcRoot};
use quell_test_support::kernel_values::{KernelNapi, KernelValues};
use quell_test_support::{Numbers, number_of_variable};

use super::stage::{Stage, assert_answers, wait_until};

/// Sequences in a normal run; `make nightly` plays more.
const SEQUENCES: u64 = 3;
const EVENTS: u64 = 7;
const MODES: [&str; 6] = ["suspend200", "suspend20", "defer50", "napibusy", "threaded", "base"];

struct Play {
    stage: Stage,
    kernel: KernelValues,
    second: quell_linux::process::Child,
    connection: TcpStream,
    running: Vec<(String, Child)>,
    numbers: Numbers,
}

impl Play {
    fn raise(seed: u64) -> Option<Self> {
        let mut stage = Stage::enter("random")?;
        let kernel = KernelValues::of_namespace(&stage.lab.server_name)?;
        let (second, connection) = stage.second_server();
        Some(Self { stage, kernel, second, connection, running: Vec::new(), numbers: Numbers::new(seed) })
    }

    fn pids(&self) -> [Pid; 2] {
        [self.stage.server.pid(), self.second.pid()]
    }

    /// Packets for both programs, so that the queues of their sockets are known.
    fn packets(&mut self) {
        self.stage.answers();
        assert_answers(&mut self.connection);
    }

    fn state(&self) -> (Vec<KernelNapi>, Vec<String>) {
        let of_process = |pid: Pid| {
            let fds = ProcRoot::default().process(pid).fds().unwrap();
            let epolls = fds.into_iter().filter(|fd| fd.kind == FdKind::Epoll);
            epolls.map(|fd| self.kernel.epoll(pid.get().unsigned_abs(), fd.number)).collect::<Vec<_>>()
        };
        let napis = self.kernel.napis("server0").into_iter().map(|napi| KernelNapi { id: 0, ..napi });
        (napis.collect(), self.pids().into_iter().flat_map(of_process).collect())
    }

    /// Runs a command to its end, which may be a refusal.
    fn run(&self, arguments: &[&str]) -> String {
        let output = self.stage.quell(arguments).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
        assert!(!said.contains("panicked") && output.status.code() != Some(101), "{arguments:?}: {said}");
        format!("{} → {:?}", arguments.join(" "), output.status.code())
    }

    fn start(&mut self, arguments: &[&str]) -> String {
        let name = arguments.join(" ");
        let child = self.stage.quell(arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        self.running.push((name.clone(), child));
        format!("{name} …")
    }

    fn end(&mut self, number: usize, signal: Signal) -> String {
        let (name, mut child) = self.running.remove(number);
        let _ = PidFd::open(Pid::from_kernel(child.id()).unwrap()).unwrap().signal(signal);
        let status = child.wait().unwrap();
        assert!(status.signal() != Some(6) && status.code() != Some(101), "{name}: {status}");
        format!("{signal:?} ends {name}: {status}")
    }

    /// Kills the keeper of a journal, if there is one.
    fn kill_a_keeper(&self) -> String {
        match self.stage.some_keeper() {
            Some(keeper) => format!("a keeper is killed: {:?}", keeper.signal(Signal::KILL)),
            None => "no keeper to kill".to_owned(),
        }
    }

    fn flap(&mut self) -> String {
        let links = || Links::open_in(&self.stage.lab.server).unwrap();
        links().set_down(self.stage.lab.server_index).unwrap();
        links().set_up(self.stage.lab.server_index).unwrap();
        self.packets();
        "link down and up".to_owned()
    }

    fn event(&mut self) -> String {
        let pids = self.pids();
        let pid = self.numbers.one_of(&pids).to_string();
        let (mode, netns) = (self.numbers.one_of(&MODES), self.stage.lab.server_name.clone());
        let profile = self.stage.profile(self.numbers.one_of(&MODES));
        let profile = profile.to_str().unwrap();
        let result = self.stage.dir.path().join("result.json");
        let result = result.to_str().unwrap();
        match self.numbers.below(13) {
            0 | 1 => self.run(&["attach", mode, &pid, "--yes", "--seconds", "0"]),
            2 | 3 => self.start(&["attach", mode, &pid, "--yes", "--follow", "--seconds", "0"]),
            4 => {
                let modes = self.numbers.one_of(&["base,suspend20", "defer50,suspend200"]);
                let timing = ["--slice", "20", "--settle", "1", "--budget", "1s", "--output", result];
                self.start(&[&["bench", "--pid", &pid, "--yes", "--modes", modes][..], &timing].concat())
            }
            5 => {
                let timing = ["--slice", "20", "--settle", "1", "--budget", "2s", "--output", result];
                self.start(&[&["tune", "--pid", &pid, "--yes", "--goal", "least cpu"][..], &timing].concat())
            }
            6 => self.run(&["apply", "--netns", &netns, profile]),
            7 => self.run(&["apply", "--netns", &netns, "--confirm", "1s", profile]),
            8 => self.run(&["detach", &pid]),
            9 => self.run(&["revert"]),
            10 if !self.running.is_empty() => {
                let number = self.numbers.usize_below(self.running.len());
                self.end(number, Signal::KILL)
            }
            11 => self.kill_a_keeper(),
            12 => self.flap(),
            _ => self.run(&["status"]),
        }
    }

    fn play(mut self, seed: u64) {
        self.packets();
        let before = self.state();
        let mut said = Vec::new();
        for _ in 0..EVENTS {
            let event = self.event();
            said.push(event);
        }
        while !self.running.is_empty() {
            let number = self.numbers.usize_below(self.running.len());
            let signal = if self.numbers.below(4) == 0 { Signal::KILL } else { Signal::TERM };
            let ended = self.end(number, signal);
            said.push(ended);
        }
        // A keeper may undo its journal at the same time, so that a single command does not see its end.
        let is_without_journals = || {
            self.run(&["revert"]);
            crate::command::journals_in(&self.stage.journals()).is_empty()
        };
        wait_until(is_without_journals, &format!("seed {seed}: a journal remains after {said:#?}"));
        assert_eq!(self.state(), before, "seed {seed}: {said:#?}");
        self.packets();
    }
}

#[test]
fn commands_in_any_order_leave_the_values_from_before() {
    let first = number_of_variable("QUELL_OWNER_SEED", 1);
    for seed in first..first + number_of_variable("QUELL_COMMAND_SEQUENCES", SEQUENCES) {
        let Some(play) = Play::raise(seed) else { return };
        play.play(seed);
    }
}
