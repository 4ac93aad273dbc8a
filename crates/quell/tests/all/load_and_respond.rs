//! `quell respond` and `quell load` together over loopback, without privileges and without a lab. The tests compare
//! counts and never speeds.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use quell_linux::Pid;
use quell_linux::pidfd::{PidFd, Signal};
use quell_linux::proc::ProcRoot;
use quell_test_support::{Lacks, skip, wait_until};
use serde_json::Value;

/// A server that is killed on drop.
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
    /// Starts `quell respond` on a port chosen by the kernel.
    fn respond(options: &[&str]) -> Self {
        Self::respond_by(Command::new(env!("CARGO_BIN_EXE_quell")), options)
    }

    /// Like [`Self::respond`], but started through another program.
    fn respond_by(mut program: Command, options: &[&str]) -> Self {
        program.args(["respond", "127.0.0.1:0", "--json"]).args(options);
        let mut child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("unexpected output {line:?}"));
        Self { address: address.parse().unwrap(), child }
    }

    /// Sends a request on a new connection, whose receives time out after half a second.
    fn ask(&self) -> TcpStream {
        let mut connection = TcpStream::connect(self.address).unwrap();
        connection.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        connection.write_all(&[0; 64]).unwrap();
        connection
    }

    /// CPU time of the server so far.
    fn cpu_time(&self) -> Duration {
        let stat = ProcRoot::default().process(Pid::from_kernel(self.child.id()).unwrap()).stat().unwrap();
        stat.utime.duration() + stat.stime.duration()
    }

    /// Ends the server with a signal. Returns its exit code and its report.
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
            assert_eq!(code, Some(0), "a signal is the regular way to end it");
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
fn a_closed_loop_is_answered_and_reported() {
    let responder = Server::respond(&[]);
    let output = load(responder.address, &["--protocol=request-response"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("requests/s answered") && text.contains("from intended send"), "{text}");
    assert!(!text.contains("errors:"), "{text}");
}

#[test]
fn a_signal_prints_the_report_of_the_time_so_far() {
    let responder = Server::respond(&[]);
    let mut program = Command::new(env!("CARGO_BIN_EXE_quell"));
    program.args([
        "load",
        &responder.address.to_string(),
        "--protocol=request-response",
        "--warm-up=0",
        "--seconds=600",
    ]);
    let child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until(|| match responder.cpu_time() {
        spent if spent > Duration::from_millis(50) => Ok(()),
        spent => Err(format!("the server has worked for {spent:?}")),
    });
    PidFd::open(Pid::from_kernel(child.id()).unwrap()).unwrap().signal(Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    let [text, error] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert!(text.contains("requests/s answered") && error.contains("interrupted: the report covers"), "{text}{error}");
}

#[test]
fn batches_are_supported_only_in_a_closed_loop() {
    let responder = Server::respond(&[]);
    let spec = |options: &[&str]| {
        let output = load(responder.address, &[&["--protocol=request-response", "--json"], options].concat());
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["spec"]["batched-sends"].clone()
    };
    assert_eq!((spec(&[]), spec(&["--batch"])), (false.into(), true.into()));
    let output = load(responder.address, &["--batch", "--rate=1000"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("--rate max"), "{text}");
}

#[test]
fn a_refused_connection_is_reported_with_the_kernels_error() {
    let tcpmux = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let output = load(tcpmux, &["--rate=1000"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("127.0.0.1:1") && text.contains("refused"), "{text}");
}

#[test]
fn an_address_in_use_is_reported_with_the_kernels_error() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_quell")).args(["respond", &address]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains(&address) && text.contains("in use"), "{text}");
}

#[test]
fn without_descriptors_connections_wait_and_no_thread_spins() {
    const DESCRIPTORS: usize = 40;
    const CLIENTS: usize = 60;
    let gets_response = |client: &mut TcpStream| client.read_exact(&mut [0; 64]).is_ok();
    for shape in ["--shape=epoll", "--shape=blocking"] {
        let limit = format!("ulimit -n {DESCRIPTORS} && exec \"$0\" \"$@\"");
        let mut program = Command::new("sh");
        program.args(["-c", &limit, env!("CARGO_BIN_EXE_quell")]);
        let responder = Server::respond_by(program, &[shape]);
        let mut clients: Vec<TcpStream> = (0..CLIENTS).map(|_| responder.ask()).collect();
        let answered = clients.iter_mut().map(gets_response).take_while(|answered| *answered).count();
        assert!((1..DESCRIPTORS).contains(&answered), "{shape}: {answered} answered");
        let (spent, began) = (responder.cpu_time(), Instant::now());
        assert!(
            !gets_response(&mut clients[CLIENTS - 1]),
            "{shape}: a connection without a descriptor cannot be answered"
        );
        let share = (responder.cpu_time() - spent).as_secs_f64() / began.elapsed().as_secs_f64();
        assert!(share < 0.1, "{shape}: {share:.2} of a CPU while connections wait");
        for mut client in clients.split_off(answered) {
            clients.pop();
            client.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
            let answered = client.read_exact(&mut [0; 64]);
            assert!(answered.is_ok(), "{shape}: a waiting connection: {answered:?}");
        }
        let (code, served) = responder.interrupt();
        assert_eq!((code, served["accepted"].as_u64()), (Some(0), Some(CLIENTS as u64)), "{shape}: {served}");
        assert!(served["accept-pauses"].as_u64() > Some(0), "{shape}: {served}");
    }
}

#[test]
fn preloaded_keys_of_memcached_are_hits() {
    let Some(server) = memcached() else { return };
    let report = report(&load(server.address, &["--keys=500", "--rate=2000", "--json"]));
    assert!(report["hits"].as_u64() > Some(0), "{report}");
    assert_eq!(report["misses"], 0, "{report}");
}

#[test]
fn keys_of_memcached_that_are_not_preloaded_are_misses() {
    let Some(server) = memcached() else { return };
    let report = report(&load(server.address, &["--no-preload", "--get-share=1", "--keys=500", "--json"]));
    assert_eq!(report["hits"], 0, "{report}");
    assert!(report["misses"].as_u64() > Some(0), "{report}");
}

#[test]
fn preloaded_keys_of_redis_are_hits_and_others_misses() {
    let Some(server) = redis() else { return };
    let missed = report(&load(server.address, &["--no-preload", "--get-share=1", "--json"]));
    assert_eq!(missed["hits"], 0, "{missed}");
    assert!(missed["misses"].as_u64() > Some(0), "{missed}");
    let read = report(&load(server.address, &["--protocol=redis", "--keys=500", "--depth=4", "--json"]));
    assert!(read["hits"].as_u64() > Some(0), "{read}");
    assert_eq!((&read["misses"], &read["errors"]["wrong-content"]), (&0.into(), &0.into()), "{read}");
}

#[test]
fn nginx_answers_requests_for_a_file_and_refuses_those_for_another() {
    let dir = tempfile::tempdir().unwrap();
    let Some(server) = nginx(dir.path()) else { return };
    let found = report(&load(server.address, &["--path=/index.html", "--json"]));
    assert!(found["answered-in-window"].as_u64() > Some(0), "{found}");
    assert_eq!(found["errors"]["server-errors"], 0, "{found}");
    let missing = load(server.address, &["--protocol=http", "--path=/no-such-file", "--json"]);
    assert_eq!(missing.status.code(), Some(3), "{missing:?}");
    let document: Value = serde_json::from_slice(&missing.stdout).unwrap();
    assert!(document["report"]["errors"]["server-errors"].as_u64() > Some(0), "{document}");
}

fn memcached() -> Option<Server> {
    let arguments = |port: &str| ["-u", "root", "-U", "0", "-l", "127.0.0.1", "-p", port, "-t", "1"].map(str::to_owned);
    server("memcached", |port| arguments(port).to_vec())
}

fn redis() -> Option<Server> {
    let arguments = |port: &str| ["--bind", "127.0.0.1", "--port", port, "--save", ""].map(str::to_owned);
    server("redis-server", |port| arguments(port).to_vec())
}

/// Serves `index.html` from this directory.
fn nginx(dir: &Path) -> Option<Server> {
    let configuration = dir.join("nginx.conf");
    std::fs::write(dir.join("index.html"), "x".repeat(1_000)).unwrap();
    server("nginx", |port| {
        let dir = dir.display();
        let text = format!(
            "daemon off; master_process off; user root; pid {dir}/pid; events {{}}\n\
             http {{ access_log off; server {{ listen 127.0.0.1:{port}; root {dir}; }} }}\n"
        );
        std::fs::write(&configuration, text).unwrap();
        ["-e", "stderr", "-c", &configuration.display().to_string()].map(str::to_owned).to_vec()
    })
}

/// Starts a server on a port that was free a moment ago; `None` if it is not installed.
fn server(program: &'static str, arguments: impl FnOnce(&str) -> Vec<String>) -> Option<Server> {
    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let arguments = arguments(&address.port().to_string());
    let child = match Command::new(program).args(arguments).stdout(Stdio::null()).spawn() {
        Ok(child) => child,
        Err(error) => {
            skip(Lacks::Server(program), format_args!("{program}: {error}"));
            return None;
        }
    };
    let server = Server { child, address };
    let deadline = Instant::now() + Duration::from_secs(10);
    while TcpStream::connect(address).is_err() {
        assert!(Instant::now() < deadline, "{program} does not listen at {address}");
        std::thread::sleep(Duration::from_millis(10));
    }
    Some(server)
}
