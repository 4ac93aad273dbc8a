//! Runs `quell tune --pid` on memcached with live traffic. Each test checks that the queues and epolls are restored.

use std::time::{Duration, Instant};

use quell_linux::pidfd::Signal;
use quell_linux::process::Child;
use quell_mode::PartialNapiSettings;

use crate::stage::{Stage, end};

const LONG: &[&str] = &["--goal=least cpu", "--budget=600s", "--yes"];

/// Pause of the client after each request. Its rate depends little on the mode and on other programs.
const PAUSE: Duration = Duration::from_millis(2);

fn enter(test: &str) -> Option<Stage> {
    Stage::enter_with(test, PAUSE)
}

fn start(stage: &Stage, options: &[&str]) -> Child {
    let file = stage.file();
    let slice = if options.iter().any(|option| option.starts_with("--slice")) { &[][..] } else { &["--slice=50"] };
    let fixed = ["tune", "--settle=5", "--seed=1", "--result", file.to_str().unwrap()];
    stage.start(&[&fixed[..], slice, options].concat())
}

fn run(stage: &Stage, options: &[&str]) -> (Option<i32>, String, String) {
    end(start(stage, options))
}

/// A command that measures a latency of 5 ms while the server's queue is suspended, and of 100 µs otherwise.
fn suspension_is_slow(stage: &Stage) -> String {
    latency(stage, "echo p99-us 5000", "echo p99-us 100")
}

fn latency(stage: &Stage, suspended: &str, otherwise: &str) -> String {
    let (quell, netns) = (env!("CARGO_BIN_EXE_quell"), &stage.lab.server_name);
    let is_suspended = format!("{quell} show -j --netns {netns} | grep -Eq \"irq-suspend-timeout.*[1-9]\"");
    format!("--latency=sh -c 'if {is_suspended}; then {suspended}; else {otherwise}; fi'")
}

#[test]
fn a_search_under_live_traffic_answers_and_restores() {
    let Some(stage) = enter("tp-live") else { return };
    let (code, stdout, stderr) = run(&stage, &["--goal=least cpu", "--budget=9s", "--yes"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("live traffic") && !stdout.contains("NOT A MEASUREMENT"), "{stdout}");
    assert_eq!(stage.result()["search"]["end"]["kind"], "answered", "{stdout}");
    assert_eq!(stage.result()["search"]["plan"]["present"], "base");
    stage.assert_as_before();
}

#[test]
fn a_plan_is_printed_without_any_change() {
    let Some(stage) = enter("tp-plan") else { return };
    let (code, stdout, stderr) = run(&stage, &["--goal=least cpu", "--dry-run"]);
    assert_eq!(code, Some(0), "{stderr}");
    for said in ["memcached", "1 queue", "suspend", "at most 180 s", "restored"] {
        assert!(stdout.contains(said), "no {said:?} in {stdout}");
    }
    assert!(!stage.file().exists());
    stage.assert_as_before();
}

#[test]
fn without_a_terminal_a_search_needs_yes() {
    let Some(stage) = enter("tp-ask") else { return };
    let (code, _, stderr) = run(&stage, &["--goal=least cpu"]);
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("nothing was changed (in scripts, use --yes)"), "{stderr}");
    stage.assert_as_before();
}

#[test]
fn settings_of_the_operator_are_the_present_setting_and_are_restored() {
    let Some(mut stage) = enter("tp-own") else { return };
    let own = PartialNapiSettings {
        defer_hard_irqs: Some(3),
        gro_flush_timeout_ns: Some(123_000),
        ..PartialNapiSettings::default()
    };
    stage.lab.set_napi(&own);
    stage.begin_here();
    let (code, _, stderr) = run(&stage, &["--goal=least cpu", "--budget=9s", "--yes"]);
    assert_eq!(code, Some(0), "{stderr}");
    let present = "base,defer-hard-irqs=3,gro-flush-timeout=123us";
    assert_eq!(stage.result()["search"]["plan"]["present"], present);
    stage.assert_as_before();
}

