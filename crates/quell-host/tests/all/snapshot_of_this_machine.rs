//! Takes a read-only snapshot of this machine. It is complete, consistent and unchanged after saving and loading, and
//! gives reasons for values that an unprivileged reader cannot see.

use std::io::{BufRead as _, BufReader};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};

use quell_host::attach::observe_programs;
use quell_host::snapshot::{OtherSocket, Snapshot, SnapshotScope, SnapshotSocket, TakeError, UnknownReason, take};
use quell_linux::{Pid, socket_options};
use quell_test_support::{Lacks, skip};

fn of_this_process() -> Snapshot {
    let scope = SnapshotScope { pids: vec![Pid::of_this_process()], ..SnapshotScope::default() };
    take(&scope).unwrap().0
}

#[test]
fn programs_without_network_socket_are_observed_with_the_kinds_of_their_other_sockets() {
    const LISTENS: &str = "import socket, sys
one = socket.socket(socket.AF_UNIX)
one.bind('\\0quell-test-' + sys.argv[1])
one.listen()
print('listens', flush=True)
sys.stdin.read()";
    let name = std::process::id().to_string();
    let mut server = Command::new("python3");
    server.args(["-c", LISTENS, &name]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let Ok(mut server) = server.spawn() else {
        return skip(Lacks::Tool("python3"), "python3 is not installed");
    };
    let mut line = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let pid = Pid::new(server.id().cast_signed()).unwrap();
    let observed = observe_programs(&[pid].into());
    server.kill().unwrap();
    server.wait().unwrap();
    let observed = observed.unwrap();
    let [process] = &observed.processes[..] else { panic!("{:?}", observed.processes) };
    let Some(files) = process.files.known() else { return skip(Lacks::Root, "needs CAP_SYS_PTRACE") };
    assert_eq!((process.pid, files.other_sockets.clone()), (pid, [OtherSocket::UnixListener].into()));
}

#[test]
fn a_saved_snapshot_is_loaded_unchanged() {
    let _listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let snapshot = of_this_process();
    let json = serde_json::to_vec(&snapshot).unwrap();
    assert_eq!(Snapshot::parse(&json).unwrap(), snapshot);
}

#[test]
fn a_connection_of_this_process_is_found_with_both_addresses() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let snapshot = of_this_process();
    let process = snapshot.index().process(Pid::of_this_process()).unwrap();
    let held = &process.files.known().unwrap().sockets;
    let local = Some(client.local_addr().unwrap());
    let index = snapshot.index();
    let sockets = held.iter().filter_map(|held| index.socket(held.inode));
    let seen = sockets.into_iter().find(|socket| socket.local == local).unwrap();
    assert_eq!(seen.remote, client.peer_addr().ok());
    assert_eq!(seen.napi.known(), Some(&None), "loopback has no NAPI");
}

/// More similar connections than the number that is queried for all options.
const MANY: usize = 40;

/// Opens connections and returns both ends of each, the accepting end first.
fn connections(listener: &TcpListener) -> Vec<(TcpStream, TcpStream)> {
    let connect = |_| {
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (listener.accept().unwrap().0, client)
    };
    (0..MANY).map(connect).collect()
}

fn accepted(snapshot: &Snapshot, listener: &TcpListener) -> Vec<SnapshotSocket> {
    let local = listener.local_addr().ok();
    snapshot.sockets.iter().filter(|socket| socket.local == local && socket.remote.is_some()).cloned().collect()
}

#[test]
fn all_similar_connections_report_their_napi_id_and_some_all_options() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let _connections = connections(&listener);
    let sockets = accepted(&of_this_process(), &listener);
    assert_eq!(sockets.len(), MANY);
    assert!(sockets.iter().all(|socket| socket.napi.known() == Some(&None)));
    let (asked, left_out): (Vec<_>, Vec<_>) =
        sockets.iter().partition(|socket| socket.prefer_busy_poll.known().is_some());
    assert!(!asked.is_empty() && !left_out.is_empty());
    assert!(
        asked.iter().all(|socket| socket.incoming_cpu.known().is_some() && socket.busy_poll_us.known() == Some(&0))
    );
    assert!(left_out.iter().all(|socket| socket.busy_poll_us.why_unknown().unwrap().reason == UnknownReason::NotAsked));
}

#[test]
fn no_busy_polling_connection_is_left_out() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let connections = connections(&listener);
    for (server, _) in &connections {
        if let Err(error) = socket_options::set_busy_poll_us(server, 50) {
            return skip(Lacks::Root, &error);
        }
    }
    let sockets = accepted(&of_this_process(), &listener);
    assert_eq!(sockets.len(), MANY);
    assert!(sockets.iter().all(|socket| socket.busy_poll_us.known() == Some(&50)));
}

#[test]
fn the_loopback_device_has_no_napi() {
    let snapshot = take(&SnapshotScope::default()).unwrap().0;
    let loopback = snapshot.devices.iter().find(|device| device.name == "lo").unwrap();
    assert_eq!(loopback.irqs.known().map(Vec::as_slice), Some(&[][..]));
    assert!(loopback.napis.known().is_none_or(Vec::is_empty));
}

#[test]
fn a_missing_object_is_named_in_the_error() {
    let nobody = Pid::new(i32::MAX).unwrap();
    let error = take(&SnapshotScope { pids: vec![nobody], ..SnapshotScope::default() }).unwrap_err();
    assert!(matches!(error, TakeError::NoSuchProcess(pid) if pid == nobody));
    let error = take(&SnapshotScope { device: Some("qt-none".into()), ..SnapshotScope::default() }).unwrap_err();
    assert!(error.to_string().contains("qt-none") && error.to_string().contains("lo"), "{error}");
}
