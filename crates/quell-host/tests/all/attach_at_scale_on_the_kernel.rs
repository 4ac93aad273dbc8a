//! Attaches to two processes with 5,000 epolls and 20,000 sockets in total, and detaches. Needs root, Linux 6.13 and
//! 19,000 open files.
//!
//! `cargo test --release -p quell-host --test all attach_at_scale_on_the_kernel:: -- --ignored --nocapture` prints the
//! durations.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quell_change::journal::Journal;
use quell_host::attach::consequences::consequences;
use quell_host::attach::{AttachRequest, Attachment, EpollsSetBy, Selection, Targets, observe, plan};
use quell_linux::Pid;
use quell_linux::clock::process_cpu_ns;
use quell_linux::event::{Epoll, Trigger};
use quell_linux::process::{Child, Output, Spawn};
use quell_test_support::lab::{SERVER, TestLab, go_on, no_keeper};
use quell_test_support::{Lacks, entry, skip};

const SERVES: &str = "QUELL_TEST_MANY_EPOLLS";
const FIRST_PORT: u16 = 20_000;

#[test]
#[ignore = "the program of a process that other tests start"]
fn the_server_of_many_epolls() {
    let Ok(arguments) = std::env::var(SERVES) else { return };
    let [first_port, epolls, sockets] =
        arguments.split(' ').map(|word| word.parse().unwrap()).collect::<Vec<u16>>()[..]
    else {
        panic!("{arguments}")
    };
    let epolls: Vec<Epoll> = (0..epolls).map(|_| Epoll::new(1).unwrap()).collect();
    let bind = |number: u16| UdpSocket::bind((SERVER, first_port + number)).unwrap();
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

/// Starts the server and waits until each of its sockets has received a datagram. Returns `None`, with the reason on
/// stderr, if a process cannot open enough files.
fn start(lab: &mut TestLab, first_port: u16, epolls: u16, sockets: u16) -> Option<Child> {
    let (reader, writer) = std::io::pipe().unwrap();
    let this = std::env::current_exe().unwrap();
    let files = format!("--nofile={}", u32::from(epolls) + u32::from(sockets) + 1_000);
    let limited = Spawn::new("prlimit").args([&files, this.to_str().unwrap()]).args(entry(the_server_of_many_epolls));
    let limited = limited.env(SERVES, format!("{first_port} {epolls} {sockets}")).stdout(Output::Pipe(writer));
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
        // Some datagrams are lost, because the ring of a veth drops packets when it is full.
        scope.spawn(|| {
            for number in (0..sockets).cycle().take_while(|_| !has_heard.load(Ordering::Relaxed)) {
                client.send_to(b"x", (SERVER, first_port + number)).unwrap();
            }
        });
        assert!(says("heard"), "{:?}", server.stderr_tail());
        has_heard.store(true, Ordering::Relaxed);
    });
    Some(server)
}

/// Durations of attaching and detaching.
fn attach_and_detach(servers: &[Pid]) -> [Duration; 2] {
    let journal = tempfile::tempdir().unwrap();
    let request = AttachRequest { mode: "suspend200".parse().unwrap(), epolls: EpollsSetBy::Attachment };
    let began = Instant::now();
    let (mut last, mut last_cpu_ns) = (began, process_cpu_ns());
    let mut lap = |what: &str| {
        let cpu_ns = process_cpu_ns();
        eprintln!("  {what}: {:?}, of which {:?} on a CPU", last.elapsed(), Duration::from_nanos(cpu_ns - last_cpu_ns));
        (last, last_cpu_ns) = (Instant::now(), process_cpu_ns());
    };
    let snapshot = observe().unwrap();
    lap("look");
    let planned = plan(&snapshot, None, &servers.iter().copied().collect(), &request);
    lap("plan");
    let found = consequences(&snapshot, None, &planned).len();
    lap("consequences");
    let targets = Targets::find(Selection::Processes(servers.to_vec())).unwrap();
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
    assert_eq!((reverted.failed.len(), reverted.partial.len()), (0, 0), "{reverted:?}");
    assert_eq!(reverted.undone.len(), epolls + queues);
    eprintln!("  {epolls} epolls, {queues} queues, {found} findings");
    [attached, began.elapsed()]
}

#[test]
#[ignore = "prints figures"]
fn figures_of_many_epolls() {
    for (processes, epolls, sockets) in [(1, 17, 18_000), (2, 2_500, 10_000)] {
        let Some(mut lab) = TestLab::raise_beside_others("scale", 4) else { return };
        let starts = (0..processes).map(|number| start(&mut lab, FIRST_PORT + number * sockets, epolls, sockets));
        let Some(servers) = starts.collect::<Option<Vec<Child>>>() else { return };
        let [attached, detached] = attach_and_detach(&servers.iter().map(Child::pid).collect::<Vec<_>>());
        eprintln!(
            "{processes} processes of {epolls} epolls and {sockets} sockets: attached in {attached:?}, detached in \
             {detached:?}"
        );
    }
}
