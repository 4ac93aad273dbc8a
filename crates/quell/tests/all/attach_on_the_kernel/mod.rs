//! `quell attach` and `quell detach`, run like a user or a service manager does, on an unmodified memcached in the
//! test's own namespaces. Covers the state after Quell, its keeper or the program was killed. Needs root, Linux 6.13
//! and memcached.

mod asks;
mod first_verdict;
mod history;
mod journals;
mod owners;
mod random_owners;
pub(crate) mod stage;
mod take_over;
mod views;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quell_linux::Pid;
use quell_linux::epoll_params::{self, EpollParams};
use quell_linux::pidfd::{PidFd, Signal};
use quell_linux::proc::{FdKind, ProcRoot};
use quell_test_support::lab::ARRIVES_WITHIN;
use quell_test_support::{Lacks, skip};
use serde_json::Value;

use self::stage::{ADDRESS, MODE, Stage, assert_answers, kill, wait_until};

#[test]
fn a_mode_is_attached_to_a_running_memcached_and_detached() {
    let Some(mut stage) = Stage::enter("cli") else { return };
    let pid = stage.pid();
    let planned = stage.says(0, &["attach", MODE, &pid, "--dry-run"]);
    assert!(planned.contains("server0 rx 0-1") && planned.contains("no other process"), "{planned}");
    let warning = "[suspend-timeout-too-short]";
    assert!(!planned.contains(warning), "{planned}");
    let short = stage.says(0, &["attach", "suspend20,irq-suspend-timeout=20000", &pid, "--dry-run"]);
    assert!(short.contains(warning), "{short}");
    assert!(!stage.is_set());
    assert!(stage.says(1, &["attach", MODE, &pid]).contains("--yes"), "without a terminal, --yes is required");
    assert!(!stage.is_set());

    let said = stage.says(0, &["attach", MODE, &pid, "--yes"]);
    assert!(said.contains("busy poll 0/0/0 → 0/64/1") && said.contains("cannot tell: "), "{said}");
    assert!(said.contains("conclusion: an epoll polls one queue, and here it has connections of several"), "{said}");
    assert!(stage.is_set());
    stage.answers();
    assert!(stage.says(2, &["attach", "base", &pid, "--yes"]).contains("quell detach"));
    let status = stage.says(0, &["status"]);
    assert!(status.contains("memcached") && status.contains(MODE), "{status}");

    let detached = stage.says(0, &["detach", &pid]);
    assert!(detached.contains("memcached") && detached.contains("restored"), "{detached}");
    stage.assert_back();
    stage.answers();
    assert!(stage.says(1, &["detach", &pid]).contains("is not attached;"));
}

#[test]
fn a_profile_names_the_mode_of_an_attachment() {
    let Some(stage) = Stage::enter("profile") else { return };
    let (dir, pid) = (tempfile::tempdir().unwrap(), stage.pid());
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let profile = file("found.toml", &format!("[program]\nmode = \"{MODE}\"\nmax-events = 16\n"));
    let twice = stage.says(1, &["attach", MODE, &pid, "--profile", &profile, "--yes"]);
    assert!(twice.contains("cannot be specified too"), "{twice}");
    let without = file("without.toml", "[program]\nmax-events = 16\n");
    assert!(stage.says(1, &["attach", "--profile", &without, &pid, "--yes"]).contains("has no mode"));
    assert!(stage.says(1, &["attach", "--profile", &profile]).contains("--unit"));
    assert!(stage.says(1, &["attach", &pid]).contains("--profile"));
    assert!(!stage.is_set());

    let said = stage.says(0, &["attach", "--profile", &profile, &pid, "--yes", "--seconds", "0"]);
    assert!(said.contains("max-events of the profile is left out"), "{said}");
    assert!(stage.is_set());
    stage.says(0, &["detach", &pid]);
    stage.assert_back();
}

#[test]
fn top_shows_the_mode_of_an_attached_program_and_whether_it_is_in_effect() {
    let Some(stage) = Stage::enter("cli-top") else { return };
    stage.says(0, &["attach", MODE, &stage.pid(), "--yes", "--seconds", "0"]);
    let report: Value =
        serde_json::from_str(&stage.says(0, &["top", &stage.pid(), "-i", "0.2", "-n", "1", "-j"])).unwrap();
    let program = &report["programs"][0];
    assert_eq!((&program["name"], &program["mode"]), (&"memcached".into(), &MODE.into()), "{report}");
    assert_eq!(program["effect"]["verdict"], "cannot-tell", "no load: {report}");
    assert_eq!(program["skipped"], serde_json::json!([]), "{report}");
    let status = stage.says(0, &["status"]);
    let line = format!("  memcached {}: cannot tell: ", stage.pid());
    assert!(status.lines().any(|shown| shown.starts_with(&line)), "{status}");
    stage.says(0, &["detach", &stage.pid()]);
}

