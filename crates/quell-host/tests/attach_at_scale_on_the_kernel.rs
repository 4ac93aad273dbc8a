//! A program with 5,000 epolls and 20,000 sockets gets a mode and loses it again. Needs root, Linux 6.13 and 60,000 open
//! files.
//!
//! `cargo test --release -p quell-host --test attach_at_scale_on_the_kernel -- --ignored --nocapture` prints how long it
//! takes.

#![allow(clippy::unwrap_used, clippy::print_stderr, reason = "helpers of tests fail by panicking")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quell_host::attach::consequences::consequences;
use quell_host::attach::{Attachment, EpollsSetBy, Request, Selection, Targets, observe, plan};
use quell_host::journal::Journal;
use quell_linux::event::{Epoll, Trigger};
use quell_linux::process::{Child, Output, Spawn};
use quell_test_support::lab::{Lab, SERVER, go_on, no_keeper};
use quell_test_support::{Lacks, skip};

const SERVES: &str = "QUELL_TEST_MANY_EPOLLS";
const ENTRY: &str = "the_server_of_many_epolls";
const FIRST_PORT: u16 = 20_000;

#[test]
#[ignore = "the program of a process that other tests start"]
fn the_server_of_many_epolls() {
    let Ok(told) = std::env::var(SERVES) else { return };
    let [epolls, sockets] = told.split(' ').map(|word| word.parse().unwrap()).collect::<Vec<u16>>()[..] else {
        panic!("{told}")
    };
    let epolls: Vec<Epoll> = (0..epolls).map(|_| Epoll::new(1).unwrap()).collect();
    let bind = |number: u16| UdpSocket::bind((SERVER, FIRST_PORT + number)).unwrap();
    let sockets: Vec<UdpSocket> = (0..sockets).map(bind).collect();
    for (socket, epoll) in sockets.iter().zip(epolls.iter().cycle()) {
        epoll.add(socket.as_fd(), 0, Trigger::Level).unwrap();
    }
    println!("ready");
    std::io::stdout().flush().unwrap();
    for socket in &sockets {
        socket.recv(&mut [0]).unwrap();
    }
    println!("heard");
    std::io::stdout().flush().unwrap();
    loop {
        std::thread::park();
    }
}

/// The server, once each of its sockets has received a datagram; `None`, with the reason on stderr, where a process cannot
/// have as many files.
fn start(lab: &mut Lab, epolls: u16, sockets: u16) -> Option<Child> {
    let (reader, writer) = std::io::pipe().unwrap();
    let this = std::env::current_exe().unwrap();
    let files = format!("--nofile={}", u32::from(epolls) + u32::from(sockets) + 1_000);
    let limited =
        Spawn::new("prlimit").args([&files, this.to_str().unwrap(), "--ignored", "--exact", ENTRY, "--nocapture"]);
    let limited = limited.env(SERVES, format!("{epolls} {sockets}")).stdout(Output::Pipe(writer));
    let server = lab.start(limited.stderr(Output::Tail(2_000)));
    let mut said = BufReader::new(reader).lines();
    let mut says = |word: &str| said.any(|line| line.unwrap().ends_with(word));
    if !says("ready") {
        skip(Lacks::Machine, format_args!("{:?}", server.stderr_tail()));
        return None;
    }
    let client = lab.client.run(|| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap()).unwrap();
    let has_heard = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Some are lost: a veth drops what its ring has no room for.
        scope.spawn(|| {
            for number in (0..sockets).cycle().take_while(|_| !has_heard.load(Ordering::Relaxed)) {
                client.send_to(b"x", (SERVER, FIRST_PORT + number)).unwrap();
            }
        });
        assert!(says("heard"), "{:?}", server.stderr_tail());
        has_heard.store(true, Ordering::Relaxed);
    });
    Some(server)
}

/// Time that attaching and detaching take.
fn attach_and_detach(server: &Child) -> [Duration; 2] {
    let journal = tempfile::tempdir().unwrap();
    let request = Request { mode: "suspend200".parse().unwrap(), epolls: EpollsSetBy::Attachment };
    let mut last = Instant::now();
    let began = last;
    let mut lap = |what: &str| {
        eprintln!("  {what} {:?}", last.elapsed());
        last = Instant::now();
    };
    let picture = observe().unwrap();
    lap("look");
    let planned = plan(&picture, None, &[server.pid()].into(), &request);
    lap("plan");
    let found = consequences(&picture, None, &planned).len();
    lap("consequences");
    let targets = Targets::find(Selection::Processes(vec![server.pid()])).unwrap();
    let begun = Attachment::begin(&Journal::in_dir(journal.path()), targets, request, &mut no_keeper);
    let mut attachment = begun.unwrap();
    lap("begin");
    attachment.make(&planned, &mut go_on).unwrap();
    lap("make");
    attachment.settle(&mut go_on).unwrap();
    lap("settle");
    let attached = began.elapsed();
    let (epolls, queues) = (attachment.epolls(), attachment.queues().count());
    let began = Instant::now();
    let reverted = attachment.end().unwrap();
    lap("end");
    assert_eq!((reverted.failed.len(), reverted.in_part.len()), (0, 0), "{reverted:?}");
    assert_eq!(reverted.undone.len(), epolls + queues);
    eprintln!("  {epolls} epolls, {queues} queues, {found} findings");
    [attached, began.elapsed()]
}

#[test]
#[ignore = "prints figures"]
fn figures_of_many_epolls() {
    for (epolls, sockets) in [(17, 18_000), (5_000, 20_000)] {
        let Some(mut lab) = Lab::raise("scale", 4) else { return };
        let Some(server) = start(&mut lab, epolls, sockets) else { return };
        let [attached, detached] = attach_and_detach(&server);
        eprintln!("{epolls} epolls, {sockets} sockets: attached in {attached:?}, detached in {detached:?}");
    }
}
