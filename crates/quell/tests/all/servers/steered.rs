//! `--steer` with servers that have a listening socket per worker. Each worker's connections use one queue, for
//! attached and launched servers, and after a reload. No filter remains.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use quell_linux::Pid;
use quell_linux::netns::Namespace;
use quell_linux::pidfd::{PidFd, Signal};
use quell_linux::proc::{FdKind, ProcRoot};
use quell_linux::reuseport::{self, Detachment};
use quell_linux::sock_diag::{InetFamily, InetProtocol, SockDiag};
use quell_test_support::{Lacks, skip, wait_until};

use super::lab::{Launch, Server, ServersLab};
use super::program::Program;
use super::programs;
use super::seen::{MODE, UNDER_LOAD};

const NGINX: Program = Program::NginxReuseport;
/// Queues of the lab.
const QUEUES: u32 = 2;
/// `LISTEN` from `include/net/tcp_states.h`.
const LISTEN: u8 = 10;

/// Without proxies, whose connections to backends cannot be steered.
fn can_be_steered() -> impl Iterator<Item = Program> {
    programs().into_iter().filter(|program| !program.steering().is_empty() && !program.has_a_backend())
}

/// A lab with nginx under no mode. `None` without a lab or nginx.
fn serve_nginx() -> Option<(ServersLab, Server)> {
    let lab = ServersLab::raise(QUEUES)?;
    if let Some(why) = NGINX.missing() {
        skip(Lacks::Server("nginx"), &why);
        return None;
    }
    let server = lab.serve(NGINX, QUEUES, Launch::Plain).unwrap();
    Some((lab, server))
}

/// Loads the server until each of this many workers has connections, all of them on one queue, and every queue has a
/// worker.
fn every_worker_has_one_queue(lab: &ServersLab, program: Program, server: &Server, workers: usize) {
    let client = lab.start_client(program.client(), server.address, UNDER_LOAD);
    lab.wait_until_connected(server);
    wait_until(|| {
        let queues: Vec<BTreeSet<u32>> =
            server.epolls().into_iter().map(|epoll| epoll.facts.napi_ids.into_iter().collect()).collect();
        let all: BTreeSet<u32> = queues.iter().flatten().copied().collect();
        let is_so = queues.len() == workers && queues.iter().all(|own| own.len() == 1) && all.len() == QUEUES as usize;
        if is_so { Ok(()) } else { Err(format!("{}: {queues:?}; output: {}", program.name(), server.said())) }
    });
    let found = client.end().unwrap();
    assert_eq!(found.failed, 0, "{}: {found:?}", program.name());
}

fn assert_no_filter_remains(lab: &ServersLab, program: Program, server: &Server) {
    let protocols =
        if program == Program::Unbound { &[InetProtocol::Tcp, InetProtocol::Udp][..] } else { &[InetProtocol::Tcp] };
    for protocol in protocols {
        let left = detach_filter(&lab.veth.server.namespace, server.pid(), server.address, *protocol);
        assert_eq!(left, Detachment::WasAbsent, "{}: {protocol:?}", program.name());
    }
}

/// Detaches the filter of a process that receives at this address, if there is one.
pub(crate) fn detach_filter(
    namespace: &Namespace,
    pid: Pid,
    address: SocketAddr,
    protocol: InetProtocol,
) -> Detachment {
    let mut receiving = BTreeSet::new();
    let mut sockets = SockDiag::open_in(namespace).unwrap();
    let note = |socket: quell_linux::sock_diag::InetSocket| {
        if (socket.state == LISTEN || protocol == InetProtocol::Udp) && socket.local == address {
            receiving.insert(u64::from(socket.inode));
        }
    };
    sockets.for_each(protocol, InetFamily::V4, note).unwrap();
    let fds = ProcRoot::default().process(pid).fds().unwrap();
    let is_one = |kind: &FdKind| matches!(kind, FdKind::Socket { inode } if receiving.contains(inode));
    let fd = fds.into_iter().find(|fd| is_one(&fd.kind)).unwrap();
    reuseport::detach(PidFd::open(pid).unwrap().duplicate(fd.number).unwrap()).unwrap()
}

