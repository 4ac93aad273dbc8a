//! Generator and responder together, in every shape, and the generator against a real memcached.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use quell_linux::process::{Output, Spawn};
use quell_linux::tcp::TcpConnection;
use quell_load::{
    Distribution, Generator, KeyValues, LoadReport, LoadSpec, RequestResponse, Responder, ResponderSpec, RunObserver,
    RunSpec, Schedule, ServeShape, Transport, Workload,
};
use quell_test_support::{Lacks, skip};

const SIZES: RequestResponse = RequestResponse { request_bytes: 100, response_bytes: 3_000, check_content: true };

fn responder(transport: Transport, shape: ServeShape, workers: u32) -> Responder {
    let address = ([127, 0, 0, 1], 0).into();
    Responder::start(ResponderSpec { address, transport, shape, sizes: SIZES, work_us: 0, workers, cpus: vec![] }, None)
        .unwrap()
}

fn spec(address: SocketAddr, transport: Transport) -> LoadSpec {
    LoadSpec { connections: 8, ..LoadSpec::new(address, transport, Workload::RequestResponse(SIZES)) }
}

fn run(spec: LoadSpec, schedule: Schedule) -> LoadReport {
    let mut generator = Generator::connect(spec, None).unwrap();
    generator.run(&RunSpec { schedule, warm_up_ms: 20, measure_ms: 150 }, &mut ()).unwrap()
}

#[test]
fn every_shape_answers_every_request_with_the_right_bytes() {
    for transport in [Transport::Tcp, Transport::Udp] {
        for shape in [ServeShape::Blocking, ServeShape::Epoll] {
            for workers in [1, 2] {
                let responder = responder(transport, shape, workers);
                let report = run(spec(responder.address(), transport), Schedule::Closed);
                assert!(report.errors.is_empty() && report.unanswered == 0, "{transport:?} {shape:?} {report:?}");
                assert!(report.answered_in_window > 0);
                assert!(responder.stop().answered >= report.answered_in_window);
            }
        }
    }
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let responder = responder(Transport::Tcp, ServeShape::Epoll, 1);
    for schedule in [Schedule::Closed, Schedule::Open { rate_per_s: 20_000.0, gaps: Distribution::FACEBOOK_GAPS }] {
        let report = run(LoadSpec { depth: 16, threads: 2, ..spec(responder.address(), Transport::Tcp) }, schedule);
        assert!(report.errors.is_empty() && report.answered_in_window > 0, "{report:?}");
    }
}

#[test]
fn an_open_loop_keeps_its_rate_and_answers_what_it_sent() {
    let responder = responder(Transport::Tcp, ServeShape::Epoll, 1);
    let schedule = Schedule::Open { rate_per_s: 1_000.0, gaps: Distribution::fixed(1) };
    let report = run(LoadSpec { depth: 64, ..spec(responder.address(), Transport::Tcp) }, schedule);
    assert_eq!(report.sent + report.never_sent, 150, "{report:?}");
    assert_eq!((report.latency.count(), report.lateness.count()), (report.sent, report.sent));
    assert_eq!(report.unanswered, 0);
}

#[test]
fn responses_larger_than_any_socket_buffer_arrive_whole() {
    let sizes = RequestResponse { request_bytes: 1 << 20, response_bytes: 1 << 20, check_content: true };
    let workload = Workload::RequestResponse(sizes.clone());
    let address = ([127, 0, 0, 1], 0).into();
    let (transport, shape) = (Transport::Tcp, ServeShape::Epoll);
    let spec = ResponderSpec { address, transport, shape, sizes, work_us: 0, workers: 1, cpus: vec![] };
    let responder = Responder::start(spec, None).unwrap();
    let report =
        run(LoadSpec { connections: 2, ..LoadSpec::new(responder.address(), transport, workload) }, Schedule::Closed);
    assert!(report.errors.is_empty() && report.answered_in_window > 0, "{report:?}");
}

#[test]
fn work_takes_the_configured_time() {
    let address = ([127, 0, 0, 1], 0).into();
    let (transport, shape) = (Transport::Tcp, ServeShape::Epoll);
    let spec_ = ResponderSpec { address, transport, shape, sizes: SIZES, work_us: 2_000, workers: 1, cpus: vec![] };
    let responder = Responder::start(spec_, None).unwrap();
    let report = run(spec(responder.address(), transport), Schedule::Closed);
    assert!(report.latency.min().is_some_and(|min| min >= Duration::from_millis(2)), "{report:?}");
}

#[test]
fn a_stopped_responder_frees_its_port() {
    for shape in [ServeShape::Blocking, ServeShape::Epoll] {
        let responder = responder(Transport::Tcp, shape, 2);
        let address = responder.address();
        let _idle = TcpConnection::connect(address, Duration::from_secs(10)).unwrap();
        let _ = responder.stop();
        assert!(TcpConnection::connect(address, Duration::from_secs(10)).is_err());
    }
}

#[derive(Default)]
struct Moments(Vec<&'static str>);

impl RunObserver for Moments {
    fn window_started(&mut self) {
        self.0.push("start");
    }

    fn window_ended(&mut self) {
        self.0.push("end");
    }
}

#[test]
fn an_observer_sees_the_window_start_and_end_once_per_run() {
    let responder = responder(Transport::Tcp, ServeShape::Epoll, 1);
    let mut generator = Generator::connect(spec(responder.address(), Transport::Tcp), None).unwrap();
    let mut moments = Moments::default();
    for _ in 0..2 {
        let run = RunSpec { schedule: Schedule::Closed, warm_up_ms: 10, measure_ms: 20 };
        let report = generator.run(&run, &mut moments).unwrap();
        assert!(report.cpu.is_some());
    }
    assert_eq!(moments.0, ["start", "end", "start", "end"]);
}

#[test]
fn every_get_hits_after_preloading_memcached() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let arguments = ["-u", "nobody", "-l", "127.0.0.1", "-p", &port.to_string(), "-t", "1"];
    let started = Spawn::new("memcached").args(arguments).stdout(Output::Null).stderr(Output::Null).start();
    let Ok(mut server) = started else { return skip(Lacks::Server("memcached"), "memcached is not installed") };
    let address: SocketAddr = ([127, 0, 0, 1], port).into();
    await_listener(address);

    let workload = KeyValues { keys: 500, get_share: 0.9, ..KeyValues::facebook() };
    let spec =
        LoadSpec { threads: 2, depth: 4, ..LoadSpec::new(address, Transport::Tcp, Workload::Memcached(workload)) };
    let mut generator = Generator::connect(spec, None).unwrap();
    assert_eq!(generator.preload(Generator::PRELOAD_LIMIT, &mut ()).unwrap(), 500);
    let run = RunSpec { schedule: Schedule::Closed, warm_up_ms: 20, measure_ms: 200 };
    let report = generator.run(&run, &mut ()).unwrap();
    server.terminate(Duration::from_secs(5)).unwrap();
    assert!(report.errors.is_empty() && report.misses == 0 && report.hits > 0, "{report:?}");
}

/// Waits until a server listens, which only a successful connect shows.
fn await_listener(address: SocketAddr) {
    for _ in 0..1_000 {
        if TcpConnection::connect(address, Duration::from_secs(1)).is_ok() {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    panic!("no server listens at {address}");
}
