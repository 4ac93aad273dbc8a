//! Attaches a mode to a running program and detaches it. Processes exit in every order and at any time. Needs root,
//! Linux 6.13 and memcached.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use quell_change::journal::{Journal, Keeper};
use quell_change::recovery::{Found, recover};
use quell_change::transaction::ChangeStage;
use quell_host::attach::attached::{Attached, attachments};
use quell_host::attach::consequences::consequences;
use quell_host::attach::keeper::{self, Detached};
use quell_host::attach::watch::AttachmentWatch;
use quell_host::attach::{
    AttachError, AttachPlan, AttachRequest, AttachStep, Attachment, EpollsSetBy, Selection, Targets, observe, plan,
};
use quell_host::snapshot::{Reading, Snapshot, SnapshotScope, take};
use quell_linux::event::{Trigger, WakeEvent};
use quell_linux::netdev::PartialNapiSettings;
use quell_linux::pidfd::{PidFd, Signal};
use quell_linux::proc::{ProcRoot, ProcessIdentity};
use quell_linux::process::{Child, Spawn};
use quell_linux::{Pid, kernel};
use quell_sampler::Sampler;
use quell_test_support::lab::{ARRIVES_WITHIN, TestLab, UdpProgram, go_on, no_keeper};
use quell_test_support::{Lacks, entry, skip};

const ADDRESS: &str = "192.0.2.1:11211";
const STAGES: [ChangeStage; 3] = [ChangeStage::Before, ChangeStage::Journalled, ChangeStage::Made];

/// memcached with two workers and connections that both queues have served.
struct Server {
    child: Child,
    connections: Vec<TcpStream>,
}

impl Server {
    /// Starts memcached; `None`, with the reason on stderr, if it is not installed.
    fn start(lab: &mut TestLab, port: u16) -> Option<Self> {
        if Command::new("memcached").arg("-V").output().is_err() {
            skip(Lacks::Server("memcached"), "there is no memcached");
            return None;
        }
        let port = port.to_string();
        let words = ["-u", "root", "-U", "0", "-t", "2", "-l", "192.0.2.1", "-p", &port];
        let child = lab.start(Spawn::new("memcached").args(words));
        let mut server = Self { child, connections: Vec::new() };
        server.connect(lab, &format!("192.0.2.1:{port}"), 16);
        Some(server)
    }

    fn connect(&mut self, lab: &TestLab, address: &str, count: usize) {
        let deadline = Instant::now() + ARRIVES_WITHIN;
        let connect = || {
            loop {
                match TcpStream::connect(address) {
                    Ok(connection) => return connection,
                    Err(error) => assert!(Instant::now() < deadline, "memcached does not answer: {error}"),
                }
                std::thread::yield_now();
            }
        };
        let mut connections: Vec<TcpStream> = lab.client.run(|| (0..count).map(|_| connect()).collect()).unwrap();
        connections.iter_mut().for_each(answers);
        self.connections.append(&mut connections);
    }

    fn pid(&self) -> Pid {
        self.child.pid()
    }

    fn signal(&self, signal: Signal) {
        PidFd::open(self.pid()).unwrap().signal(signal).unwrap();
    }

    /// Checks that every connection gets an answer.
    fn answers(&mut self) {
        self.connections.iter_mut().for_each(answers);
    }
}

fn answers(connection: &mut TcpStream) {
    connection.set_read_timeout(Some(ARRIVES_WITHIN)).unwrap();
    connection.write_all(b"version\r\n").unwrap();
    let mut answer = [0; 64];
    // Closing an io_uring of this thread can interrupt a receive with a timeout.
    let read = loop {
        match connection.read(&mut answer) {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            read => break read.unwrap(),
        }
    };
    assert!(answer[..read].starts_with(b"VERSION"), "{:?}", &answer[..read]);
}

fn request(mode: &str) -> AttachRequest {
    AttachRequest { mode: mode.parse().unwrap(), epolls: EpollsSetBy::Attachment }
}

fn targets(pid: Pid) -> Targets {
    Targets::find(Selection::Processes(vec![pid])).unwrap()
}