#[test]
fn a_server_has_the_same_command_to_measure_in_every_output() {
    let Some(stage) = Stage::enter("cli-judge") else { return };
    let pid = stage.pid();
    let said = stage.says(0, &["attach", "base", &pid, "--yes", "--seconds", "1"]);
    let command = |said: &str| {
        let found = said.lines().map(str::trim).find(|line| line.starts_with("quell bench "));
        found.unwrap_or_else(|| panic!("{said}")).to_owned()
    };
    let attached = command(&said);
    assert!(attached.contains(" --latency \"ssh CLIENT quell load 192.0.2.1:11211 --no-preload"), "{attached}");
    assert_eq!(command(&stage.says(0, &["status"])), attached);
    stage.says(0, &["detach", &pid]);
}

#[test]
fn a_server_whose_connections_close_at_once_is_not_idle() {
    let Some(mut stage) = Stage::without_connections("cli-short") else { return };
    stage.connect(1);
    stage.connections.clear();
    let attach = || stage.says(0, &["attach", MODE, &stage.pid(), "--yes", "--seconds", "0"]);
    let status = || stage.says(0, &["status"]);
    wait_until(|| stage.says(0, &["attach", MODE, &stage.pid(), "--dry-run"]).contains("NO QUEUE"), "it is connected");
    attach();
    assert!(status().contains(": idle: no open connection"), "{}", status());
    let is_over = Arc::new(AtomicBool::new(false));
    let until = Arc::clone(&is_over);
    let clients = stage.lab.client.run(|| {
        std::thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                assert_answers(&mut TcpStream::connect(ADDRESS).unwrap());
                // Ports of closed connections are reused after a minute only.
                std::thread::sleep(Duration::from_millis(2));
            }
        })
    });
    let elsewhere = ": not in effect: none of the queues from which it receives has the mode";
    wait_until(|| status().contains(elsewhere), "a busy server is said to be idle");
    stage.says(0, &["detach", &stage.pid()]);
    attach();
    let is_judged = || [": in effect: ", ": cannot tell: "].iter().any(|verdict| status().contains(verdict));
    wait_until(is_judged, "the mode of a busy server is not judged");
    is_over.store(true, Ordering::Relaxed);
    clients.unwrap().join().unwrap();
    stage.says(0, &["detach", &stage.pid()]);
}

#[test]
fn a_queue_that_is_used_only_after_the_attachment_is_reported_as_not_set() {
    let Some(mut stage) = Stage::without_connections("cli-later") else { return };
    stage.connect(1);
    stage.says(0, &["attach", MODE, &stage.pid(), "--yes", "--seconds", "0"]);
    stage.connect(24);
    let is_reported = || {
        let report: Value =
            serde_json::from_str(&stage.says(0, &["top", &stage.pid(), "-i", "0.2", "-n", "1", "-j"])).unwrap();
        let program = &report["programs"][0];
        let napis = program["napis"].as_array().unwrap();
        let parts = program["skipped"].as_array().unwrap();
        parts.iter().any(|part| part["reason"] == "queue-not-set" && napis.contains(&part["napi"]))
    };
    wait_until(is_reported, "no queue is reported as not set");
    stage.says(0, &["detach", &stage.pid()]);
}

#[test]
fn attaching_to_an_idle_program_lists_its_epolls_without_queues() {
    let Some(mut stage) = Stage::without_connections("cli-idle") else { return };
    let pid = stage.pid();
    let last_words = || {
        let planned = stage.says(0, &["attach", MODE, &pid, "--dry-run"]);
        planned.split_once("NO QUEUE IS SET YET").map(|(_, last)| last.to_owned()).unwrap_or(planned)
    };
    let names_both_workers =
        || last_words().lines().any(|line| line.contains("epolls") && line.contains("no network sockets"));
    wait_until(names_both_workers, "the workers have no epolls");
    let idle = last_words();
    let follow = format!("quell attach {MODE} --pid {pid} --follow");
    assert!(idle.contains("listening sockets only") && idle.contains(&follow), "{idle}");
    stage.connect(24);
    let busy = stage.says(0, &["attach", MODE, &pid, "--dry-run"]);
    assert!(!busy.contains("no queue known yet"), "the epoll that remains only accepts: {busy}");
}

