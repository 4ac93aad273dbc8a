//! Outputs of real runs of load generators, recorded and live. The first line of a recording says what it is.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::thread;

use proptest::prelude::*;
use quell_linux::process::Spawn;
use quell_subject::experiment::client_output::tool_figures;
use quell_subject::experiment::judge::{Judge, Judges};
use quell_test_support::{LabTurn, Lacks, skip_part, wait_until};

macro_rules! recording {
    ($name:literal) => {
        include_str!(concat!("client_outputs/", $name))
    };
}

fn figures(text: &str) -> Vec<(String, f64)> {
    tool_figures(text).expect("recognised").unwrap_or_else(|why| panic!("{why}")).figures.into_iter().collect()
}

fn assert_figures(text: &str, expected: &[(&str, f64)]) {
    let found = figures(text);
    let expected: BTreeMap<_, _> = expected.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (name, value) in found {
        let wanted = expected.get(&name).copied().unwrap_or_else(|| panic!("{name} {value}"));
        assert!((value - wanted).abs() <= wanted * 1e-9, "{name}: {value}, not {wanted}");
    }
}

fn refusal(text: &str) -> String {
    tool_figures(text).expect("recognised").unwrap_err()
}

#[test]
fn wrk_prints_percentiles_with_latency_and_otherwise_a_mean() {
    let of_wrk =
        [("errors", 0.0), ("requests", 51_232.0), ("requests-per-s", 46_560.07), ("p50-us", 83.0), ("p99-us", 3_630.0)];
    assert_figures(recording!("wrk.txt"), &of_wrk);
    let without_latency = [("errors", 0.0), ("mean-us", 320.82), ("requests", 50_683.0), ("requests-per-s", 50_410.73)];
    assert_figures(recording!("wrk-no-latency.txt"), &without_latency);
    let bad: BTreeMap<_, _> = figures(recording!("wrk-bad.txt")).into_iter().collect();
    assert_eq!((bad["requests"], bad["errors"]), (14_965.0, 14_965.0));
    let of_wrk2 = [
        ("errors", 0.0),
        ("requests", 21_967.0),
        ("requests-per-s", 1_996.91),
        ("p50-us", 822.0),
        ("p99-us", 5_990.0),
        ("p99.9-us", 8_400.0),
    ];
    assert_figures(recording!("wrk2.txt"), &of_wrk2);
}

#[test]
fn hey_and_oha_print_percentiles_and_requests_by_status_code() {
    let of_hey = [
        ("errors", 0.0),
        ("requests", 37_478.0),
        ("requests-per-s", 37_422.662_8),
        ("p50-us", 200.0),
        ("p99-us", 600.0),
    ];
    assert_figures(recording!("hey.txt"), &of_hey);
    let of_oha = [
        ("errors", 0.0),
        ("requests", 23_947.0),
        ("requests-per-s", 23_914.809_3),
        ("p50-us", 313.3),
        ("p99-us", 597.1),
        ("p99.9-us", 2_464.9),
    ];
    assert_figures(recording!("oha.txt"), &of_oha);
    let of_json = [
        ("errors", 0.0),
        ("requests", 23_657.0),
        ("requests-per-s", 23_327.348_106_727_663),
        ("p50-us", 164.956),
        ("p99-us", 2_633.409),
        ("p99.9-us", 26_900.202),
    ];
    assert_figures(recording!("oha.json"), &of_json);
}

#[test]
fn h2load_prints_percentiles_since_version_1_69() {
    let counts = [("requests", 9_948.0), ("requests-per-s", 9_948.0)];
    let old = [("errors", 0.0), ("mean-us", 803.0)];
    assert_figures(recording!("h2load.txt"), &[counts, old].concat());
    let new = [("errors", 2.0), ("p50-us", 512.0), ("p99-us", 11_450.0)];
    assert_figures(recording!("h2load-1.69.txt"), &[&counts[..], &new].concat());
}

