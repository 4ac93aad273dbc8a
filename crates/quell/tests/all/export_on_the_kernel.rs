//! `quell export` in a veth lab: a real Prometheus scrapes it, `promtool` reads it, and clients misbehave.

use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use quell_linux::Pid;
use quell_linux::event::Trigger;
use quell_linux::netdev::PartialNapiSettings;
use quell_linux::netns::Namespace;
use quell_linux::pidfd::{PidFd, Signal};
use quell_linux::proc::{NetDev, ProcRoot, TrafficCounters};
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
    answer(address, format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").as_bytes())
}

/// Value of a sample in the text format.
fn sample(text: &str, name: &str) -> Option<f64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.rsplit(' ').next()?.parse().ok()
}

/// Runs `user` while datagrams arrive at the program, each of them after the previous one was received. Returns their
/// number.
fn with_traffic(program: &UdpProgram, user: impl FnOnce()) -> u64 {
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            let mut sent = 0;
            while !over.load(Ordering::Relaxed) {
                program.send(1);
                assert_eq!(program.receives_within(ARRIVES_WITHIN), Some(1));
                sent += 1;
            }
            sent
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(user));
        over.store(true, Ordering::Relaxed);
        match result {
            Ok(()) => traffic.join().unwrap(),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
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

    /// Results of a query: labels and values, at this time or now.
    fn results(&self, query: &str, at: Option<f64>) -> Result<Vec<Value>, String> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let at = at.map(|at| format!("&time={at:.3}")).unwrap_or_default();
        let request = format!("GET /api/v1/query?query={encoded}{at} HTTP/1.0\r\nHost: localhost\r\n\r\n");
        let mut connection = TcpStream::connect(self.address).map_err(|error| error.to_string())?;
        connection.write_all(request.as_bytes()).map_err(|error| error.to_string())?;
        let mut text = String::new();
        connection.read_to_string(&mut text).map_err(|error| error.to_string())?;
        let (_, body) = text.split_once("\r\n\r\n").ok_or_else(|| text.clone())?;
        let answer: Value = serde_json::from_str(body).map_err(|_| text.clone())?;
        match (answer["status"].as_str(), answer["data"]["result"].as_array()) {
            (Some("success"), Some(results)) => Ok(results.clone()),
            _ => Err(format!("{query}: {answer}")),
        }
    }

    /// Value of the only result of a query.
    fn value(&self, query: &str, at: Option<f64>) -> Result<f64, String> {
        match self.results(query, at)?.as_slice() {
            [only] => number(&only["value"][1]).ok_or_else(|| format!("{query}: {only}")),
            several => Err(format!("{query}: {several:?}")),
        }
    }

    /// First and last sample of the only series in a window: time and value.
    fn ends(&self, series: &str, window: &str, at: f64) -> [(f64, f64); 2] {
        let results = self.results(&format!("{series}[{window}]"), Some(at)).unwrap();
        let [only] = results.as_slice() else { panic!("{series}: {results:?}") };
        let samples = only["values"].as_array().unwrap();
        let sample = |sample: &Value| (sample[0].as_f64().unwrap(), number(&sample[1]).unwrap());
        [sample(samples.first().unwrap()), sample(samples.last().unwrap())]
    }
}

fn number(text: &Value) -> Option<f64> {
    text.as_str()?.parse().ok()
}

/// Counters of the lab from the kernel, without Quell's exporter.
struct LabCounters {
    rx_packets: f64,
    /// User and system time of this process, in seconds.
    cpu: f64,
    at: Instant,
}

impl LabCounters {
    fn read(lab: &TestLab) -> Self {
        let stat = ProcRoot::default().process(Pid::of_this_process()).stat().unwrap();
        let cpu = (stat.utime.duration() + stat.stime.duration()).as_secs_f64();
        Self { rx_packets: net_dev(&lab.server, "server0").rx_packets as f64, cpu, at: Instant::now() }
    }
}

fn net_dev(namespace: &Namespace, device: &str) -> TrafficCounters {
    let read = || NetDev::parse(&std::fs::read("/proc/thread-self/net/dev").unwrap()).unwrap().get(device).unwrap();
    namespace.run(read).unwrap()
}

#[track_caller]
fn assert_within(value: f64, [low, high]: [f64; 2], what: &str) {
    let tolerance = 1e-6 * high.abs().max(1.0);
    assert!(low - tolerance <= value && value <= high + tolerance, "{what}: {value} is not in {low} to {high}");
}

