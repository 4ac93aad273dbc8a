//! Plans modes for programs that receive in other ways than by an epoll with connections: unconnected UDP sockets,
//! `poll`, `select` and `recv`, io_uring and AF_XDP. Needs root, Linux 6.13 and Python.

use std::collections::BTreeMap;
use std::net::UdpSocket;
use std::process::Command;
use std::time::Duration;

use quell_change::journal::Journal;
use quell_host::attach::consequences::consequences;
use quell_host::attach::placement::{Placement, Wanted, decide, mark_attached_filters};
use quell_host::attach::plan::Limitation;
use quell_host::attach::{AttachPlan, AttachRequest, Attachment, EpollsSetBy, Selection, Targets, observe, plan};
use quell_host::findings::{Node, examine};
use quell_host::snapshot::Snapshot;
use quell_host::steer::{SteerRequest, Steering, mark_steered};
use quell_linux::NapiId;
use quell_linux::link::Links;
use quell_linux::netdev::Netdev;
use quell_linux::proc::ProcessState;
use quell_linux::process::{Child, Spawn};
use quell_test_support::lab::{TestLab, go_on, no_keeper};
use quell_test_support::shapes::{Shape, used};
use quell_test_support::{Lacks, skip, wait_until};

const SERVER: &str = include_str!("../receivers/server.py");
const ADDRESS: &str = "192.0.2.1:5300";
/// Enough flows that each of two queues gets some.
const FLOWS: usize = 24;

/// A lab with a server, whose sockets have received from each queue.
struct Stage {
    lab: TestLab,
    server: Child,
}

impl Stage {
    fn enter(test: &str, queues: u32, kind: &'static str) -> Option<Self> {
        let stage = Self::silent(test, queues, kind)?;
        stage.answers();
        Some(stage)
    }

    /// Without any traffic.
    fn silent(test: &str, queues: u32, kind: &'static str) -> Option<Self> {
        if Command::new("python3").arg("-V").output().is_err() {
            skip(Lacks::Tool("python3"), "python3 is not installed");
            return None;
        }
        let mut lab = TestLab::raise_beside_others(test, queues)?;
        let server = lab.start(Spawn::new("python3").args(["-c", SERVER, kind]));
        Some(Self { lab, server })
    }

    /// Waits until each of the flows has got an answer.
    fn answers(&self) {
        let ask = || {
            let socket = UdpSocket::bind("192.0.2.2:0").unwrap();
            socket.connect(ADDRESS).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(1))).unwrap();
            wait_until(|| {
                socket.send(b"?").map_err(|error| error.to_string())?;
                socket.recv(&mut [0]).map_err(|error| error.to_string())
            });
        };
        self.lab.client.run(|| (0..FLOWS).for_each(|_| ask())).unwrap();
    }

    fn targets(&self) -> Targets {
        Targets::find(Selection::Processes(vec![self.server.pid()])).unwrap()
    }

    fn plan_of(&self, snapshot: &Snapshot, mode: &str) -> AttachPlan {
        let request = AttachRequest { mode: mode.parse().unwrap(), epolls: EpollsSetBy::Attachment };
        plan(snapshot, None, &self.targets().pids(), &request)
    }

    fn plan(&self, mode: &str) -> AttachPlan {
        self.plan_of(&observe().unwrap(), mode)
    }

    /// Rules that predict a stall.
    fn stalls(&self, snapshot: &Snapshot, mode: &str) -> Vec<&'static str> {
        let findings = consequences(snapshot, None, &self.plan_of(snapshot, mode));
        findings.iter().filter(|finding| finding.predicts_stall()).map(|finding| finding.id).collect()
    }
}

fn queues(plan: &AttachPlan) -> Vec<NapiId> {
    plan.queues().map(|step| step.napi).collect()
}

#[test]
fn an_unconnected_udp_socket_gets_every_queue_and_is_not_suspended_on_several() {
    let Some(stage) = Stage::enter("rcv-udp", 2, "epoll") else { return };
    assert_eq!(queues(&stage.plan("defer20")), stage.lab.napis);
    let snapshot = observe().unwrap();
    assert_eq!(stage.stalls(&snapshot, "suspend20"), ["udp-socket-on-several-queues"]);
    assert!(stage.stalls(&snapshot, "defer20").is_empty());
}

#[test]
fn an_unconnected_udp_socket_on_one_queue_is_suspended() {
    let Some(stage) = Stage::enter("rcv-udp-one", 1, "epoll") else { return };
    let snapshot = observe().unwrap();
    assert!(stage.stalls(&snapshot, "suspend20").is_empty());
    assert_eq!(queues(&stage.plan("suspend20")), stage.lab.napis);
}