#[test]
fn an_attachment_that_begins_is_listed_with_its_programs_before_its_keeper_runs() {
    let (dir, pid) = (tempfile::tempdir().unwrap(), Pid::of_this_process());
    let journal = Journal::in_dir(dir.path());
    let mut listed = Vec::new();
    let mut keeper = |path: &Path| {
        listed = attachments(&journal).unwrap();
        no_keeper(path)
    };
    Attachment::begin(&journal, targets(pid), request("suspend200"), &mut keeper).unwrap().end().unwrap();
    let names = |attached: &Attached| attached.history.targets.iter().any(|one| one.pid == pid);
    assert!(matches!(&listed[..], [attached] if attached.is_in_progress() && names(attached)), "{listed:?}");
}

fn plan_for(pid: Pid, mode: &str) -> AttachPlan {
    plan(&observe().unwrap(), None, &targets(pid).pids(), &request(mode))
}

fn attach(dir: &Path, pid: Pid, mode: &str) -> Attachment {
    let mut attachment = Attachment::begin(&Journal::in_dir(dir), targets(pid), request(mode), &mut no_keeper).unwrap();
    attachment.make(&plan_for(pid, mode), &mut go_on).unwrap();
    attachment.settle(&mut go_on).unwrap();
    attachment
}

/// Settings of the lab's queues and of the epolls of some processes, by name.
fn state(lab: &TestLab, pids: &[Pid]) -> BTreeMap<String, String> {
    let snapshot = snapshot(lab);
    let napis = snapshot.devices.iter().flat_map(|device| device.napis.known_elements());
    let mut state: BTreeMap<String, String> = napis
        .map(|napi| {
            let values = (&napi.defer_hard_irqs, &napi.gro_flush_timeout_ns, &napi.irq_suspend_timeout_ns);
            (format!("NAPI {}", napi.id), format!("{values:?} {:?}", napi.threading))
        })
        .collect();
    for process in snapshot.processes.iter().filter(|process| pids.contains(&process.pid)) {
        for epoll in &process.files.known().unwrap().epolls {
            state.insert(format!("epoll {} of {}", epoll.fd, process.pid), format!("{:?}", epoll.params));
        }
    }
    state
}

fn snapshot(lab: &TestLab) -> Snapshot {
    take(&SnapshotScope { netns: Some(lab.server_name.clone()), ..SnapshotScope::default() }).unwrap().0
}

fn suspends(lab: &TestLab) -> bool {
    lab.napi().settings.irq_suspend_timeout_ns == Some(20_000_000)
}

