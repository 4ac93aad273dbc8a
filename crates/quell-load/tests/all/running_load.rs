//! Windows of a load that keeps running: every request due in a window is in exactly one report, and no window affects
//! the next.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use quell_load::{
    Distribution, Generator, LoadError, LoadReport, LoadSpec, RequestResponse, Responder, ResponderSpec, RunObserver,
    RunProgress, RunSpec, RunningLoad, Schedule, ServeShape, Transport, Workload,
};
use quell_test_support::wait_until;

const SIZES: RequestResponse = RequestResponse { request_bytes: 8, response_bytes: 8, check_content: false };
const RATE_PER_S: f64 = 2_000.0;
/// 200 requests at [`RATE_PER_S`].
const WINDOW: Duration = Duration::from_millis(100);
const REQUESTS: u64 = 200;
const CONNECTIONS: u32 = 4;

fn uniform() -> Schedule {
    Schedule::Open { rate_per_s: RATE_PER_S, gaps: Distribution::fixed(1) }
}

fn spec(address: SocketAddr) -> LoadSpec {
    let spec = LoadSpec::new(address, Transport::Tcp, Workload::RequestResponse(SIZES));
    LoadSpec { connections: CONNECTIONS, threads: 2, response_timeout_ms: 60_000, ..spec }
}

fn responder(address: SocketAddr) -> Responder {
    let (transport, shape) = (Transport::Tcp, ServeShape::Epoll);
    let spec = ResponderSpec { address, transport, shape, sizes: SIZES, work_us: 0, workers: 1, cpus: vec![] };
    Responder::start(spec, None).unwrap()
}

fn any_port() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

fn running(spec: LoadSpec, schedule: Schedule) -> RunningLoad {
    Generator::connect(spec, None).unwrap().keep_running(schedule).unwrap()
}

/// Number of requests that were due in the window of a report, each of which has a latency. The load has no errors.
fn due(report: &LoadReport) -> u64 {
    assert!(report.errors.is_empty(), "{report:?}");
    assert_eq!(report.sent + report.never_sent, report.latency.count(), "{report:?}");
    report.sent + report.never_sent
}

/// A server that answers while its gate is open.
#[derive(Clone)]
struct Stallable {
    address: SocketAddr,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    is_closed: Mutex<bool>,
    opened: Condvar,
    answered: AtomicU64,
}

impl Gate {
    fn set(&self, is_closed: bool) {
        *self.is_closed.lock().unwrap() = is_closed;
        self.opened.notify_all();
    }

    fn serve(&self, mut connection: TcpStream) {
        while connection.read_exact(&mut [0; SIZES.request_bytes as usize]).is_ok() {
            drop(self.opened.wait_while(self.is_closed.lock().unwrap(), |closed| *closed).unwrap());
            self.answered.fetch_add(1, Ordering::SeqCst);
            if connection.write_all(&[0; SIZES.response_bytes as usize]).is_err() {
                return;
            }
        }
    }
}

fn stallable() -> Stallable {
    let listener = TcpListener::bind(any_port()).unwrap();
    let server = Stallable { address: listener.local_addr().unwrap(), gate: Arc::default() };
    let gate = Arc::clone(&server.gate);
    thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            connection.set_nodelay(true).unwrap();
            let gate = Arc::clone(&gate);
            thread::spawn(move || gate.serve(connection));
        }
    });
    server
}

/// Stalls the server from the start of the window.
struct StallAtStart<'a>(&'a Gate);

impl RunObserver for StallAtStart<'_> {
    fn window_started(&mut self) {
        self.0.set(true);
    }
}

#[test]
fn every_request_of_an_open_loop_is_in_exactly_one_report() {
    let responder = responder(any_port());
    let mut load = running(spec(responder.address()), uniform());
    for _ in 0..5 {
        assert_eq!(due(&load.measure(WINDOW, &mut ()).unwrap()), REQUESTS);
    }
    let mut generator = load.stop().unwrap();
    // The connections are unchanged and can be used again.
    let run = RunSpec { schedule: uniform(), warm_up_ms: 0, measure_ms: 50 };
    assert!(generator.run(&run, &mut ()).unwrap().errors.is_empty());
    assert_eq!(responder.stop().accepted, u64::from(CONNECTIONS));
}

#[test]
fn random_arrivals_keep_their_rate_over_all_windows() {
    let responder = responder(any_port());
    let poisson = Schedule::Open { rate_per_s: RATE_PER_S, gaps: Distribution::POISSON_GAPS };
    let mut load = running(spec(responder.address()), poisson);
    let total: u64 = (0..5).map(|_| due(&load.measure(WINDOW, &mut ()).unwrap())).sum();
    let expected = 5.0 * REQUESTS as f64;
    // Five standard deviations.
    assert!((total as f64 - expected).abs() < 5.0 * expected.sqrt(), "{total}");
}

#[test]
fn every_request_of_a_closed_loop_is_in_one_report_at_most() {
    for batched_sends in [false, true] {
        let responder = responder(any_port());
        let mut load = running(LoadSpec { batched_sends, ..spec(responder.address()) }, Schedule::Closed);
        let in_reports: u64 = (0..5)
            .map(|_| {
                let report = load.measure(Duration::from_millis(30), &mut ()).unwrap();
                assert!(report.answered_in_window > 0 && report.cpu.is_some());
                due(&report)
            })
            .sum();
        load.stop().unwrap();
        assert!(in_reports <= responder.stop().answered);
    }
}

