//! Compares `quell show` of a user without privileges with that of the caller at the same time. It succeeds, names the
//! missing capability for everything that it cannot read, and omits nothing silently.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};

use quell_host::snapshot::{Reading, Snapshot, UnknownReason};
use quell_linux::Pid;
use quell_linux::capability::Capability;
use quell_linux::proc::ProcRoot;
use quell_test_support::lab::TestLab;
use quell_test_support::{Lacks, skip};
use serde_json::Value;

/// Runs the program as `nobody`, without groups and capabilities.
fn as_nobody(arguments: &[&str]) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all"]);
    command.arg(env!("CARGO_BIN_EXE_quell")).args(arguments);
    command
}

/// Whether `nobody` cannot run the program here. If so, records the test as skipped.
fn nobody_cannot() -> bool {
    match as_nobody(&["--version"]).output() {
        Ok(output) if output.status.success() => return false,
        Ok(output) => skip(Lacks::Root, String::from_utf8_lossy(&output.stderr).trim()),
        Err(error) => skip(Lacks::Tool("setpriv"), format_args!("setpriv: {error}")),
    }
    true
}

fn printed(mut command: Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn snapshot(command: Command) -> Snapshot {
    Snapshot::parse(printed(command).as_bytes()).unwrap()
}

fn by_caller(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    command.args(arguments);
    command
}

#[test]
fn a_hidden_process_of_another_user_is_reported_with_the_missing_capability() {
    if nobody_cannot() {
        return;
    }
    let _listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let this = Pid::of_this_process();
    let all = snapshot(as_nobody(&["show", "--json"]));
    assert_eq!(all.privileges.capabilities.known().map(Vec::as_slice), Some(&[][..]));
    assert!(all.hidden_processes.contains(&this) && all.processes.iter().all(|process| process.pid != this));
    let tree = printed(as_nobody(&["show"]));
    assert!(tree.contains("not shown: needs CAP_SYS_PTRACE"), "{tree}");

    let pid = this.to_string();
    let asked = snapshot(as_nobody(&["show", "--json", &pid]));
    // Children of this process, such as commands of other tests, are shown with it.
    let process = asked.processes.iter().find(|process| process.pid == this).unwrap();
    let unknown = process.files.why_unknown().unwrap();
    assert_eq!(unknown.reason, UnknownReason::Denied { needs: Some(Capability::SysPtrace) });
    assert!(unknown.message.contains(&format!("/proc/{this}/fd")), "{}", unknown.message);
    let tree = printed(as_nobody(&["show", &pid]));
    assert!(tree.contains("files unknown: needs CAP_SYS_PTRACE"), "{tree}");
}

#[test]
fn every_process_that_the_caller_sees_is_shown_or_hidden_to_nobody() {
    if nobody_cannot() {
        return;
    }
    let nobodys = snapshot(as_nobody(&["show", "--json"]));
    let callers = snapshot(by_caller(&["show", "--json"]));
    let start = |pid| ProcRoot::default().process(pid).stat().ok().map(|stat| stat.starttime.0);
    let began = start(Pid::of_this_process()).unwrap();
    // Only processes that are older than this test and still run were present in both snapshots. Sockets may be newer.
    let lasting = callers
        .processes
        .iter()
        .filter(|process| process.start_time_ticks < began && start(process.pid) == Some(process.start_time_ticks));
    for process in lasting.filter(|process| process.files.known().is_some_and(|files| !files.sockets.is_empty())) {
        let is_reported = nobodys.hidden_processes.contains(&process.pid)
            || nobodys.processes.iter().any(|other| other.pid == process.pid);
        assert!(is_reported, "{} {} is missing", process.name, process.pid);
    }
}

#[test]
fn a_namespace_that_may_not_be_entered_has_no_devices_and_the_others_are_shown() {
    if nobody_cannot() {
        return;
    }
    let Some(lab) = TestLab::raise("unentered", 1) else { return };
    let all = snapshot(as_nobody(&["show", "--all", "--json"]));
    let named = all.namespaces.iter().find(|namespace| namespace.names.contains(&lab.server_name)).unwrap();
    let why = named.unlisted_devices.as_ref().map(|unknown| unknown.reason);
    assert_eq!(why, Some(UnknownReason::Denied { needs: Some(Capability::SysAdmin) }));
    assert!(all.devices.iter().all(|device| device.namespace != named.inode));
    let own = all.namespaces.iter().find(|namespace| namespace.is_current).unwrap();
    assert!(own.unlisted_devices.is_none() && all.devices.iter().any(|device| device.namespace == own.inode));
    let tree = printed(as_nobody(&["show", "--all"]));
    assert!(tree.contains(&format!("devices of netns {} not shown: ", lab.server_name)), "{tree}");

    let requested = as_nobody(&["show", "--netns", &lab.server_name]).output().unwrap();
    let said = String::from_utf8_lossy(&requested.stderr);
    assert!(!requested.status.success() && said.contains("CAP_SYS_ADMIN"), "{said}");
}

#[test]
fn a_lab_needs_root_even_if_its_journal_can_be_written() {
    if nobody_cannot() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(dir.path(), Some(65534), Some(65534)).unwrap();
    let tried = as_nobody(&["lab", "up"]).env("QUELL_JOURNAL_DIR", dir.path().join("journal")).output().unwrap();
    let said = String::from_utf8_lossy(&tried.stderr);
    assert!(tried.status.code() == Some(5) && said.contains("needs root"), "{tried:?}");
}

/// Lists the places where `nobodys` lacks a value of `callers` without naming a privilege.
fn silently_missing(callers: &Value, nobodys: &Value, place: &str) -> Vec<String> {
    match (callers, nobodys) {
        (Value::Object(callers), _) if callers.contains_key("unknown") => Vec::new(),
        (Value::Null, _) => Vec::new(),
        (_, Value::Null) => vec![format!("{place}: absent")],
        (_, Value::Object(fields)) if fields.contains_key("unknown") => {
            let needs = nobodys.pointer("/unknown/why/denied/needs").filter(|needs| !needs.is_null());
            needs.is_none().then(|| format!("{place}: {nobodys}")).into_iter().collect()
        }
        (Value::Object(callers), Value::Object(nobodys)) => {
            let below = callers.iter().map(|(name, value)| (name, value, nobodys.get(name).unwrap_or(&Value::Null)));
            below.flat_map(|(name, one, other)| silently_missing(one, other, &format!("{place}/{name}"))).collect()
        }
        (Value::Array(callers), Value::Array(nobodys)) => {
            let below = callers.iter().enumerate().map(|(at, one)| (at, one, nobodys.get(at).unwrap_or(&Value::Null)));
            below.flat_map(|(at, one, other)| silently_missing(one, other, &format!("{place}/{at}"))).collect()
        }
        _ => Vec::new(),
    }
}

#[test]
fn missing_data_of_devices_and_cpus_has_a_reason() {
    if nobody_cannot() {
        return;
    }
    // The snapshot of `nobody` is the later one, so a counter that is nonzero for the caller is nonzero for `nobody`
    // too.
    let callers: Value = serde_json::from_str(&printed(by_caller(&["show", "--json"]))).unwrap();
    let nobodys: Value = serde_json::from_str(&printed(as_nobody(&["show", "--json"]))).unwrap();
    let places = ["kernel", "sysctls", "namespaces", "cpus", "irqs", "devices"];
    let missing: Vec<String> =
        places.iter().flat_map(|place| silently_missing(&callers[place], &nobodys[place], place)).collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

/// A responder that runs as `nobody` and is killed on drop.
struct Responder(Child);

impl Drop for Responder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_users_own_process_is_shown_with_its_sockets() {
    if nobody_cannot() {
        return;
    }
    let responder = as_nobody(&["respond", "127.0.0.1:0"]).stderr(Stdio::piped()).stdout(Stdio::null()).spawn();
    let mut responder = Responder(responder.unwrap());
    let mut line = String::new();
    BufReader::new(responder.0.stderr.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("it said {line:?}"));

    let snapshot = snapshot(as_nobody(&["show", "--json", &responder.0.id().to_string()]));
    let [process] = snapshot.processes.as_slice() else { panic!("{:?}", snapshot.processes) };
    let files = process.files.known().unwrap();
    assert!(!files.epolls.is_empty() && !process.threads.known().unwrap().is_empty());
    let [socket] = snapshot.sockets.as_slice() else { panic!("{:?}", snapshot.sockets) };
    assert_eq!(socket.local, address.parse().ok());
    // Yama decides whether users may inspect their own processes. If they may not, the snapshot states it.
    let denied = UnknownReason::Denied { needs: Some(Capability::SysPtrace) };
    match &socket.napi {
        Reading::Known(napi) => assert_eq!(*napi, None, "no packet has arrived yet"),
        Reading::Unknown(unknown) => assert_eq!(unknown.unknown.reason, denied),
    }
}