#[test]
fn revert_undoes_attachments_too() {
    let Some(stage) = Stage::enter("cli-rev") else { return };
    stage.says(0, &["attach", MODE, &stage.pid(), "--yes", "--seconds", "0"]);
    assert!(stage.says(0, &["revert"]).contains("detached memcached"));
    stage.assert_back();
}

/// Options of `setpriv` for the capabilities of a unit.
fn bounds(unit: &str) -> Vec<String> {
    let bounds = unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")).unwrap();
    bounds.split(' ').map(|name| name.replace("CAP_", "+").to_lowercase()).collect()
}

#[test]
fn the_capabilities_of_the_unit_suffice() {
    let Some(stage) = Stage::of_another_user("cli-caps") else { return };
    let bounds = bounds(include_str!("../../../../../dist/quell-attach@.service"));
    let quell = env!("CARGO_BIN_EXE_quell");
    let mut command = Command::new("setpriv");
    command.args(["--inh-caps=-all", &format!("--bounding-set=-all,{}", bounds.join(","))]);
    command.args([quell, "attach", MODE, &stage.pid(), "--yes"]).env("QUELL_JOURNAL_DIR", stage.journals());
    match command.output() {
        Err(error) => return skip(Lacks::Tool("setpriv"), &error),
        Ok(said) if String::from_utf8_lossy(&said.stderr).contains("setpriv:") => {
            return skip(Lacks::Root, String::from_utf8_lossy(&said.stderr));
        }
        Ok(said) => {
            assert!(said.status.success(), "{said:?}");
            let stdout = String::from_utf8_lossy(&said.stdout);
            let are_counted = ["cannot tell: only ", "cannot tell: no packet"].iter().any(|text| stdout.contains(text));
            assert!(are_counted, "polls were not counted: {said:?}");
        }
    }
    assert!(stage.is_set());
    // The keeper has the same capabilities.
    stage.says(0, &["detach", "--all"]);
    stage.assert_back();
}

/// First metrics of `quell export` that runs as a user without privileges except these capabilities.
fn exported(stage: &Stage, capabilities: &[String]) -> String {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777)).unwrap();
    let capabilities = [&["-all".to_owned()], capabilities].concat().join(",");
    let mut command = Command::new("setpriv");
    // Neither root nor the user of memcached.
    command.args(["--reuid=65533", "--regid=65533", "--clear-groups", "--no-new-privs"]);
    command.args(["bounding-set", "inh-caps", "ambient-caps"].map(|set| format!("--{set}={capabilities}")));
    command.args([env!("CARGO_BIN_EXE_quell"), "export", "-i", "0.2", "--textfile"]).arg(directory.path());
    command.arg(stage.pid()).env("QUELL_JOURNAL_DIR", stage.journals());
    // In the network namespace of the program, as on a host without containers.
    let mut exporter = stage.lab.server.run(|| command.spawn()).unwrap().unwrap();
    let file = directory.path().join("quell.prom");
    wait_until(|| file.exists(), "no metrics");
    exporter.kill().unwrap();
    exporter.wait().unwrap();
    std::fs::read_to_string(&file).unwrap()
}

#[test]
fn the_unit_of_the_exporter_has_the_capabilities_that_it_needs_and_no_others() {
    let Some(stage) = Stage::of_another_user("cli-export") else { return };
    let unit = include_str!("../../../../../dist/quell-export.service");
    let ambient = unit.lines().find_map(|line| line.strip_prefix("AmbientCapabilities="));
    let bounds = bounds(unit);
    assert_eq!(ambient, unit.lines().find_map(|line| line.strip_prefix("CapabilityBoundingSet=")));
    stage.says(0, &["attach", MODE, &stage.pid(), "--yes", "--seconds", "0"]);
    let is_complete = |text: &str| {
        let mode = format!("comm=\"memcached\",mode=\"{MODE}\",");
        text.contains("quell_queue_packets_total{device=\"server0\"") && text.contains(&mode)
    };
    let text = exported(&stage, &bounds);
    assert!(is_complete(&text), "{text}");
    for (at, capability) in bounds.iter().enumerate() {
        let others = [&bounds[..at], &bounds[at + 1..]].concat();
        let text = exported(&stage, &others);
        assert!(!is_complete(&text), "{capability} is not needed: {text}");
    }
    stage.says(0, &["detach", "--all"]);
    stage.assert_back();
}