#[test]
fn redis_benchmark_and_memtier_print_tables() {
    let of_text = [("requests", 20_000.0), ("requests-per-s", 36_363.64), ("p50-us", 63.0), ("p99-us", 3_663.0)];
    assert_figures(recording!("redis-benchmark.txt"), &of_text);
    let of_csv = [("requests-per-s", 64_102.56), ("p50-us", 79.0), ("p99-us", 143.0)];
    assert_figures(recording!("redis-benchmark-csv.txt"), &of_csv);
    assert_figures(recording!("redis-benchmark-q.txt"), &[("requests-per-s", 60_422.96), ("p50-us", 87.0)]);
    let of_memtier = [("requests-per-s", 32_871.76), ("p50-us", 111.0), ("p99-us", 279.0), ("p99.9-us", 2_031.0)];
    assert_figures(recording!("memtier.txt"), &of_memtier);
}

#[test]
fn dnsperf_prints_percentiles_as_a_histogram() {
    let of_mean = [("errors", 0.0), ("mean-us", 702.0), ("requests", 99_077.0), ("requests-per-s", 99_065.805_564)];
    assert_figures(recording!("dnsperf.txt"), &of_mean);
    let of_histogram = [
        ("errors", 0.0),
        ("requests", 2_000.0),
        ("requests-per-s", 1_995.681_346),
        ("p50-us", 42.0),
        ("p99-us", 3_647.0),
        ("p99.9-us", 7_295.0),
    ];
    assert_figures(recording!("dnsperf-histogram.txt"), &of_histogram);
    let failing = recording!("dnsperf.txt").replace("NOERROR 99077 (100.00%)", "NOERROR 9 (1%), SERVFAIL 8 (99%)");
    assert!(figures(&failing).contains(&("errors".to_owned(), 8.0)));
}

#[test]
fn percentiles_of_fortio_in_its_first_bucket_are_absent() {
    let coarse = [("errors", 0.0), ("requests", 59_027.0), ("requests-per-s", 59_018.0), ("p99.9-us", 3_806.54)];
    assert_figures(recording!("fortio-coarse.txt"), &coarse);
    let quiet = [("errors", 500.0), ("mean-us", 1_187.135_6), ("requests", 500.0), ("requests-per-s", 499.3)];
    assert_figures(recording!("fortio-bad.txt"), &quiet);
    let fine = [
        ("errors", 0.0),
        ("requests", 496.0),
        ("requests-per-s", 499.374_262_905_717_16),
        ("p50-us", 224.117_647_058_823_54),
        ("p99-us", 4_108.349_02),
        ("p99.9-us", 4_267.451_002_000_001),
    ];
    assert_figures(recording!("fortio.json"), &fine);
}

#[test]
fn a_load_generator_that_got_no_answer_has_no_figures() {
    assert_eq!(refusal(recording!("hey-refused.txt")), "hey got no answer");
    assert_eq!(refusal(recording!("oha-refused.txt")), "oha got no answer");
    let none = "Running 1s test @ x\n  Latency Distribution\n     50%    0.00us\n  0 requests in 1.00s, 0.00B read\n";
    assert_eq!(refusal(none), "wrk got no answer");
}

#[test]
fn several_tests_of_redis_benchmark_are_refused() {
    for name in [recording!("redis-benchmark.txt"), recording!("redis-benchmark-q.txt")] {
        assert_eq!(refusal(&name.repeat(2)), "redis-benchmark ran 2 tests; name one, as in `-t get`");
    }
    let csv = recording!("redis-benchmark-csv.txt");
    let set = csv.lines().last().unwrap().replace("GET", "MSET (10 keys)");
    assert_eq!(refusal(&format!("{csv}{set}\n")), "redis-benchmark ran 2 tests; name one, as in `-t get`");
}

