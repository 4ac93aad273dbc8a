//! Ranks on machines of their own: what they measure together, and what is left and said when one of them fails.
//!
//! A machine is a network namespace with a host name of its own. Ranks share the CPUs of this machine, so the tests
//! compare counts and sentences, no latencies.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail by panicking")]

mod bench;
mod machines;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use quell_load::cluster_run::ClusterRun;
use quell_mpi::conductor::REPORT_WITHIN;
use quell_mpi::plan::WINDOW;
use quell_stats::LatencyHistogram;
use quell_test_support::{Lacks, skip, wait_until};

use machines::{Job, Machines, PORT, SECOND_SERVER, SERVER, address, ip, run, signal_pid};

const QUELL_MPI: &str = env!("CARGO_BIN_EXE_quell-mpi");

/// Options of a small closed loop.
const SMALL: [&str; 5] = ["--protocol", "request-response", "--warm-up", "0", "--connections"];

fn example(name: &str) -> PathBuf {
    Path::new(QUELL_MPI).parent().unwrap().join("examples").join(name)
}

fn load(machines: &Machines, seconds: &str, connections: &str) -> Command {
    let mut command = machines.mpirun();
    command.arg(QUELL_MPI).arg(format!("{SERVER}:{PORT}")).args(SMALL).args([connections, "--seconds", seconds]);
    command
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Line of stderr with this text.
fn sentence(output: &Output, text: &str) -> String {
    let all = stderr(output);
    let line = all.lines().find(|line| line.contains(text));
    line.unwrap_or_else(|| panic!("no line with {text:?} in:\n{all}")).to_owned()
}

/// Waits until rank 0 of a job that runs for long has measured something: all ranks are under load then.
fn wait_for_load(machines: &Machines, clients: u32) -> Vec<String> {
    wait_until(|| {
        let pids: Vec<String> = (1..=clients).flat_map(|number| machines.pids(number, "quell-mpi")).collect();
        let under_load = |pid: &String| {
            let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            threads.into_iter().any(|thread| {
                let comm = std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
                comm.starts_with("quell-load")
                    && std::fs::read_to_string(thread.path().join("schedstat")).is_ok_and(|text| {
                        text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok()).is_some_and(|ns| ns > 50_000_000)
                    })
            })
        };
        match pids.len() == clients as usize && pids.iter().all(under_load) {
            true => Ok(pids),
            false => Err(format!("the load has not started on all clients: {pids:?}")),
        }
    })
}

#[test]
fn the_merged_histogram_is_that_of_one_process_with_all_samples_bit_for_bit() {
    let Some(machines) = Machines::new(8) else { return };
    for ranks in [1, 2, 4, 8] {
        let mut command = machines.mpirun();
        command.args(["-n", &ranks.to_string()]).arg(example("gather_samples"));
        let output = Job::start(command).output();
        assert_eq!(stdout(&output), format!("{ranks} ranks: equal\n"), "{}", stderr(&output));
    }
    machines.expect_nothing_left();
}

#[test]
fn one_to_eight_machines_share_a_load_and_their_starts_are_compared() {
    let Some(machines) = Machines::new(8) else { return };
    let machines = machines.with_server();
    for ranks in [1_usize, 2, 4, 8] {
        let mut command = machines.mpirun();
        command.args(["-n", &ranks.to_string(), QUELL_MPI, &format!("{SERVER}:{PORT}")]);
        command.args(SMALL).args(["17", "--seconds", "1", "--json"]);
        let output = Job::start(command).output();
        let run: ClusterRun = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)));
        assert_eq!(run.invalid, None);
        let hosts: Vec<&str> = run.clients.iter().map(|client| client.client.host.as_str()).collect();
        let expected: Vec<String> = (1..=ranks).map(|number| format!("client{number}")).collect();
        assert_eq!(hosts, expected);
        assert_eq!(run.clients.iter().map(|client| client.client.connections).sum::<u32>(), 17);
        assert!(run.clients.iter().all(|client| client.report.answered_in_window > 0), "{}", stdout(&output));

        let mut of_one_process = LatencyHistogram::new();
        for (ns, times) in run.clients.iter().flat_map(|client| client.report.latency.slots()) {
            of_one_process.record_n(ns, times);
        }
        assert_eq!(run.report.latency.to_string(), of_one_process.to_string());
        let answered: u64 = run.clients.iter().map(|client| client.report.answered_in_window).sum();
        assert_eq!((run.report.answered_in_window, run.windows), (answered, 2));
        // All clocks are one clock here, so the measured offsets are errors.
        for client in &run.clients {
            let clock = client.client.clock;
            assert!(clock.offset_ns.unsigned_abs() <= clock.error_ns, "{clock:?}");
        }
        assert_eq!(run.start_skew_error_ns > 0, ranks > 1);
    }
    machines.expect_nothing_left();
}