#[test]
fn a_stall_in_one_window_of_an_open_loop_leaves_the_next_one_clean() {
    let server = stallable();
    let mut load = running(spec(server.address), uniform());
    let begun = Instant::now();
    let stalled = load.measure(3 * WINDOW, &mut StallAtStart(&server.gate)).unwrap();
    assert_eq!(due(&stalled), 3 * REQUESTS);
    assert!(stalled.never_sent > 0, "{stalled:?}");
    let answered = server.gate.answered.load(Ordering::SeqCst);
    server.gate.set(false);
    let after = load.measure(WINDOW, &mut ()).unwrap();
    assert_eq!(due(&after), REQUESTS);
    load.stop().unwrap();
    // Everything answered since then was due after the stalled window, except for one request per connection.
    let since = begun.elapsed() - 3 * WINDOW;
    let answered = server.gate.answered.load(Ordering::SeqCst) - answered;
    assert!(answered as f64 <= since.as_secs_f64() * RATE_PER_S + 2.0 * f64::from(CONNECTIONS), "{answered} {since:?}");
}

#[test]
fn a_stall_within_a_window_is_in_the_latencies_of_that_window_alone() {
    let server = stallable();
    let mut load = running(spec(server.address), uniform());
    let gate = Arc::clone(&server.gate);
    let stall = Duration::from_millis(100);
    let opener = thread::spawn(move || {
        wait_until(|| gate.is_closed.lock().unwrap().then_some(()).ok_or("the window has not begun".to_owned()));
        thread::sleep(stall);
        gate.set(false);
    });
    let stalled = load.measure(3 * WINDOW, &mut StallAtStart(&server.gate)).unwrap();
    opener.join().unwrap();
    assert_eq!(due(&stalled), 3 * REQUESTS);
    assert!(stalled.waited_for_connection > 0 || stalled.never_sent > 0, "{stalled:?}");
    assert_eq!(due(&load.measure(WINDOW, &mut ()).unwrap()), REQUESTS);
}

#[test]
fn a_closed_loop_goes_on_after_a_stall_with_its_requests_unanswered() {
    let server = stallable();
    let mut load = running(spec(server.address), Schedule::Closed);
    let stalled = load.measure(WINDOW, &mut StallAtStart(&server.gate)).unwrap();
    due(&stalled);
    assert!(stalled.unanswered <= u64::from(CONNECTIONS), "{stalled:?}");
    // Nothing more is sent once every connection waits for an answer.
    wait_until(|| {
        let idle = load.measure(WINDOW, &mut ()).unwrap();
        if (due(&idle), idle.answered_in_window) == (0, 0) { Ok(()) } else { Err(format!("{idle:?}")) }
    });
    server.gate.set(false);
    let after = load.measure(WINDOW, &mut ()).unwrap();
    due(&after);
    assert!(after.answered_in_window > 0, "{after:?}");
}

struct CancelAtStart(bool);

impl RunObserver for CancelAtStart {
    fn window_started(&mut self) {
        self.0 = true;
    }

    fn progress(&mut self, _: &RunProgress) -> ControlFlow<()> {
        if self.0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

#[test]
fn after_a_cancelled_window_the_next_one_is_complete() {
    let responder = responder(any_port());
    let mut load = running(spec(responder.address()), uniform());
    let hour = Duration::from_secs(3_600);
    assert!(matches!(load.measure(hour, &mut CancelAtStart(false)), Err(LoadError::Cancelled)));
    assert_eq!(due(&load.measure(WINDOW, &mut ()).unwrap()), REQUESTS);
}

#[test]
fn an_empty_window_is_refused() {
    let responder = responder(any_port());
    let mut load = running(spec(responder.address()), Schedule::Closed);
    assert!(matches!(load.measure(Duration::ZERO, &mut ()), Err(LoadError::Spec { field: "window", .. })));
}

#[test]
fn dropping_a_running_load_closes_its_connections() {
    for schedule in [Schedule::Closed, uniform()] {
        let listener = TcpListener::bind(any_port()).unwrap();
        let mut load = running(spec(listener.local_addr().unwrap()), schedule);
        load.measure(Duration::from_millis(10), &mut ()).unwrap();
        drop(load);
        for _ in 0..CONNECTIONS {
            let mut connection = listener.accept().unwrap().0;
            // Returns when the connection is closed.
            connection.read_to_end(&mut Vec::new()).unwrap();
        }
    }
}

#[test]
fn a_killed_server_is_in_the_report_and_the_load_reconnects_to_the_next_one() {
    for schedule in [Schedule::Closed, uniform()] {
        let first = responder(any_port());
        let address = first.address();
        let mut load = running(spec(address), schedule);
        assert!(load.measure(WINDOW, &mut ()).unwrap().errors.is_empty());
        let _ = first.stop();
        let report = load.measure(WINDOW, &mut ()).unwrap();
        assert_eq!(report.errors.connections_lost, u64::from(CONNECTIONS), "{report:?}");
        let second = responder(address);
        let mut reconnected = report.errors.reconnected;
        wait_until(|| {
            reconnected += load.measure(WINDOW, &mut ()).unwrap().errors.reconnected;
            (reconnected == u64::from(CONNECTIONS)).then_some(()).ok_or(format!("{reconnected} are connected"))
        });
        due(&load.measure(WINDOW, &mut ()).unwrap());
        load.stop().unwrap();
        assert!(second.stop().answered > 0);
    }
}