#[test]
fn the_mode_with_the_lower_latency_is_found_written_to_a_profile_and_kept() {
    let Some(stage) = enter("tp-keep") else { return };
    let profile = stage.dir.path().join("found.toml");
    let latency = latency(&stage, "echo p99-us 100", "echo p99-us 5000");
    let options = ["--goal=lowest p99", "--budget=60s", "--slice=20", "--yes", "--keep", "--profile"];
    let (code, stdout, stderr) = run(&stage, &[&options[..], &[profile.to_str().unwrap(), &latency]].concat());
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.starts_with("memcached") && stdout.contains("is better than base"), "{stdout}");
    let text = std::fs::read_to_string(&profile).unwrap();
    assert!(text.contains("mode = \"suspend"), "{text}");
    assert!(stage.lab.napi().settings.irq_suspend_timeout_ns.is_some_and(|timeout| timeout > 0), "{stderr}");
    let quell = |command: &[&str]| {
        let (code, stdout, stderr) = end(stage.start_without_pid(command));
        assert_eq!(code, Some(0), "{command:?}: {stderr}");
        stdout + &stderr
    };
    let suspends = || stage.lab.napi().settings.irq_suspend_timeout_ns.is_some_and(|timeout| timeout > 0);
    let (pid, netns, file) =
        (stage.server.pid().to_string(), stage.lab.server_name.as_str(), profile.to_str().unwrap());
    quell(&["detach", &pid]);
    stage.assert_as_before();
    // The other commands use the same file: for the program, and for the queues alone.
    quell(&["attach", "--profile", file, &pid, "--yes", "--seconds=0"]);
    assert!(suspends());
    quell(&["detach", &pid]);
    stage.assert_as_before();
    let said = quell(&["apply", "--netns", netns, file]);
    assert!(said.contains("the [program] table of") && suspends(), "{said}");
    quell(&["revert"]);
    stage.assert_as_before();
}

#[test]
fn a_mode_that_violates_a_guard_is_abandoned_and_not_set_again() {
    let Some(stage) = enter("tp-guard") else { return };
    let options = ["--goal=least cpu", "--budget=20s", "--never=p99>1ms", "--yes", &suspension_is_slow(&stage)];
    let (code, stdout, stderr) = run(&stage, &options);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("abandoned: p99>1000us"), "{stdout}");
    let result = stage.result();
    let arms = result["search"]["arms"].as_array().unwrap();
    let suspended: Vec<_> = arms.iter().filter(|arm| arm["mode"].as_str().unwrap().starts_with("suspend")).collect();
    assert!(!suspended.is_empty());
    for arm in suspended {
        assert_eq!((&arm["state"]["kind"], &arm["slices"]), (&"violated-guard".into(), &0.into()), "{arm}");
    }
    stage.assert_as_before();
}

#[test]
#[ignore = "takes minutes; run with --ignored --nocapture"]
fn figures_of_how_long_a_mode_that_violates_a_guard_is_set() {
    let Some(stage) = enter("tp-left") else { return };
    let mut set_ms: Vec<u128> = Vec::new();
    while set_ms.len() < 20 {
        let guard = "--never=p99>1ms";
        let mut quell =
            start(&stage, &["--goal=least cpu", "--budget=20s", guard, "--yes", &suspension_is_slow(&stage)]);
        // Each suspending mode has another gro-flush-timeout. The queue is watched until the search ends.
        let mut since: Option<(Instant, Option<u64>)> = None;
        while quell.wait(Duration::from_millis(1)).unwrap().is_none() {
            let now = stage.lab.napi().settings;
            let suspended = now.irq_suspend_timeout_ns.is_some_and(|ns| ns > 0).then_some(now.gro_flush_timeout_ns);
            if since.map(|(_, mode)| mode) != suspended {
                set_ms.extend(since.map(|(began, _)| began.elapsed().as_millis()));
                since = suspended.map(|mode| (Instant::now(), mode));
            }
        }
        let (code, _, stderr) = end(quell);
        assert_eq!(code, Some(0), "{stderr}");
        stage.assert_as_before();
    }
    println!("modes that violate a guard were set for {set_ms:?} ms");
    let in_time = set_ms.iter().filter(|ms| **ms < 1_000).count();
    println!("{in_time} of {} were left within a second", set_ms.len());
}

#[test]
fn a_guard_that_cannot_be_read_ends_the_search() {
    let Some(stage) = enter("tp-blind") else { return };
    let (code, _, stderr) = run(&stage, &[LONG, &["--never=errors"]].concat());
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains("the guard errors cannot be read, so nothing protects the server"), "{stderr}");
    stage.assert_as_before();
}

#[test]
fn slices_that_are_too_long_for_a_guard_are_refused() {
    let Some(stage) = enter("tp-slow") else { return };
    let (code, _, stderr) = run(&stage, &[LONG, &["--never=drops>100", "--slice=1000"]].concat());
    assert_eq!(code, Some(1), "{stderr}");
    assert!(stderr.contains("can take at most 899 ms together; they take 1005 ms"), "{stderr}");
    stage.assert_as_before();
}