#[test]
fn a_launched_server_has_one_queue_per_worker_and_no_filter_remains() {
    for program in can_be_steered() {
        let Some(lab) = ServersLab::raise(QUEUES) else { return };
        let before = lab.queues();
        let server = lab.serve(program, QUEUES, Launch::Under(&[&[MODE], program.steering()].concat())).unwrap();
        let says = |wanted: &str| {
            wait_until(|| if server.said().contains(wanted) { Ok(()) } else { Err(server.said()) });
        };
        says("steering tcp");
        if program == Program::Unbound {
            says("steering udp");
        }
        every_worker_has_one_queue(&lab, program, &server, QUEUES as usize);
        server.stop();
        lab.wait_until_as_before(&before, program.name());
    }
}

#[test]
fn an_attached_server_has_one_queue_per_worker_and_no_filter_remains() {
    for program in can_be_steered() {
        let Some(lab) = ServersLab::raise(QUEUES) else { return };
        let server = lab.serve(program, QUEUES, Launch::Plain).unwrap();
        let pid = server.pid().to_string();
        let attach = [&["attach", MODE, &pid, "--yes"], program.steering()].concat();
        // Unbound accepts connections before its threads have their epolls.
        wait_until(|| lab.quell(&attach).succeeded());
        every_worker_has_one_queue(&lab, program, &server, QUEUES as usize);
        lab.quell(&["detach", &pid]).succeeded().unwrap();
        assert_no_filter_remains(&lab, program, &server);
        assert!(lab.journals().is_empty(), "{:?}", lab.journals());
        server.stop();
    }
}

#[test]
fn a_mode_that_polls_is_refused_for_a_proxy_whose_own_connections_no_filter_sorts() {
    let (Some(lab), program) = (ServersLab::raise(QUEUES), Program::HaproxyProxy) else { return };
    if let Some(why) = program.missing() {
        return skip(Lacks::Server("haproxy"), &why);
    }
    let server = lab.serve(program, QUEUES, Launch::Plain).unwrap();
    let client = lab.start_client(program.client(), server.address, UNDER_LOAD);
    lab.wait_until_connected(&server);
    let pid = server.pid().to_string();
    wait_until(|| {
        let planned = lab.quell(&["attach", MODE, &pid, "--steer", "--dry-run"]);
        let why = format!("{}{}", planned.stdout, planned.stderr);
        let is_refused = why.contains("which cannot be steered") && why.contains("--accept-stalls attaches anyway");
        if is_refused { Ok(()) } else { Err(why) }
    });
    client.end().unwrap();
    server.stop();
}

#[test]
fn one_command_steers_an_attached_server_and_replaces_the_mode_of_a_followed_one() {
    let Some((lab, server)) = serve_nginx() else { return };
    let pid = server.pid().to_string();
    lab.quell(&["attach", "base", &pid, "--yes", "--seconds", "0"]).succeeded().unwrap();
    let replace = |mode| {
        let options = ["--steer", "--pin", "--follow", "--take-over", "--yes", "--seconds", "0"];
        let follower = lab.start_quell(&[&["attach", mode, &pid], &options[..]].concat());
        let said = || String::from_utf8(follower.0.stderr_tail().unwrap()).unwrap();
        wait_until(|| if said().contains("following: ") { Ok(()) } else { Err(said()) });
        every_worker_has_one_queue(&lab, NGINX, &server, QUEUES as usize);
        follower
    };
    let first = replace("base");
    let second = replace(MODE);
    first.end().succeeded().unwrap();
    let status = lab.quell(&["status"]).stdout;
    assert!(status.starts_with(&format!("attach {MODE} to")), "{status}");
    second.0.pidfd().signal(Signal::TERM).unwrap();
    second.end().succeeded().unwrap();
    assert_no_filter_remains(&lab, NGINX, &server);
    assert!(lab.journals().is_empty(), "{:?}", lab.journals());
    server.stop();
}

