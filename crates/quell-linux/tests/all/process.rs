//! Children and their sessions on the live kernel.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use quell_linux::pidfd::{PidFd, Signal};
use quell_linux::proc::{FdKind, ProcRoot, ProcessIdentity};
use quell_linux::process::{Child, Output, ProcessError, Spawn, SpawnStep, kill_session, session_members};
use quell_linux::{CpuList, Pid, sched};

const LONG: Duration = Duration::from_secs(60);

fn proc() -> ProcRoot {
    ProcRoot::default()
}

fn shell(script: &str) -> Spawn<'static> {
    Spawn::new("sh").args(["-c", script])
}

fn output(mut child: Child) -> String {
    assert!(child.wait(LONG).unwrap().expect("ended").success());
    String::from_utf8(child.stdout_tail().unwrap()).unwrap()
}

/// Processes of a child's session. Waits until there are `wanted` of them.
fn members(leader: &ProcessIdentity, wanted: usize) -> Vec<Pid> {
    let deadline = Instant::now() + LONG;
    loop {
        let found = session_members(&proc(), leader).unwrap();
        if found.len() == wanted {
            return found.into_iter().map(|member| member.identity.pid).collect();
        }
        assert!(Instant::now() < deadline, "expected {wanted} processes, found {found:?}");
        std::thread::yield_now();
    }
}

#[test]
fn a_child_is_bound_to_its_cpus_before_its_program_starts() {
    let cpus = sched::affinity(Pid::of_this_thread()).unwrap();
    let last: CpuList = cpus.iter().skip(cpus.len() - 1).collect();
    let script = "grep Cpus_allowed_list /proc/self/status";
    let child = shell(script).cpus(last.clone()).stdout(Output::Tail(1000)).start().unwrap();
    assert_eq!(output(child).split_whitespace().last(), Some(last.to_string().as_str()));
}

#[test]
fn a_child_leads_a_session_and_inherits_no_file() {
    let inheritable = fs::File::open("/dev/null").unwrap();
    rustix::io::fcntl_setfd(&inheritable, rustix::io::FdFlags::empty()).unwrap();
    let mut child = Spawn::new("sleep").args(["1000"]).start().unwrap();
    let dir = proc().process(child.pid());
    assert_eq!(dir.stat().unwrap().session, Some(child.pid()));
    let open: Vec<i32> = dir.fds().unwrap().iter().map(|fd| fd.number).collect();
    assert_eq!(open, [0, 1, 2]);
    child.terminate(LONG).unwrap();
}

#[test]
fn the_output_of_a_child_is_written_to_a_file() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let stderr = Output::File(file.reopen().unwrap());
    let mut child = shell("echo $WORD >&2").env("WORD", "hear").stderr(stderr).start().unwrap();
    assert!(child.wait(LONG).unwrap().is_some());
    assert_eq!(fs::read_to_string(file.path()).unwrap(), "hear\n");
}

#[test]
fn a_missing_program_is_an_error_with_its_name() {
    let error = Spawn::new("/no/such/program").start().unwrap_err();
    assert!(matches!(error, ProcessError::Spawn { step: SpawnStep::Exec, .. }), "{error:?}");
    assert!(error.to_string().starts_with("starting `/no/such/program`: executing it: "));
}

#[test]
fn a_step_that_fails_before_the_program_starts_is_named() {
    let error = Spawn::new("true").cpus("60000".parse().unwrap()).start().unwrap_err();
    assert!(matches!(error, ProcessError::Spawn { step: SpawnStep::Affinity, .. }), "{error:?}");
    let no_netns = fs::File::open("/dev/null").unwrap();
    let error = Spawn::new("true").netns(&no_netns).start().unwrap_err();
    assert!(matches!(error, ProcessError::Spawn { step: SpawnStep::NetworkNamespace, .. }), "{error:?}");
}

#[test]
fn a_child_that_ignores_sigterm_is_killed_after_the_grace() {
    let script = "trap '' TERM; echo ready; while :; do sleep 1000; done";
    let mut child = shell(script).stdout(Output::Tail(100)).start().unwrap();
    while child.stdout_tail().unwrap().is_empty() {
        assert_eq!(child.wait(Duration::from_millis(1)).unwrap(), None);
    }
    let exit = child.terminate(Duration::from_millis(20)).unwrap();
    assert_eq!(exit.to_string(), "signal: 9 (SIGKILL)");
}