#[test]
fn values_that_are_no_times_or_counts_are_absent_and_never_zero() {
    let wrk = recording!("wrk.txt");
    let has = |text: &str, name: &str| figures(text).iter().any(|(other, _)| other == name);
    for odd in ["NaN", "-83.00us", "83.00", "83.00parsec", "9e99s", "0.00us", "inf"] {
        assert!(!has(&wrk.replace("83.00us", odd), "p50-us"), "{odd}");
    }
    for odd in ["NaN", "-5", "9e99", "-nan"] {
        assert!(!has(&wrk.replace("46560.07", odd), "requests-per-s"), "{odd}");
        assert!(!has(&wrk.replace("51232 requests", &format!("{odd} requests")), "requests"), "{odd}");
        let errors = format!("{wrk}  Socket errors: connect 0, read {odd}, write 0, timeout 1\n");
        assert!(!has(&errors, "errors"), "{odd}");
    }
}

#[test]
fn the_last_run_of_a_load_generator_counts() {
    let slower = recording!("wrk.txt").replace("83.00us", "93.00us");
    let both = format!("{}{slower}", recording!("wrk.txt"));
    assert!(figures(&both).contains(&("p50-us".to_owned(), 93.0)));
}

#[test]
fn other_output_is_not_recognised() {
    for text in ["", "Segmentation fault", "p99 7", "{\"p50\": 3}", "requests 5\nRequests/sec: 7"] {
        assert!(tool_figures(text).is_none(), "{text}");
    }
}

proptest! {
    #[test]
    fn no_change_of_an_output_makes_a_figure_negative_or_infinite_or_a_latency_zero(
        which in 0..RECORDINGS.len(),
        at in 0.0..1.0,
        word in "[-+]?([0-9]{0,25}[.]?[0-9]{0,3}|nan|inf)(us|ms|s|%|,|e9|e400)?",
    ) {
        let text = RECORDINGS[which];
        let words: Vec<&str> = text.split(' ').filter(|word| !word.is_empty()).collect();
        let changed = (at * words.len() as f64) as usize;
        let text: Vec<&str> =
            words.iter().enumerate().map(|(index, old)| if index == changed { &*word } else { old }).collect();
        if let Some(Ok(found)) = tool_figures(&text.join(" ")) {
            for (name, value) in found.figures {
                prop_assert!(value.is_finite() && value >= 0.0, "{name} {value}");
                prop_assert!(value > 0.0 || !name.ends_with("-us"), "{name} {value}");
            }
        }
    }
}

const RECORDINGS: [&str; 8] = [
    recording!("wrk.txt"),
    recording!("oha.txt"),
    recording!("h2load-1.69.txt"),
    recording!("redis-benchmark.txt"),
    recording!("redis-benchmark-csv.txt"),
    recording!("memtier.txt"),
    recording!("dnsperf-histogram.txt"),
    recording!("fortio-coarse.txt"),
];

/// Runs a load generator as a judge, while no lab measures: packets of loopback would count there. Returns the names of its
/// figures, and what it lacks.
fn run(program: &'static str, arguments: &str) -> Option<(Vec<String>, Vec<String>)> {
    if !is_installed(program) {
        return None;
    }
    let _turn = LabTurn::wait();
    let latency = Some(Judge::new(&format!("{program} {arguments}")).unwrap());
    let judges = Judges { latency, ..Judges::default() };
    let outcome = judges.run(1_000, &|| false).unwrap_or_else(|why| panic!("{why}")).unwrap();
    assert!(outcome.figures["requests-per-s"] > 0.0, "{outcome:?}");
    Some((outcome.figures.into_keys().collect(), outcome.without_latency))
}

fn is_installed(program: &'static str) -> bool {
    let is_installed = Spawn::new(program).args(["--help"]).start().is_ok();
    if !is_installed {
        skip_part(Lacks::Server(program), format_args!("{program} is not installed"));
    }
    is_installed
}

