//! Settings of queues and epolls are journalled and restored on the real kernel. In between, the program exits, another
//! program sets a value, the link goes down, or the program continues. Needs root and Linux 6.13.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quell_change::resume::{Freed, ResumeError, Resumer};
use quell_change::transaction::ChangeError;
use quell_linux::Pid;
use quell_linux::epoll_params::{self, EpollParams};
use quell_linux::event::{Epoll, Trigger};
use quell_linux::link::Links;
use quell_linux::netdev::{Netdev, PartialNapiSettings};
use quell_linux::pidfd::PidFd;
use quell_linux::proc::{FdKind, ProcRoot, ProcessIdentity, Ticks};
use quell_linux::process::{Output, ProcessError, Spawn, SpawnStep};
use quell_test_support::lab::{
    ARRIVES_WITHIN, PREFER, SUSPENDED_FOR, SUSPENDING, TestLab, UdpProgram, every_namespace_is_in_sight,
};
use quell_test_support::{Lacks, skip, wait_until};

#[test]
fn unchanged_values_are_not_recorded() {
    let Some(lab) = TestLab::raise("already", 1) else { return };
    lab.set_napi(&SUSPENDING);
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = lab.transaction(&dir, "already-t");
    assert!(!transaction.set_napi(&lab.server, lab.napis[0], &SUSPENDING).unwrap());
    let reverted = transaction.revert().unwrap();
    assert_eq!(reverted.undone.len() + reverted.already_gone.len(), 0, "{reverted:?}");
    assert_eq!(lab.napi().settings.irq_suspend_timeout_ns, SUSPENDING.irq_suspend_timeout_ns);
}

#[test]
fn a_value_that_another_program_changed_is_left_alone_and_reported() {
    let Some(lab) = TestLab::raise("others", 1) else { return };
    let before = lab.napi();
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = lab.transaction(&dir, "others-t");
    assert!(transaction.set_napi(&lab.server, lab.napis[0], &SUSPENDING).unwrap());
    lab.set_napi(&PartialNapiSettings { gro_flush_timeout_ns: Some(77_000), ..PartialNapiSettings::NONE });
    let reverted = transaction.revert().unwrap();
    let [(_, why)] = &reverted.partial[..] else { panic!("{reverted:?}") };
    assert!(why.contains("gro-flush-timeout 77 µs"), "{why}");
    let now = lab.napi();
    assert_eq!(now.settings.gro_flush_timeout_ns, Some(77_000));
    assert_eq!(
        (now.settings.defer_hard_irqs, now.settings.irq_suspend_timeout_ns),
        (before.settings.defer_hard_irqs, before.settings.irq_suspend_timeout_ns)
    );
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "no journal is left");
}

#[test]
fn values_that_survive_in_a_recreated_queue_are_restored() {
    let Some(lab) = TestLab::raise("anew", 2) else { return };
    let before = Netdev::open_in(&lab.server).unwrap().napis(lab.server_index).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = lab.transaction(&dir, "anew-t");
    for &napi in &lab.napis {
        assert!(transaction.set_napi(&lab.server, napi, &SUSPENDING).unwrap());
    }
    let mut links = Links::open_in(&lab.server).unwrap();
    links.set_down(lab.server_index).unwrap();
    links.set_up(lab.server_index).unwrap();
    let made_anew = Netdev::open_in(&lab.server).unwrap().napis(lab.server_index).unwrap();
    if made_anew[0].id == before[0].id {
        skip(Lacks::Machine, "on this kernel, veth keeps its NAPI IDs");
        return;
    }
    let reverted = transaction.revert().unwrap();
    assert_eq!((reverted.undone.len(), reverted.failed.len()), (2, 0), "{reverted:?}");
    for (now, before) in Netdev::open_in(&lab.server).unwrap().napis(lab.server_index).unwrap().iter().zip(&before) {
        let values = |napi: &quell_linux::netdev::Napi| {
            (napi.settings.defer_hard_irqs, napi.settings.gro_flush_timeout_ns, napi.settings.irq_suspend_timeout_ns)
        };
        assert_eq!(values(now), values(before));
    }
}