#[test]
fn an_impossible_mode_is_refused_and_nothing_is_changed() {
    let Some(stage) = Stage::enter("cli-no") else { return };
    assert!(stage.says(5, &["attach", "eventspin50", &stage.pid(), "--yes"]).contains("nothing was changed"));
    assert!(stage.says(1, &["attach", MODE, "1073741824", "--yes"]).contains("there is no process"));
    assert!(stage.says(1, &["attach", MODE, "--unit", "qt-nothing.service", "--yes"]).contains("qt-nothing.service"));
    stage.assert_back();
}

#[test]
fn a_dry_run_without_anything_to_set_fails_like_the_real_run() {
    let mut idle = Command::new("sleep").arg("600").spawn().unwrap();
    let (mut said, mut codes) = (Vec::new(), Vec::new());
    for how in ["--dry-run", "--yes"] {
        let output = Command::new(env!("CARGO_BIN_EXE_quell"))
            .args(["attach", how, MODE, &idle.id().to_string()])
            .env("QUELL_JOURNAL_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/journal"))
            .output()
            .unwrap();
        said.push(String::from_utf8(output.stderr).unwrap());
        codes.push(output.status.code());
    }
    idle.kill().unwrap();
    idle.wait().unwrap();
    if said[0].contains("enter network namespace") {
        return skip(Lacks::Root, &said[0]);
    }
    assert_eq!(codes, [Some(5), Some(5)], "{said:?}");
    assert!(said.iter().all(|said| said.contains("nothing to set yet")), "{said:?}");
}

#[test]
fn the_json_report_contains_the_set_values() {
    let Some(stage) = Stage::enter("cli-json") else { return };
    let said = stage.quell(&["attach", MODE, &stage.pid(), "--yes", "--json"]).output().unwrap();
    let report: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(report["schema"], "quell-attach/1");
    let steps = report["plan"]["steps"].as_array().unwrap();
    assert!(steps.iter().any(|step| step["kind"] == "queue" && step["new"]["irq-suspend-timeout"] == 20_000_000));
    assert!(steps.iter().any(|step| step["kind"] == "epoll" && step["new"]["prefer_busy_poll"] == true));
    // Loading the programs that count polls is no part of the second.
    let observed =
        report["effect"]["watched"].as_array().into_iter().flatten().map(|queue| &queue["observed"]["for-ns"]);
    observed.for_each(|for_ns| assert!(for_ns.as_u64() >= Some(1_000_000_000), "{report}"));
    let detached: Value =
        serde_json::from_slice(&stage.quell(&["detach", "--all", "--json"]).output().unwrap().stdout).unwrap();
    assert_eq!(detached["detached"][0]["undone"].as_array().unwrap().len(), steps.len(), "{detached}");
    stage.assert_back();
}

#[test]
fn a_check_that_a_signal_ends_gives_no_verdict() {
    let Some(stage) = Stage::enter("no-verdict") else { return };
    let mut command = stage.quell(&["attach", MODE, &stage.pid(), "--yes", "--json", "--seconds", "60"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.starts_with("applied and verified")));
    PidFd::open(Pid::from_kernel(child.id()).unwrap()).unwrap().signal(Signal::INT).unwrap();
    let printed = child.wait_with_output().unwrap().stdout;
    let report: Value = serde_json::from_slice(&printed).unwrap();
    assert_eq!(report["effect"], Value::Null, "{report}");
    assert!(stage.is_set(), "the mode stays");
}

#[test]
fn an_attachment_that_ends_during_its_check_is_not_reported_as_applied() {
    let Some(stage) = Stage::enter("cli-ended") else { return };
    let mut attach = stage.quell(&["attach", MODE, &stage.pid(), "--yes", "--seconds", "600"]);
    let attach = attach.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    wait_until(|| stage.says(0, &["status"]).contains("cannot tell"), "the keeper does not own the journal");
    stage.says(0, &["detach", &stage.pid()]);
    let ended = attach.wait_with_output().unwrap();
    let (shown, said) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert_eq!(ended.status.code(), Some(3), "{shown}{said}");
    assert!(
        said.contains("reverted while it was being checked: ended by `quell detach`, or another SIGTERM"),
        "{said}"
    );
    assert!(!shown.contains("in effect"), "{shown}");
    stage.assert_back();
}