/// Deferral that ends in no test, with the timer at 1 ms: the interrupt stays masked, and the timer polls.
const TIMER_NS: u64 = 1_000_000;
const DEFERRING: PartialNapiSettings = PartialNapiSettings {
    defer_hard_irqs: Some(1_000_000),
    gro_flush_timeout_ns: Some(TIMER_NS),
    irq_suspend_timeout_ns: None,
    threaded: None,
};
/// Scrapes under load, one a second.
const SCRAPES: f64 = 60.0;
/// Share of the device's packets that the exporter must have. While other tests start samplers, some 50 of 39,000 packets
/// were missing; the cause is unknown.
const COUNTED: f64 = 0.99;
const PACKETS: &str = "quell_queue_packets_total";

#[test]
fn prometheus_answers_the_documented_queries_with_the_values_of_the_lab() {
    let Some(lab) = TestLab::raise("export", 1) else { return };
    lab.set_napi(&DEFERRING);
    let program = UdpProgram::start(&lab, Trigger::Level);
    let settings = lab.napi().settings;
    assert_eq!((settings.irq_suspend_timeout_ns, settings.gro_flush_timeout_ns), (Some(0), Some(TIMER_NS)));
    let pid = std::process::id().to_string();
    let before_exporter = LabCounters::read(&lab);
    let (exporter, address) = started(&[&pid, "--netns", &lab.server_name, "--device", "server0"]);
    let Some(prometheus) = Prometheus::start(address) else { return };
    let scrapes = || prometheus.value(&format!("count_over_time({PACKETS}[1h])"), None);
    let at_least = |count: f64| match scrapes()? {
        enough if enough >= count => Ok(enough),
        few => {
            // Queries need CPU, and the next scrape comes in a second.
            thread::sleep(Duration::from_millis(200));
            Err(format!("{few} scrapes"))
        }
    };
    // The exporter has taken its first sample, which is the origin of its counters.
    wait_until(|| at_least(2.0));
    let before_load = LabCounters::read(&lab);
    let mut under_load = None;
    let sent = with_traffic(&program, || {
        for count in 1..=4 {
            wait_until(|| at_least(2.0 + SCRAPES * f64::from(count) / 4.0));
        }
        for query in documented_queries() {
            let results = prometheus.results(&query, None).unwrap();
            assert!(!results.is_empty(), "{query}");
        }
        the_dashboard_is_answered(&prometheus);
        under_load = Some(LabCounters::read(&lab));
    }) as f64;
    let (after_load, under_load) = (LabCounters::read(&lab), under_load.unwrap());
    // Packets that arrived before the exporter's first sample, at least and at most.
    let origin = [before_exporter.rx_packets, before_load.rx_packets];
    // Without traffic, the exporter's counter comes to rest, and Prometheus follows.
    let labels = format!("{PACKETS}{{device=\"server0\",queue=\"0\"}}");
    let exported = wait_until(|| {
        let scraped = prometheus.value(&labels, None)?;
        let at_rest = sample(&get(address, "/metrics"), PACKETS) == Some(scraped);
        let is_all = at_rest && scraped >= COUNTED * (after_load.rx_packets - origin[1]);
        if is_all { Ok(scraped) } else { Err(format!("{scraped} of {}", after_load.rx_packets)) }
    });
    let at = prometheus.value(&format!("timestamp({labels})"), None).unwrap();
    let end = LabCounters::read(&lab);
    assert_within(exported, [COUNTED * (after_load.rx_packets - origin[1]), end.rx_packets - origin[0]], "packets");

    // The same queries over a window that begins before the load and ends after it.
    let seconds = (end.at - before_exporter.at).as_secs() + 5;
    let window = format!("{seconds}s");
    let queries = documented_queries().map(|query| query.replace("[1m]", &format!("[{window}]")));
    let [who, per_poll, masked, rates, cpus] = &queries;
    let [(first_at, first), (last_at, last)] = prometheus.ends(&labels, &window, at);
    let packets = [COUNTED * (after_load.rx_packets - 2.0 * origin[1] + origin[0]), end.rx_packets - origin[0]];
    assert_within(last - first, packets, "packets in the window");
    // `rate` extrapolates from the samples at most to the window.
    let rate = |low: f64, high: f64| [low / seconds as f64, high / (last_at - first_at)];
    assert_within(prometheus.value(rates, Some(at)).unwrap(), rate(last - first, last - first), rates);
    let results = prometheus.results(rates, Some(at)).unwrap();
    assert_eq!(results[0]["metric"], serde_json::json!({ "device": "server0", "queue": "0" }));

    // Neither a thread nor the program may poll, and the interrupt was enabled at most until the first poll.
    let shares = prometheus.results(who, Some(at)).unwrap();
    let share = |poller: &str| {
        let found = shares.iter().find(|share| share["metric"]["poller"] == poller);
        number(&found.unwrap_or_else(|| panic!("{poller}: {shares:?}"))["value"][1]).unwrap()
    };
    assert_eq!((shares.len(), share("program"), share("napi_thread")), (6, 0.0, 0.0), "{shares:?}");
    assert_within(share("interrupt"), [0.0, 1.0 / sent], "share of the interrupt");
    assert_within(share("timer") + share("ksoftirqd") + share("other"), [1.0 - 1.0 / sent, 1.0], "the other shares");
    assert!(share("timer") > 0.0, "{shares:?}");

    // Each datagram needs a poll of its own, and the timer starts at most one per millisecond.
    let polls = [COUNTED * sent, (end.at - before_exporter.at).as_nanos() as f64 / TIMER_NS as f64 + packets[1] + 1.0];
    assert_within(
        prometheus.value(per_poll, Some(at)).unwrap(),
        [packets[0] / polls[1], packets[1] / polls[0]],
        per_poll,
    );

    let load = (under_load.at - before_load.at).as_secs_f64();
    let all = (end.at - before_exporter.at).as_secs_f64();
    assert_within(prometheus.value(masked, Some(at)).unwrap(), rate(load, all), masked);
    let suspended = prometheus.ends("quell_queue_suspended_seconds_total", &window, at);
    assert_eq!(suspended[1].1, 0.0, "irq-suspend-timeout is 0");

    // The kernel counts in ticks of 10 ms.
    let tick = 0.02;
    let used = rate(under_load.cpu - before_load.cpu - tick, end.cpu - before_exporter.cpu + tick);
    assert_within(prometheus.value(cpus, Some(at)).unwrap(), used, cpus);
    assert_eq!(exporter.terminate(), Some(0));
}

