//! A responder or a load in a process of its own, in a namespace of a lab.

use std::io::{BufRead, BufReader, Read as _};
use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::process::{Child, ChildStdout, Command, Stdio};

use quell_linux::netns::Namespace;
use quell_test_support::entry;
use quell_xdp::{PollWay, XdpProgress, XdpResponder, XdpSchedule};

use crate::allocations::allocations;
use crate::lab::{PORT, load, responder};

const ADDRESS: &str = "QT_XDP_ADDRESS";
const WAY: &str = "QT_XDP_WAY";
const REQUESTS: &str = "QT_XDP_REQUESTS";
const COUNTED: &str = "counted: ";

pub(crate) struct OtherProcess {
    pub(crate) child: Child,
    said: BufReader<ChildStdout>,
}

/// What a process counted.
#[derive(Debug)]
pub(crate) struct Counted {
    pub(crate) requests: u64,
    pub(crate) allocations: u64,
}

fn spawn<F: Fn()>(namespace: &Namespace, before: &[&str], function: F, env: &[(&str, String)]) -> OtherProcess {
    let this = std::env::current_exe().unwrap();
    let words: Vec<String> = before.iter().map(|&word| word.to_owned()).collect();
    let words: Vec<String> = words.into_iter().chain([this.to_str().unwrap().to_owned()]).collect();
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).args(entry(function)).arg("--test-threads=1").envs(env.iter().cloned());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = namespace.run(|| command.spawn()).unwrap().unwrap();
    let said = BufReader::new(child.stdout.take().unwrap());
    OtherProcess { child, said }
}

/// Starts a responder in another process, by a command such as `strace`. Returns once it answers.
pub(crate) fn start_responder(namespace: &Namespace, before: &[&str], address: SocketAddr) -> OtherProcess {
    let env = [(ADDRESS, address.to_string())];
    let mut process = spawn(namespace, before, the_responder_of_another_process, &env);
    process.line_with("answering");
    process
}

/// Runs a closed loop of at least this number of requests in another process.
pub(crate) fn run_load(
    namespace: &Namespace,
    before: &[&str],
    address: SocketAddr,
    way: PollWay,
    requests: u64,
) -> Counted {
    let env = [(ADDRESS, address.to_string()), (WAY, way.name().to_owned()), (REQUESTS, requests.to_string())];
    spawn(namespace, before, the_load_of_another_process, &env).end()
}

impl OtherProcess {
    fn line_with(&mut self, word: &str) -> String {
        let mut line = String::new();
        while !line.contains(word) {
            line.clear();
            assert!(self.said.read_line(&mut line).unwrap() > 0, "the process exited early: {:?}", self.child.wait());
        }
        line
    }

    /// Lets the process end, and returns what it counted.
    pub(crate) fn end(mut self) -> Counted {
        drop(self.child.stdin.take());
        let line = self.line_with(COUNTED);
        let numbers = line.split(COUNTED).nth(1).unwrap().split_whitespace();
        let numbers: Vec<u64> = numbers.map(|number| number.parse().unwrap()).collect();
        assert!(self.child.wait().unwrap().success());
        Counted { requests: numbers[0], allocations: numbers[1] }
    }
}

/// Runs a closed loop until this number of requests has been answered. Returns their number.
pub(crate) fn closed_loop(address: SocketAddr, way: PollWay, requests: u64) -> u64 {
    let mut spec = load(address.ip(), way, XdpSchedule::Closed { depth: 1 });
    (spec.warm_up_ms, spec.measure_ms) = (0, 60_000);
    let until_answered =
        |now: XdpProgress| if now.answered < requests { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
    quell_xdp::run(&spec, &mut { until_answered }).unwrap().sent
}

fn env<T: std::str::FromStr<Err: std::fmt::Debug>>(name: &str) -> T {
    std::env::var(name).unwrap().parse().unwrap()
}

#[test]
#[ignore = "entry point of another process"]
fn the_responder_of_another_process() {
    let address: SocketAddr = env(ADDRESS);
    assert_eq!(address.port(), PORT);
    let answering = XdpResponder::start(&responder(address.ip(), PollWay::Interrupts)).unwrap();
    println!("answering");
    // Until the end of standard input.
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    let allocations = allocations();
    println!("{COUNTED}{} {allocations}", answering.stats().answered);
}

#[test]
#[ignore = "entry point of another process"]
fn the_load_of_another_process() {
    let address: SocketAddr = env(ADDRESS);
    let way = match env::<String>(WAY).as_str() {
        "udp-busy-poll" => PollWay::UdpBusyPoll,
        "io-uring" => PollWay::IoUring,
        "io-uring-thread" => PollWay::IoUringThread,
        _ => PollWay::Interrupts,
    };
    let requests = closed_loop(address, way, env(REQUESTS));
    println!("{COUNTED}{requests} {}", allocations());
}
