//! The generator against servers that misbehave. Every error is counted, and nothing hangs.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::thread;
use std::time::{Duration, Instant};

use quell_load::{
    Distribution, ErrorCounts, Generator, KeyValues, LoadError, LoadReport, LoadSpec, RequestResponse, RunObserver,
    RunProgress, RunSpec, Schedule, Transport, Workload,
};

const OPEN: Schedule = Schedule::Open { rate_per_s: 2_000.0, gaps: Distribution::POISSON_GAPS };
const BOTH: [Schedule; 2] = [Schedule::Closed, OPEN];

/// A server that passes every connection to `serve` on its own thread. It runs until the test process exits.
fn server(serve: fn(TcpStream)) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            thread::spawn(move || serve(connection));
        }
    });
    address
}

fn spec(address: SocketAddr, workload: Workload) -> LoadSpec {
    LoadSpec { connections: 4, response_timeout_ms: 100, ..LoadSpec::new(address, Transport::Tcp, workload) }
}

fn fixed() -> Workload {
    Workload::RequestResponse(RequestResponse { request_bytes: 8, response_bytes: 8, check_content: false })
}

fn memcached() -> Workload {
    Workload::Memcached(KeyValues { keys: 10, value_bytes: Distribution::fixed(100), ..KeyValues::facebook() })
}

fn run(spec: LoadSpec, schedule: Schedule) -> LoadReport {
    let mut generator = Generator::connect(spec, None).unwrap();
    generator.run(&RunSpec { schedule, warm_up_ms: 0, measure_ms: 300 }, &mut ()).unwrap()
}

/// Reads at least one request; `false` at the end of the connection.
fn read_some(connection: &mut TcpStream) -> bool {
    connection.read(&mut [0; 4096]).is_ok_and(|length| length > 0)
}

fn hold_open(mut connection: TcpStream) {
    while read_some(&mut connection) {}
}

#[test]
fn a_server_that_never_answers_times_out() {
    for schedule in BOTH {
        let report = run(spec(server(hold_open), fixed()), schedule);
        assert!(report.errors.timed_out >= 4, "{report:?}");
        assert_eq!((report.answered_in_window, report.errors.malformed), (0, 0));
        assert_eq!(report.latency.p50(), None);
    }
}

#[test]
fn connections_closed_by_the_server_are_counted_and_reopened() {
    fn answer_thrice(mut connection: TcpStream) {
        for _ in 0..3 {
            if !read_some(&mut connection) || connection.write_all(&[0; 8]).is_err() {
                return;
            }
        }
    }
    for schedule in BOTH {
        let report = run(spec(server(answer_thrice), fixed()), schedule);
        assert!(report.errors.connections_lost >= 4 && report.errors.reconnected >= 4, "{report:?}");
        assert!(report.answered_in_window >= 12, "{report:?}");
    }
}

#[test]
fn a_reset_by_the_server_loses_the_outstanding_requests() {
    fn reset(mut connection: TcpStream) {
        // Closing a socket with unread data resets the connection.
        let _ = connection.read(&mut [0; 1]);
    }
    let report = run(spec(server(reset), fixed()), Schedule::Closed);
    assert!(report.errors.connections_lost >= 4 && report.errors.requests_lost >= 4, "{report:?}");
    assert_eq!(report.answered_in_window, 0);
}

#[test]
fn a_server_that_dies_is_retried_until_the_end_of_the_run() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let dying = thread::spawn(move || {
        let mut connections: Vec<_> = (0..4).map(|_| listener.accept().unwrap().0).collect();
        for connection in &mut connections {
            read_some(connection);
            connection.write_all(&[0; 8]).unwrap();
        }
    });
    let report = run(spec(address, fixed()), Schedule::Closed);
    dying.join().unwrap();
    assert_eq!(report.errors.connections_lost, 4, "{report:?}");
    assert!(report.errors.reconnects_failed >= 4, "{report:?}");
    assert_eq!(report.answered_in_window, 4);
}

#[test]
fn a_refused_connection_is_an_error_with_the_address_before_the_run() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let error = Generator::connect(spec(address, fixed()), None).err().unwrap();
    assert!(matches!(error, LoadError::Connect { .. }));
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}