#[test]
fn attaching_to_memcached_and_detaching_leaves_no_change() {
    let Some(mut lab) = TestLab::raise("attach", 2) else { return };
    let Some(mut server) = Server::start(&mut lab, 11_211) else { return };
    let dir = tempfile::tempdir().unwrap();
    let before = state(&lab, &[server.pid()]);
    let planned = plan_for(server.pid(), "suspend200");
    assert_eq!(planned.queues().count(), 2, "{planned:?}");
    assert!(planned.epolls().count() >= 3 && planned.impossible.is_empty(), "{planned:?}");

    let attachment = attach(dir.path(), server.pid(), "suspend200");
    assert!(plan_for(server.pid(), "suspend200").steps.iter().all(AttachStep::is_there));
    assert!(suspends(&lab));
    server.answers();
    let twice = Attachment::begin(&Journal::in_dir(dir.path()), targets(server.pid()), request("base"), &mut no_keeper);
    assert!(matches!(twice, Err(AttachError::BeingAttached { .. })), "{twice:?}");

    let reverted = attachment.end().unwrap();
    assert!(reverted.failed.is_empty() && reverted.partial.is_empty(), "{reverted:?}");
    assert_eq!(state(&lab, &[server.pid()]), before);
    server.answers();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn a_mode_that_needs_a_launch_is_refused_before_any_change() {
    let Some(mut lab) = TestLab::raise("refuse", 1) else { return };
    let Some(server) = Server::start(&mut lab, 11_211) else { return };
    assert!(!plan_for(server.pid(), "eventspin50").impossible.is_empty());
    let plan = plan_for(server.pid(), "fullbusy");
    assert!(plan.impossible.is_empty(), "{plan:?}");
    assert!(format!("{:?}", plan.limitations).contains("EpollWaitUnlimited"), "{plan:?}");
}

#[test]
fn workers_and_queues_that_come_up_later_are_found() {
    let Some(mut lab) = TestLab::raise("later", 2) else { return };
    let dir = tempfile::tempdir().unwrap();
    let gate = dir.path().join("gate");
    let script = format!(
        "until [ -e {gate} ]; do sleep 0.02; done; memcached -u root -U 0 -t 2 -l 192.0.2.1 -p 11211; true",
        gate = gate.display()
    );
    let mut server = Server { child: lab.start(Spawn::new("sh").args(["-c", &script])), connections: Vec::new() };
    let journal_dir = tempfile::tempdir().unwrap();
    let mut attachment = attach(journal_dir.path(), server.pid(), "suspend200");
    assert_eq!((attachment.queues().count(), attachment.epolls()), (0, 0));

    std::fs::write(&gate, "").unwrap();
    server.connect(&lab, ADDRESS, 16);
    let mut found = Vec::new();
    for _ in 0..3 {
        found.extend(attachment.keep_up(&mut go_on).unwrap().started);
    }
    assert!(found.iter().any(|target| target.name == "memcached"), "{found:?}");
    assert_eq!(attachment.queues().count(), 2);
    assert!(attachment.epolls() >= 3, "{}", attachment.epolls());
    assert!(suspends(&lab));
    server.answers();
    attachment.end().unwrap();
    assert!(!suspends(&lab));
}

#[test]
fn everything_is_restored_when_the_program_exits() {
    let Some(mut lab) = TestLab::raise("ended", 1) else { return };
    let Some(server) = Server::start(&mut lab, 11_211) else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut attachment = attach(dir.path(), server.pid(), "suspend200");
    server.signal(Signal::KILL);
    while !attachment.keep_up(&mut go_on).unwrap().over {}
    let reverted = attachment.end().unwrap();
    assert!(reverted.failed.is_empty(), "{reverted:?}");
    assert!(!suspends(&lab));
}

#[test]
fn the_last_of_two_programs_on_a_queue_restores_it() {
    let Some(mut lab) = TestLab::raise("shared", 1) else { return };
    let Some(one) = Server::start(&mut lab, 11_211) else { return };
    let Some(two) = Server::start(&mut lab, 11_212) else { return };
    let dir = tempfile::tempdir().unwrap();
    let before = state(&lab, &[one.pid(), two.pid()]);
    let gro_flush_ns = |lab: &TestLab| lab.napi().settings.gro_flush_timeout_ns.unwrap();
    for (first_to_end, then_left) in [(0, 20_000), (1, 200_000)] {
        let mut attachments =
            vec![attach(dir.path(), one.pid(), "suspend200"), attach(dir.path(), two.pid(), "suspend20")];
        assert_eq!(gro_flush_ns(&lab), 20_000);
        let affected_processes = plan_for(one.pid(), "suspend200").affected_processes;
        assert!(affected_processes.iter().any(|affected| affected.pid == two.pid()), "{affected_processes:?}");
        attachments.remove(first_to_end).end().unwrap();
        assert_eq!(gro_flush_ns(&lab), then_left, "the values of the other program");
        attachments.remove(0).end().unwrap();
        assert_eq!(state(&lab, &[one.pid(), two.pid()]), before);
    }
}

#[test]
fn values_of_a_newer_owner_are_not_those_of_another_program() {
    let Some(mut lab) = TestLab::raise("newer", 1) else { return };
    let Some(server) = Server::start(&mut lab, 11_211) else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut attachment = attach(dir.path(), server.pid(), "suspend200");
    let mut newer = lab.transaction(&dir, "newer-p");
    let gro_flush = |ns| PartialNapiSettings { gro_flush_timeout_ns: Some(ns), ..PartialNapiSettings::NONE };
    assert!(newer.set_napi(&lab.server, lab.napis[0], &gro_flush(20_000)).unwrap());
    let pass = attachment.keep_up(&mut go_on).unwrap();
    assert!(pass.changed_by_others.is_empty() && pass.made.is_empty(), "{pass:?}");
    newer.revert().unwrap();
    assert_eq!(lab.napi().settings.gro_flush_timeout_ns, Some(200_000));
    lab.set_napi(&gro_flush(77_000));
    assert_eq!(attachment.keep_up(&mut go_on).unwrap().changed_by_others.len(), 1);
    attachment.end().unwrap();
    assert_eq!(lab.napi().settings.gro_flush_timeout_ns, Some(77_000));
}

#[test]
fn a_worker_with_connections_from_two_queues_is_reported_with_the_consequences() {
    let Some(mut lab) = TestLab::raise("mixed", 2) else { return };
    let Some(server) = Server::start(&mut lab, 11_211) else { return };
    let snapshot = observe().unwrap();
    let planned = plan(&snapshot, None, &targets(server.pid()).pids(), &request("suspend200"));
    let found: Vec<&str> = consequences(&snapshot, None, &planned).iter().map(|finding| finding.id).collect();
    assert!(found.contains(&"epoll-mixes-napis"), "{found:?}");
    let harmless = plan(&snapshot, None, &targets(server.pid()).pids(), &request("base"));
    assert!(consequences(&snapshot, None, &harmless).is_empty());
}

/// Starts this test's own program in a process of its own.
fn own(lab: &TestLab, dir: &Path, trigger: Trigger) -> (UdpProgram, Attachment) {
    let program = UdpProgram::start(lab, trigger);
    let mode = "suspend20000,defer-hard-irqs=1000000,irq-suspend-timeout=120s";
    let attachment = attach(dir, Pid::of_this_process(), mode);
    (program, attachment)
}

#[test]
fn ending_an_attachment_consumes_no_edge_triggered_event() {
    let Some(lab) = TestLab::raise("edge-a", 1) else { return };
    let dir = tempfile::tempdir().unwrap();
    let (mut program, attachment) = own(&lab, dir.path(), Trigger::Edge);
    program.hold();
    assert!(attachment.end().unwrap().failed.is_empty());
    assert!(program.has_event_within(ARRIVES_WITHIN), "the program gets the event");
    assert_eq!(program.receives_within(ARRIVES_WITHIN), Some(2));
}

#[test]
fn a_queue_that_a_ready_file_keeps_suspended_is_freed_and_reported() {
    let Some(lab) = TestLab::raise("stall", 1) else { return };
    let dir = tempfile::tempdir().unwrap();
    let (mut program, attachment) = own(&lab, dir.path(), Trigger::Level);
    let mut watch = AttachmentWatch::default();
    if let Err(error) = watch.look(&attachment, None) {
        skip(Lacks::KernelFeature, &error);
        return;
    }
    let always_ready = WakeEvent::new().unwrap();
    always_ready.raise().unwrap();
    program.hold();
    program.epoll.add(&always_ready, 9, Trigger::Level).unwrap();
    let deadline = Instant::now() + ARRIVES_WITHIN;
    let stalled = loop {
        program.epoll.wait(Some(Duration::from_millis(1))).unwrap();
        if let Some(stalled) = watch.look(&attachment, None).unwrap().stalled.pop() {
            break stalled;
        }
        assert!(Instant::now() < deadline, "the stall was not detected");
    };
    // Counts the program's packet, and possibly other traffic between the ends of the link.
    assert!(stalled.napi == lab.napis[0] && stalled.packets >= 1, "{stalled:?}");
    assert_eq!(program.receives_within(ARRIVES_WITHIN), Some(2));
    attachment.end().unwrap();
}

#[test]
fn an_idle_queue_whose_interrupt_is_enabled_is_left_alone() {
    /// Many times that after which the watch suspects a queue.
    const OBSERVED: Duration = Duration::from_secs(1);
    let Some(lab) = TestLab::raise("idle-watch", 1) else { return };
    let dir = tempfile::tempdir().unwrap();
    let program = UdpProgram::start(&lab, Trigger::Level);
    let attachment = attach(dir.path(), Pid::of_this_process(), "suspend20");
    let mut watch = AttachmentWatch::default();
    if let Err(error) = watch.look(&attachment, None) {
        skip(Lacks::KernelFeature, &error);
        return;
    }
    let sampler = Sampler::of(kernel::sysfs(), lab.napis.clone()).unwrap();
    program.send(1);
    assert_eq!(program.receives_within(ARRIVES_WITHIN), Some(1));
    // Each packet, also one of the link itself, defers the interrupt, on a busy machine for longer than the timers say.
    let deadline = Instant::now() + ARRIVES_WITHIN;
    let idle = loop {
        let (before, began) = (sampler.read().unwrap(), Instant::now());
        // The program uses CPU time in the meantime.
        while began.elapsed() < OBSERVED {
            watch.look(&attachment, None).unwrap();
        }
        let seen = sampler.read().unwrap()[&lab.napis[0]].since(before.get(&lab.napis[0]));
        if seen.packets == 0 && seen.masked_ns == 0 {
            break seen;
        }
        assert!(Instant::now() < deadline, "the queue is never idle: {seen:?}");
    };
    assert_eq!(idle.polls.program + idle.polls.program_last, 0, "{idle:?}");
    attachment.end().unwrap();
}

/// A program whose main thread exits while another one runs on.
const WITHOUT_MAIN_THREAD: &str = "import ctypes, select, socket, threading, time
sockets = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), select.epoll()
sockets[1].register(sockets[0])
threading.Thread(target=lambda: time.sleep(600)).start()
ctypes.CDLL(None).syscall(60, 0)";

