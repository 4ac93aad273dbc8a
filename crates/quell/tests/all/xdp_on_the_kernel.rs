//! `quell respond --xdp` and `quell load --protocol xdp` as commands, in the namespaces of a veth lab.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use quell_linux::pidfd::{PidFd, Signal};
use quell_linux::{Pid, netns::Namespace};
use quell_result::ResultDocument;
use quell_test_support::lab::TestLab;
use quell_test_support::{Lacks, skip};
use serde_json::Value;

const SERVER: &str = "192.0.2.1:7000";

fn quell(namespace: &Namespace, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    namespace.run(|| command.args(arguments).output()).unwrap().unwrap()
}

/// Starts a responder. Returns `None`, and records the test as skipped, if it is not possible here.
fn responder(lab: &TestLab, arguments: &[&str]) -> Option<Child> {
    responder_of(Path::new(env!("CARGO_BIN_EXE_quell")), lab, arguments)
}

/// The same from this file, which gives the process its name.
fn responder_of(file: &Path, lab: &TestLab, arguments: &[&str]) -> Option<Child> {
    let mut command = Command::new(file);
    command.args(["respond", "--xdp", SERVER]).args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = lab.server.run(|| command.spawn()).unwrap().unwrap();
    let mut said = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
    if said.starts_with("answering 192.0.2.1:7000 on server0 queue ") && said.contains(": native XDP, copy mode") {
        return Some(child);
    }
    assert_eq!(child.wait().unwrap().code(), Some(5), "{said}");
    skip(Lacks::KernelFeature, said);
    None
}

/// Ends a responder by Ctrl-C. Returns its document.
fn end(child: Child) -> Value {
    let pid = Pid::from_kernel(child.id()).unwrap();
    PidFd::open(pid).unwrap().signal(Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn requests_are_answered_and_the_report_is_a_document_that_is_printed_again() {
    let Some(lab) = TestLab::raise_beside_others("xdp-cli", 1) else { return };
    let Some(answering) = responder(&lab, &["--json"]) else { return };
    let load = ["load", SERVER, "--protocol", "xdp", "--warm-up", "0", "--seconds", "0.2"];
    let output = quell(&lab.client, &[&load[..], &["--rate", "1000", "--json"]].concat());
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let document: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&document["schema"], &document["report"]["queue"]["device"]),
        (&"quell-load-xdp/1".into(), &"client0".into())
    );
    assert!(matches!(ResultDocument::parse(&text), Ok(ResultDocument::XdpLoad(_))));

    let printed = quell(&lab.client, &[&load[..], &["--depth", "4", "--spin"]].concat());
    let printed = String::from_utf8(printed.stdout).unwrap();
    assert!(printed.contains("client0 queue 0: native XDP, copy mode"), "{printed}");
    assert!(printed.contains("polled by softirqs after interrupts"), "{printed}");

    let figures = quell(&lab.client, &[&load[..], &["--figures"]].concat());
    assert!(String::from_utf8(figures.stdout).unwrap().contains("\np99-us "), "for `quell bench --latency`");

    let answered = end(answering);
    assert_eq!((&answered["schema"], &answered["invalid"]), (&"quell-respond-xdp/1".into(), &0.into()));
    assert!(answered["answered"].as_u64() > document["report"]["answered"].as_u64(), "{answered}");
}

#[test]
fn what_is_not_possible_exits_with_its_code() {
    let Some(lab) = TestLab::raise_beside_others("xdp-codes", 1) else { return };
    let Some(answering) = responder(&lab, &["--json"]) else { return };
    let load = ["load", SERVER, "--protocol", "xdp", "--warm-up", "0", "--seconds", "0.1"];
    let refused = |options: &[&str]| {
        let output = quell(&lab.client, &[&load[..], options].concat());
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, said) = refused(&["--poller", "threaded-busy-poll"]);
    assert!(code == 5 && said.contains("needs Linux 6.19"), "{code} {said}");
    let (code, said) = refused(&["--udp"]);
    assert!(code == 1 && said.contains("--udp"), "{code} {said}");
    let (code, said) = refused(&["--ring", "100"]);
    assert!(code == 1 && said.contains("not a power of two"), "{code} {said}");
    end(answering);
}