#[test]
fn garbage_is_malformed_and_its_connection_is_dropped() {
    fn garbage(mut connection: TcpStream) {
        while read_some(&mut connection) && connection.write_all(b"\x00\xffgarbage\r\n").is_ok() {}
    }
    for schedule in BOTH {
        let report = run(spec(server(garbage), memcached()), schedule);
        assert!(report.errors.malformed >= 4, "{report:?}");
        assert_eq!(report.answered_in_window, 0);
    }
}

#[test]
fn an_unsolicited_answer_is_malformed() {
    fn twice(mut connection: TcpStream) {
        while read_some(&mut connection) && connection.write_all(&[0; 16]).is_ok() {}
    }
    let report = run(spec(server(twice), fixed()), Schedule::Closed);
    assert!(report.errors.malformed >= 4, "{report:?}");
}

#[test]
fn half_an_answer_times_out_and_the_rest_is_not_attributed_to_the_next_request() {
    fn half(mut connection: TcpStream) {
        while read_some(&mut connection) && connection.write_all(&[0; 4]).is_ok() {}
    }
    let report = run(spec(server(half), fixed()), Schedule::Closed);
    assert!(report.errors.timed_out >= 4, "{report:?}");
    assert_eq!((report.answered_in_window, report.errors.malformed), (0, 0));
}

#[test]
fn an_answer_in_single_bytes_is_an_answer() {
    fn dribble(mut connection: TcpStream) {
        connection.set_nodelay(true).unwrap();
        while read_some(&mut connection) {
            for byte in b"END\r\n" {
                if connection.write_all(&[*byte]).is_err() {
                    return;
                }
            }
        }
    }
    let report = run(spec(server(dribble), memcached()), Schedule::Closed);
    assert!(report.misses > 0 && report.errors.is_empty(), "{report:?}");
    assert_eq!(report.hits, 0);
}

#[test]
fn error_lines_are_server_errors_and_the_connection_stays_open() {
    fn out_of_memory(mut connection: TcpStream) {
        while read_some(&mut connection) && connection.write_all(b"SERVER_ERROR out of memory\r\n").is_ok() {}
    }
    let report = run(spec(server(out_of_memory), memcached()), Schedule::Closed);
    assert!(report.errors.server_errors > 4, "{report:?}");
    assert_eq!(report.errors, ErrorCounts { server_errors: report.errors.server_errors, ..ErrorCounts::default() });
}

#[test]
fn a_value_that_was_never_stored_is_wrong_content() {
    fn liar(mut connection: TcpStream) {
        let mut request = [0; 4096];
        while let Ok(length) = connection.read(&mut request) {
            let Some(key) = request[..length].strip_prefix(b"get ").and_then(|rest| rest.strip_suffix(b"\r\n")) else {
                return;
            };
            let answer = [b"VALUE ", key, b" 0 3\r\nlie\r\nEND\r\n"].concat();
            if connection.write_all(&answer).is_err() {
                return;
            }
        }
    }
    let report = run(spec(server(liar), memcached()), Schedule::Closed);
    assert!(report.errors.wrong_content > 4, "{report:?}");
    assert_eq!((report.hits, report.errors.malformed), (0, 0));
}

#[test]
fn preloading_a_server_that_loses_keys_reports_how_many_are_missing() {
    fn forgetful(mut connection: TcpStream) {
        let mut request = [0; 4096];
        while let Ok(length) = connection.read(&mut request) {
            let answer: &[u8] = if request[..length].starts_with(b"set ") { b"STORED\r\n" } else { b"END\r\n" };
            if length == 0 || connection.write_all(answer).is_err() {
                return;
            }
        }
    }
    let mut generator = Generator::connect(spec(server(forgetful), memcached()), None).unwrap();
    let error = generator.preload(Generator::PRELOAD_LIMIT, &mut ()).unwrap_err();
    assert!(matches!(error, LoadError::Preload { keys: 10, present: 0, .. }), "{error}");
}