#[test]
fn a_deleted_device_needs_no_undo() {
    let Some(lab) = TestLab::raise("gone", 1) else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = lab.transaction(&dir, "gone-t");
    assert!(transaction.set_napi(&lab.server, lab.napis[0], &SUSPENDING).unwrap());
    Links::open_in(&lab.server).unwrap().delete(lab.server_index).unwrap();
    let reverted = transaction.revert().unwrap();
    let (gone, waiting) = if every_namespace_is_in_sight() { (1, 0) } else { (0, 1) };
    assert_eq!((reverted.already_gone.len(), reverted.waiting.len()), (gone, waiting), "{reverted:?}");
    assert!(reverted.failed.is_empty(), "{reverted:?}");
}

#[test]
fn a_deleted_namespace_needs_no_undo() {
    let Some(lab) = TestLab::raise("nons", 1) else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = lab.transaction(&dir, "nons-t");
    assert!(transaction.set_napi(&lab.server, lab.napis[0], &SUSPENDING).unwrap());
    drop(lab);
    let reverted = transaction.revert().unwrap();
    let (gone, waiting) = if every_namespace_is_in_sight() { (1, 0) } else { (0, 1) };
    assert_eq!((reverted.already_gone.len(), reverted.waiting.len()), (gone, waiting), "{reverted:?}");
    assert!(reverted.failed.is_empty(), "{reverted:?}");
}

#[test]
fn a_closed_epoll_needs_no_undo() {
    let Some(lab) = TestLab::raise("closed", 1) else { return };
    let program = UdpProgram::start(&lab, Trigger::Level);
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = lab.transaction(&dir, "closed-t");
    assert!(transaction.set_epoll(UdpProgram::process(), program.epoll_fd(), PREFER).unwrap());
    drop(program.epoll);
    let reverted = transaction.revert().unwrap();
    assert_eq!((reverted.already_gone.len(), reverted.failed.len()), (1, 0), "{reverted:?}");
}

#[test]
fn an_epoll_that_moved_to_another_number_is_restored() {
    let Some(lab) = TestLab::raise("moved", 1) else { return };
    let program = UdpProgram::start(&lab, Trigger::Level);
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = lab.transaction(&dir, "moved-t");
    assert!(transaction.set_epoll(UdpProgram::process(), program.epoll_fd(), PREFER).unwrap());
    let moved = program.epoll.as_fd().try_clone_to_owned().unwrap();
    drop(program.epoll);
    let reverted = transaction.revert().unwrap();
    assert_eq!((reverted.undone.len(), reverted.already_gone.len()), (1, 0), "{reverted:?}");
    assert_eq!(epoll_params::get(&moved).unwrap(), EpollParams::default());
}

/// Script that prints the number of its epoll. When it reads a line, its main thread exits, and another thread runs on.
const LOSES_ITS_MAIN_THREAD: &str = "import ctypes, select, socket, sys, threading, time
watched, epoll = socket.socket(socket.AF_INET, socket.SOCK_DGRAM), select.epoll()
epoll.register(watched)
threading.Thread(target=lambda: time.sleep(600)).start()
print(epoll.fileno(), flush=True)
sys.stdin.readline()
ctypes.CDLL(None).syscall(60, 0)";