#[test]
fn a_program_without_its_main_thread_is_refused_with_the_reason() {
    if cfg!(not(target_arch = "x86_64")) {
        return skip(Lacks::Machine, "the test uses the number of exit(2) on x86-64");
    }
    let Some(mut lab) = TestLab::raise("no-main", 1) else { return };
    if Command::new("python3").arg("-V").output().is_err() {
        return skip(Lacks::Tool("python3"), "python3 is not installed");
    }
    let child = lab.start(Spawn::new("python3").args(["-c", WITHOUT_MAIN_THREAD]));
    let deadline = Instant::now() + ARRIVES_WITHIN;
    while !ProcRoot::default().process(child.pid()).stat().unwrap().runs_without_main_thread() {
        assert!(Instant::now() < deadline, "the main thread does not exit");
        std::thread::sleep(Duration::from_millis(5));
    }
    let planned = plan_for(child.pid(), "suspend200");
    let [impossible] = &planned.impossible[..] else { panic!("{planned:?}") };
    assert!(impossible.reason.contains("its main thread has exited"), "{impossible:?}");
}

#[test]
fn a_hidden_program_is_refused_with_the_reason() {
    let Some(mut lab) = TestLab::raise("hidden-b", 1) else { return };
    let child = lab.start(Spawn::new("sleep").args(["600"]));
    let mut snapshot = observe().unwrap();
    snapshot.hidden_processes.push(child.pid());
    let planned = plan(&snapshot, None, &targets(child.pid()).pids(), &request("suspend200"));
    assert!(planned.impossible.iter().any(|one| one.reason.contains("CAP_SYS_PTRACE")), "{planned:?}");
}

