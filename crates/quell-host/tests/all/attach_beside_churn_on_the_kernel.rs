//! Attaches to and detaches from a level-triggered server that closes connections without `EPOLL_CTL_DEL`, while
//! connections are opened and closed. If Quell held a duplicate at such a moment, the connection would stay open: its
//! client would get no FIN, and the server's epoll would report a closed file. Needs root and Linux 6.13.
//!
//! `cargo test -p quell-host --test all attach_beside_churn_on_the_kernel:: -- --ignored --nocapture` prints the figures.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use quell_change::journal::Journal;
use quell_host::attach::{AttachRequest, Attachment, EpollsSetBy, Selection, Targets, observe, plan};
use quell_linux::clock::monotonic_ns;
use quell_linux::event::{Epoll, Trigger};
use quell_linux::netns::Namespace;
use quell_linux::process::{Child, Output, Spawn};
use quell_linux::tcp::{Blocking, TcpConnection, TcpListener};
use quell_test_support::entry;
use quell_test_support::lab::{ARRIVES_WITHIN, SERVER, TestLab, go_on, no_keeper};

const SERVES: &str = "QUELL_TEST_CHURN_SERVER";
const ADDRESS: (Ipv4Addr, u16) = (SERVER, 7_200);
/// Connections that stay open and are inspected in every cycle.
const IDLE: usize = 400;
const CLIENTS: usize = 2;
/// The server reports that it closes the connection, and closes it.
const CLOSE: u8 = b'c';
/// The server reports its counters.
const COUNTS: u8 = b's';
const LISTENER: u64 = u64::MAX;

/// Observations of the server and its clients.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    /// Events of files that the server has closed.
    extra: u64,
    /// Events among these whose descriptor was reused by another connection.
    reused: u64,
    /// Longest time from a close to an event of the closed file, in nanoseconds.
    longest_ns: u64,
    /// Number of closed connections.
    closed: u64,
}

#[test]
#[ignore = "the program of a process that other tests start"]
fn the_server_that_closes_without_taking_out() {
    if std::env::var_os(SERVES).is_some() {
        serve();
    }
}

fn serve() {
    let listener = TcpListener::bind(SocketAddr::from(ADDRESS), true, Blocking::No).unwrap();
    let mut epoll = Epoll::new(64).unwrap();
    epoll.add(&listener, LISTENER, Trigger::Level).unwrap();
    let (mut seen, mut closed_at) = (Seen::default(), HashMap::<u64, u64>::new());
    let mut connections: HashMap<i32, (u64, TcpConnection)> = HashMap::new();
    for next in 1.. {
        epoll.wait(None).unwrap();
        for index in 0..epoll.len() {
            let token = epoll.get(index).unwrap().token;
            if token == LISTENER {
                let Ok(connection) = listener.accept(Blocking::No) else { continue };
                let fd = connection.as_fd().as_raw_fd();
                let token = next << 32 | u64::from(fd.unsigned_abs());
                epoll.add(&connection, token, Trigger::Level).unwrap();
                connections.insert(fd, (token, connection));
                break;
            }
            let fd = i32::try_from(token & u64::from(u32::MAX)).unwrap();
            match connections.get(&fd) {
                Some((own, connection)) if *own == token => {
                    if !goes_on(connection, &seen) {
                        let closed = connections.remove(&fd);
                        closed_at.insert(token, monotonic_ns());
                        drop(closed);
                        seen.closed += 1;
                    }
                }
                other => {
                    seen.extra += 1;
                    seen.reused += u64::from(other.is_some());
                    let since = closed_at.get(&token).map_or(0, |at| monotonic_ns() - at);
                    seen.longest_ns = seen.longest_ns.max(since);
                }
            }
        }
    }
}

/// Answers one word; `false`: close the connection.
fn goes_on(connection: &TcpConnection, seen: &Seen) -> bool {
    let mut word = [0; 1];
    match (connection.receive(&mut word), word) {
        (Ok(1), [CLOSE]) => {
            let _ = connection.send(&monotonic_ns().to_ne_bytes());
            false
        }
        (Ok(1), [COUNTS]) => {
            let Seen { extra, reused, longest_ns, closed } = *seen;
            let words = [extra, reused, longest_ns, closed].map(u64::to_ne_bytes).concat();
            let _ = connection.send(&words);
            true
        }
        (Ok(1..), _) => true,
        _ => false,
    }
}

fn connect() -> TcpStream {
    let stream = TcpStream::connect(ADDRESS).unwrap();
    stream.set_read_timeout(Some(ARRIVES_WITHIN)).unwrap();
    stream
}

fn asked(stream: &mut TcpStream) -> Seen {
    stream.write_all(&[COUNTS]).unwrap();
    let mut words = [0; 32];
    stream.read_exact(&mut words).unwrap();
    let word = |at: usize| u64::from_ne_bytes(words[at * 8..][..8].try_into().unwrap());
    Seen { extra: word(0), reused: word(1), longest_ns: word(2), closed: word(3) }
}