#[test]
fn the_epoll_of_a_program_without_its_main_thread_is_restored() {
    if cfg!(not(target_arch = "x86_64")) {
        return skip(Lacks::Machine, "the test uses the number of exit(2) on x86-64");
    }
    let Some(lab) = TestLab::raise("lost-main", 1) else { return };
    let mut python = Command::new("python3");
    python.args(["-c", LOSES_ITS_MAIN_THREAD]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let Ok(mut child) = python.spawn() else { return skip(Lacks::Tool("python3"), "python3 is not installed") };
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let fd: i32 = line.trim().parse().unwrap();
    let (proc, pid) = (ProcRoot::default(), Pid::from_kernel(child.id()).unwrap());
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = lab.transaction(&dir, "lost-main-t");
    assert!(transaction.set_epoll(ProcessIdentity::of(&proc, pid).unwrap(), fd, PREFER).unwrap());
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    wait_until(|| match proc.process(pid).stat().unwrap().runs_without_main_thread() {
        true => Ok(()),
        false => Err("the main thread does not exit".to_owned()),
    });
    let reverted = transaction.revert().unwrap();
    assert_eq!((reverted.undone.len(), reverted.already_gone.len()), (1, 0), "{reverted:?}");
    let tid = proc.process(pid).thread_with_files(pid).unwrap();
    assert_ne!(tid, pid);
    let epoll = PidFd::open_thread(tid).unwrap().duplicate(fd).unwrap();
    assert_eq!(epoll_params::get(&epoll).unwrap(), EpollParams::default());
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn an_exited_program_needs_no_undo() {
    let Some(lab) = TestLab::raise("ended", 1) else { return };
    let spawn = Spawn::new("memcached")
        .args(["-u", "nobody", "-U", "0", "-l", "192.0.2.1"])
        .netns(&lab.server)
        .stderr(Output::Tail(500));
    let mut child = match spawn.start() {
        Err(error @ ProcessError::Spawn { step: SpawnStep::Exec, .. }) => {
            skip(Lacks::Server("memcached"), &error);
            return;
        }
        child => child.unwrap(),
    };
    let proc = ProcRoot::default();
    let epoll = loop {
        let fds = proc.process(child.pid()).fds().unwrap();
        if let Some(epoll) = fds.iter().find(|fd| fd.kind == FdKind::Epoll) {
            break epoll.number;
        }
        assert_eq!(child.wait(Duration::from_millis(1)).unwrap(), None, "{:?}", child.stderr_tail());
    };
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = lab.transaction(&dir, "ended-t");
    assert!(transaction.set_epoll(child.identity(), epoll, PREFER).unwrap());
    child.terminate(Duration::from_secs(5)).unwrap();
    let reverted = transaction.revert().unwrap();
    assert_eq!((reverted.already_gone.len(), reverted.failed.len()), (1, 0), "{reverted:?}");
}

#[test]
fn a_process_with_a_reused_pid_is_not_changed() {
    let Some(lab) = TestLab::raise("number", 1) else { return };
    let program = UdpProgram::start(&lab, Trigger::Level);
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = lab.transaction(&dir, "number-t");
    let this = UdpProgram::process();
    let another = ProcessIdentity { starttime: Ticks(this.starttime.0 + 1), ..this };
    let error = transaction.set_epoll(another, program.epoll_fd(), PREFER).unwrap_err();
    assert!(matches!(error, ChangeError::Settings(_)), "{error}");
    assert_eq!(epoll_params::get(&program.epoll).unwrap(), EpollParams::default());
}

#[test]
fn an_epoll_that_another_program_changed_is_left_alone_and_reported() {
    let Some(lab) = TestLab::raise("epoll", 1) else { return };
    let program = UdpProgram::start(&lab, Trigger::Level);
    let dir = tempfile::tempdir().unwrap();
    let mut transaction = lab.transaction(&dir, "epoll-t");
    assert!(transaction.set_epoll(UdpProgram::process(), program.epoll_fd(), PREFER).unwrap());
    let theirs = EpollParams { busy_poll_usecs: 7, ..PREFER };
    program.set_epoll(theirs);
    let reverted = transaction.revert().unwrap();
    let [(_, why)] = &reverted.left_alone[..] else { panic!("{reverted:?}") };
    assert!(why.contains("busy_poll_usecs 7"), "{why}");
    assert_eq!(epoll_params::get(&program.epoll).unwrap(), theirs);
}

/// Runs the program like a server: receives events, works for a while and waits again. Returns the number of events.
fn work(program: &mut UdpProgram, ended: &AtomicBool) -> u32 {
    program.socket.set_nonblocking(true).unwrap();
    let mut received = 0;
    loop {
        let last = ended.load(Ordering::Relaxed);
        program.epoll.wait(Some(Duration::from_millis(100))).unwrap();
        while program.socket.recv(&mut [0; 1]).is_ok() {
            received += 1;
        }
        if last {
            return received;
        }
        let working = Instant::now();
        while working.elapsed() < Duration::from_micros(500) {
            std::hint::spin_loop();
        }
    }
}

#[test]
fn a_program_that_continues_is_not_left_stalled() {
    let Some(lab) = TestLab::raise("works", 1) else { return };
    let mut program = UdpProgram::start(&lab, Trigger::Edge);
    let sender = program.sender.try_clone().unwrap();
    let fd = program.epoll_fd();
    let ended = AtomicBool::new(false);
    let process = UdpProgram::process();
    let (received, sent) = std::thread::scope(|scope| {
        let changing = scope.spawn(|| {
            let mut sent = 0;
            for _ in 0..20 {
                let dir = tempfile::tempdir().unwrap();
                let mut transaction = lab.transaction(&dir, "works-t");
                transaction.set_napi(&lab.server, lab.napis[0], &SUSPENDING).unwrap();
                transaction.set_epoll(process, fd, PREFER).unwrap();
                for _ in 0..50 {
                    sent += u32::from(sender.send(&[0]).is_ok());
                    std::thread::yield_now();
                }
                let reverted = transaction.revert().unwrap();
                assert_eq!((reverted.undone.len(), reverted.failed.len()), (2, 0), "{reverted:?}");
            }
            ended.store(true, Ordering::Relaxed);
            sent
        });
        (work(&mut program, &ended), changing.join().unwrap())
    });
    // A packet that the last change delayed would still be missing now.
    assert_eq!(received, sent);
}

const OUT_OF_FILES: &str = "QUELL_TEST_IS_OUT_OF_FILES";

/// Runs the test below in a process that can open no more files, and therefore neither an epoll nor an io_uring.
#[test]
fn a_queue_that_cannot_be_polled_is_waited_out_or_explained() {
    if quell_test_support::lab::skipped() {
        return;
    }
    if std::env::var_os(OUT_OF_FILES).is_some() {
        return wait_out_without_files();
    }
    let this_test = std::thread::current().name().unwrap().to_owned();
    let ran = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &this_test, "--test-threads=1", "--nocapture"])
        .env(OUT_OF_FILES, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{said}");
    if said.contains("skipped") {
        eprintln!("{said}");
    }
}

fn wait_out_without_files() {
    let Some(lab) = TestLab::raise("files", 1) else { return };
    let mut program = UdpProgram::start(&lab, Trigger::Level);
    let short = Duration::from_millis(300);
    let short_ns = u64::try_from(short.as_nanos()).unwrap();
    lab.set_napi(&PartialNapiSettings { irq_suspend_timeout_ns: Some(short_ns), ..SUSPENDING });
    program.set_epoll(PREFER);
    let resumer = |napi| Resumer::of_queue(&ProcRoot::default(), &napi, &[Pid::of_this_process()]);
    let short_one = resumer(lab.napi());
    lab.set_napi(&SUSPENDING);
    let long_one = resumer(lab.napi());
    lab.set_napi(&PartialNapiSettings { irq_suspend_timeout_ns: Some(short_ns), ..SUSPENDING });
    let limit = FileLimit::none();
    if Epoll::new(1).is_ok() {
        skip(Lacks::Tool("prlimit"), "no prlimit");
        return;
    }
    program.hold();
    assert_eq!(short_one.poll_or_wait_out().unwrap(), Freed::WaitedOut(short));
    assert_eq!(program.receives_within(ARRIVES_WITHIN), Some(2));
    let error = long_one.poll_or_wait_out().unwrap_err();
    assert!(matches!(error, ResumeError::CannotPoll { timeout: Some(SUSPENDED_FOR), .. }), "{error}");
    drop(limit);
}

/// While this value exists, the process cannot open more files. A shell raises the limit again. It must be started
/// earlier, because it could not load its libraries later.
struct FileLimit {
    raises_again: Child,
}

impl FileLimit {
    fn none() -> Self {
        let pid = std::process::id().to_string();
        let mut raises_again = Command::new("sh")
            .args(["-c", r#"prlimit --nofile=0: --pid "$0"; echo; read -r _; prlimit --nofile=1024: --pid "$0""#, &pid])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        raises_again.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        Self { raises_again }
    }
}

impl Drop for FileLimit {
    fn drop(&mut self) {
        drop(self.raises_again.stdin.take());
        self.raises_again.wait().unwrap();
    }
}

#[test]
fn the_value_that_was_set_last_holds_when_another_journal_ends() {
    let Some(lab) = TestLab::raise("order", 1) else { return };
    let dir = tempfile::tempdir().unwrap();
    let suspend =
        |ms: u64| PartialNapiSettings { irq_suspend_timeout_ns: Some(ms * 1_000_000), ..PartialNapiSettings::NONE };
    // The journal that comes first by name and start time sets the queue second.
    let [mut second, mut first, mut third] = ["order-a", "order-b", "order-c"].map(|name| lab.transaction(&dir, name));
    for (transaction, ms) in [(&mut first, 20), (&mut second, 30), (&mut third, 50)] {
        assert!(transaction.set_napi(&lab.server, lab.napis[0], &suspend(ms)).unwrap());
    }
    third.revert().unwrap();
    assert_eq!(lab.napi().settings.irq_suspend_timeout_ns, Some(30_000_000));
}