const KEPT_JOURNAL: &str = "QUELL_TEST_KEPT_JOURNAL";

/// Not a test: the keeper process that the tests below start.
#[test]
#[ignore = "the program of a process that other tests start"]
fn keeper() {
    let Some(path) = std::env::var_os(KEPT_JOURNAL).map(PathBuf::from) else { return };
    let ended = keeper::keep(&Journal::in_dir(path.parent().unwrap()), &path, || {
        eprintln!("keeping");
        Ok(())
    });
    assert!(ended.is_ok(), "{ended:?}");
}

fn start_keeper(journal: &Path) -> Result<Keeper, String> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(entry(keeper))
        .arg("--test-threads=1")
        .env(KEPT_JOURNAL, journal)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while line.trim() != "keeping" {
        line.clear();
        assert!(said.read_line(&mut line).unwrap() > 0, "the keeper exited early");
    }
    let identity = ProcessIdentity::of(&ProcRoot::default(), Pid::from_kernel(child.id()).unwrap()).unwrap();
    // The thread reaps the keeper, because a zombie would count as a running process.
    std::thread::spawn(move || child.wait());
    Ok(Keeper { pid: identity.pid, start_time_ticks: identity.starttime.0 })
}

fn leave(dir: &Path, pid: Pid, mode: &str) -> PathBuf {
    let mut start = start_keeper;
    let mut attachment = Attachment::begin(&Journal::in_dir(dir), targets(pid), request(mode), &mut start).unwrap();
    attachment.make(&plan_for(pid, mode), &mut go_on).unwrap();
    attachment.leave().unwrap()
}