/// Opens connections until `ends` is set; the server closes every second connection first. Returns the times from that
/// close to the FIN in nanoseconds.
fn churn(client: &Namespace, ends: &AtomicBool) -> Vec<u64> {
    let churn = || {
        let mut delays = Vec::new();
        while !ends.load(Ordering::Relaxed) {
            asked(&mut connect());
            let mut stream = connect();
            stream.write_all(&[CLOSE]).unwrap();
            let mut closed_ns = [0; 8];
            stream.read_exact(&mut closed_ns).unwrap();
            assert_eq!(stream.read(&mut [0]).unwrap(), 0, "the server has closed");
            delays.push(monotonic_ns().saturating_sub(u64::from_ne_bytes(closed_ns)));
        }
        delays
    };
    client.run(churn).unwrap()
}

fn start(lab: &mut TestLab) -> Child {
    let this = Spawn::new(std::env::current_exe().unwrap()).args(entry(the_server_that_closes_without_taking_out));
    let server = lab.start(this.env(SERVES, "1").stderr(Output::Tail(2_000)));
    let listens = || lab.client.run(|| TcpStream::connect(ADDRESS).is_ok()).unwrap();
    let listens = (0..3_000).any(|_| {
        listens() || {
            thread::sleep(Duration::from_millis(10));
            false
        }
    });
    assert!(listens, "{:?}", server.stderr_tail());
    server
}

/// Observations while `act` runs, and the time to each FIN.
fn beside_churn(test: &str, act: impl FnOnce(&Child)) -> Option<(Seen, Vec<u64>)> {
    let mut lab = TestLab::raise_beside_others(test, 2)?;
    let server = start(&mut lab);
    let (mut asks, idle) = lab.client.run(|| (connect(), (0..IDLE).map(|_| connect()).collect::<Vec<_>>())).unwrap();
    let ends = AtomicBool::new(false);
    let mut delays = thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(|| churn(&lab.client, &ends))).collect();
        act(&server);
        ends.store(true, Ordering::Relaxed);
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect::<Vec<u64>>()
    });
    delays.sort_unstable();
    let seen = asked(&mut asks);
    drop(idle);
    Some((seen, delays))
}

fn attach_and_detach(server: &Child, mode: &str) {
    let journal = tempfile::tempdir().unwrap();
    let request = AttachRequest { mode: mode.parse().unwrap(), epolls: EpollsSetBy::Attachment };
    let planned = plan(&observe().unwrap(), None, &[server.pid()].into(), &request);
    let targets = Targets::find(Selection::Processes(vec![server.pid()])).unwrap();
    let begun = Attachment::begin(&Journal::in_dir(journal.path()), targets, request, &mut no_keeper);
    let mut attachment = begun.unwrap();
    attachment.make(&planned, &mut go_on).unwrap();
    attachment.settle(&mut go_on).unwrap();
    let reverted = attachment.end().unwrap();
    assert!(reverted.failed.is_empty(), "{reverted:?}");
}

fn figures(what: &str, (seen, delays): &(Seen, Vec<u64>)) {
    let ms = |ns: u64| ns as f64 / 1e6;
    let at = |share: f64| ms(delays.get((delays.len() as f64 * share) as usize).copied().unwrap_or(0));
    eprintln!(
        "{what}: {} closes, {} extra events, {} for a reused number, reported for up to {:.2} ms after the close; \
         close to FIN: median {:.3} ms, 99.9 % {:.2} ms, longest {:.2} ms",
        seen.closed,
        seen.extra,
        seen.reused,
        ms(seen.longest_ns),
        at(0.5),
        at(0.999),
        ms(delays.last().copied().unwrap_or(0))
    );
}

/// Duplicates held during waits and writes to disk caused thousands of events in each cycle.
#[test]
fn connections_that_close_during_an_attach_are_closed() {
    let cycles = |server: &Child| (0..3).for_each(|_| attach_and_detach(server, "suspend200"));
    let Some((seen, _)) = beside_churn("churn", cycles) else { return };
    assert!(seen.closed > 0 && seen.extra < 500, "{seen:?}");
}

#[test]
#[ignore = "prints figures; takes two minutes"]
fn figures_of_fifty_cycles() {
    let alone = beside_churn("churn-alone", |_| thread::sleep(Duration::from_secs(5)));
    let Some(alone) = alone else { return };
    figures("alone, 5 s", &alone);
    for mode in ["suspend200", "sockpoll50"] {
        let cycles = |server: &Child| (0..50).for_each(|_| attach_and_detach(server, mode));
        figures(&format!("50 cycles of {mode}"), &beside_churn(&format!("churn-{mode}"), cycles).unwrap());
    }
}
