//! `quell export` in a veth lab: a real Prometheus scrapes it, `promtool` reads it, and clients misbehave.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use quell_linux::Pid;
use quell_linux::event::Trigger;
use quell_linux::pidfd::{PidFd, Signal};
use quell_linux::proc::NetDev;
use quell_test_support::lab::{ARRIVES_WITHIN, TestLab, UdpProgram};
use quell_test_support::{Lacks, PATIENCE, skip, wait_until};
use serde_json::Value;

fn export(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    command.args(["export", "-i", "0.2"]).args(arguments);
    command.env("QUELL_JOURNAL_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/no-journal"));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// A program that ends with the test.
struct Running(Child);

impl Running {
    /// Asks the program to end, and returns its exit code.
    fn terminate(mut self) -> Option<i32> {
        let pid = PidFd::open(Pid::new(self.0.id().try_into().unwrap()).unwrap()).unwrap();
        pid.signal(Signal::TERM).unwrap();
        self.0.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts an exporter on a free port of the loopback.
fn started(arguments: &[&str]) -> (Running, SocketAddr) {
    let mut child = export(&[&["--listen", "127.0.0.1:0"], arguments].concat()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on http://").and_then(|rest| rest.strip_suffix("/metrics"));
    let address = address.unwrap_or_else(|| panic!("{line}")).parse().unwrap();
    (Running(child), address)
}

/// Sends bytes and returns everything until the end of the connection.
fn answer(address: SocketAddr, request: &[u8]) -> String {
    let mut connection = TcpStream::connect(address).unwrap();
    connection.set_read_timeout(Some(PATIENCE)).unwrap();
    connection.write_all(request).unwrap();
    let mut answer = Vec::new();
    match connection.read_to_end(&mut answer) {
        Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}"),
        _ => String::from_utf8(answer).unwrap(),
    }
}

fn get(address: SocketAddr, path: &str) -> String {
    answer(address, format!("GET {path} HTTP/1.1\r\nHost: lab\r\n\r\n").as_bytes())
}

/// Value of a sample in the text format.
fn sample(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// Runs `user` while datagrams arrive at this process on the only queue of the lab.
fn with_traffic(lab: &TestLab, user: impl FnOnce()) {
    let program = UdpProgram::start(lab, Trigger::Level);
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                program.send(1);
                assert_eq!(program.receives_within(ARRIVES_WITHIN), Some(1));
            }
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(user));
        over.store(true, Ordering::Relaxed);
        if let Err(panic) = result {
            std::panic::resume_unwind(panic);
        }
    });
}

/// Runs `promtool`. Returns `None`, counted as a skip, if it is not installed.
fn promtool(arguments: &[&str], input: &str) -> Option<Output> {
    let mut command = Command::new("promtool");
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else {
        skip(Lacks::Tool("promtool"), "promtool is not installed");
        return None;
    };
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    Some(child.wait_with_output().unwrap())
}

/// Prometheus with its own directory, which scrapes `target` each second.
struct Prometheus {
    _program: Running,
    address: SocketAddr,
    _directory: tempfile::TempDir,
}

impl Prometheus {
    fn start(target: SocketAddr) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let config = format!(
            "global: {{scrape_interval: 1s}}\nscrape_configs:\n- job_name: quell\n  static_configs:\n  - targets: ['{target}']\n"
        );
        let file = directory.path().join("prometheus.yml");
        std::fs::write(&file, config).unwrap();
        // A port that was free a moment ago.
        let address = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--storage.tsdb.path={}", directory.path().join("data").display()));
        command.arg(format!("--web.listen-address={address}")).stdout(Stdio::null()).stderr(Stdio::null());
        let Ok(child) = command.spawn() else {
            skip(Lacks::Tool("prometheus"), "prometheus is not installed");
            return None;
        };
        Some(Self { _program: Running(child), address, _directory: directory })
    }

    /// Value of the only result of a query.
    fn query(&self, query: &str) -> Result<f64, String> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let request = format!("GET /api/v1/query?query={encoded} HTTP/1.0\r\nHost: lab\r\n\r\n");
        let mut connection = TcpStream::connect(self.address).map_err(|error| error.to_string())?;
        connection.write_all(request.as_bytes()).map_err(|error| error.to_string())?;
        let mut text = String::new();
        connection.read_to_string(&mut text).map_err(|error| error.to_string())?;
        let (_, body) = text.split_once("\r\n\r\n").ok_or_else(|| text.clone())?;
        let answer: Value = serde_json::from_str(body).map_err(|_| text.clone())?;
        let value = answer["data"]["result"][0]["value"][1].as_str().ok_or_else(|| format!("{query}: {answer}"))?;
        value.parse().map_err(|_| format!("{query}: {value}"))
    }
}