/// Waits until the keeper has restored everything and removed the journal.
fn wait_until_back(journal: &Path) {
    let deadline = Instant::now() + ARRIVES_WITHIN;
    while journal.exists() {
        assert!(Instant::now() < deadline, "the keeper does not restore it");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_keeper_restores_when_the_program_is_killed() {
    let Some(mut lab) = TestLab::raise("keeper", 1) else { return };
    let Some(server) = Server::start(&mut lab, 11_211) else { return };
    let dir = tempfile::tempdir().unwrap();
    let journal = leave(dir.path(), server.pid(), "suspend200");
    assert!(suspends(&lab));
    assert!(matches!(recover(&Journal::in_dir(dir.path())).unwrap()[..], [Found::Kept { .. } | Found::Running { .. }]));
    server.signal(Signal::KILL);
    wait_until_back(&journal);
    assert!(!suspends(&lab));
}

fn detach_all(dir: &Path) -> Vec<Detached> {
    let journal = Journal::in_dir(dir);
    let all = attachments(&journal).unwrap();
    all.iter().filter_map(|one| keeper::detach(&journal, one).unwrap()).collect()
}

#[test]
fn detaching_does_not_wait_for_a_stopped_program() {
    let Some(mut lab) = TestLab::raise("stopped-a", 2) else { return };
    let Some(mut server) = Server::start(&mut lab, 11_211) else { return };
    let dir = tempfile::tempdir().unwrap();
    let before = state(&lab, &[server.pid()]);
    leave(dir.path(), server.pid(), "suspend200,irq-suspend-timeout=9s");
    server.signal(Signal::STOP);
    let began = Instant::now();
    let detached = detach_all(dir.path());
    assert!(matches!(&detached[..], [one] if one.failed.is_empty() && !one.undone.is_empty()), "{detached:?}");
    eprintln!("detached in {:?}", began.elapsed());
    assert_eq!(state(&lab, &[server.pid()]), before);
    server.signal(Signal::CONT);
    server.answers();
}

#[test]
fn an_attachment_is_not_handed_over_to_an_exited_keeper() {
    let Some(mut lab) = TestLab::raise("no-keeper", 1) else { return };
    let Some(server) = Server::start(&mut lab, 11_211) else { return };
    let dir = tempfile::tempdir().unwrap();
    let before = state(&lab, &[server.pid()]);
    let mut pid = None;
    let mut start = |journal: &Path| start_keeper(journal).inspect(|keeper| pid = Some(keeper.pid));
    let mut attachment =
        Attachment::begin(&Journal::in_dir(dir.path()), targets(server.pid()), request("suspend200"), &mut start)
            .unwrap();
    attachment.make(&plan_for(server.pid(), "suspend200"), &mut go_on).unwrap();
    let keeper = PidFd::open(pid.unwrap()).unwrap();
    keeper.signal(Signal::KILL).unwrap();
    assert!(keeper.wait_for_exit(ARRIVES_WITHIN).unwrap());
    let left = attachment.leave();
    assert!(matches!(left, Err(AttachError::KeeperEnded(_))), "{left:?}");
    assert_eq!(state(&lab, &[server.pid()]), before);
}

#[test]
fn the_next_command_restores_if_the_keeper_is_killed_too() {
    let Some(mut lab) = TestLab::raise("orphan", 1) else { return };
    let Some(server) = Server::start(&mut lab, 11_211) else { return };
    let dir = tempfile::tempdir().unwrap();
    let before = state(&lab, &[server.pid()]);
    leave(dir.path(), server.pid(), "suspend200");
    let journal = Journal::in_dir(dir.path());
    let keeper = attachments(&journal).unwrap()[0].keeper.unwrap();
    let keeper = PidFd::open(keeper.pid).unwrap();
    keeper.signal(Signal::KILL).unwrap();
    assert!(keeper.wait_for_exit(ARRIVES_WITHIN).unwrap());
    let found = recover(&journal).unwrap();
    assert!(matches!(&found[..], [Found::Recovered { reverted, .. }] if reverted.failed.is_empty()), "{found:?}");
    assert_eq!(state(&lab, &[server.pid()]), before);
}

const KILLED_AT: &str = "QUELL_TEST_ATTACH_KILLED_AT";

/// Not a test: attaches and kills itself at the stage given in the environment.
#[test]
#[ignore = "the program of a process that other tests start"]
fn attaches_and_is_killed() {
    let Ok(arguments) = std::env::var(KILLED_AT) else { return };
    let [dir, pid, number, stage] = arguments.split(' ').collect::<Vec<_>>()[..] else { panic!("{arguments}") };
    let (pid, number, stage): (Pid, usize, usize) =
        (pid.parse().unwrap(), number.parse().unwrap(), stage.parse().unwrap());
    let mut kill = |at: usize, now: ChangeStage| {
        if (at, now) == (number, STAGES[stage]) {
            PidFd::open(Pid::of_this_process()).unwrap().signal(Signal::KILL).unwrap();
        }
        ControlFlow::Continue(())
    };
    let mut start = start_keeper;
    let mut attachment =
        Attachment::begin(&Journal::in_dir(dir), targets(pid), request("suspend200"), &mut start).unwrap();
    attachment.make(&plan_for(pid, "suspend200"), &mut kill).unwrap();
}

#[test]
fn the_keeper_restores_when_the_attaching_process_is_killed_at_any_stage() {
    let Some(mut lab) = TestLab::raise("killed-a", 2) else { return };
    let Some(mut server) = Server::start(&mut lab, 11_211) else { return };
    let dir = tempfile::tempdir().unwrap();
    let before = state(&lab, &[server.pid()]);
    let steps = plan_for(server.pid(), "suspend200").steps.len();
    for number in 0..steps {
        for (index, stage) in STAGES.iter().enumerate() {
            let status = Command::new(std::env::current_exe().unwrap())
                .args(entry(attaches_and_is_killed))
                .arg("--test-threads=1")
                .env(KILLED_AT, format!("{} {} {number} {index}", dir.path().display(), server.pid()))
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status()
                .unwrap();
            assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9), "{status:?}");
            wait_until_back(&dir.path().join(format!("attach-{}.journal", server.pid())));
            assert_eq!(state(&lab, &[server.pid()]), before, "killed at {stage:?} of change {number}");
        }
    }
    server.answers();
    eprintln!("{} cases: killed at {} stages of {steps} changes", steps * STAGES.len(), STAGES.len());
}