fn udp_too() -> SteerRequest {
    SteerRequest { devices: Vec::new(), udp: true, replace_filter: false }
}

#[test]
fn a_steered_udp_group_gets_the_queues_of_all_workers() {
    let Some(stage) = Stage::enter("rcv-udp-group", 2, "group") else { return };
    let mut snapshot = observe().unwrap();
    assert!(!stage.stalls(&snapshot, "suspend20").is_empty(), "without a filter");
    let groups = decide(&snapshot, &stage.targets().pids(), &udp_too()).unwrap();
    let steered: BTreeMap<u64, u32> = groups.steerings.iter().flat_map(Steering::queues_of_sockets).collect();
    assert_eq!(steered.len(), 2, "{groups:?}");
    mark_steered(&mut snapshot, &steered);
    assert!(stage.stalls(&snapshot, "suspend20").is_empty());
    let plan = stage.plan_of(&snapshot, "suspend20");
    assert_eq!(queues(&plan), stage.lab.napis);

    let dir = tempfile::tempdir().unwrap();
    let journal = Journal::in_dir(dir.path());
    let request = AttachRequest { mode: "suspend20".parse().unwrap(), epolls: EpollsSetBy::Attachment };
    let mut attachment = Attachment::begin(&journal, stage.targets(), request, &mut no_keeper).unwrap();
    attachment.make(&plan, &mut go_on).unwrap();
    let wanted = Wanted { steer: Some(udp_too()), pin: false };
    Placement::new(wanted).steer(&groups, &mut attachment, &mut go_on).unwrap();
    attachment.settle(&mut go_on).unwrap();
    assert_eq!(attachment.queues().count(), 2);
    let mut later = observe().unwrap();
    mark_attached_filters(&mut later, &journal);
    let pids = stage.targets().pids();
    let is_own = |node: &Node| matches!(node, Node::Process { pid, .. } if pids.contains(pid));
    let mut found = examine(&later, None).findings;
    found.retain(|finding| finding.nodes.iter().any(is_own));
    assert!(found.iter().all(|finding| finding.id != "udp-socket-on-several-queues"), "{found:?}");
    attachment.end().unwrap();
}

#[test]
fn after_the_link_was_down_the_queues_of_a_udp_socket_are_found_again() {
    let Some(stage) = Stage::enter("rcv-udp-flap", 2, "epoll") else { return };
    let mut links = Links::open_in(&stage.lab.server).unwrap();
    links.set_down(stage.lab.server_index).unwrap();
    links.set_up(stage.lab.server_index).unwrap();
    stage.answers();
    let now = Netdev::open_in(&stage.lab.server).unwrap().napis(stage.lab.server_index).unwrap();
    let now: Vec<NapiId> = now.iter().map(|napi| napi.id).collect();
    assert!(now.iter().all(|napi| !stage.lab.napis.contains(napi)), "veth has new NAPI instances");
    let plan = stage.plan("defer20");
    assert_eq!(queues(&plan), now);
    assert!(!plan.limitations.iter().any(|one| matches!(one, Limitation::UnknownQueue { .. })), "{plan:?}");
    let snapshot = observe().unwrap();
    let findings = consequences(&snapshot, None, &stage.plan_of(&snapshot, "suspend20"));
    assert!(findings.iter().any(|finding| finding.id == "udp-socket-keeps-first-queue"), "{findings:?}");
}

fn is_refused_without_epoll(test: &str, kind: &'static str, why: &str) {
    let Some(stage) = Stage::enter(test, 2, kind) else { return };
    for mode in ["suspend20", "napibusy", "fullbusy"] {
        wait_until(|| {
            // A thread that answers a datagram at the moment waits in no call.
            let plan = stage.plan(mode);
            let is_refused = matches!(&plan.impossible[..], [one] if one.reason.contains(why)) && plan.steps.is_empty();
            if is_refused { Ok(()) } else { Err(format!("{mode}: {plan:?}")) }
        });
    }
    let deferred = stage.plan("defer20");
    assert!(deferred.impossible.is_empty() && queues(&deferred) == stage.lab.napis, "{deferred:?}");
}

#[test]
fn a_program_that_waits_in_poll_is_refused() {
    is_refused_without_epoll("rcv-poll", "poll", "waits in poll(2): only epoll polls a queue");
}

#[test]
fn a_program_that_waits_in_select_is_refused() {
    is_refused_without_epoll("rcv-select", "select", "waits in select(2): only epoll polls a queue");
}

