//! `quell bench --clients`: an experiment on the server's machine whose load comes from other machines.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use quell_test_support::wait_until;
use serde_json::Value;

use crate::machines::{Job, Machines, PORT, SERVER, signal_pid};
use crate::{QUELL_MPI, stderr, stdout};

/// A server program on the server's machine, which ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `quell` of the same build. `make test-mpi` builds it first.
fn quell() -> PathBuf {
    let quell = Path::new(QUELL_MPI).with_file_name("quell");
    assert!(quell.exists(), "build it first: cargo build -p quell");
    quell
}

fn serve(machines: &Machines) -> Server {
    let mut command = machines.on_server(quell().to_str().unwrap());
    command.args(["respond", &format!("{SERVER}:{PORT}")]).stdout(Stdio::null()).stderr(Stdio::null());
    Server(command.spawn().unwrap())
}

/// Starts an experiment on the server with a closed loop from all clients.
fn bench(machines: &Machines, server: &Server, options: &[&str]) -> Job {
    let clients = format!(
        "{QUELL_MPI} --hostfile {} {SERVER}:{PORT} --protocol request-response --warm-up 0 --connections 8 --follow",
        machines.hostfile().display()
    );
    let mut command = machines.on_server(quell().to_str().unwrap());
    command.args([
        "bench",
        "--pid",
        &server.0.id().to_string(),
        "--clients",
        &clients,
        "--yes",
        "--slice=50",
        "--settle=5",
    ]);
    command.args(["--modes=base,defer200", "--output"]).arg(file(machines)).args(options);
    command.env("QUELL_JOURNAL_DIR", machines.dir().join("journal"));
    Job::start(command)
}

fn file(machines: &Machines) -> PathBuf {
    machines.dir().join("result.json")
}

fn result(machines: &Machines) -> Value {
    serde_json::from_slice(&std::fs::read(file(machines)).unwrap()).unwrap()
}

/// Waits until the experiment has begun: besides the clients' journal there is one of its settings.
fn wait_for_slices(machines: &Machines) {
    wait_until(|| {
        let journals = std::fs::read_dir(machines.dir().join("journal")).into_iter().flatten().flatten();
        let names: Vec<_> = journals.map(|entry| entry.file_name()).collect();
        match names.iter().any(|name| name.to_string_lossy().starts_with("switch-")) {
            true => Ok(()),
            false => Err(format!("the experiment has not begun: {names:?}")),
        }
    });
}

#[test]
fn slices_of_an_experiment_are_measured_by_clients_on_other_machines() {
    let Some(machines) = Machines::new(3) else { return };
    let server = serve(&machines);
    let output = bench(&machines, &server, &["--budget=8s"]).output();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let said = stdout(&output);
    assert!(
        said.contains("load of 3 clients on client1, client2, client3; requests are attributed to slices within ± "),
        "{said}"
    );
    let result = result(&machines);
    let clients = &result["subject"]["clients"];
    assert_eq!(clients["clients"].as_array().unwrap().len(), 3);
    // The clients' clock is this machine's clock.
    let (offset, error) =
        (clients["clock"]["offset-ns"].as_i64().unwrap(), clients["clock"]["error-ns"].as_u64().unwrap());
    assert!(offset.unsigned_abs() <= error, "{offset} ± {error}");
    let experiment = &result["experiments"][0];
    assert_eq!(experiment["load"], "max");
    let slices = experiment["record"]["slices"].as_array().unwrap();
    assert!(slices.len() >= 3);
    for slice in slices {
        let metrics = &slice["observation"]["metrics"];
        assert!(metrics["requests-per-s"].as_f64().unwrap() > 0.0, "{metrics}");
    }
    // On a busy machine the counters of a slice can be read too late. They are then absent.
    let polls: Vec<f64> =
        slices.iter().filter_map(|slice| slice["observation"]["metrics"]["polls-per-request"].as_f64()).collect();
    assert!(!polls.is_empty() && polls.iter().all(|polls| *polls > 0.0), "the same window: {polls:?}");
    machines.expect_nothing_left();
}

#[test]
fn a_client_that_hangs_or_dies_during_an_experiment_is_named() {
    let Some(machines) = Machines::new(3) else { return };
    let server = serve(&machines);
    let late = "rank 1 (client2) is late";
    // Rank 0 misses the client's report at about the time at which `mpirun` misses its process.
    for (signal, named) in [("-STOP", vec![late]), ("-KILL", vec!["process rank 1 with PID", late])] {
        let job = bench(&machines, &server, &["--budget=600s"]);
        wait_for_slices(&machines);
        signal_pid(&machines.pids(2, "quell-mpi")[0], signal);
        let output = job.output();
        let said = stderr(&output);
        assert!(named.iter().any(|sentence| said.contains(sentence)), "{said}");
        assert!(!output.status.success());
        machines.expect_nothing_left();
    }
}

#[test]
fn an_interrupted_or_killed_experiment_leaves_no_client() {
    let Some(machines) = Machines::new(3) else { return };
    let server = serve(&machines);
    for signal in ["-INT", "-KILL"] {
        let job = bench(&machines, &server, &["--budget=600s"]);
        wait_for_slices(&machines);
        signal_pid(&job.pid().to_string(), signal);
        machines.expect_nothing_left();
        let output = job.output();
        if signal == "-INT" {
            assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
        }
    }
}

#[test]
fn clients_that_cannot_start_end_the_command_before_any_change() {
    let Some(machines) = Machines::new(2) else { return };
    let server = serve(&machines);
    std::fs::write(machines.hostfile(), "10.77.0.1\nno-such-host.invalid\n").unwrap();
    let output = bench(&machines, &server, &["--budget=8s"]).output();
    let said = stderr(&output);
    assert!(
        said.contains("line 2: ") && said.contains("no-such-host.invalid") && said.contains("does not resolve"),
        "{said}"
    );
    assert_eq!(output.status.code(), Some(1));
    machines.expect_nothing_left();
}