#[test]
fn epolls_of_a_launched_program_are_not_set() {
    let Some(mut lab) = TestLab::raise("launched", 1) else { return };
    let Some(server) = Server::start(&mut lab, 11_211) else { return };
    let request = AttachRequest { epolls: EpollsSetBy::Program, ..request("suspend200") };
    let planned = plan(&observe().unwrap(), None, &targets(server.pid()).pids(), &request);
    assert_eq!((planned.queues().count(), planned.epolls().count()), (1, 0), "{planned:?}");
}

#[test]
fn an_inaccessible_program_is_refused_with_the_reason() {
    let Some(mut lab) = TestLab::raise("hidden-a", 1) else { return };
    let Some(server) = Server::start(&mut lab, 11_211) else { return };
    let mut snapshot = observe().unwrap();
    let denied =
        quell_host::snapshot::UnknownReason::Denied { needs: Some(quell_linux::capability::Capability::SysPtrace) };
    for process in snapshot.processes.iter_mut().filter(|process| process.pid == server.pid()) {
        process.files = Reading::unknown(denied, "list /proc/PID/fd: needs CAP_SYS_PTRACE");
    }
    let planned = plan(&snapshot, None, &targets(server.pid()).pids(), &request("suspend200"));
    assert!(planned.impossible.iter().any(|one| one.reason.contains("CAP_SYS_PTRACE")), "{planned:?}");
}