#[test]
fn a_follower_replaces_the_filter_after_a_reload_with_more_workers() {
    let Some((lab, server)) = serve_nginx() else { return };
    let master = PidFd::open(server.pid()).unwrap();
    let pid = server.pid().to_string();
    let follower = lab.start_quell(&["attach", MODE, &pid, "--steer", "--yes", "--follow", "--seconds", "0"]);
    let said = || String::from_utf8(follower.0.stderr_tail().unwrap()).unwrap();
    let says = |wanted: &str| wait_until(|| if said().contains(wanted) { Ok(()) } else { Err(said()) });
    says("following: ");
    every_worker_has_one_queue(&lab, NGINX, &server, QUEUES as usize);

    NGINX.command(lab.site(), 2 * QUEUES);
    master.signal(Signal::HUP).unwrap();
    // The time of a follower, which `status` gives it, and which a busy machine can exceed.
    let asked = Instant::now();
    while !said().contains("steering again tcp") && asked.elapsed() < Duration::from_secs(5) {
        let status = lab.quell(&["status"]);
        let is_late = asked.elapsed() >= Duration::from_secs(5);
        assert!(status.code == Some(0) || is_late, "the follower sets the new workers: {status:?}");
    }
    says("steering again tcp");
    every_worker_has_one_queue(&lab, NGINX, &server, 2 * QUEUES as usize);

    follower.0.pidfd().signal(Signal::TERM).unwrap();
    follower.end().succeeded().unwrap();
    assert_no_filter_remains(&lab, NGINX, &server);
    assert!(lab.journals().is_empty(), "{:?}", lab.journals());
    server.stop();
}

#[test]
fn without_a_follower_status_and_exporter_say_that_the_workers_of_a_reload_lack_the_mode() {
    let Some((lab, server)) = serve_nginx() else { return };
    let pid = server.pid().to_string();
    lab.quell(&["attach", MODE, &pid, "--yes", "--seconds", "0"]).succeeded().unwrap();
    let before = lab.quell(&["status"]);
    assert!(before.code == Some(0) && !before.stdout.contains("started since"), "{before:?}");

    PidFd::open(server.pid()).unwrap().signal(Signal::HUP).unwrap();
    let status = wait_until(|| {
        let status = lab.quell(&["status"]);
        match status.stdout.matches(": started since, without the mode").count() == QUEUES as usize {
            true => Ok(status),
            false => Err(format!("{status:?}")),
        }
    });
    assert_eq!(status.code, Some(3), "{status:?}");
    let directory = lab.dir().display().to_string();
    let exporter = lab.start_quell(&["export", "-i", "0.2", "--textfile", &directory, &pid]);
    let text = wait_until(|| std::fs::read_to_string(lab.dir().join("quell.prom")).map_err(|error| error.to_string()));
    let lines =
        |start: &str, end: &str| text.lines().filter(|line| line.starts_with(start) && line.ends_with(end)).count();
    assert_eq!(lines("quell_program_mode_in_effect{", " 0.0"), QUEUES as usize, "{text}");
    assert_eq!(lines("quell_program_skipped_parts{", "reason=\"epoll-not-set\"} 1.0"), QUEUES as usize, "{text}");
    let of_root = format!("root_pid=\"{pid}\",root_comm=\"nginx\"}} 1.0");
    assert_eq!(lines("quell_program_mode_info{", &of_root), 1 + QUEUES as usize, "{text}");
    exporter.0.pidfd().signal(Signal::TERM).unwrap();
    exporter.end().succeeded().unwrap();

    lab.quell(&["detach", &pid]).succeeded().unwrap();
    assert!(lab.journals().is_empty(), "{:?}", lab.journals());
    server.stop();
}