#[test]
fn everything_is_restored_when_the_program_is_killed() {
    let Some(stage) = Stage::enter("cli-end") else { return };
    stage.says(0, &["attach", MODE, &stage.pid(), "--yes", "--seconds", "0"]);
    assert!(stage.is_set());
    PidFd::open(stage.server.pid()).unwrap().signal(Signal::KILL).unwrap();
    stage.assert_back();
}

#[test]
fn a_program_that_exits_before_the_mode_is_applied_is_an_error_and_everything_is_restored() {
    let Some(stage) = Stage::enter("cli-early") else { return };
    // The plan does not fit into the pipe, so Quell waits for its reader between planning and applying.
    let (mut shown, mut full) = UnixStream::pair().unwrap();
    full.set_nonblocking(true).unwrap();
    while full.write(b"\n").is_ok() {}
    full.set_nonblocking(false).unwrap();
    let mut command = stage.quell(&["attach", MODE, &stage.pid(), "--yes", "--seconds", "0"]);
    let attach = command.stdout(OwnedFd::from(full)).stderr(Stdio::piped()).spawn().unwrap();
    drop(command);
    // Number and first argument of the system call in which Quell waits, a write to stdout.
    let call = || std::fs::read_to_string(format!("/proc/{}/syscall", attach.id())).unwrap();
    wait_until(|| call().split(' ').nth(1) == Some("0x1"), "Quell does not print the plan");
    kill(&PidFd::open(stage.server.pid()).unwrap());
    let mut plan = String::new();
    shown.read_to_string(&mut plan).unwrap();
    let said = attach.wait_with_output().unwrap();
    let text = String::from_utf8(said.stderr).unwrap();
    assert_eq!(said.status.code(), Some(4), "{plan}{text}");
    assert!(text.contains("the programs exited before the mode was applied; everything was restored"), "{text}");
    assert!(!text.contains("applied and verified"), "{text}");
    stage.assert_back();
}

#[test]
fn queues_that_a_follower_sets_again_are_no_drift_but_a_link_that_stays_down_is() {
    let Some(mut stage) = Stage::enter("cli-flap") else { return };
    let mut follower = stage.follow();
    let of_follower = PidFd::open(Pid::from_kernel(follower.id()).unwrap()).unwrap();
    let mut links = quell_linux::link::Links::open_in(&stage.lab.server).unwrap();
    let index = stage.lab.server_index;
    // The follower must not set the queues before they are looked at.
    of_follower.signal(Signal::STOP).unwrap();
    links.set_down(index).unwrap();
    let status = stage.says(3, &["status"]);
    assert!(status.contains("drifted: server0 queue 0") && status.contains("the link server0 is down"), "{status}");
    let doctor = stage.says(3, &["doctor", &stage.pid()]);
    assert!(doctor.starts_with("serious: ") && doctor.contains("the link server0 is down: rx 0-1 of"), "{doctor}");
    let up = format!("ip netns exec {} ip link set server0 up", stage.lab.server_name);
    assert!(doctor.contains(&format!("  run: {up}\n")) && doctor.contains("(missing-queue)"), "{doctor}");
    links.set_up(index).unwrap();
    let set_again = "being set again by the follower: server0 queue 0";
    let status = stage.says(0, &["status"]);
    assert!(status.contains(set_again) && !status.contains("has changed"), "{status}");
    of_follower.signal(Signal::CONT).unwrap();
    stage.answers();
    wait_until(|| !stage.says(0, &["status"]).contains("being set again"), "the follower sets the new instances");

    // After the follower has left, nobody sets them again.
    of_follower.signal(Signal::USR1).unwrap();
    follower.wait().unwrap();
    links.set_down(index).unwrap();
    links.set_up(index).unwrap();
    let again = format!("quell attach {MODE} {}", stage.pid());
    let status = stage.says(3, &["status"]);
    assert!(status.contains("drifted: server0 queue 0") && status.contains(&again), "{status}");
    let doctor = String::from_utf8(stage.quell(&["doctor", &stage.pid()]).output().unwrap().stdout).unwrap();
    let conclusion = doctor.split_once("conclusion: ").unwrap().1;
    assert!(conclusion.contains("set it again") && conclusion.contains(&again), "{doctor}");
    stage.says(0, &["detach", &stage.pid()]);
    assert!(crate::command::journals_in(&stage.journals()).is_empty());
}