/// Answers HTTP requests on loopback until the test process ends.
fn http_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    thread::spawn(move || {
        for connection in listener.incoming().map_while(Result::ok) {
            thread::spawn(move || {
                let mut requests = BufReader::new(connection.try_clone().unwrap()).lines();
                // An empty line ends a request.
                while let Some(Ok(line)) = requests.next() {
                    if line.is_empty()
                        && (&connection).write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").is_err()
                    {
                        break;
                    }
                }
            });
        }
    });
    address
}

#[test]
fn times_of_some_clients_have_steps() {
    let steps = |text| tool_figures(text).expect("recognised").unwrap().steps();
    let of = |us| BTreeMap::from(["p50-us", "p99-us"].map(|name| (name.to_owned(), us)));
    assert_eq!(steps(recording!("hey.txt")), of(100.0));
    assert_eq!(steps(recording!("redis-benchmark-csv.txt")), of(8.0));
    assert!(steps(recording!("wrk.txt")).is_empty() && steps(recording!("oha.txt")).is_empty());
}

#[test]
fn clients_of_packages_print_what_is_parsed() {
    let http = http_server();
    let all = ["errors", "p50-us", "p99-us", "requests", "requests-per-s"];
    if let Some(found) = run("wrk", &format!("--latency -t1 -c4 -d1 http://{http}/")) {
        assert_eq!(found, (all.map(str::to_owned).to_vec(), vec![]));
    }
    if let Some((names, lacks)) = run("wrk", &format!("-t1 -c4 -d1 http://{http}/")) {
        assert_eq!(names, ["errors", "mean-us", "requests", "requests-per-s"]);
        assert!(lacks[0].ends_with("add --latency to wrk"), "{lacks:?}");
    }
    if let Some((names, _)) = run("hey", &format!("-z 1s -c 4 http://{http}/")) {
        assert!(["errors", "requests"].iter().all(|wanted| names.iter().any(|name| name == wanted)), "{names:?}");
    }
    if let Some((names, _)) = run("h2load", &format!("--h1 -t1 -c4 -D1 http://{http}/")) {
        let latency = if names.iter().any(|name| name == "p99-us") { &all[1..3] } else { &["mean-us"][..] };
        assert_eq!(names, [&["errors"], latency, &all[3..]].concat());
    }
}

#[test]
fn dnsperf_prints_what_is_parsed() {
    let dns = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = dns.local_addr().unwrap().port();
    thread::spawn(move || {
        let mut message = [0; 512];
        while let Ok((length, client)) = dns.recv_from(&mut message) {
            message[2] |= 0x80;
            _ = dns.send_to(&message[..length], client);
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let queries = dir.path().join("queries");
    std::fs::write(&queries, "a.example A\n").unwrap();
    if let Some((names, _)) = run("dnsperf", &format!("-s 127.0.0.1 -p {port} -l 1 -d {}", queries.display())) {
        assert_eq!(names, ["errors", "mean-us", "requests", "requests-per-s"]);
    }
}

#[test]
fn redis_benchmark_prints_what_is_parsed() {
    if !is_installed("redis-server") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("redis").display().to_string();
    let server = Spawn::new("redis-server").args(["--port", "0", "--save", "", "--unixsocket", &socket]);
    let _server = server.dies_with_this_thread().start().unwrap();
    wait_until(|| std::fs::metadata(&socket).map_err(|error| error.to_string()));
    let common = ["p50-us", "p99-us", "requests-per-s"];
    if let Some(found) = run("redis-benchmark", &format!("-s {socket} -t get -n 5000 -c 4 --csv")) {
        assert_eq!(found, (common.map(str::to_owned).to_vec(), vec![]));
    }
    if let Some((names, _)) = run("redis-benchmark", &format!("-s {socket} -t get -n 5000 -c 4")) {
        assert_eq!(names, ["p50-us", "p99-us", "requests", "requests-per-s"]);
    }
}
