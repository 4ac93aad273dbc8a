//! `quell respond` and `quell load` together, over the loopback: no privileges, no lab. What they count is compared,
//! never how fast they were.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests fail by panicking")]

use std::io::{BufRead as _, BufReader, Read as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use quell_linux::Pid;
use quell_linux::pidfd::{PidFd, Signal};
use serde_json::Value;

/// A server that is killed when it is dropped.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// `quell respond` on a port that the kernel chose.
    fn respond(options: &[&str]) -> Self {
        let mut program = Command::new(env!("CARGO_BIN_EXE_quell"));
        program.args(["respond", "127.0.0.1:0", "--json"]).args(options);
        let mut child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("it said {line:?}"));
        Self { address: address.parse().unwrap(), child }
    }

    /// Ends it with a signal; its exit code and its report.
    fn interrupt(mut self) -> (Option<i32>, Value) {
        let pid = Pid::from_kernel(self.child.id()).unwrap();
        PidFd::open(pid).unwrap().signal(Signal::INT).unwrap();
        let mut report = String::new();
        self.child.stdout.take().unwrap().read_to_string(&mut report).unwrap();
        (self.child.wait().unwrap().code(), serde_json::from_str(&report).unwrap())
    }
}

fn load(address: SocketAddr, options: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_quell"));
    program.args(["load", &address.to_string(), "--connections=4", "--warm-up=0.1", "--seconds=0.2"]);
    program.args(options).output().unwrap()
}

fn report(output: &Output) -> Value {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["schema"], "quell-load/1");
    document["report"].clone()
}

#[test]
fn every_request_is_answered_over_tcp_and_udp_in_both_shapes() {
    for shape in ["--shape=epoll", "--shape=blocking"] {
        for transport in [&[][..], &["--udp"]] {
            let responder = Server::respond(&[&[shape], transport].concat());
            let own = ["--protocol=request-response", "--check-content", "--rate=2000", "--json"];
            let report = report(&load(responder.address, &[&own, transport].concat()));
            let (code, served) = responder.interrupt();
            assert_eq!(code, Some(0), "an interruption is how it is meant to end");
            assert_eq!(served["schema"], "quell-respond/1");
            let answered = report["answered-in-window"].as_u64().unwrap();
            assert!(answered > 0, "{shape} {transport:?}: {report}");
            assert!(served["answered"].as_u64().unwrap() >= answered, "{shape} {transport:?}: {served}");
            let failed = report["errors"].as_object().unwrap().values().filter(|count| **count != 0).count();
            assert_eq!(failed, 0, "{shape} {transport:?}: {}", report["errors"]);
        }
    }
}

#[test]
fn a_closed_loop_is_answered_and_told_in_words() {
    let responder = Server::respond(&[]);
    let output = load(responder.address, &["--protocol=request-response"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("requests/s answered") && text.contains("from intended send"), "{text}");
    assert!(!text.contains("errors:"), "{text}");
}

#[test]
fn a_port_where_nobody_listens_is_named_with_the_kernels_answer() {
    let tcpmux = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let output = load(tcpmux, &["--rate=1000"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("127.0.0.1:1") && text.contains("refused"), "{text}");
}

#[test]
fn an_address_that_is_taken_is_named_with_the_kernels_answer() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_quell")).args(["respond", &address]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains(&address) && text.contains("in use"), "{text}");
}

#[test]
fn memcached_has_every_key_that_was_stored_first() {
    let Some(server) = memcached() else { return };
    let report = report(&load(server.address, &["--keys=500", "--rate=2000", "--json"]));
    assert!(report["hits"].as_u64() > Some(0), "{report}");
    assert_eq!(report["misses"], 0, "{report}");
}

#[test]
fn memcached_without_the_keys_misses() {
    let Some(server) = memcached() else { return };
    let report = report(&load(server.address, &["--no-preload", "--get-share=1", "--keys=500", "--json"]));
    assert_eq!(report["hits"], 0, "{report}");
    assert!(report["misses"].as_u64() > Some(0), "{report}");
}

/// memcached on a port that was free a moment ago; `None` where there is no memcached.
fn memcached() -> Option<Server> {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let port = address.port().to_string();
    let arguments = ["-u", "root", "-U", "0", "-l", "127.0.0.1", "-p", &port, "-t", "1"];
    let child = match Command::new("memcached").args(arguments).spawn() {
        Ok(child) => child,
        Err(error) => {
            eprintln!("skipped: memcached: {error}");
            return None;
        }
    };
    let server = Server { child, address };
    let deadline = Instant::now() + Duration::from_secs(10);
    while TcpStream::connect(address).is_err() {
        assert!(Instant::now() < deadline, "memcached does not listen at {address}");
        std::thread::sleep(Duration::from_millis(10));
    }
    Some(server)
}