#[test]
fn preloading_a_slow_server_ends_at_the_time_limit() {
    fn slow(mut connection: TcpStream) {
        while read_some(&mut connection) {
            thread::sleep(Duration::from_millis(50));
            if connection.write_all(b"STORED\r\n").is_err() {
                return;
            }
        }
    }
    let Workload::Memcached(few) = memcached() else { unreachable!() };
    let many = Workload::Memcached(KeyValues { keys: 1_000_000, ..few });
    let mut generator = Generator::connect(spec(server(slow), many), None).unwrap();
    let limit = Duration::from_millis(300);
    let error = generator.preload(limit, &mut ()).unwrap_err();
    assert!(matches!(error, LoadError::PreloadTooSlow { keys: 1_000_000, phase: "stored", .. }), "{error}");
}

#[test]
fn open_loop_latency_includes_the_wait_for_a_slow_server() {
    fn slow(mut connection: TcpStream) {
        while read_some(&mut connection) {
            thread::sleep(Duration::from_millis(10));
            if connection.write_all(&[0; 8]).is_err() {
                return;
            }
        }
    }
    let report = run(spec(server(slow), fixed()), OPEN);
    let (from_due, from_send) = (report.latency.p50().unwrap(), report.latency_from_send.p50().unwrap());
    assert!(report.waited_for_connection > 0 && report.never_sent > 0, "{report:?}");
    assert!(from_due > from_send * 2, "{from_due:?} {from_send:?}");
}

struct CancelAtOnce;

impl RunObserver for CancelAtOnce {
    fn progress(&mut self, _: &RunProgress) -> ControlFlow<()> {
        ControlFlow::Break(())
    }
}

struct CancelAfterAnswers;

impl RunObserver for CancelAfterAnswers {
    fn progress(&mut self, run: &RunProgress) -> ControlFlow<()> {
        if run.answered > 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

#[test]
fn a_cancelled_run_ends_early_and_another_can_follow() {
    fn echo(mut connection: TcpStream) {
        while read_some(&mut connection) && connection.write_all(&[0; 8]).is_ok() {}
    }
    let mut generator = Generator::connect(spec(server(echo), fixed()), None).unwrap();
    let begun = Instant::now();
    let hour = RunSpec { schedule: Schedule::Closed, warm_up_ms: 0, measure_ms: 3_600_000 };
    assert!(matches!(generator.run(&hour, &mut CancelAtOnce), Err(LoadError::Cancelled)));
    let warms_up = RunSpec { warm_up_ms: 3_600_000, ..hour };
    assert!(matches!(generator.run_until_cancelled(&warms_up, &mut CancelAtOnce), Err(LoadError::Cancelled)));
    let part = generator.run_until_cancelled(&hour, &mut CancelAfterAnswers).unwrap();
    assert!(part.answered_in_window > 0 && part.unanswered == 0, "{part:?}");
    assert!(begun.elapsed() < Duration::from_secs(60));
    let report = generator.run(&RunSpec { measure_ms: 100, ..hour }, &mut ()).unwrap();
    assert!(report.answered_in_window > 0 && report.errors.malformed == 0, "{report:?}");
}

#[test]
fn a_run_whose_connections_keep_failing_is_cancelled_during_its_window() {
    struct CancelAfterFailures(u32);
    impl RunObserver for CancelAfterFailures {
        fn progress(&mut self, _: &RunProgress) -> ControlFlow<()> {
            self.0 += 1;
            if self.0 > 10 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        }
    }
    for schedule in BOTH {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let spec = LoadSpec { threads: 2, ..spec(listener.local_addr().unwrap(), fixed()) };
        let mut generator = Generator::connect(spec, None).unwrap();
        // Resets the connections, and refuses others.
        drop(listener);
        let begun = Instant::now();
        let hour = RunSpec { schedule, warm_up_ms: 0, measure_ms: 3_600_000 };
        let report = generator.run_until_cancelled(&hour, &mut CancelAfterFailures(0)).unwrap();
        drop(generator);
        assert!(begun.elapsed() < Duration::from_secs(60));
        assert!(report.errors.connections_lost >= 4, "{report:?}");
    }
}
