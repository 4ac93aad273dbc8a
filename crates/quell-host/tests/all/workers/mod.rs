//! The server that this test binary runs in a lab, and its clients. Each worker has an epoll and a listening socket of
//! one reuseport group. It reports its number and the NAPI ID to every client, and starts another worker on request.

use std::collections::{BTreeMap, HashMap};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use quell_linux::event::{Epoll, Trigger};
use quell_linux::netns::Namespace;
use quell_linux::process::{Child, Output, Spawn};
use quell_linux::socket_options;
use quell_linux::tcp::{Blocking, TcpConnection, TcpListener};
use quell_test_support::entry;

const WORKERS: &str = "QUELL_TEST_WORKERS";
const ADDRESS: &str = "QUELL_TEST_ADDRESS";
const EVENTS_MAX: usize = 64;
const QUESTION: u8 = b'?';
/// A request that is answered once the new worker's socket exists.
const ANOTHER_WORKER: u8 = b'+';
const LISTENER: u64 = u64::MAX;
const PATIENCE: Duration = Duration::from_secs(30);
pub(crate) const PORT: u16 = 7_100;

/// Command to start this test binary as a server with this many workers.
pub(crate) fn spawn(workers: u32) -> Spawn<'static> {
    Spawn::new(std::env::current_exe().unwrap())
        .args(entry(the_server_that_is_steered))
        .env(WORKERS, workers.to_string())
        .env(ADDRESS, SocketAddr::from((Ipv4Addr::UNSPECIFIED, PORT)).to_string())
        .stderr(Output::Tail(2_000))
}

/// Serves until killed if the environment asks for it.
#[test]
#[ignore = "the program of a process that other tests start"]
fn the_server_that_is_steered() {
    let (Ok(workers), Ok(address)) = (std::env::var(WORKERS), std::env::var(ADDRESS)) else { return };
    let (workers, address): (u32, SocketAddr) = (workers.parse().unwrap(), address.parse().unwrap());
    // All sockets exist before the first worker answers.
    let listeners: Vec<TcpListener> = (0..workers).map(|_| listen(address)).collect();
    let workers: Vec<_> = listeners.into_iter().map(|listener| start(address, listener)).collect();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
}

fn listen(address: SocketAddr) -> TcpListener {
    TcpListener::bind(address, true, Blocking::No).unwrap()
}

/// Workers are numbered in the order of their sockets, so the numbers are indices in the group.
fn start(address: SocketAddr, listener: TcpListener) -> JoinHandle<()> {
    static STARTED: AtomicU32 = AtomicU32::new(0);
    let number = STARTED.fetch_add(1, Ordering::Relaxed);
    std::thread::spawn(move || work(number, &listener, address))
}

/// A worker: answers every byte with its number and the NAPI ID of the connection.
fn work(number: u32, listener: &TcpListener, address: SocketAddr) {
    let mut epoll = Epoll::new(EVENTS_MAX).unwrap();
    epoll.add(listener, LISTENER, Trigger::Level).unwrap();
    let mut connections: HashMap<u64, TcpConnection> = HashMap::new();
    for next in 0.. {
        epoll.wait(None).unwrap();
        for index in 0..epoll.len() {
            let token = epoll.get(index).unwrap().token;
            if token == LISTENER {
                let Ok(connection) = listener.accept(Blocking::No) else { continue };
                epoll.add(&connection, next, Trigger::Level).unwrap();
                connections.insert(next, connection);
                break;
            }
            // A connection that is closed while Quell inspects it may be reported once more (`PidFd::duplicate`).
            let Some(connection) = connections.get(&token) else { continue };
            let mut words = [0; 64];
            match connection.receive(&mut words) {
                Ok(1..) => {
                    if words[0] == ANOTHER_WORKER {
                        start(address, listen(address));
                    }
                    let napi = socket_options::incoming_napi_id(connection).unwrap().map_or(0, u32::from);
                    let answer: Vec<u8> = [number.to_be_bytes(), napi.to_be_bytes()].concat();
                    // A disconnected client needs no answer.
                    let _ = connection.send(&answer);
                }
                _ => drop(connections.remove(&token)),
            }
        }
    }
}

/// Worker that served a connection, and its NAPI ID (0 if it has none).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Served {
    pub(crate) worker: u32,
    pub(crate) napi: u32,
}

/// A connection that was served and is still open.
pub(crate) struct Client {
    served: Served,
    _stream: TcpStream,
}

fn connect(address: Ipv4Addr, word: u8) -> Client {
    let mut stream = TcpStream::connect_timeout(&(address, PORT).into(), PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&[word]).unwrap();
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).unwrap();
    let number = |at: usize| u32::from_be_bytes(answer[at..at + 4].try_into().unwrap());
    Client { served: Served { worker: number(0), napi: number(4) }, _stream: stream }
}

/// Waits until the server listens.
pub(crate) fn wait_for(server: &Child, client: &Namespace, address: Ipv4Addr) {
    let listens = || client.run(|| TcpStream::connect((address, PORT)).is_ok()).unwrap();
    let tries = PATIENCE.as_millis() / 10;
    let answered = (0..tries).any(|_| {
        let listens = listens();
        if !listens {
            std::thread::sleep(Duration::from_millis(10));
        }
        listens
    });
    assert!(answered, "the server does not listen: {:?}", server.stderr_tail());
}

/// Makes the server start another worker with its own socket.
pub(crate) fn add_worker(client: &Namespace, address: Ipv4Addr) {
    client.run(|| drop(connect(address, ANOTHER_WORKER))).unwrap();
}

/// Opens this many connections one by one to alternating addresses, and keeps them open.
pub(crate) fn open(client: &Namespace, addresses: &[Ipv4Addr], connections: usize) -> Vec<Client> {
    client
        .run(|| (0..connections).map(|number| connect(addresses[number % addresses.len()], QUESTION)).collect())
        .unwrap()
}

/// Like [`open`], but closes each before the next; counts connections per worker and NAPI ID.
pub(crate) fn count(client: &Namespace, addresses: &[Ipv4Addr], connections: usize) -> BTreeMap<Served, usize> {
    let count = || {
        let mut counts = BTreeMap::new();
        for number in 0..connections {
            let client = connect(addresses[number % addresses.len()], QUESTION);
            *counts.entry(client.served).or_default() += 1;
        }
        counts
    };
    client.run(count).unwrap()
}

/// Maximum number of NAPI IDs of one worker.
pub(crate) fn most_napis_of_a_worker(counts: &BTreeMap<Served, usize>) -> usize {
    let mut napis: BTreeMap<u32, usize> = BTreeMap::new();
    counts.keys().for_each(|served| *napis.entry(served.worker).or_default() += 1);
    napis.into_values().max().unwrap_or(0)
}

/// Text for display.
pub(crate) fn table(counts: &BTreeMap<Served, usize>) -> String {
    let line =
        |(served, count): (&Served, &usize)| format!("  worker {} NAPI {} {count}\n", served.worker, served.napi);
    counts.iter().map(line).collect()
}