#[test]
fn detached_settings_wait_while_the_link_is_down() {
    let Some(stage) = Stage::enter("at-down") else { return };
    stage.says(0, &["attach", MODE, &stage.pid(), "--yes", "--seconds", "0"]);
    let index = stage.lab.server_index;
    quell_linux::link::Links::open_in(&stage.lab.server).unwrap().set_down(index).unwrap();
    let detached = stage.says(3, &["detach", &stage.pid()]);
    assert!(
        detached.contains("on queue 0 of server0: the link server0 is down: `ip netns exec ")
            && detached.contains("wait for their queues"),
        "{detached}"
    );
    let again = stage.says(3, &["detach", &stage.pid()]);
    assert!(again.contains("0 settings restored") && again.contains("wait for their queues"), "{again}");
    let status = stage.says(0, &["status"]);
    assert!(status.starts_with("reverted except 2 settings") && status.contains("`quell revert "), "{status}");
    quell_linux::link::Links::open_in(&stage.lab.server).unwrap().set_up(index).unwrap();
    let detached = stage.says(0, &["detach", &stage.pid()]);
    assert!(detached.contains("2 settings restored"), "{detached}");
    let napis = quell_linux::netdev::Netdev::open_in(&stage.lab.server).unwrap().napis(index).unwrap();
    assert!(napis.iter().all(|napi| napi.settings.irq_suspend_timeout_ns == Some(0)), "{napis:?}");
    assert_eq!(crate::command::journals_in(&stage.journals()), [""; 0]);
}

#[test]
fn the_next_command_reports_and_reverts_the_changes_of_a_killed_keeper() {
    let Some(stage) = Stage::enter("cli-keep") else { return };
    stage.says(0, &["attach", MODE, &stage.pid(), "--yes", "--seconds", "0"]);
    kill(&stage.keeper());
    assert!(stage.is_set());
    let status = stage.says(3, &["status"]);
    assert!(status.contains("left by an earlier run") && status.contains("quell revert"), "{status}");
    let doctor = stage.quell(&["doctor", &stage.pid()]).output().unwrap();
    let doctor = String::from_utf8(doctor.stdout).unwrap();
    assert!(doctor.contains("nothing undoes it"), "{doctor}");
    assert!(doctor.contains("\n  quell revert attach-"), "{doctor}");
    assert!(stage.says(0, &["detach", "--all"]).contains("restored"));
    stage.assert_back();
}

#[test]
fn a_follower_notifies_readiness_finds_later_workers_and_undoes_on_sigterm() {
    let Some(mut stage) = Stage::without_connections("cli-follow") else { return };
    let mut follower = stage.follow();
    assert!(!stage.is_set(), "no packet has arrived on a queue");
    stage.connect(24);
    wait_until(|| stage.is_set(), "the follower does not set the queue");
    PidFd::open(Pid::from_kernel(follower.id()).unwrap()).unwrap().signal(Signal::TERM).unwrap();
    assert!(follower.wait().unwrap().success());
    let mut said = String::new();
    follower.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(said.contains("everything was restored"), "{said}");
    stage.assert_back();
    stage.answers();
}

#[test]
fn a_follower_reports_when_the_mode_stops_and_starts_being_in_effect() {
    let Some(mut stage) = Stage::enter("cli-effect") else { return };
    let mut follower = stage.follow();
    let stderr = BufReader::new(follower.stderr.take().unwrap());
    let memcached = PidFd::open(stage.server.pid()).unwrap();
    let set_epolls = |params: EpollParams| {
        let files = ProcRoot::default().process(memcached.pid()).fds().unwrap();
        for epoll in files.iter().filter(|file| file.kind == FdKind::Epoll) {
            epoll_params::set(memcached.duplicate(epoll.number).unwrap(), params).unwrap();
        }
    };
    let over = AtomicBool::new(false);
    let reported = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut lines = stderr.lines().map(|line| line.unwrap());
            // Neither the values of before, which the follower would take for a new epoll, nor those of the mode.
            set_epolls(EpollParams { busy_poll_usecs: 0, busy_poll_budget: 5, prefer_busy_poll: false });
            let stopped = lines.any(|line| {
                line.contains("server0 rx")
                    && line.contains(": not in effect: none of")
                    && line.contains(" does not busy poll; set the mode again: `quell ")
            });
            set_epolls(EpollParams { busy_poll_usecs: 0, busy_poll_budget: 64, prefer_busy_poll: true });
            let started = lines.any(|line| line.contains("server0 rx") && line.contains(": in effect again: "));
            over.store(true, Ordering::Relaxed);
            lines.for_each(drop);
            (stopped, started)
        });
        let deadline = Instant::now() + 3 * ARRIVES_WITHIN;
        while !over.load(Ordering::Relaxed) && Instant::now() < deadline {
            stage.answers();
        }
        PidFd::open(Pid::from_kernel(follower.id()).unwrap()).unwrap().signal(Signal::TERM).unwrap();
        reader.join().unwrap()
    });
    assert_eq!(reported, (true, true));
    follower.wait().unwrap();
    stage.assert_back();
}