#[test]
fn keys_that_one_client_has_stored_are_read_by_all() {
    let Some(machines) = Machines::new(3) else { return };
    if Command::new("memcached").arg("-V").output().is_err() {
        return skip(Lacks::Server("memcached"), "memcached is not installed");
    }
    let mut memcached = machines.on_server("memcached");
    let mut memcached = memcached.args(["-u", "root", "-U", "0", "-l", SERVER, "-p", "11211"]).spawn().unwrap();
    let listens = || {
        let sockets = machines.on_server("ss").args(["-tlnH"]).output().unwrap().stdout;
        if String::from_utf8_lossy(&sockets).contains(":11211") {
            Ok(())
        } else {
            Err("memcached does not listen".to_owned())
        }
    };
    wait_until(listens);
    let mut command = machines.mpirun();
    command.args([QUELL_MPI, &format!("{SERVER}:11211"), "--connections", "6", "--keys", "500", "--warm-up", "0"]);
    command.args(["--seconds", "1", "--json"]);
    let output = Job::start(command).output();
    memcached.kill().unwrap();
    memcached.wait().unwrap();
    let run: ClusterRun = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    assert_eq!(run.invalid, None);
    for client in &run.clients {
        assert!(client.report.hits > 0, "{}", client.client.host);
        assert_eq!((client.report.misses, client.report.errors.wrong_content), (0, 0), "{}", client.client.host);
    }
    machines.expect_nothing_left();
}

#[test]
fn a_measuring_rank_has_the_latencies_and_the_others_the_load() {
    let Some(machines) = Machines::new(3) else { return };
    let machines = machines.with_server();
    let mut command = load(&machines, "1", "8");
    // The open loop spins and shares its CPU with the others. So few sends are not judged in 1 s.
    command.args(["--measure-rate", "40", "--measure-connections", "2", "--gaps", "fixed:1", "--json"]);
    let output = Job::start(command).output();
    let run: ClusterRun = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    assert_eq!(run.report.latency, run.clients[0].report.latency);
    assert!(run.clients[0].client.measures_only && !run.clients[1].client.measures_only);
    assert!(run.clients[0].report.sent < run.clients[1].report.sent);
    machines.expect_nothing_left();
}

#[test]
fn a_killed_client_ends_the_run_and_is_named() {
    let Some(machines) = Machines::new(4) else { return };
    let machines = machines.with_server();
    let job = Job::start(load(&machines, "100", "8"));
    wait_for_load(&machines, 4);
    signal_pid(&machines.pids(3, "quell-mpi")[0], "-KILL");
    let output = job.output();
    assert!(!output.status.success());
    // Rank 0 misses the client's report at about the time at which `mpirun` misses its process.
    let said = sentence(&output, "rank 2");
    let by_mpirun = said.contains("process rank 2 ") && said.contains("on node 10.77.0.3 exited on signal 9 (Killed)");
    assert!(by_mpirun || said.starts_with("quell-mpi: rank 2 (client3) is late: "), "{said}");
    assert!(!stdout(&output).contains("requests/s"), "no result of an aborted run");
    machines.expect_nothing_left();
}

#[test]
fn a_client_that_hangs_is_named_within_two_seconds() {
    let Some(machines) = Machines::new(4) else { return };
    let machines = machines.with_server();
    let job = Job::start(load(&machines, "100", "8"));
    wait_for_load(&machines, 4);
    signal_pid(&machines.pids(2, "quell-mpi")[0], "-STOP");
    let output = job.output();
    assert_eq!(output.status.code(), Some(3));
    let said = sentence(&output, "is late");
    assert!(
        said.starts_with("quell-mpi: rank 1 (client2) is late: it did not report the end of a window in time"),
        "{said}"
    );
    machines.expect_nothing_left();
    assert!(WINDOW + REPORT_WITHIN < Duration::from_secs(2));
}

#[test]
fn a_saturated_client_ends_the_run_and_is_named() {
    let Some(machines) = Machines::new(4) else { return };
    let machines = machines.with_server();
    let mut command = load(&machines, "100", "64");
    // Open loops spin: four threads on one CPU are late whenever another one runs.
    command.args(["--rate", "4000", "--cpus", "0"]);
    let output = Job::start(command).output();
    assert_eq!(output.status.code(), Some(3));
    let said = sentence(&output, "is saturated");
    assert!(said.starts_with("quell-mpi: rank ") && said.contains("(client"), "{said}");
    machines.expect_nothing_left();
}

#[test]
fn a_cut_network_ends_the_run_and_names_the_client() {
    let Some(machines) = Machines::new(4) else { return };
    let machines = machines.with_server();
    let job = Job::start(load(&machines, "100", "8"));
    wait_for_load(&machines, 4);
    let switch = machines.switch();
    ip(&format!("-n {switch} link set port4 down"));
    // The fault is a cut of this length.
    std::thread::sleep(Duration::from_secs(5));
    ip(&format!("-n {switch} link set port4 up"));
    let output = job.output();
    let said = sentence(&output, "is late");
    assert!(said.starts_with("quell-mpi: rank 3 (client4) is late: "), "{said}");
    assert_eq!(output.status.code(), Some(3));
    machines.expect_nothing_left();
}

