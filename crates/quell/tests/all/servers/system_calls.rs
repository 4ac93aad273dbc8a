//! An attached program makes the same system calls as before. strace counts them per request over one connection,
//! before and after `quell attach`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use quell_linux::pidfd::Signal;
use quell_linux::process::{Output, Spawn};
use quell_test_support::{Lacks, skip_part, wait_until};

use super::client::Effort;
use super::lab::{Launch, Running, Server, ServersLab};
use super::program::Program;

/// Minimum number of calls per request. Rarer calls come from timers, not from requests.
const PER_REQUEST_MIN: f64 = 0.5;
/// System calls in which idle threads sleep. Their number depends on time, not on requests.
const SLEEPS: &[&str] = &["clock_nanosleep", "restart_syscall"];
/// Tolerated difference per request, caused by the start and the end of a run.
const TOLERANCE: f64 = 0.02;

/// Calls per request, by name.
type Calls = BTreeMap<String, f64>;

/// Counts the server's system calls while one client sends one request after the other.
fn calls_per_request(lab: &ServersLab, program: Program, server: &Server) -> Calls {
    let file = lab.dir().join("strace");
    let strace = strace(&file, server);
    let client = lab.start_client(program.client(), server.address, Effort::OneByOne);
    let answered = client.end().unwrap().answered;
    strace.0.pidfd().signal(Signal::INT).unwrap();
    strace.end();
    let counted = counts(&std::fs::read_to_string(file).unwrap());
    assert!(answered > 500 && !counted.is_empty(), "{answered} answers, {counted:?}");
    counted.into_iter().map(|(name, calls)| (name, calls as f64 / answered as f64)).collect()
}

/// Returns when all threads of the server are traced.
fn strace(file: &Path, server: &Server) -> Running {
    let pid = server.pid().to_string();
    let options = ["-f", "-c", "-U", "name,calls", "-p", &pid, "-o"];
    let spawn = Spawn::new("strace").args(options).args([file]).stdout(Output::Tail(4_096)).stderr(Output::Tail(4_096));
    let strace = Running(spawn.start().unwrap());
    wait_until(|| {
        let said = String::from_utf8(strace.0.stderr_tail().unwrap()).unwrap();
        if said.contains("attached") { Ok(()) } else { Err(format!("strace is not attached: {said}")) }
    });
    strace
}

/// Parses lines of the form `name calls`. Skips the heading, the rules and the total.
fn counts(summary: &str) -> BTreeMap<String, u64> {
    let line = |line: &str| {
        let (name, calls) = line.trim().split_once(' ')?;
        Some((name.to_owned(), calls.trim().parse().ok()?))
    };
    summary.lines().filter_map(line).filter(|(name, _)| name != "total").collect()
}

fn assert_alike(before: &Calls, after: &Calls) {
    let count = |calls: &Calls, name: &str| calls.get(name).copied().unwrap_or(0.0);
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let made = |name: &&String| count(before, name).max(count(after, name)) > PER_REQUEST_MIN;
    let made: Vec<&String> = names.into_iter().filter(made).filter(|name| !SLEEPS.contains(&name.as_str())).collect();
    assert!(!made.is_empty(), "{before:?}");
    for name in made {
        let (before, after) = (count(before, name), count(after, name));
        assert!((before - after).abs() < TOLERANCE, "{name}: {before} per request before, {after} while attached");
    }
}

#[test]
fn an_attached_program_makes_the_same_system_calls_per_request() {
    let Some(lab) = ServersLab::raise(1) else { return };
    for program in [Program::Memcached, Program::Redis] {
        let strace = Spawn::new("strace").args(["-V"]).start().map_err(|error| error.to_string());
        if let Some(why) = program.missing().or(strace.err()) {
            skip_part(Lacks::Server(program.name()), format_args!("{}: {why}", program.name()));
            continue;
        }
        let server = lab.serve(program, 1, Launch::Plain).unwrap();
        let before = calls_per_request(&lab, program, &server);
        let client = lab.start_client(program.client(), server.address, Effort::WarmUp);
        lab.wait_until_connected(&server);
        lab.quell(&["attach", "suspend200", &server.pid().to_string(), "--yes"]).succeeded().unwrap();
        client.end().unwrap();
        let after = calls_per_request(&lab, program, &server);
        assert_alike(&before, &after);
        lab.quell(&["detach", &server.pid().to_string()]).succeeded().unwrap();
        server.stop();
    }
}

#[test]
fn a_summary_of_strace_is_parsed() {
    let summary = "syscall             calls\n---------------- ---------\nepoll_wait            120\nread                   60\n\
        ---------------- ---------\ntotal                 180\n";
    let expected = [("epoll_wait".to_owned(), 120), ("read".to_owned(), 60)];
    assert_eq!(counts(summary), BTreeMap::from(expected));
}
