//! Measures the cost of a snapshot of a memcached with many connections. Reports elapsed time, split into reading
//! devices, processes and sockets, and joining. Also reports CPU time, which other programs disturb less. Needs root:
//! creates a veth pair of 16 queues in two network namespaces.
//!
//! cargo bench -p quell-host --bench snapshot

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark prints, and fails by panicking")]

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use quell_change::journal::{Journal, Purpose};
use quell_change::transaction::Transaction;
use quell_host::snapshot::{Cost, SnapshotScope, take};
use quell_linux::InterfaceName;
use quell_linux::address::{Addresses, InterfaceAddress};
use quell_linux::ethtool::Ethtool;
use quell_linux::link::{Links, VethEnd};
use quell_linux::netns::NamespaceName;
use quell_linux::proc::ProcRoot;
use quell_linux::process::Spawn;

const QUEUES: u32 = 16;
const CONNECTIONS: usize = 10_000;
const REPEATS: usize = 9;
const START_BOUND: Duration = Duration::from_secs(10);

fn main() {
    let dir = tempfile::tempdir().unwrap();
    let id = format!("qt-snapshot-{}", std::process::id());
    let mut transaction = Transaction::begin(&Journal::in_dir(dir.path()), &id, Purpose::Lab).unwrap();
    let name = |end: &str| NamespaceName::new(format!("{id}-{end}")).unwrap();
    let server = transaction.create_namespace(&name("server")).unwrap();
    let client = transaction.create_namespace(&name("client")).unwrap();
    let end =
        |namespace, name| VethEnd { namespace, name: InterfaceName::new(name).unwrap(), mac: None, queues: QUEUES };
    let pair = transaction.create_veth(&name("server"), &end(&server, "srv0"), &end(&client, "cli0")).unwrap();
    for (namespace, index, address) in [(&server, pair.left, "192.0.2.1"), (&client, pair.right, "192.0.2.2")] {
        let off = [("rx-gro", true), ("tx-tcp-segmentation", false)];
        Ethtool::open_in(namespace).unwrap().set_features(index, &off).unwrap();
        let address = InterfaceAddress::new(address.parse().unwrap(), 24).unwrap();
        Addresses::open_in(namespace).unwrap().add(index, address).unwrap();
        Links::open_in(namespace).unwrap().set_up(index).unwrap();
    }
    let words = ["-u", "root", "-U", "0", "-l", "192.0.2.1", "-p", "11211", "-t", "16", "-N", "16", "-c", "16000"];
    let command: Vec<String> = std::iter::once("memcached").chain(words).map(str::to_owned).collect();
    let spawn = Spawn::new("memcached").args(words).netns(&server);
    let memcached = transaction.spawn(&command, spawn).unwrap();
    let connections = client.run(connect_all).unwrap();

    let scope = SnapshotScope { pids: vec![memcached.identity().pid], ..SnapshotScope::default() };
    let mut measured: Vec<Measured> = (0..REPEATS).map(|_| measure(&scope)).collect();
    measured.sort_by_key(|one| one.passed);
    let Measured { passed, cost, sockets, .. } = measured[REPEATS / 2];
    println!("{} connections, {sockets} sockets in the snapshot, {QUEUES} queues; {REPEATS} times", connections.len());
    println!(
        "passed: median {passed:?} (devices {:?}, processes {:?}, sockets {:?}, joining {:?})",
        cost.devices, cost.processes, cost.sockets, cost.joining
    );
    println!("        fastest {:?}, slowest {:?}", measured[0].passed, measured[REPEATS - 1].passed);
    measured.sort_by_key(|one| one.ran);
    let [least, median, most] = [0, REPEATS / 2, REPEATS - 1].map(|index| measured[index].ran);
    println!("on a CPU: median {median:?}, least {least:?}, most {most:?}");
    println!("one snapshot as JSON: {} bytes", serde_json::to_vec(&take(&scope).unwrap().0).unwrap().len());
    let peak = ProcRoot::default().thread_self().status().unwrap().peak_rss_kib;
    println!("peak memory of this process, with its {} client sockets: {peak:?} KiB", connections.len());
}

/// Cost of one snapshot.
struct Measured {
    passed: Duration,
    ran: Duration,
    cost: Cost,
    sockets: usize,
}

fn measure(scope: &SnapshotScope) -> Measured {
    let ran = || ProcRoot::default().thread_self().schedstat().unwrap().run();
    let (began, ran_before) = (Instant::now(), ran());
    let (snapshot, cost) = take(scope).unwrap();
    let passed = began.elapsed();
    Measured { passed, ran: ran().saturating_sub(ran_before), cost, sockets: snapshot.sockets.len() }
}

/// Opens the connections; each has received an answer, so that its server socket has a NAPI ID.
fn connect_all() -> Vec<TcpStream> {
    let address: SocketAddr = "192.0.2.1:11211".parse().unwrap();
    let deadline = Instant::now() + START_BOUND;
    while TcpStream::connect(address).is_err() {
        assert!(Instant::now() < deadline, "memcached accepts no connection");
        std::thread::yield_now();
    }
    let one = |_| {
        let mut connection = TcpStream::connect(address).unwrap();
        connection.write_all(b"version\r\n").unwrap();
        let mut answer = [0; 64];
        assert!(connection.read(&mut answer).unwrap() > 0);
        connection
    };
    (0..CONNECTIONS).map(one).collect()
}