/// Each query of the dashboard is run. All of them but those about modes have results.
fn the_dashboard_is_answered(prometheus: &Prometheus) {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../dist/grafana/quell.json");
    let dashboard: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    let targets: Vec<&Value> = panels.iter().flat_map(|panel| panel["targets"].as_array().unwrap()).collect();
    assert!(targets.len() >= panels.len());
    let without = ["quell_program_mode", "quell_program_drifted", "quell_polls_unknown_info"];
    for target in targets {
        let query = target["expr"].as_str().unwrap().replace("$__rate_interval", "1m");
        let query = ["$instance", "$device", "$queue"].iter().fold(query, |query, name| query.replace(name, ".*"));
        assert!(!query.contains('$'), "{query}");
        let results = prometheus.results(&query, None).unwrap();
        assert_eq!(results.is_empty(), without.iter().any(|name| query.contains(name)), "{query}: {results:?}");
    }
}

/// The queries in docs/export.md.
fn documented_queries() -> [String; 5] {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/export.md");
    let page = std::fs::read_to_string(page).unwrap();
    let blocks = page.split("```promql\n").skip(1);
    let queries: Vec<String> = blocks.map(|block| block.split("```").next().unwrap().trim().to_owned()).collect();
    queries.try_into().unwrap()
}

#[test]
fn packets_that_a_full_ring_drops_are_those_of_the_statistics_of_the_device() {
    let Some(lab) = TestLab::raise("export-drop", 1) else { return };
    let program = UdpProgram::start(&lab, Trigger::Level);
    let client = lab.server_name.replace("-server", "-client");
    let before = net_dev(&lab.client, "client0").tx_dropped;
    let (_exporter, address) = started(&["--netns", &client]);
    let dropped = || sample(&get(address, "/metrics"), "quell_device_tx_dropped_total{device=\"client0\"");
    wait_until(|| dropped().filter(|&count| count == 0.0).ok_or_else(|| "no counter".to_owned()));
    // Nobody polls the ring of the other end for a second.
    lab.set_napi(&PartialNapiSettings { gro_flush_timeout_ns: Some(1_000_000_000), ..DEFERRING });
    let in_kernel = || net_dev(&lab.client, "client0").tx_dropped - before;
    wait_until(|| {
        (0..1_000).for_each(|_| program.send(1));
        if in_kernel() > 0 { Ok(()) } else { Err("no drops".to_owned()) }
    });
    wait_until(|| {
        let (exported, expected) = (dropped(), in_kernel() as f64);
        if exported == Some(expected) { Ok(()) } else { Err(format!("{exported:?} of {expected}")) }
    });
}