#[test]
fn a_latency_command_that_hangs_ends_the_search() {
    let Some(stage) = enter("tp-hang") else { return };
    let hangs = latency(&stage, "sleep 1000", "echo p99-us 100");
    let (code, _, stderr) = run(&stage, &[LONG, &["--never=p99>1ms", &hangs]].concat());
    assert_eq!(code, Some(4), "{stderr}");
    assert!(stderr.contains("did not exit within") && stderr.contains("all settings were restored"), "{stderr}");
    stage.assert_as_before();
}

#[test]
fn a_load_that_vanishes_ends_the_search() {
    let Some(mut stage) = enter("tp-gone") else { return };
    let quell = start(&stage, LONG);
    stage.wait_until_slices_of_the_present_setting_were_measured();
    stage.stop_clients();
    let (code, _, stderr) = end(quell);
    assert_eq!(code, Some(4), "{stderr}");
    assert!(stderr.contains("has vanished; all settings were restored"), "{stderr}");
    stage.assert_as_before();
}

#[test]
fn a_load_that_doubles_ends_the_search() {
    let Some(mut stage) = enter("tp-double") else { return };
    let quell = start(&stage, LONG);
    stage.wait_until_slices_of_the_present_setting_were_measured();
    stage.add_client(PAUSE);
    stage.add_client(PAUSE);
    let (code, _, stderr) = end(quell);
    assert_eq!(code, Some(4), "{stderr}");
    assert!(stderr.contains("so modes cannot be compared; all settings were restored"), "{stderr}");
    stage.assert_as_before();
}

#[test]
fn a_setting_that_another_program_changes_ends_the_search() {
    let Some(stage) = enter("tp-other") else { return };
    let quell = start(&stage, LONG);
    stage.wait_until_switched();
    let foreign = PartialNapiSettings { gro_flush_timeout_ns: Some(7_777_000), ..PartialNapiSettings::default() };
    stage.lab.set_napi(&foreign);
    let (code, _, stderr) = end(quell);
    assert_eq!(code, Some(4), "{stderr}");
    assert!(stderr.contains("another program has changed NAPI"), "{stderr}");
    // The value of the other program stays.
    assert_eq!(stage.lab.napi().settings.gro_flush_timeout_ns, Some(7_777_000));
}

#[test]
fn a_second_search_on_the_same_program_is_refused() {
    let Some(stage) = enter("tp-two") else { return };
    let first = start(&stage, LONG);
    stage.wait_until_switched();
    let (code, _, stderr) = end(stage.start(&[&["tune"], LONG].concat()));
    assert_ne!(code, Some(0));
    assert!(stderr.contains("nothing was changed"), "{stderr}");
    first.pidfd().signal(Signal::INT).unwrap();
    assert_eq!(end(first).0, Some(130));
    stage.assert_as_before();
}

#[test]
fn if_the_server_dies_its_pid_is_reported() {
    let Some(mut stage) = enter("tp-dies") else { return };
    let quell = start(&stage, LONG);
    stage.wait_until_a_slice_was_measured();
    let pid = stage.server.pid();
    stage.server.terminate(Duration::ZERO).unwrap();
    let (code, _, stderr) = end(quell);
    assert_eq!(code, Some(4), "{stderr}");
    assert!(stderr.contains(&format!("process {pid} has exited; all settings were restored")), "{stderr}");
}

#[test]
fn after_kills_at_random_moments_the_keeper_restores_the_server() {
    kill_at_random_moments("tp-kill", 4);
}

#[test]
#[ignore = "takes minutes; run with --ignored"]
fn after_100_kills_at_random_moments_the_keeper_restores_the_server() {
    kill_at_random_moments("tp-kills", 100);
}

fn kill_at_random_moments(test: &str, kills: u64) {
    let Some(stage) = enter(test) else { return };
    for kill in 0..kills {
        let quell = start(&stage, LONG);
        // Up to a second after the start: before, during and after the first slices.
        std::thread::sleep(Duration::from_millis(kill * 617 % 1_000));
        quell.pidfd().signal(Signal::KILL).unwrap();
        let _ = end(quell);
        stage.assert_settings_as_before();
    }
    // A journal that was killed before it had a name has no changes. The next command removes it.
    assert_eq!(end(stage.start_without_pid(&["revert"])).0, Some(0));
    stage.assert_as_before();
}