#[test]
fn ctrl_c_and_the_death_of_the_launcher_leave_nothing_running() {
    let Some(machines) = Machines::new(4) else { return };
    let machines = machines.with_server();
    for signal in ["-INT", "-KILL"] {
        let job = Job::start(load(&machines, "100", "8"));
        wait_for_load(&machines, 4);
        job.signal(signal);
        machines.expect_nothing_left();
        let output = job.output();
        assert!(!stdout(&output).contains("requests/s"));
    }
}

#[test]
fn ranks_with_different_versions_do_not_start() {
    let Some(machines) = Machines::new(2) else { return };
    let mut command = machines.mpirun();
    command.args(["-n", "1", QUELL_MPI, &format!("{SERVER}:{PORT}"), ":", "-n", "1"]).arg(example("other_version"));
    let output = Job::start(command).output();
    assert_eq!(output.status.code(), Some(2));
    let said = sentence(&output, "versions");
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        said,
        format!(
            "quell-mpi: the clients have different versions of Quell: rank 0 (client1) has {version}, rank 1 (client2) has \
             0.0.0-other; install one version on all of them"
        )
    );
    machines.expect_nothing_left();
}

#[test]
fn a_rank_without_memory_is_named() {
    let Some(machines) = Machines::new(2) else { return };
    let machines = machines.with_server();
    let options =
        format!("{SERVER}:{PORT} --protocol memcached --keys 10000000 --connections 8 --no-preload --seconds 1");
    let limited = format!("ulimit -v 2000000; exec {QUELL_MPI} {options}");
    let mut command = machines.mpirun();
    command.args(["-n", "1", QUELL_MPI]).args(options.split(' ')).args([":", "-n", "1", "sh", "-c", &limited]);
    let output = Job::start(command).output();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    let said = sentence(&output, "of memory");
    assert!(said.starts_with("quell-mpi: rank 1 (client2): the generator needs "), "{said}");
    machines.expect_nothing_left();
}

#[test]
fn a_client_that_cannot_reach_the_server_is_named() {
    let Some(machines) = Machines::new(3) else { return };
    let machines = machines.with_server();
    ip(&format!("-n {} route del 10.78.0.0/24", machines.namespace(3)));
    let mut command = machines.mpirun();
    command.arg(QUELL_MPI).arg(format!("{SECOND_SERVER}:{PORT}")).args(SMALL).args(["8", "--seconds", "1"]);
    let output = Job::start(command).output();
    assert_eq!(output.status.code(), Some(2));
    let said = sentence(&output, "could not connect");
    assert!(
        said.starts_with(&format!(
            "quell-mpi: rank 2 (client3): could not connect to {SECOND_SERVER}:{PORT}: Network is unreachable"
        )),
        "{said}"
    );
    machines.expect_nothing_left();
}

#[test]
fn a_fifth_of_the_clients_that_is_slower_is_named() {
    let Some(machines) = Machines::new(5) else { return };
    let machines = machines.with_server();
    // At 200 kbit/s a request takes milliseconds.
    let client = machines.namespace(4);
    let mut command = load(&machines, "2", "5");
    run("tc", &format!("-n {client} qdisc add dev eth0 root tbf rate 400kbit burst 3000 latency 500ms"));
    command.arg("--json");
    let output = Job::start(command).output();
    let run: ClusterRun = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", stderr(&output)));
    let slower = run.slower_clients.unwrap_or_else(|| panic!("no client is slower: {}", stdout(&output)));
    assert!(slower.contains("rank 3 (client4) with p50"), "{slower}");
    machines.expect_nothing_left();
}

#[test]
fn a_host_that_does_not_resolve_is_named_before_anything_starts() {
    let Some(machines) = Machines::new(1) else { return };
    let hosts = machines.hostfile();
    std::fs::write(&hosts, format!("{}\nno-such-host.invalid\n", address(1))).unwrap();
    let mut command = machines.on_server(QUELL_MPI);
    command.arg("--hostfile").arg(&hosts).arg(format!("{SERVER}:{PORT}"));
    let output = Job::start(command).output();
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
    assert!(sentence(&output, "does not resolve").contains("line 2: \"no-such-host.invalid\""));
    machines.expect_nothing_left();
}

#[test]
fn a_host_file_is_enough_to_load_from_its_hosts() {
    let Some(machines) = Machines::new(2) else { return };
    let machines = machines.with_server();
    let mut command = machines.on_server(QUELL_MPI);
    command.arg("--hostfile").arg(machines.hostfile()).arg(format!("{SERVER}:{PORT}"));
    command.args(SMALL).args(["4", "--seconds", "1"]);
    let began = Instant::now();
    let output = Job::start(command).output();
    assert!(stdout(&output).contains("requests/s answered by 2 clients"), "{}{}", stdout(&output), stderr(&output));
    assert!(began.elapsed() >= Duration::from_secs(1));
    machines.expect_nothing_left();
}