#[test]
fn prometheus_answers_the_documented_queries_with_the_counters_of_the_lab() {
    let Some(lab) = TestLab::raise("export", 1) else { return };
    let pid = std::process::id().to_string();
    let (exporter, address) = started(&[&pid, "--netns", &lab.server_name]);
    let Some(prometheus) = Prometheus::start(address) else { return };
    let documented = documented_queries();
    with_traffic(&lab, || {
        // Each query has an answer once Prometheus has two samples.
        for query in &documented {
            wait_until(|| prometheus.query(query));
        }
    });
    // Without traffic, the exporter's counter comes to rest, and Prometheus follows.
    let exported = wait_until(|| {
        let exported = sample(&get(address, "/metrics"), r#"quell_queue_packets_total{device="server0""#);
        let scraped = prometheus.query(r#"quell_queue_packets_total{device="server0",queue="0"}"#)?;
        if exported == Some(scraped) { Ok(scraped) } else { Err(format!("{scraped} instead of {exported:?}")) }
    });
    // The kernel's counter includes packets from before the exporter's first sample.
    let counters =
        || NetDev::parse(&std::fs::read("/proc/thread-self/net/dev").unwrap()).unwrap().get("server0").unwrap();
    let received = lab.server.run(counters).unwrap().rx_packets;
    assert!(exported > 0.0 && exported <= received as f64, "{exported} of {received}");
    assert_eq!(exporter.terminate(), Some(0));
}

/// The queries in docs/export.md.
fn documented_queries() -> Vec<String> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/export.md");
    let page = std::fs::read_to_string(page).unwrap();
    let blocks = page.split("```promql\n").skip(1);
    let queries: Vec<String> = blocks.map(|block| block.split("```").next().unwrap().trim().to_owned()).collect();
    assert_eq!(queries.len(), 5, "{queries:#?}");
    queries
}

#[test]
fn promtool_finds_nothing_to_complain_about() {
    let Some(lab) = TestLab::raise("promtool", 2) else { return };
    let (_exporter, address) = started(&["--netns", &lab.server_name]);
    let text = wait_until(|| {
        let text = get(address, "/metrics");
        if text.contains("quell_queue_packets_total{") { Ok(text) } else { Err(text) }
    });
    let (_, metrics) = text.split_once("\r\n\r\n").unwrap();
    let Some(checked) = promtool(&["check", "metrics"], metrics) else { return };
    let said = String::from_utf8_lossy(&checked.stderr).into_owned() + &String::from_utf8_lossy(&checked.stdout);
    assert!(checked.status.success() && said.trim().is_empty(), "{said}");
}

#[test]
fn the_textfile_is_replaced_at_once_and_readable_by_everybody() {
    use std::os::unix::fs::PermissionsExt as _;
    let Some(lab) = TestLab::raise("textfile", 1) else { return };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let exporter = Running(export(&["--netns", &lab.server_name, "--textfile", path]).spawn().unwrap());
    let file = directory.path().join("quell.prom");
    wait_until(|| {
        let text = std::fs::read_to_string(&file).map_err(|error| error.to_string())?;
        if text.contains("quell_queue_packets_total{device=\"server0\"") { Ok(()) } else { Err(text) }
    });
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
    assert_eq!(exporter.terminate(), Some(0));
    let left: Vec<_> = std::fs::read_dir(directory.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn only_two_paths_and_two_methods_are_served() {
    let (_exporter, address) = started(&[]);
    let status = |request: &str| answer(address, request.as_bytes()).lines().next().unwrap_or_default().to_owned();
    assert_eq!(status("GET / HTTP/1.0\r\n\r\n"), "HTTP/1.0 200 OK");
    assert_eq!(status("HEAD /metrics HTTP/1.1\r\nHost: a\r\n\r\n"), "HTTP/1.1 200 OK");
    assert_eq!(status("GET /../etc/passwd HTTP/1.1\r\nHost: a\r\n\r\n"), "HTTP/1.1 404 Not Found");
    assert_eq!(status("POST /metrics HTTP/1.1\r\nHost: a\r\n\r\n"), "HTTP/1.1 405 Method Not Allowed");
    assert_eq!(status("\u{1}\u{2} garbage\r\n\r\n"), "HTTP/1.1 400 Bad Request");
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(100_000));
    assert!(
        ["HTTP/1.1 431 Request Header Fields Too Large", "HTTP/1.1 414 URI Too Long", ""]
            .contains(&status(&long).as_str())
    );
}

#[test]
fn clients_that_misbehave_do_not_stop_the_others() {
    let (exporter, address) = started(&[]);
    let memory_kb = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", exporter.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap()
    };
    wait_until(|| if get(address, "/metrics").contains("quell_build_info") { Ok(()) } else { Err("empty".to_owned()) });
    let before_kb = memory_kb();
    // Half requests, requests whose response nobody reads, and silence, until the kernel's queue is full.
    let connections: Vec<TcpStream> = (0..1_000)
        .map_while(|number| {
            let mut connection = TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()?;
            let bytes: &[u8] = [&b"GET /met"[..], &b"GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n"[..], b""][number % 3];
            connection.write_all(bytes).ok()?;
            Some(connection)
        })
        .collect();
    assert!(connections.len() > 100, "{}", connections.len());
    // Closing most of them lets the others through, as the time limit does.
    drop(connections);
    assert!(get(address, "/metrics").contains("quell_build_info"));
    let grown_kb = memory_kb().saturating_sub(before_kb);
    assert!(grown_kb < 16 * 1024, "{grown_kb} KiB more");
    assert_eq!(exporter.terminate(), Some(0));
}

#[test]
fn an_address_in_use_and_a_directory_that_does_not_exist_are_refused_with_their_names() {
    let (_exporter, address) = started(&[]);
    let refused = export(&["--listen", &address.to_string()]).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(said.contains(&address.to_string()) && said.contains("--listen"), "{said}");
    let refused = export(&["--textfile", "/no/such/directory"]).output().unwrap();
    let said = String::from_utf8(refused.stderr).unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(said.contains("/no/such/directory"), "{said}");
}

#[test]
fn the_series_of_a_device_that_vanishes_end() {
    let Some(mut lab) = TestLab::raise("export-gone", 1) else { return };
    let second = lab.add_device(1);
    let (_exporter, address) = started(&["--netns", &lab.server_name]);
    let devices = |count: usize| {
        wait_until(|| {
            let text = get(address, "/metrics");
            let found = text.lines().filter(|line| line.starts_with("quell_queue_info{")).count();
            if found == count { Ok(()) } else { Err(text) }
        });
    };
    devices(2);
    quell_linux::link::Links::open_in(&lab.server).unwrap().delete(second).unwrap();
    devices(1);
}

/// Duration of a scrape of 64 queues: `cargo test --release -p quell --test export_on_the_kernel -- --ignored --nocapture
/// figures`.
#[test]
#[ignore = "measures"]
fn figures_of_a_scrape_of_64_queues() {
    let Some(lab) = TestLab::raise("export-cost", 64) else { return };
    let (_exporter, address) = started(&["--netns", &lab.server_name]);
    let queues = |text: &str| text.lines().filter(|line| line.starts_with("quell_queue_info{")).count();
    wait_until(|| {
        let text = get(address, "/metrics");
        if queues(&text) == 64 && text.contains("quell_queue_packets_total{") { Ok(()) } else { Err(text) }
    });
    let scrape = || {
        let began = std::time::Instant::now();
        let bytes = get(address, "/metrics").len();
        (began.elapsed(), bytes)
    };
    let mut scrapes: Vec<(Duration, usize)> = (0..201).map(|_| scrape()).collect();
    scrapes.sort();
    let (median, bytes) = scrapes[100];
    println!("median {median:?}, longest {:?}, {bytes} bytes", scrapes[200].0);
}