#[test]
fn detach_ends_a_follower() {
    let Some(stage) = Stage::enter("cli-f-det") else { return };
    let mut follower = stage.follow();
    assert!(stage.says(0, &["detach", &stage.pid()]).contains("restored"));
    assert!(follower.wait().unwrap().success());
    stage.assert_back();
}

#[test]
fn a_follower_ends_with_its_program() {
    let Some(stage) = Stage::enter("cli-f-end") else { return };
    let mut follower = stage.follow();
    PidFd::open(stage.server.pid()).unwrap().signal(Signal::KILL).unwrap();
    assert!(follower.wait().unwrap().success());
    stage.assert_back();
}

#[test]
fn the_keeper_restores_when_a_follower_is_killed() {
    let Some(mut stage) = Stage::enter("cli-f-kill") else { return };
    let mut follower = stage.follow();
    follower.kill().unwrap();
    follower.wait().unwrap();
    stage.assert_back();
    stage.answers();
}

#[test]
fn an_attachment_stays_if_its_report_cannot_be_written() {
    let Some(stage) = Stage::enter("cli-full") else { return };
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = stage.quell(&["attach", MODE, &stage.pid(), "--yes", "--json"]);
    let said = command.stdout(full()).output().unwrap();
    let text = String::from_utf8(said.stderr).unwrap();
    assert_eq!(said.status.code(), Some(2), "{text}");
    assert!(text.contains("No space left on device") && text.contains("the mode stays applied"), "{text}");
    assert!(stage.is_set() && stage.says(0, &["status"]).contains(MODE));
    stage.says(0, &["detach", &stage.pid()]);
    stage.assert_back();
}

#[test]
fn detach_without_a_pid_lists_the_attachments_and_asks() {
    let Some(stage) = Stage::enter("cli-ask") else { return };
    stage.says(0, &["attach", MODE, &stage.pid(), "--yes", "--seconds", "0"]);
    let asked = stage.says(1, &["detach"]);
    assert!(asked.contains(&format!("memcached {} ({MODE})", stage.pid())) && asked.contains("--all"), "{asked}");
    assert!(stage.is_set());
    assert!(stage.says(0, &["detach", "--all"]).contains("restored"));
    stage.assert_back();
}

#[test]
fn detach_of_a_pid_ignores_leftovers_of_another_killed_keeper() {
    let Some(stage) = Stage::enter("cli-orphan") else { return };
    stage.says(0, &["attach", MODE, &stage.pid(), "--yes", "--seconds", "0"]);
    kill(&stage.keeper());
    assert!(stage.says(1, &["detach", "1"]).contains("process 1 is not attached;"));
    assert!(stage.is_set() && stage.says(3, &["status"]).contains("left by an earlier run"));
    assert!(stage.says(0, &["detach", &stage.pid()]).contains("restored"));
    stage.assert_back();
}

#[test]
fn selecting_every_process_needs_an_option() {
    let Some(stage) = Stage::enter("cli-every") else { return };
    for programs in [&["1"][..], &[&stage.pid(), "1"], &["--cgroup", "/"], &["--cgroup", "/sys/fs/cgroup"]] {
        let said = stage.says(1, &[&["attach", "base", "--dry-run"], programs].concat());
        // Some machines have no cgroups.
        assert!(said.contains("--all-processes") || said.contains("no cgroup"), "{programs:?}: {said}");
    }
    let all = stage.quell(&["attach", MODE, "1", "--dry-run", "--all-processes"]).output().unwrap();
    assert!(!String::from_utf8_lossy(&all.stderr).contains("--all-processes"), "{all:?}");
}