/// IDs of the findings about a program.
fn findings(program: &Child) -> Vec<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(["doctor", &program.id().to_string(), "--seconds", "0", "--json"])
        .output()
        .unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = report["findings"].as_array().unwrap();
    found.iter().map(|finding| finding["id"].as_str().unwrap().to_owned()).collect()
}

fn shown(program: &Child) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_quell")).args(["show", &program.id().to_string()]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_socket_that_asks_for_busy_polling_without_a_napi_id_is_shown_and_found() {
    let Some(lab) = TestLab::raise_beside_others("xdp-found-busy", 1) else { return };
    let Some(answering) = responder(&lab, &["--json", "--poller", "busy-poll"]) else { return };
    let found = findings(&answering);
    assert!(found.iter().any(|id| id == "xdp-socket-cannot-busy-poll"), "{found:?}");
    let tree = shown(&answering);
    assert!(tree.contains("copy mode") && tree.contains("asks for busy polling without NAPI ID"), "{tree}");
    end(answering);
}

#[test]
fn a_program_that_receives_through_af_xdp_is_a_user_of_its_queue() {
    let Some(lab) = TestLab::raise_beside_others("xdp-user", 2) else { return };
    // Quell's own programs are not among the servers.
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("framesrv");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_quell"), &file).unwrap();
    let Some(answering) = responder_of(&file, &lab, &["--json", "--queue", "1"]) else { return };
    let pid = answering.id().to_string();
    let said = |arguments: &[&str]| {
        let output = quell(&lab.server, arguments);
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
        (output.status.code(), text)
    };

    let tree = shown(&answering);
    assert!(tree.contains("server0 rx 1  need-wakeup  copy mode"), "{tree}");
    let (_, of_device) = said(&["show", "--device", "server0"]);
    assert!(of_device.contains(&format!("framesrv {pid}")), "{of_device}");
    let (_, servers) = said(&[]);
    let is_its = |line: &str| ["framesrv ", &pid, "(AF_XDP)"].iter().all(|word| line.contains(word));
    assert!(servers.lines().any(is_its), "{servers}");

    let (code, refused) = said(&["attach", "--dry-run", "suspend200", &pid]);
    assert!(
        code == Some(5) && refused.contains("it receives through AF_XDP: only epoll suspends"),
        "{code:?} {refused}"
    );
    let (code, planned) = said(&["attach", "--dry-run", "defer200", &pid]);
    assert_eq!(code, Some(0), "{planned}");
    let set = format!("server0 rx 1  NAPI {}  ", lab.napis[1]);
    assert!(planned.contains(&set) && planned.contains("frames wait up to 200 µs"), "{planned}");

    let (_, observed) = said(&["top", "--json", "-n", "1", &pid]);
    let observed: Value = serde_json::from_str(observed.lines().next().unwrap()).unwrap();
    let program = &observed["programs"][0];
    assert_eq!((&program["napis"], &program["xdp"]["sockets"]), (&serde_json::json!([lab.napis[1].get()]), &1.into()));
    end(answering);
}

#[test]
fn frames_that_a_socket_loses_are_shown_and_found() {
    let Some(lab) = TestLab::raise_beside_others("xdp-found-drops", 1) else { return };
    let Some(answering) = responder(&lab, &["--json", "--ring", "64", "--work-us", "2000"]) else { return };
    let found = findings(&answering);
    assert!(!found.iter().any(|id| id.starts_with("xdp-socket")), "{found:?}");

    // More than the rings and the veth hold, while the responder works on the first ones.
    lab.client
        .run(|| {
            let socket = std::net::UdpSocket::bind("0.0.0.0:0").unwrap();
            (0..2_000).filter(|_| socket.send_to(&[0; 64], SERVER).is_ok()).count()
        })
        .unwrap();
    let found = findings(&answering);
    assert!(found.iter().any(|id| id == "xdp-socket-drops"), "{found:?}");
    let tree = shown(&answering);
    assert!(tree.contains(" found the fill ring empty") || tree.contains(" found the RX ring full"), "{tree}");
    let observed = quell(&lab.server, &["top", "--json", "-n", "1", &answering.id().to_string()]);
    let observed: Value = serde_json::from_slice(&observed.stdout).unwrap();
    assert!(observed["programs"][0]["xdp"]["dropped"].as_u64().unwrap() > 0, "{observed}");
    end(answering);
}