#[test]
fn a_program_that_waits_in_recv_is_refused() {
    is_refused_without_epoll("rcv-recv", "recv", "waits in recv(2): only epoll polls a queue");
}

#[test]
fn a_program_whose_epoll_only_accepts_is_refused_once_it_has_connections() {
    for (connections, is_refused) in [(Vec::new as fn() -> _, false), ((|| vec![used()]) as fn() -> _, true)] {
        let Some(mut lab) = TestLab::raise_beside_others("rcv-accept", 1) else { return };
        let Some(server) = Shape::start(&mut lab, "thread-per-connection", connections) else { return };
        let pids = [server.child.pid()].into();
        let impossible = |mode: &str| {
            let request = AttachRequest { mode: mode.parse().unwrap(), epolls: EpollsSetBy::Attachment };
            plan(&observe().unwrap(), None, &pids, &request).impossible
        };
        assert_eq!(impossible("defer20"), []);
        let why: Vec<String> = impossible("suspend20").into_iter().map(|obstacle| obstacle.reason).collect();
        assert_eq!(!why.is_empty(), is_refused, "{why:?}");
        assert!(why.iter().all(|why| why.contains("only epoll polls a queue")), "{why:?}");
    }
}

#[test]
fn a_program_in_poll_is_refused_before_its_first_packet() {
    let Some(stage) = Stage::silent("rcv-silent", 2, "poll") else { return };
    wait_until(|| {
        let plan = stage.plan("suspend20");
        let is_refused = matches!(&plan.impossible[..], [one] if one.reason.contains("waits in poll(2)"));
        if is_refused { Ok(()) } else { Err(format!("{plan:?}")) }
    });
    assert_eq!(stage.plan("defer20").impossible, []);
}

#[test]
fn the_queue_of_an_af_xdp_socket_is_set() {
    let Some(stage) = Stage::silent("rcv-xdp", 2, "xdp") else { return };
    // The script opens no other socket, and sleeps once the AF_XDP socket is bound.
    let is_open = |snapshot: &Snapshot| {
        let process = snapshot.processes.iter().find(|process| process.pid == stage.server.pid())?;
        let asleep =
            process.threads.known()?.iter().all(|thread| thread.state.known() == Some(&ProcessState::Sleeping));
        (asleep && !process.files.known()?.xdp_sockets.is_empty()).then_some(())
    };
    let snapshot = wait_until(|| {
        let snapshot = observe().map_err(|error| error.to_string())?;
        match is_open(&snapshot).is_some() {
            true => Ok(snapshot),
            false => Err("no AF_XDP socket yet".to_owned()),
        }
    });
    let plan = stage.plan_of(&snapshot, "defer20");
    assert_eq!(queues(&plan), stage.lab.napis[1..], "{plan:?}");
}

#[test]
fn the_io_urings_of_node_that_only_serve_files_are_left_alone() {
    if Command::new("node").arg("-v").output().is_err() {
        return skip(Lacks::Tool("node"), "node is not installed");
    }
    let Some(mut lab) = TestLab::raise_beside_others("rcv-node", 2) else { return };
    let script = "require('dgram').createSocket('udp4').bind(5301, '192.0.2.1')";
    let node = lab.start(Spawn::new("node").args(["-e", script]).env("UV_USE_IO_URING", "1"));
    let targets = Targets::find(Selection::Processes(vec![node.pid()])).unwrap();
    let found = wait_until(|| {
        let snapshot = observe().map_err(|error| error.to_string())?;
        let process = snapshot.processes.iter().find(|process| process.pid == node.pid()).ok_or("no sockets yet")?;
        let files = process.files.known().ok_or("no files")?.clone();
        // libuv creates them before it binds the socket.
        let is_decided = files.rings_without_sockets.len() == files.io_urings.len();
        if is_decided { Ok((snapshot, files)) } else { Err(format!("{files:?}")) }
    });
    let (snapshot, files) = found;
    if files.io_urings.is_empty() {
        return skip(Lacks::KernelFeature, "node uses no io_uring here");
    }
    for mode in ["suspend20", "napibusy", "defer20"] {
        let request = AttachRequest { mode: mode.parse().unwrap(), epolls: EpollsSetBy::Attachment };
        let plan = plan(&snapshot, None, &targets.pids(), &request);
        let about_rings =
            |one: &&Limitation| matches!(one, Limitation::NotSuspended { .. } | Limitation::UnknownRings { .. });
        assert_eq!((plan.rings().count(), plan.limitations.iter().find(about_rings)), (0, None), "{mode}");
    }
}