#[test]
fn a_queue_that_is_polled_late_is_counted_as_stalled() {
    let Some(lab) = TestLab::raise("export-stall", 1) else { return };
    lab.set_napi(&PartialNapiSettings { gro_flush_timeout_ns: Some(200_000_000), ..DEFERRING });
    let program = UdpProgram::start(&lab, Trigger::Level);
    let (_exporter, address) = started(&["--netns", &lab.server_name]);
    let stalls =
        || sample(&get(address, "/metrics"), "quell_queue_stalls_total{device=\"server0\"").unwrap_or_default();
    with_traffic(&program, || {
        wait_until(|| if stalls() >= 3.0 { Ok(()) } else { Err(stalls().to_string()) });
    });
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
fn the_textfile_is_readable_by_everybody_and_removed_when_the_exporter_ends() {
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
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_first_scrape_is_complete_or_an_error() {
    let (_exporter, address) = started(&[]);
    let first = answer(
        address,
        b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: application/openmetrics-text; version=1.0.0\r\n\r\n",
    );
    let is_complete = first.starts_with("HTTP/1.1 200") && first.ends_with("# EOF\n");
    assert!(is_complete || first.starts_with("HTTP/1.1 503"), "{first}");
}

#[test]
fn only_two_paths_and_two_methods_are_served() {
    let (_exporter, address) = started(&[]);
    let status = |request: &str| answer(address, request.as_bytes()).lines().next().unwrap_or_default().to_owned();
    assert_eq!(status("GET / HTTP/1.0\r\n\r\n"), "HTTP/1.0 200 OK");
    wait_until(|| match status("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n").as_str() {
        "HTTP/1.1 200 OK" => Ok(()),
        other => Err(other.to_owned()),
    });
    assert_eq!(status("HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"), "HTTP/1.1 200 OK");
    assert_eq!(status("GET /metrics HTTP/1.1\r\nHost: rebound.example\r\n\r\n"), "HTTP/1.1 421 Misdirected Request");
    assert_eq!(status("GET /../etc/passwd HTTP/1.1\r\nHost: localhost\r\n\r\n"), "HTTP/1.1 404 Not Found");
    assert_eq!(status("POST /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"), "HTTP/1.1 405 Method Not Allowed");
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
    // Half requests, requests whose response nobody reads, and silence.
    let connections: Vec<TcpStream> = (0..1_000)
        .map_while(|number| {
            let mut connection = TcpStream::connect_timeout(&address, Duration::from_secs(1)).ok()?;
            let bytes: &[u8] =
                [&b"GET /met"[..], &b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"[..], b""][number % 3];
            connection.write_all(bytes).ok()?;
            Some(connection)
        })
        .collect();
    assert!(connections.len() > 100, "{}", connections.len());
    let grown_kb = memory_kb().saturating_sub(before_kb);
    assert!(grown_kb < 16 * 1024, "{grown_kb} KiB more with {} connections", connections.len());
    assert!(get(address, "/metrics").contains("quell_build_info"), "a scrape beside them");
    assert_eq!(exporter.terminate(), Some(0));
}

#[test]
fn a_half_request_is_ended_by_the_time_limit() {
    const HALVES: usize = 32;
    let (_exporter, address) = started(&[]);
    let half = || {
        let mut connection = TcpStream::connect(address).unwrap();
        connection.write_all(b"GET /metrics HTTP/1.1\r\nHost:").unwrap();
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        connection
    };
    let halves: Vec<TcpStream> = (0..HALVES).map(|_| half()).collect();
    assert!(get(address, "/").starts_with("HTTP/1.1 200 OK"));
    for mut connection in halves {
        let mut rest = Vec::new();
        match connection.read_to_end(&mut rest) {
            Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
            Ok(_) => assert!(!rest.starts_with(b"HTTP/1.1 200"), "{rest:?}"),
        }
    }
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
    assert_eq!(said, "quell: writing quell.prom to /no/such/directory: No such file or directory (os error 2)\n");
}

#[test]
fn drift_of_a_profile_is_exported() {
    let Some(lab) = TestLab::raise("export-drift", 1) else { return };
    let (journal, out) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let quell = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
        let output = command.args(arguments).env("QUELL_JOURNAL_DIR", journal.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let profile = out.path().join("lab.toml");
    std::fs::write(&profile, "[device.a]\nname = \"*\"\n[device.a.queues.all]\nmode = \"defer20\"\n").unwrap();
    quell(&["apply", "--netns", &lab.server_name, profile.to_str().unwrap()]);
    let mut command = export(&["--netns", &lab.server_name, "--textfile", out.path().to_str().unwrap()]);
    let exporter = Running(command.env("QUELL_JOURNAL_DIR", journal.path()).spawn().unwrap());
    let drifted = |count: f64| {
        wait_until(|| {
            let text = std::fs::read_to_string(out.path().join("quell.prom")).map_err(|error| error.to_string())?;
            assert!(sample(&text, "quell_left_behind_journals").is_none_or(|count| count == 0.0), "{text}");
            let found = sample(&text, "quell_profile_drifted_settings{profile=");
            if found == Some(count) { Ok(()) } else { Err(text) }
        });
    };
    drifted(0.0);
    lab.set_napi(&PartialNapiSettings { gro_flush_timeout_ns: Some(77_000), ..PartialNapiSettings::default() });
    drifted(1.0);
    assert_eq!(exporter.terminate(), Some(0));
    quell(&["revert"]);
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

/// Duration of a scrape of 64 queues: `cargo test --release -p quell --test all export_on_the_kernel::figures --
/// --ignored --nocapture`.
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
