//! Reads values of queues and epolls without Quell's code, so that a test does not believe what it tests.

use std::cell::RefCell;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};

use crate::{Lacks, skip};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelNapi {
    pub id: u64,
    pub defer_hard_irqs: Option<u64>,
    pub gro_flush_timeout_ns: Option<u64>,
    pub irq_suspend_timeout_ns: Option<u64>,
    pub threaded: Option<u64>,
}

/// A process in a network namespace that reads by raw messages and system calls. Dropping the value ends it.
#[derive(Debug)]
pub struct KernelValues {
    process: Child,
    answers: RefCell<BufReader<ChildStdout>>,
}

impl KernelValues {
    /// Starts the process in the named namespace. Returns `None`, and records the test as skipped, without python3.
    pub fn of_namespace(name: &str) -> Option<Self> {
        let mut python = Command::new("python3");
        python.args(["-c", include_str!("kernel_values.py"), &format!("/run/netns/{name}")]);
        let Ok(mut process) = python.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else {
            skip(Lacks::Tool("python3"), "python3 is not installed");
            return None;
        };
        let answers = RefCell::new(BufReader::new(process.stdout.take().unwrap()));
        Some(Self { process, answers })
    }

    pub fn napis(&self, device: &str) -> Vec<KernelNapi> {
        let napi = |line: String| {
            let mut words = line.split(' ').map(|word| word.parse::<u64>().ok());
            let mut next = || words.next().unwrap();
            KernelNapi {
                id: next().unwrap(),
                defer_hard_irqs: next(),
                gro_flush_timeout_ns: next(),
                irq_suspend_timeout_ns: next(),
                threaded: next(),
            }
        };
        self.ask(&format!("napis {device}")).into_iter().map(napi).collect()
    }

    /// `busy_poll_usecs/busy_poll_budget/prefer_busy_poll` of an epoll.
    pub fn epoll(&self, pid: u32, fd: i32) -> String {
        self.ask(&format!("epoll {pid} {fd}")).remove(0)
    }

    fn ask(&self, request: &str) -> Vec<String> {
        writeln!(self.process.stdin.as_ref().unwrap(), "{request}").unwrap();
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            assert_ne!(self.answers.borrow_mut().read_line(&mut line).unwrap(), 0, "no answer to {request}");
            match line.trim_end() {
                "." => return lines,
                line => lines.push(line.to_owned()),
            }
        }
    }
}

impl Drop for KernelValues {
    fn drop(&mut self) {
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}