#[test]
fn a_child_without_a_sigterm_handler_is_ended_by_sigterm() {
    let mut child = Spawn::new("sleep").args(["1000"]).start().unwrap();
    assert_eq!(child.terminate(LONG).unwrap().to_string(), "signal: 15 (SIGTERM)");
}

#[test]
fn dropping_a_child_kills_its_session() {
    let child = shell("sleep 1000 & sleep 1000").start().unwrap();
    let identity = child.identity();
    members(&identity, 3);
    drop(child);
    assert_eq!(session_members(&proc(), &identity).unwrap(), []);
}

#[test]
fn a_session_is_killed_after_its_leader_died() {
    // This test does not wait for `setsid`, which runs as a separate program.
    let script = "setsid sh -c 'sleep 1000 & sleep 1000 & echo $$; wait' & read never";
    let mut outer = Command::new("sh")
        .args(["-c", script])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stdout = std::io::BufReader::new(outer.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut stdout, &mut line).unwrap();
    let leader = ProcessIdentity::of(&proc(), line.trim().parse().unwrap()).unwrap();
    members(&leader, 3);

    let handle = PidFd::open(leader.pid).unwrap();
    handle.signal(Signal::KILL).unwrap();
    assert!(handle.wait_for_exit(LONG).unwrap());
    assert!(!leader.is_running(&proc()).unwrap());
    members(&leader, 2);

    assert_eq!(kill_session(&proc(), &leader, LONG).unwrap(), 2);
    assert_eq!(session_members(&proc(), &leader).unwrap(), []);
    drop(outer.stdin.take());
    outer.wait().unwrap();
}

#[test]
fn a_session_with_a_reused_leader_pid_is_not_killed() {
    let mut child = Spawn::new("sleep").args(["1000"]).start().unwrap();
    let mut earlier = child.identity();
    earlier.starttime.0 -= 1;
    assert_eq!(kill_session(&proc(), &earlier, LONG).unwrap(), 0);
    assert_eq!(child.wait(Duration::ZERO).unwrap(), None);
    child.terminate(LONG).unwrap();
}

#[test]
fn a_child_dies_with_the_thread_that_started_it() {
    let started = std::thread::spawn(|| Spawn::new("sleep").args(["1000"]).dies_with_this_thread().start().unwrap());
    let mut child = started.join().unwrap();
    let exit = child.wait(LONG).unwrap().expect("killed by the kernel");
    assert_eq!(exit.to_string(), "signal: 9 (SIGKILL)");
}

#[test]
fn the_run_time_of_a_busy_child_increases() {
    let mut child = shell("while :; do :; done").start().unwrap();
    let dir = proc().process(child.pid());
    let before = dir.schedstat_of_all_threads().unwrap();
    let deadline = Instant::now() + LONG;
    while dir.thread(child.pid()).schedstat().unwrap().run_ns < before.run_ns + 1_000_000 {
        assert!(Instant::now() < deadline, "a busy loop used no CPU");
        std::thread::yield_now();
    }
    child.terminate(LONG).unwrap();
}

#[test]
fn an_epoll_of_another_process_is_found_among_its_files() {
    let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC).unwrap();
    let (reader, _writer) = std::io::pipe().unwrap();
    let data = rustix::event::epoll::EventData::new_u64(0xfeed_beef);
    let flags = rustix::event::epoll::EventFlags::IN;
    rustix::event::epoll::add(&epoll, &reader, data, flags).unwrap();
    let number = std::os::fd::AsRawFd::as_raw_fd(&epoll);

    let this = proc().process(Pid::of_this_process());
    let fds = this.fds().unwrap();
    let found = fds.iter().find(|fd| fd.number == number).unwrap();
    assert_eq!(found.kind, FdKind::Epoll);
    let targets = this.epoll(number).unwrap().targets;
    assert_eq!(targets.len(), 1);
    assert_eq!(targets[0].tfd, std::os::fd::AsRawFd::as_raw_fd(&reader));
    assert_eq!((targets[0].data, targets[0].events & 1), (0xfeed_beef, 1));
}
